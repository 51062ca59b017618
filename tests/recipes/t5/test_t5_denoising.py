"""Objectives by name: lengths, sentinels, end marks, and what is refused."""

import numpy as np
import pytest

from pretrainkit.errors import ConfigError
from pretrainkit.recipes.t5.denoising import NAMED, Denoiser, DenoiserConfig, DenoisingConfig, TextIds
from pretrainkit.recipes.t5.ragged import Ragged
from pretrainkit.rng import fold

END = 1
IDS = TextIds(end=END, sentinels=tuple(range(32099, 31999, -1)), text_size=32000, modes={})
LENGTHS = {"iid_denoising": (512, 192), "drop_tokens": (512, 104), "span_corruption": (512, 114)}


def denoisers(name, lengths=None, ids=IDS, **settings):
    input_length, target_length = lengths or LENGTHS.get(name, (512, 512))
    return [Denoiser(one, input_length, target_length, ids) for one in DenoisingConfig(name=name, **settings).all]


def examples(denoiser, num=50, seed=0, length=None):
    size = denoiser.segment_length if length is None else length
    values = np.random.default_rng(seed).integers(3, 32000, num * size).astype(np.int32)
    text = Ragged(values, np.full(num, size))
    return text, *denoiser.examples(text, fold(seed, np.arange(num)))


def test_slots_that_are_reserved_for_packing_stay_free():
    (reserved,) = denoisers("span_corruption", denoisers=({"reserved_for_packing": 128},))
    (smaller,) = denoisers("span_corruption", lengths=(384, 114))
    assert reserved.segment_length == smaller.segment_length
    _, inputs, targets = examples(reserved)
    assert set(inputs.lengths) == {384}
    assert targets.lengths.max() < 114


def test_span_corruption_fills_512_and_114_and_ends_both():
    (denoiser,) = denoisers("span_corruption")
    assert denoiser.segment_length == 568
    _, inputs, targets = examples(denoiser)
    assert set(inputs.lengths) == {512}
    assert set(targets.lengths) == {114}
    for row in range(len(inputs)):
        assert inputs[row][-1] == targets[row][-1] == END
        assert targets[row][0] == 32099
        for side in (inputs[row], targets[row]):
            assert side[side >= 32000].tolist() == list(range(32099, 32099 - 28, -1))


@pytest.mark.parametrize(
    "name",
    ["iid_denoising", "bert_style", "mass_style", "drop_tokens", "deshuffling", "prefix_lm", "lm", "full_lm"],
)
def test_every_objective_keeps_to_its_rows_and_ends_them(name):
    (denoiser,) = denoisers(name)
    text, inputs, targets = examples(denoiser)
    assert targets.lengths.max() <= denoiser.target_length
    ends = [targets[row][-1] == END for row in range(len(targets))]
    assert all(ends) == (name != "full_lm")
    if inputs is None:
        assert name in ("lm", "full_lm")
        assert denoiser.segment_length == (511 if name == "lm" else 512)
        np.testing.assert_array_equal(targets[3][:511], text[3][:511])
        return
    assert inputs.lengths.max() <= 512
    assert all(inputs[row][-1] == END for row in range(len(inputs)))


def test_full_targets_are_the_text_and_deshuffled_inputs_have_its_tokens():
    for name in ("bert_style", "mass_style", "deshuffling"):
        (denoiser,) = denoisers(name)
        text, inputs, targets = examples(denoiser)
        np.testing.assert_array_equal(targets[5][:-1], text[5])
        assert inputs.lengths.tolist() == targets.lengths.tolist()
    np.testing.assert_array_equal(np.sort(inputs[5][:-1]), np.sort(text[5]))


def test_prefix_and_rest_are_the_text():
    (denoiser,) = denoisers("prefix_lm")
    text, inputs, targets = examples(denoiser)
    for row in range(len(text)):
        np.testing.assert_array_equal(np.concatenate([inputs[row][:-1], targets[row][:-1]]), text[row])


def test_ul2_has_seven_denoisers_each_with_its_length_and_its_mode():
    modes = {"R": (7, 8), "X": (9,), "S": (10,)}
    sentinels = tuple(range(32299, 31999, -1))
    ids = TextIds(end=END, sentinels=sentinels, text_size=32000, modes=modes)
    found = denoisers("ul2", ids=ids)
    assert [one.config.mode for one in found] == ["R", "R", "X", "X", "X", "X", "S"]
    assert [one.config.rate for one in found] == [1.0] * 7
    for one in found:
        _, inputs, targets = examples(one)
        before = modes[one.config.mode]
        assert tuple(inputs[0][: len(before)]) == before
        assert inputs.lengths.max() <= 512
        assert targets.lengths.max() <= 512
    share = examples(found[-1], num=400)[2].lengths.mean() / found[-1].segment_length
    assert abs(share - 0.25) < 0.02
    with pytest.raises(ConfigError, match="needs 128 sentinels"):
        denoisers("ul2")
    rates = [one.rate for one in NAMED["ul2r"]]
    assert (rates[0], sum(rates[1:3]), rates[3]) == (0.25, 0.25, 0.5)


def test_too_short_targets_and_too_few_sentinels_are_refused_with_sufficient_numbers():
    with pytest.raises(ConfigError, match=r"data\.target_length=114"):
        denoisers("span_corruption", (512, 113))
    with pytest.raises(ConfigError, match="needs 128 sentinels"):
        denoisers("span_corruption", (512, 512), noise_density=0.5)
    with pytest.raises(ConfigError, match=r"data\.target_length=512"):
        denoisers("bert_style", (512, 114))


def test_rolled_spans_lose_no_token():
    (denoiser,) = denoisers("span_corruption", random_roll=True, lengths=(64, 20))
    text, inputs, targets = examples(denoiser, num=300)
    num_text = (inputs.values < 32000).sum() + (targets.values < 32000).sum() - 2 * len(text)
    assert num_text == len(text.values)


def test_iid_noise_beyond_the_sentinels_is_left_alone():
    ids = TextIds(end=END, sentinels=tuple(range(32019, 31999, -1)), text_size=32000, modes={})
    denoiser = Denoiser(DenoiserConfig(mask="iid"), 128, 64, ids)
    _, inputs, targets = examples(denoiser, num=400)
    assert max((inputs[row] >= 32000).sum() for row in range(400)) == 19
    assert max((targets[row] >= 32000).sum() for row in range(400)) <= 20


@pytest.mark.parametrize("name", ["span_corruption", "ul2r", "lm", "iid_denoising"])
def test_lengths_are_bounded_before_anything_is_drawn(name):
    sentinels = tuple(range(32299, 31999, -1))
    ids = TextIds(end=END, sentinels=sentinels, text_size=32000, modes={"R": (5, 6)})
    for denoiser in denoisers(name, ids=ids):
        for length in (2, 17, denoiser.segment_length):
            text, inputs, targets = examples(denoiser, length=length)
            total = targets.lengths + (0 if inputs is None else inputs.lengths)
            bound = denoiser.most_tokens(text.lengths)
            assert (total <= bound).all()
            if name == "span_corruption":
                assert (total == bound).all()


@pytest.mark.parametrize("input_length", [16, 33, 64, 100, 257])
def test_planned_segments_lose_no_token_whatever_the_spans(input_length):
    for mean in (3.0, 8.0, 64.0):
        for density in (0.1, 0.15, 0.5):
            denoiser = Denoiser(
                DenoiserConfig(noise_density=density, mean_span_length=mean, mode="R"),
                input_length,
                2 * input_length,
                TextIds(end=END, sentinels=tuple(range(32299, 31999, -1)), text_size=32000, modes={"R": (5, 6)}),
            )
            text, inputs, targets = examples(denoiser, num=7)
            num_text = (inputs.values < 32000).sum() + (targets.values < 32000).sum() - 4 * len(text)
            assert num_text == len(text.values)
            assert inputs.lengths.max() <= input_length


@pytest.mark.parametrize("length", [128, 127, 66, 65, 64, 63, 2, 1])
def test_pairs_fill_a_row_on_both_sides_and_give_back_the_text(length):
    (denoiser,) = denoisers("packed_prefix_lm", (64, 64))
    assert denoiser.segment_length == 128
    text, inputs, targets = examples(denoiser, num=300, length=length)
    assert len(inputs) == len(targets) == 600
    restored = [np.concatenate([inputs[row], targets[row]]) for row in range(600)]
    np.testing.assert_array_equal(np.concatenate(restored), text.values)
    for side in (inputs, targets):
        together = side.lengths.reshape(-1, 2).sum(1)
        assert together.max() <= 64
        if length == 128:
            assert (together == 64).all()
    if length == 128:
        assert set(range(1, 64)) == set(inputs.lengths[0::2].tolist())


def test_pairs_are_for_prefix_language_models_alone():
    with pytest.raises(ValueError, match="pairs=true needs mask=suffix"):
        DenoiserConfig(pairs=True)
