"""Chains of targets: equal to slow implementations for all batches; guidance; passes of the encoder."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from pretrainkit.recipes.fourm.batch import with_places
from pretrainkit.recipes.fourm.generation.examples import Known, encoder_rows
from pretrainkit.recipes.fourm.generation.plan import GenerationPlan, TargetConfig
from pretrainkit.recipes.fourm.generation.sampler import Sampler, TokenByToken, guided
from pretrainkit.recipes.fourm.inputs import read_batch
from pretrainkit.recipes.fourm.model import FourM, build
from pretrainkit.recipes.fourm.sequences import merge_spans
from support.fourm_batches import CAPTION, DEPTH, GLOBAL, MODALITIES, RGB, VECTORS, small

EOS, SENTINELS = 3, tuple(range(4, 12))
EXAMPLES = [7, 8, 9]


class Vocabulary:
    """Vocabulary with the attributes that the sampler reads."""

    eos, sentinels = EOS, SENTINELS

    def merge(self, input_ids: np.ndarray, target_ids: np.ndarray) -> np.ndarray:
        return merge_spans(input_ids, target_ids, frozenset(SENTINELS))


def make_model(**changes: object) -> FourM:
    torch.manual_seed(0)
    model = build(small(**changes)).eval().double()
    for parameter in model.parameters():
        parameter.data.add_(torch.randn_like(parameter), alpha=0.3)
    return model


@pytest.fixture(scope="module")
def model() -> FourM:
    return make_model()


def sampler_of(model: FourM) -> Sampler:
    return Sampler(model, model.config.modalities, Vocabulary())  # type: ignore[arg-type]


def given(num: int = 3) -> Known:
    rng = np.random.default_rng(0)
    return Known(
        num,
        {
            RGB.name: [rng.integers(0, 256, (3, 32, 32), dtype=np.uint8) for _ in range(num)],
            VECTORS.name: [rng.normal(size=(n + 1, 9)).astype(np.float32) for n in range(num)],
        },
    )


def run(model: FourM, *targets: TargetConfig, known: Known | None = None, **plan: object) -> Known:
    return sampler_of(model).run(
        GenerationPlan(targets=targets, **plan),
        given() if known is None else known,
        EXAMPLES,
        [RGB.name, VECTORS.name],
    )


def image(modality: object = DEPTH, **settings: object) -> TargetConfig:
    return TargetConfig(modality=modality.name, **settings)  # type: ignore[attr-defined]


def logits_of(model: FourM, known: Known, row: int, places: Sequence[int], hidden: Sequence[str] = ()) -> torch.Tensor:
    """Return logits at patches of `DEPTH`, from a batch with one row in the form of training."""
    number = MODALITIES.index(DEPTH)
    batch = encoder_rows(known, [row], [frozenset(hidden)], MODALITIES, SENTINELS[1])
    num = len(places)
    batch |= {
        "decoder_length": np.array([num], np.int32),
        "decoder_position": np.array([list(places)], np.int32),
        "decoder_modality": np.full((1, num), number, np.uint8),
        "decoder_segment": np.zeros((1, num), np.uint8),
        "decoder_ids": np.zeros((1, num), np.int32),
        "decoder_target": np.zeros((1, num), np.int32),
    }
    tensors = {name: torch.from_numpy(values) for name, values in with_places(batch, MODALITIES).items()}
    tensors = {name: value.double() if value.is_floating_point() else value for name, value in tensors.items()}
    inputs = read_batch(tensors, model.config)
    with torch.no_grad():
        embedded, place = model.embed(inputs)
        context = model.context(model.encode(embedded, inputs)) + place
        return model.logits(DEPTH.name, model.decode(context, inputs)[DEPTH.name])


@pytest.mark.parametrize(
    "changes",
    [{}, {"query_key_norm": True}, {"num_registers": 2}, {"gated": False, "activation": "gelu", "biases": True}],
)
def test_kept_keys_and_values_change_no_logits(changes: dict[str, object]) -> None:
    model, num = make_model(**changes), 4
    known = given()
    known.contents[VECTORS.name][1] = None
    known.contents[RGB.name][1] = None  # an example without known contents
    sampler = sampler_of(model)
    guidance = guided(TargetConfig(modality=CAPTION.name), [])
    text = np.random.default_rng(1).integers(0, 40, (3, num))
    with torch.no_grad():
        fast = TokenByToken(model, CAPTION, *sampler._contexts(known, [0, 1, 2], guidance), num)
        steps = [fast.step(torch.from_numpy(text[:, place])) for place in range(num)]
    for row in range(3):
        batch = encoder_rows(known, [row], [frozenset()], MODALITIES, SENTINELS[1])
        for length in range(1, num + 1):  # computed again for each token, without a cache of keys and values
            own = {name: np.zeros((1, length), np.int32) for name in ("position", "target")}
            batch |= {f"decoder_{name}": values for name, values in own.items()}
            batch["decoder_position"] = np.arange(length, dtype=np.int32)[None]
            batch["decoder_ids"] = text[row : row + 1, :length].astype(np.int32)
            batch["decoder_modality"] = np.full((1, length), MODALITIES.index(CAPTION), np.uint8)
            batch["decoder_segment"] = np.zeros((1, length), np.uint8)
            batch["decoder_length"] = np.array([length], np.int32)
            tensors = {name: torch.from_numpy(values) for name, values in with_places(batch, MODALITIES).items()}
            tensors = {name: value.double() if value.is_floating_point() else value for name, value in tensors.items()}
            inputs = read_batch(tensors, model.config)
            with torch.no_grad():
                embedded, place = model.embed(inputs)
                context = model.context(model.encode(embedded, inputs)) + place
                slow = model.logits(CAPTION.name, model.decode(context, inputs)[CAPTION.name])[-1]
            torch.testing.assert_close(steps[length - 1][row], slow, rtol=1e-4, atol=1e-4)


def test_greedy_places_have_the_most_likely_tokens_of_the_training_model(model: FourM) -> None:
    found = run(model, image(num_steps=1, temperature=0.0)).contents[DEPTH.name]
    for row in range(3):
        logits = logits_of(model, given(), row, range(DEPTH.max_tokens))
        assert found[row].tolist() == logits.argmax(-1).tolist()


def test_one_step_of_either_scheme_gives_the_same_tokens(model: FourM) -> None:
    one = {"num_steps": 1, "temperature": 0.0}
    roar, maskgit = (run(model, image(scheme=scheme, **one)) for scheme in ("roar", "maskgit"))
    assert np.array_equal(roar.contents[DEPTH.name], maskgit.contents[DEPTH.name])


def test_maskgit_commits_the_surest_tokens_first(model: FourM) -> None:
    slow = given()
    places = np.full((3, 16), -1, np.int32)
    slow.contents[DEPTH.name] = list(places)
    for count in (3, 5, 8):
        for row in range(3):
            left = np.flatnonzero(places[row] < 0)
            sure, ids = logits_of(model, slow, row, left).softmax(-1).max(-1)
            chosen = np.argsort(-sure.numpy(), kind="stable")[:count]
            places[row, left[chosen]] = ids.numpy()[chosen]
    fast = run(model, image(scheme="maskgit", schedule=(3, 5, 8), temperature=0.0))
    assert np.array_equal(fast.contents[DEPTH.name], places)


@pytest.mark.parametrize("scheme", ["roar", "maskgit"])
def test_no_place_is_filled_twice_and_none_is_left(model: FourM, scheme: str) -> None:
    known = given()
    before = np.random.default_rng(0).random((3, 16)) < 0.4
    known.contents[DEPTH.name] = list(np.where(before, 23, -1).astype(np.int32))
    found = np.stack(run(model, image(scheme=scheme, num_steps=3), known=known).contents[DEPTH.name])
    assert (found >= 0).all()
    assert (found[before] == 23).all()
    assert (np.stack(known.contents[DEPTH.name]) >= 0).sum() == before.sum()  # the inputs are not changed


def test_results_depend_on_seed_and_example_but_not_on_the_batch(model: FourM) -> None:
    targets = (image(num_steps=3), TargetConfig(modality=CAPTION.name), image(GLOBAL, scheme="maskgit", num_steps=2))
    plan = GenerationPlan(targets=targets)
    together = sampler_of(model).run(plan, given(), EXAMPLES, [])
    for row, example in enumerate(EXAMPLES):
        alone = sampler_of(model).run(plan, given().take([row]), [example], [])
        for name in (DEPTH.name, GLOBAL.name):
            assert np.array_equal(alone.contents[name][0], together.contents[name][row])
        assert np.array_equal(alone.contents[CAPTION.name][0], together.contents[CAPTION.name][row])
    other = run(model, *targets, seed=1)
    assert not np.array_equal(other.contents[DEPTH.name], together.contents[DEPTH.name])


def test_a_target_is_an_input_of_those_behind_it(model: FourM) -> None:
    first = run(model, image(num_steps=2))
    chained = run(model, image(num_steps=2), TargetConfig(modality=CAPTION.name))
    again = given()
    again.contents[DEPTH.name] = first.contents[DEPTH.name]
    apart = run(model, TargetConfig(modality=CAPTION.name), known=again)
    without = run(model, TargetConfig(modality=CAPTION.name))
    for row in range(3):
        assert np.array_equal(chained.contents[CAPTION.name][row], apart.contents[CAPTION.name][row])
    assert any(
        not np.array_equal(chained.contents[CAPTION.name][row], without.contents[CAPTION.name][row]) for row in range(3)
    )


def test_the_encoder_computes_only_changes(model: FourM) -> None:
    def encoded(*targets: TargetConfig) -> int:
        sampler = sampler_of(model)
        sampler.run(GenerationPlan(targets=targets), given(), EXAMPLES, [RGB.name])
        return sampler.num_encoded

    assert encoded(TargetConfig(modality=CAPTION.name)) == 3  # once for a whole text
    assert encoded(image(num_steps=4)) == 3 * 4
    assert encoded(image(num_steps=4, guidance=2.0)) == 2 * 3 * 4
    assert encoded(image(num_steps=4, guidance=1.0, guided_by=(RGB.name,))) == 3 * 4
    unread = DEPTH.model_copy(update={"is_input": False})
    torch.manual_seed(0)
    blind = build(small([RGB, VECTORS, unread, CAPTION])).eval()
    sampler = sampler_of(blind)
    sampler.run(GenerationPlan(targets=(image(num_steps=4),)), given(), EXAMPLES, [])
    assert sampler.num_encoded == 3  # the encoder does not read what is generated


def test_guidance_adds_up_the_logits_of_views(model: FourM) -> None:
    known, places, names = given(), range(16), (RGB.name, VECTORS.name)
    seen, unseen, rgb, vectors = (
        logits_of(model, known, 0, places, hidden) for hidden in ((), names, names[1:], names[:1])
    )
    one = run(model, image(num_steps=1, temperature=0.0, guidance=2.5)).contents[DEPTH.name][0]
    assert one.tolist() == (unseen + 2.5 * (seen - unseen)).argmax(-1).tolist()
    weights = dict(zip(names, (1.5, -0.5), strict=True))
    several = run(model, image(num_steps=1, temperature=0.0, guidance=weights)).contents[DEPTH.name][0]
    assert several.tolist() == (unseen + 1.5 * (rgb - unseen) - 0.5 * (vectors - unseen)).argmax(-1).tolist()


def test_no_guidance_is_one_pass_and_the_result_without_it(model: FourM) -> None:
    plain = run(model, image(num_steps=3))
    for same in ({"guidance": 1.0}, {"guidance": 7.0, "guided_by": ()}):
        target = image(num_steps=3, **same)
        assert guided(target, [RGB.name]) == {frozenset(): 1.0}
        assert np.array_equal(run(model, target).contents[DEPTH.name], plain.contents[DEPTH.name])
    unseen = run(model, image(num_steps=3), known=Known(3, {VECTORS.name: [np.empty((0, 9))] * 3}))
    zero = run(model, image(num_steps=3, guidance=0.0), known=Known(3, {RGB.name: given().contents[RGB.name]}))
    only_pixels = Known(3, {RGB.name: [None] * 3})
    nothing = run(model, image(num_steps=3), known=only_pixels)
    assert np.array_equal(zero.contents[DEPTH.name], nothing.contents[DEPTH.name])
    assert (np.stack(unseen.contents[DEPTH.name]) >= 0).all()


def test_generated_images_join_the_conditions_if_configured(model: FourM) -> None:
    targets = (image(num_steps=1), image(GLOBAL, num_steps=1, guidance=3.0))
    apart, grown = (run(model, *targets, grow_conditions=grow) for grow in (False, True))
    assert not np.array_equal(apart.contents[GLOBAL.name], grown.contents[GLOBAL.name])


def test_a_missing_text_is_a_sentinel_and_ends_at_the_next_one(model: FourM) -> None:
    sampler = sampler_of(model)
    begun = sampler._begun(GenerationPlan(targets=(TargetConfig(modality=CAPTION.name),)), given())
    assert begun.contents[CAPTION.name][0].tolist() == [SENTINELS[1]]  # type: ignore[union-attr]
    for row, found in enumerate(run(model, TargetConfig(modality=CAPTION.name)).contents[CAPTION.name]):
        assert found is not None, row
        assert SENTINELS[1] not in found
        assert SENTINELS[2] not in found
        assert EOS not in found[:-1]


def test_missing_words_of_a_text_are_filled_in_between_the_known_ones(model: FourM) -> None:
    text = np.array([20, SENTINELS[1], 21, EOS], np.int32)
    known = given()
    known.contents[CAPTION.name] = [text, np.array([22, 23, EOS], np.int32), None]
    found = run(model, TargetConfig(modality=CAPTION.name), known=known).contents[CAPTION.name]
    assert found[0] is not None
    assert found[0][0] == 20
    assert SENTINELS[1] not in found[0]
    assert found[1].tolist() == [22, 23, EOS]  # type: ignore[union-attr]
    short = run(model, TargetConfig(modality=CAPTION.name, max_tokens=2)).contents[CAPTION.name]
    assert max(len(one) for one in short if one is not None) == 2
