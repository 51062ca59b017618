"""Answers and scores of examples: independent of batches, and those of the whole model."""

import numpy as np
import pytest
import torch
from test_t5_decode import ends, whole_logits

from pretrainkit.errors import InputError
from pretrainkit.recipes.t5.decode import beam_search, sample
from pretrainkit.recipes.t5.decoding_config import DecodingConfig, decoding_of
from pretrainkit.recipes.t5.predictor import Predictor
from support.t5_batches import model_config, random_model, run_config

GREEDY, BEAM = DecodingConfig(max_length=7), DecodingConfig(method="beam", num_beams=3, max_length=7)
DRAWS = DecodingConfig(method="sample", temperature=2.0, top_p=0.9, max_length=7, seed=3)


def examples(num=11, seed=0):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 9, (num, 2))
    return [{"inputs": rng.integers(2, 96, a), "targets": np.append(rng.integers(2, 96, b), 1)} for a, b in lengths]


def predictor(family="1.1", decoding=GREEDY, model=None, **settings):
    config = model_config(family)
    model = model or random_model(config)
    if model.logits is not None:
        ends(model, 3.0)
    return Predictor(run_config(config), model, decoding, **settings)


@pytest.mark.parametrize("family", ["1.1", "lm"])
@pytest.mark.parametrize("decoding", [GREEDY, BEAM, DRAWS], ids=lambda one: one.method)
def test_answers_do_not_depend_on_batches_or_on_other_examples(family, decoding):
    made = [predictor(family, decoding, batch_size=size).predict(examples()) for size in (1, 4, 64)]
    made.append(predictor(family, decoding).predict(examples()[::-1])[::-1])
    made.append([predictor(family, decoding).predict([one])[0] for one in examples()])
    for other in made[1:]:
        assert [ids.tolist() for ids in other] == [ids.tolist() for ids in made[0]]
    lengths = {len(ids) for ids in made[0]}
    assert max(lengths) == 7
    assert family == "lm" or len(lengths) > 1


@pytest.mark.parametrize("method", ["greedy", "beam"])
def test_answers_are_those_of_the_decoder_up_to_the_end_mark(method):
    own = predictor(decoding=GREEDY if method == "greedy" else BEAM)
    for one, ids in zip(examples(), own.predict(examples()), strict=True):
        given = torch.from_numpy(one["inputs"])[None]
        if method == "greedy":
            expected = sample(own.model, given, max_length=7).ids_BL[0]
        else:
            expected = beam_search(own.model, given, max_length=7, num_beams=3).ids_BL[0, -1]
        assert ids.tolist() == expected[: len(ids)].tolist()
        assert not expected[len(ids) :].any()
        assert len(ids) == 7 or ids[-1] == 1


@pytest.mark.parametrize(("family", "is_prefix"), [("1.0", None), ("1.1", None), ("lm", True), ("lm", False)])
def test_scores_are_sums_of_log_probabilities_of_the_targets(family, is_prefix):
    own = predictor(family, is_prefix=is_prefix, batch_size=4)
    found = own.score(examples())
    for one, score, tokens in zip(examples(), found, own.token_scores(examples()), strict=True):
        targets = one["targets"]
        said = np.append(one["inputs"], targets) if family == "lm" else targets
        shifted = torch.from_numpy(np.append(0, said[:-1]))[None]
        num = len(one["inputs"]) if family == "lm" else 0
        encoder_ids = None if family == "lm" else torch.from_numpy(one["inputs"])[None]
        logits = whole_logits(own.model, encoder_ids, shifted, num + 1 if is_prefix else 0)[0, num:]
        log = torch.log_softmax(logits, -1).gather(1, torch.from_numpy(targets)[:, None])[:, 0]
        np.testing.assert_allclose(tokens, log.numpy(), rtol=1e-4, atol=1e-4)
        assert score == pytest.approx(float(log.sum()), abs=1e-3)


def test_examples_without_inputs_or_targets_have_their_place():
    own = predictor()
    some = [*examples(3), {"inputs": [], "targets": [5, 1]}, {"inputs": [4], "targets": []}]
    assert own.score(some)[-1] == 0.0
    np.testing.assert_allclose(own.score(some)[3], own.score(some[3:4])[0], rtol=1e-5)
    assert own.predict(some)[3].tolist() == own.predict(some[3:4])[0].tolist()
    assert own.predict([]) == []
    lm = predictor("lm")
    assert lm.score([{"targets": [4, 5, 1]}])[0] == pytest.approx(lm.score([{"inputs": [], "targets": [4, 5, 1]}])[0])


@pytest.mark.parametrize("decoding", [GREEDY, BEAM], ids=lambda one: one.method)
def test_the_log_probability_of_an_answer_is_the_score_of_the_decoder(decoding):
    own = predictor(decoding=decoding.model_copy(update={"alpha": 0.0}))
    ids, values = own.predict_with_values(examples())
    expected = [best.score for best, *_ in own.answers(examples())]
    np.testing.assert_allclose(values["scores"], expected, rtol=1e-4, atol=1e-4)
    assert [len(one) for one in values["token_scores"]] == [len(one) for one in ids]


def test_a_plain_search_of_lists_finds_the_same_beams():
    """The rules of T5X, written again, for one example, without caches, batches or tensors of beams."""
    own = predictor(decoding=BEAM)
    for one, answers in zip(examples(5), own.answers(examples(5), num=3), strict=True):
        expected = plain_search(own.model, torch.from_numpy(one["inputs"])[None], 7, 3, 0.6)
        for answer, (score, ids) in zip(answers, expected, strict=True):
            assert answer.ids.tolist() == ids
            assert answer.score == pytest.approx(score, abs=1e-4)


def test_unfinished_beams_are_not_answers_beside_finished_ones():
    own = predictor(decoding=DecodingConfig(method="beam", num_beams=6, max_length=2))
    found = own.answers(examples(), num=6)
    for answers in found:
        has_end = [answer.ids[-1] == 1 for answer in answers]
        assert all(has_end) or not any(has_end)
        assert all(answer.score > -1e3 for answer in answers)
    assert {len(answers) for answers in found} > {6}


def plain_search(model, encoder_ids, max_length, num_beams, alpha):
    """(score, ids) of the best sequences, best first."""
    live, done = [(0.0, [])], []
    for position in range(max_length):
        grown = []
        for log, ids in live:
            given = torch.tensor([[0, *ids]])
            step = torch.log_softmax(whole_logits(model, encoder_ids, given), -1)[0, -1].tolist()
            grown += [(log + more, [*ids, token]) for token, more in enumerate(step)]
        best = sorted(grown, key=lambda one: -one[0])[: 2 * num_beams]
        penalty = ((5 + position + 1) / 6) ** alpha
        done += [(log / penalty, ids) for log, ids in best if ids[-1] == 1]
        done = sorted(done, key=lambda one: -one[0])[:num_beams]
        live = [one for one in best if one[1][-1] != 1][:num_beams]
        if len(done) == num_beams and done[-1][0] >= live[0][0] / ((5 + max_length) / 6) ** alpha:
            break
    return done or [(log / ((5 + max_length) / 6) ** alpha, ids) for log, ids in live]


def test_draws_differ_between_answers_and_seeds_and_not_between_calls():
    own = predictor(decoding=DRAWS)
    (first,) = own.answers(examples(1), num=5)
    assert len({tuple(answer.ids.tolist()) for answer in first}) > 1
    assert [answer.ids.tolist() for answer in own.answers(examples(1), num=5)[0]] == [a.ids.tolist() for a in first]
    other = predictor(decoding=DRAWS.model_copy(update={"seed": 4})).answers(examples(1), num=5)[0]
    assert [answer.ids.tolist() for answer in other] != [answer.ids.tolist() for answer in first]


def test_given_numbers_draw_with_the_model_s_probabilities():
    model = random_model(model_config(vocab_size=8))
    given = torch.tensor([[2, 3, 5]])
    probability = torch.softmax(whole_logits(model, given, torch.zeros(1, 1, dtype=torch.int64))[0, 0] / 2.0, -1)
    for options, kept in (({"top_k": 0}, 8), ({"top_k": 3}, 3)):
        uniform = torch.arange(2000)[:, None].double() / 2000
        found = sample(
            model, given.expand(2000, 3), max_length=1, temperature=2.0, uniform_BL=uniform, **options
        ).ids_BL[:, 0]
        least = probability.sort(descending=True).values[kept - 1]
        expected = probability.masked_fill(probability < least, 0)
        share = torch.bincount(found, minlength=8) / 2000
        torch.testing.assert_close(share, expected / expected.sum(), rtol=0, atol=0.002)


def test_end_marks_within_prompts_end_nothing():
    model = random_model(model_config("lm"))
    prompt = torch.tensor([[5, 1, 6, 1]])
    assert sample(model, None, max_length=8, prompt_BP=prompt, is_prefix=True).ids_BL[0, 4:].any()
    assert beam_search(model, None, max_length=8, num_beams=2, prompt_BP=prompt).ids_BL[0, -1, 4:].any()


def test_other_end_marks_than_1_end_answers():
    own = predictor(end_id=9)
    with torch.no_grad():
        own.model.logits.weight[9] = own.model.logits.weight[1] * 2
    found = own.predict(examples())
    assert any(ids[-1] == 9 and len(ids) < 7 for ids in found)
    assert not any((ids[:-1] == 9).any() for ids in found)


def test_bfloat16_is_near_float32():
    def autocast():
        return torch.autocast("cpu", torch.bfloat16)

    plain, rounded = predictor(), predictor(autocast=autocast)
    np.testing.assert_allclose(rounded.score(examples()), plain.score(examples()), rtol=0.05)
    assert len(rounded.predict(examples())) == len(examples())


def test_invalid_settings_are_refused():
    with pytest.raises(InputError, match="encoder_only"):
        predictor("mlm", model=random_model(model_config("mlm")))
    with pytest.raises(InputError, match="3 answers were requested, but greedy decoding returns one"):
        predictor().answers(examples(1), num=3)
    with pytest.raises(InputError, match="returns at most 3 beams"):
        predictor(decoding=BEAM).answers(examples(1), num=4)
    with pytest.raises(ValueError, match=r"top_p=0\.9 has an effect only with method=sample, but method=beam"):
        DecodingConfig(method="beam", top_p=0.9)
    with pytest.raises(InputError, match="num_beams, temperature cannot be combined"):
        decoding_of(beams=4, temperature=0.7)
    with pytest.raises(InputError, match="temperature=0"):
        decoding_of(temperature=0)
    with pytest.raises(InputError, match=r"^top_k 3 and top_p 0\.9 are both set; set one of them to 0$"):
        decoding_of(top_k=3, top_p=0.9)


def test_the_method_follows_from_the_options():
    assert decoding_of(max_length=9) == DecodingConfig(max_length=9)
    assert decoding_of(beams=2, alpha=None) == DecodingConfig(method="beam", num_beams=2)
    assert decoding_of(top_k=5, seed=1) == DecodingConfig(method="sample", top_k=5, seed=1)


@pytest.mark.parametrize("family", ["1.1", "lm"])
@pytest.mark.parametrize(("name", "wrong"), [("inputs", 96), ("inputs", -1), ("targets", 200)])
def test_ids_that_the_model_does_not_know_are_named(family, name, wrong):
    own = predictor(family)
    given = examples(3)
    given[1] = given[1] | {name: np.append(given[1][name], wrong)}
    told = rf"{name} of example 1 have the id {wrong}, the model has 0 to 95\n.*tokenizer of the model"
    with pytest.raises(InputError, match=told):
        own.score(given)
    if name == "inputs":
        with pytest.raises(InputError, match=told):
            own.predict(given)
