"""Cached decoding against the whole model at every step, against exhaustive search, and against transformers."""

import itertools

import pytest
import torch

from pretrainkit.recipes.t5.convert import write_huggingface
from pretrainkit.recipes.t5.decode import CachedDecoder, beam_search, brevity_penalty, sample
from pretrainkit.recipes.t5.inputs import read_batch
from support.t5_batches import model_config, random_model

LENGTH = 9


def inputs():
    torch.manual_seed(4)
    ids = torch.randint(2, 96, (4, 11))
    ids[1, 6:] = ids[2, 1:] = 0
    return ids


def whole_logits(model, encoder_ids, decoder_ids, num_prefix=0):
    """(B, L, V) of the whole model on rows; no decoder token is padding."""
    batch = {
        "decoder_input_tokens": decoder_ids,
        "decoder_target_tokens": torch.ones_like(decoder_ids),
        "decoder_loss_weights": torch.ones(decoder_ids.shape),
    }
    if encoder_ids is not None:
        batch["encoder_input_tokens"] = encoder_ids
    if num_prefix:
        batch["decoder_causal_attention"] = (torch.arange(decoder_ids.shape[1]) < num_prefix).expand(decoder_ids.shape)
    with torch.no_grad():
        return model(read_batch(batch, model.config.kind)[0]).view(*decoder_ids.shape, -1)


def shifted(ids):
    return torch.nn.functional.pad(ids[:, :-1], (1, 0))


@pytest.mark.parametrize("family", ["1.0", "1.1", "umt5", "lm"])
@torch.no_grad()
def test_every_step_has_the_logits_of_the_whole_model(family):
    model = random_model(model_config(family))
    encoder_ids = None if family == "lm" else inputs()
    torch.manual_seed(5)
    decoder_ids = shifted(torch.randint(2, 96, (4, 40)))
    expected = whole_logits(model, encoder_ids, decoder_ids)
    decoder = CachedDecoder(model, encoder_ids, 4, 40)
    for position in range(40):
        found = decoder.step(decoder_ids[:, position], position)
        torch.testing.assert_close(found, expected[:, position], rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_prefixes_have_the_logits_of_the_whole_model():
    model = random_model(model_config("lm"))
    torch.manual_seed(5)
    ids = torch.randint(2, 96, (2, 7))
    decoder_ids = shifted(ids)
    decoder = CachedDecoder(model, None, 2, 7)
    decoder.prefill(decoder_ids[:, :5], torch.tensor([5, 3]))
    steps = torch.stack([decoder.step(decoder_ids[:, position], position) for position in range(7)], 1)
    for row, num_prefix in enumerate((5, 3)):
        expected = whole_logits(model, None, decoder_ids[row : row + 1], num_prefix)[0]
        after = num_prefix - 1  # the position that reads the prefix's last token predicts the first of the rest
        torch.testing.assert_close(steps[row, after:], expected[after:], rtol=1e-5, atol=1e-5)


def test_greedy_takes_the_best_token_until_the_end_mark():
    model = random_model(model_config())
    found = sample(model, inputs(), max_length=LENGTH)
    ids = torch.zeros(4, LENGTH, dtype=torch.int64)
    log_probability, is_done = torch.zeros(4), torch.zeros(4, dtype=torch.bool)
    for position in range(LENGTH):
        best = torch.log_softmax(whole_logits(model, inputs(), shifted(ids)), -1)[:, position].max(-1)
        ids[:, position] = best.indices.masked_fill(is_done, 0)
        log_probability += best.values.masked_fill(is_done, 0)
        is_done |= ids[:, position] == 1
    assert torch.equal(found.ids_BL, ids)
    torch.testing.assert_close(found.scores_B, log_probability, rtol=1e-5, atol=1e-5)


def ends(model, bonus):
    """Make the end mark likelier, so that sequences end."""
    with torch.no_grad():
        model.logits.weight[1] *= bonus
    return model


@pytest.mark.parametrize("family", ["1.0", "1.1"])
def test_greedy_equals_transformers(transformers, tmp_path, family):
    model = random_model(model_config(family))
    write_huggingface(model.state_dict(), model.config, tmp_path / "hf")
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "hf").eval()
    ids = inputs()
    expected = theirs.generate(ids, attention_mask=(ids != 0).long(), max_new_tokens=LENGTH, do_sample=False)[:, 1:]
    found = sample(model, ids, max_length=LENGTH).ids_BL
    assert torch.equal(found[:, : expected.shape[1]], expected)
    assert not found[:, expected.shape[1] :].any()


def test_beams_equal_transformers_where_both_are_defined(transformers, tmp_path):
    """There is no penalty for length, and both look at all steps."""
    model = ends(random_model(model_config()), 3.0)
    write_huggingface(model.state_dict(), model.config, tmp_path / "hf")
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "hf").eval()
    ids = inputs()
    expected = theirs.generate(
        ids,
        attention_mask=(ids != 0).long(),
        max_new_tokens=6,
        num_beams=3,
        length_penalty=0.0,
        early_stopping="never",
        do_sample=False,
        return_dict_in_generate=True,
        output_scores=True,
    )
    found = beam_search(model, ids, max_length=6, num_beams=3, alpha=0.0)
    best = expected.sequences[:, 1:]
    best = best.masked_fill((best == 1).cumsum(1) - (best == 1).long() > 0, 0)  # they pad with the end mark
    has_end = (found.ids_BL[:, -1] == 1).any(1)  # what never ends is another matter: T5X keeps the unfinished apart
    assert has_end.any()
    assert torch.equal(found.ids_BL[has_end, -1, : best.shape[1]], best[has_end])
    torch.testing.assert_close(found.scores_B[has_end, -1], expected.sequences_scores[has_end], rtol=1e-4, atol=1e-4)


def test_wide_beams_find_the_best_sequence_of_all():
    """Brute force compares all sequences of up to three tokens that end."""
    config = model_config(vocab_size=6)
    model = ends(random_model(config, seed=1), 2.0)
    encoder_ids = torch.tensor([[2, 3, 5]])
    every = [[*middle, 1] for n in range(3) for middle in itertools.product([0, 2, 3, 4, 5], repeat=n)]
    scored = []
    for ids in every:
        padded = torch.tensor([ids + [0] * (3 - len(ids))])
        log = torch.log_softmax(whole_logits(model, encoder_ids, shifted(padded)), -1)[0]
        scored.append(sum(log[i, token].item() for i, token in enumerate(ids)) / brevity_penalty(0.6, len(ids)))
    ranked = sorted(zip(scored, every, strict=True), reverse=True)
    found = beam_search(model, encoder_ids, max_length=3, num_beams=25, alpha=0.6)
    for (score, ids), row, row_score in zip(ranked[:4], found.ids_BL[0].flip(0), found.scores_B[0].flip(0)):
        assert row.tolist() == ids + [0] * (3 - len(ids))
        assert row_score.item() == pytest.approx(score, abs=1e-4)
    assert found.scores_B[0].tolist() == sorted(found.scores_B[0].tolist())


def test_one_beam_without_end_is_greedy():
    model = ends(random_model(model_config()), 0.0)
    with torch.no_grad():
        model.logits.weight[1] = -model.logits.weight.abs().sum(0)  # never likely
    greedy = sample(model, inputs(), max_length=LENGTH)
    beam = beam_search(model, inputs(), max_length=LENGTH, num_beams=1, alpha=0.0)
    is_open = ~(greedy.ids_BL == 1).any(1) & ~(beam.ids_BL[:, 0] == 1).any(1)
    assert is_open.any()
    assert torch.equal(beam.ids_BL[is_open, 0], greedy.ids_BL[is_open])


def test_samples_have_the_model_s_probabilities():
    model = random_model(model_config(vocab_size=8))
    encoder_ids = torch.tensor([[2, 3, 5]]).expand(4000, 3)
    logits = whole_logits(model, encoder_ids[:1], torch.zeros(1, 1, dtype=torch.int64))[0, 0]
    for options, kept in (({"top_k": 0}, 8), ({"top_k": 3}, 3), ({"top_k": 0, "top_p": 0.5}, None)):
        uniform = torch.rand(4000, 1, generator=torch.Generator().manual_seed(0))
        found = sample(model, encoder_ids, max_length=1, temperature=2.0, uniform_BL=uniform, **options).ids_BL[:, 0]
        probability = torch.softmax(logits / 2.0, -1)
        ordered = probability.sort(descending=True)
        if kept is None:
            kept = int((ordered.values.cumsum(0) < 0.5).sum()) + 1
        expected = torch.zeros(8).scatter(0, ordered.indices[:kept], ordered.values[:kept])
        share = torch.bincount(found, minlength=8) / 4000
        torch.testing.assert_close(share, expected / expected.sum(), rtol=0, atol=0.035)
        assert not share[expected == 0].any()


@pytest.mark.parametrize("search", ["sample", "beam"])
def test_prompts_are_kept_and_continued(search):
    model, prompt = random_model(model_config()), torch.tensor([[5, 6, 7], [8, 0, 0], [9, 4, 0], [2, 2, 2]])
    if search == "sample":
        ids = sample(model, inputs(), max_length=LENGTH, prompt_BP=prompt).ids_BL
    else:
        ids = beam_search(model, inputs(), max_length=LENGTH, num_beams=2, prompt_BP=prompt).ids_BL[:, -1]
    assert torch.equal(ids[:, :3][prompt != 0], prompt[prompt != 0])
    assert ids[1, 1] != 0


def test_an_encoder_alone_cannot_decode():
    with pytest.raises(ValueError, match="encoder_only"):
        sample(random_model(model_config("mlm")), inputs(), max_length=2)


def test_decoding_leaves_the_model_in_its_mode():
    model = random_model(model_config(dropout=0.5)).train()
    first = sample(model, inputs(), max_length=4)
    assert torch.equal(first.ids_BL, sample(model, inputs(), max_length=4).ids_BL)
    assert model.training
