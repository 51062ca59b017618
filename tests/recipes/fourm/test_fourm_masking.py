"""Laws of masked batches that hold for all draws."""

import numpy as np
import pytest

from pretrainkit import rng
from pretrainkit.recipes.fourm.config import MaskingConfig
from pretrainkit.recipes.fourm.masking import Contents, Masking
from pretrainkit.recipes.fourm.mixtures import PUBLISHED, Bound, Component
from pretrainkit.recipes.fourm.modality import MOD7, MOD21, published
from pretrainkit.recipes.fourm.sequences import Ragged
from support.fourm_samples import contents_of

FIRST = 5
SENTINELS = frozenset(range(4, 204))
MIX7, MIX21 = "mod7-all2all-rgb2all", "mod21-all2allmix-rgb2all-capT5bias"


def masking(names, mixture, tokens, **settings):
    modalities = [published(name) for name in names]
    components = PUBLISHED[mixture] if isinstance(mixture, str) else mixture
    config = MaskingConfig(num_input_tokens=tokens, num_target_tokens=tokens, mixture=components, **settings)
    return Masking(config, modalities, Bound(components, modalities, names), FIRST)


def draw(names, mixture, tokens, num=96, seed=0, **settings):
    drawn = masking(names, mixture, tokens, **settings)
    contents = contents_of(drawn.modalities, num, seed)
    return drawn.modalities, contents, drawn(contents, rng.fold(seed, np.arange(num)))


def is_real(batch, side):
    return np.arange(batch[f"{side}_ids"].shape[1]) < batch[f"{side}_length"][:, None]


def shares(batch, side, num):
    counts = np.bincount(batch[f"{side}_modality"][is_real(batch, side)], minlength=num)
    return counts / counts.sum()


@pytest.mark.parametrize(("names", "mixture", "tokens"), [(MOD7, MIX7, 128), (MOD21, MIX21, 256)])
@pytest.mark.parametrize("unused", ["pack", "pad"])
def test_images_are_divided_and_slots_are_in_order(names, mixture, tokens, unused):
    modalities, contents, batch = draw(names, mixture, tokens, unused=unused)
    for side in ("encoder", "decoder"):
        real = is_real(batch, side)
        for name, values in batch.items():
            if name.startswith(side) and values.ndim == 2:
                assert not values[~real].any()
        order = batch[f"{side}_segment"].astype(np.int64) * 1000 + batch[f"{side}_modality"]
        assert (np.diff(order, axis=1) >= 0)[real[:, 1:]].all()
    for row in range(contents.num):
        for segment in range(int(batch["encoder_segment"][row].max()) + 1):
            for number, modality in enumerate(modalities):
                if modality.kind not in ("image", "pixels"):
                    continue
                places = {}
                for side in ("encoder", "decoder"):
                    own = is_real(batch, side)[row] & (batch[f"{side}_segment"][row] == segment)
                    own &= batch[f"{side}_modality"][row] == number
                    places[side] = batch[f"{side}_position"][row, own]
                    ids = batch["encoder_ids" if side == "encoder" else "decoder_target"][row, own]
                    if modality.kind == "image":
                        assert (ids == contents.images[number][row, places[side]]).all()
                    else:
                        assert (ids == places[side]).all()
                assert not set(places["encoder"]) & set(places["decoder"])
                assert len(places["encoder"]) + len(places["decoder"]) <= modality.max_tokens
                assert (np.diff(places["encoder"]) > 0).all()


def test_tokens_of_a_modality_of_a_segment_are_adjacent_and_those_of_images_read_nothing():
    modalities, _, batch = draw(MOD21, MIX21, 256)
    rows, slots = np.nonzero(is_real(batch, "decoder"))
    numbers = [batch[f"decoder_{name}"][rows, slots].astype(np.int64) for name in ("segment", "modality")]
    runs = np.stack([rows, *numbers])
    num_runs = 1 + (runs[:, 1:] != runs[:, :-1]).any(axis=0).sum()
    assert num_runs == len(np.unique(runs, axis=1).T)
    is_text = np.array([modality.kind == "sequence" for modality in modalities])[batch["decoder_modality"][rows, slots]]
    assert (batch["decoder_ids"][rows, slots][~is_text] == 0).all()


def test_sequences_are_distinguished_by_the_token_before():
    """Inputs and targets of a segment contain the complete sequence if there are no limits, and positions count visible
    tokens."""
    mixture = [Component(inputs={"caption": 1.0}, targets={"caption": 1.0})]
    drawn = masking(("caption",), mixture, 128)
    lengths = np.array([12, 30, 5])
    ids = (5000 + np.arange(47)).astype(np.int32)
    batch = drawn(Contents(3, {}, {0: Ragged(ids, lengths)}), rng.fold(0, np.arange(3)))
    start = 0
    for row, length in enumerate(lengths.tolist()):
        own = is_real(batch, "encoder")[row] & (batch["encoder_segment"][row] == 0)
        asked = is_real(batch, "decoder")[row] & (batch["decoder_segment"][row] == 0)
        inputs, before = batch["encoder_ids"][row, own], batch["decoder_ids"][row, asked]
        targets = batch["decoder_target"][row, asked]
        assert batch["encoder_position"][row, own].tolist() == list(range(own.sum()))
        assert batch["decoder_position"][row, asked].tolist() == list(range(asked.sum()))
        assert before[1:].tolist() == targets[:-1].tolist()
        behind, run = {}, []
        for token in [int(before[0]), *targets.tolist()]:
            if token in SENTINELS:
                run = behind[token] = []
            else:
                run.append(token)
        merged = [found for token in inputs.tolist() for found in behind.get(token, [token])]
        assert merged == ids[start : start + length].tolist()
        start += length


@pytest.mark.parametrize(("names", "mixture", "tokens", "least"), [(MOD7, MIX7, 128, 0.97), (MOD21, MIX21, 256, 0.97)])
def test_packing_fills_the_slots_and_keeps_the_shares(names, mixture, tokens, least):
    modalities, _, padded = draw(names, mixture, tokens, num=768, unused="pad")
    _, _, packed = draw(names, mixture, tokens, num=768, unused="pack")
    assert packed["encoder_length"].mean() > least * tokens
    assert packed["decoder_length"].mean() > padded["decoder_length"].mean()
    for side in ("encoder", "decoder"):
        gap = np.abs(shares(packed, side, len(modalities)) - shares(padded, side, len(modalities)))
        assert gap.max() < 0.025  # of which sampling is about half


def test_padding_fills_as_much_as_the_original():
    """The original fills 162 and 187 of 256 slots with 21 modalities, 118 and 110 of 128 with 7. With 21 modalities it
    loses 11 target tokens to an input that cannot be a target."""
    _, _, batch = draw(MOD21, MIX21, 256, num=768, unused="pad")
    assert batch["encoder_length"].mean() == pytest.approx(162, abs=8)
    assert batch["decoder_length"].mean() == pytest.approx(187 + 11, abs=8)
    _, _, batch = draw(MOD7, MIX7, 128, num=768, unused="pad")
    assert batch["encoder_length"].mean() == pytest.approx(118, abs=4)
    assert batch["decoder_length"].mean() == pytest.approx(110, abs=5)


def test_the_first_segment_of_a_packed_row_has_the_inputs_of_a_padded_one():
    _, _, packed = draw(MOD21, MIX21, 256)
    _, _, padded = draw(MOD21, MIX21, 256, unused="pad")
    for row, length in enumerate(padded["encoder_length"].tolist()):
        assert packed["encoder_ids"][row, :length].tolist() == padded["encoder_ids"][row, :length].tolist()
        assert not packed["encoder_segment"][row, :length].any()


def test_a_sample_is_masked_the_same_alone_and_in_any_batch():
    drawn = masking(MOD21, MIX21, 128)
    contents = contents_of(drawn.modalities, 12)
    keys = rng.fold(9, np.arange(12))
    whole = drawn(contents, keys)
    rows = np.array([7, 2, 11])
    some = Contents(
        3,
        {number: ids[rows] for number, ids in contents.images.items()},
        {number: ragged.take(rows) for number, ragged in contents.sequences.items()},
    )
    part = drawn(some, keys[rows])
    for name, values in part.items():
        assert (values == whole[name][rows]).all(), name


def test_other_keys_give_other_masks():
    drawn = masking(MOD7, MIX7, 128)
    contents = contents_of(drawn.modalities, 8)
    first, second = (drawn(contents, rng.fold(seed, np.arange(8))) for seed in (0, 1))
    assert (first["encoder_position"] != second["encoder_position"]).any(axis=1).all()


def test_budgets_may_be_drawn_from_a_range():
    mixture = [Component(inputs={"tok_rgb": 1.0}, targets={"tok_rgb": 1.0})]
    _, _, batch = draw(("tok_rgb@224",), mixture, 90, num=400, min_input_tokens=30, min_target_tokens=60, unused="pad")
    assert (batch["encoder_length"].min(), batch["encoder_length"].max()) == (30, 90)
    assert (batch["decoder_length"].min(), batch["decoder_length"].max()) == (60, 90)
    assert batch["encoder_length"].mean() == pytest.approx(60, abs=3)


def test_segments_of_encoder_and_decoder_are_the_same_ones_without_gaps():
    _, _, batch = draw(MOD21, MIX21, 256)
    for row in range(len(batch["encoder_length"])):
        numbers = [
            np.unique(batch[f"{side}_segment"][row, : batch[f"{side}_length"][row]]).tolist()
            for side in ("encoder", "decoder")
        ]
        assert numbers[0] == numbers[1] == list(range(len(numbers[0])))


@pytest.mark.parametrize("unused", ["pad", "pack"])
def test_a_single_slot_is_filled(unused):
    _, _, batch = draw(MOD7, MIX7, 1, unused=unused)
    assert batch["encoder_length"].max() == batch["decoder_length"].max() == 1


def test_a_sample_without_any_token_takes_no_slot():
    drawn = masking(("caption",), [Component()], 16)
    contents = Contents(2, {}, {0: Ragged(np.array([7, 8, 9], np.int32), np.array([0, 3]))})
    batch = drawn(contents, rng.fold(0, np.arange(2)))
    assert batch["encoder_length"][0] == batch["decoder_length"][0] == 0
    assert batch["encoder_length"][1] > 0


def test_over_long_targets_start_counting_again_at_position_0():
    modality = published("human_poses")
    drawn = Masking(
        MaskingConfig(num_input_tokens=4, num_target_tokens=300, mixture=(Component(),), unused="pad"),
        [modality],
        Bound([Component()], [modality], ["human_poses"]),
        FIRST,
    )
    num = 8
    ragged = Ragged(np.tile(np.arange(5000, 5275, dtype=np.int32), num), np.full(num, 275))
    batch = drawn(Contents(num, {}, {0: ragged}), rng.fold(0, np.arange(num)))
    long = np.flatnonzero(batch["decoder_length"] > 263)
    assert len(long)
    for row in long.tolist():
        positions = batch["decoder_position"][row, : batch["decoder_length"][row]]
        assert positions[:263].tolist() == list(range(263))
        assert not positions[263:].any()


def test_ragged_sequences_are_taken_by_row():
    ragged = Ragged(np.arange(6, dtype=np.int32), np.array([1, 0, 3, 2]))
    taken = ragged.take(np.array([3, 0, 2, 1]))
    assert taken.ids_F.tolist() == [4, 5, 0, 1, 2, 3]
    assert taken.length_R.tolist() == [2, 1, 3, 0]
