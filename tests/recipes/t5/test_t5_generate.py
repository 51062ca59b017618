"""From prompts to texts: sentinels are recognized, gaps are filled, options reach the decoder."""

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pretrainkit.errors import InputError
from pretrainkit.recipes.t5.decode import sample
from pretrainkit.recipes.t5.recipe import RECIPE
from pretrainkit.recipes.t5.texts import decode, encode, fill
from pretrainkit.tasks.vocabulary import ByteVocabulary, SentencePieceVocabulary
from support.t5_batches import model_config, random_model, run_config

BYTES = ByteVocabulary(100)
WORDS = [("the", 50), ("boat", 20), ("on", 30), ("river", 15), ("is", 40), ("Thank", 5), ("you", 25), ("inviting", 5)]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """A folder as T5's of Hugging Face are."""
    return sentencepiece_folder(tmp_path_factory.mktemp("t5"))


def sentencepiece_folder(folder, **changes):
    import sentencepiece

    ids = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1} | changes
    lines = (" ".join([word] * count) for word, count in WORDS)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=lines, model_prefix=str(folder / "spiece"), vocab_size=28, minloglevel=2, **ids
    )
    return folder


@pytest.fixture(scope="module")
def pieces(tokenizer):
    return SentencePieceVocabulary(tokenizer, 100)


def test_spaces_and_line_ends_beside_sentinels_are_bytes():
    """A sentinel of SentencePiece replaces a word with the space before it; one of bytes only what was hidden."""
    prompt = "f(x):\n    <extra_id_0>\n  é<extra_id_1> "
    ids, (first, second) = encode(prompt, BYTES), BYTES.sentinel_ids[:2]
    parts = (BYTES.encode(part) for part in ("f(x):\n    ", "\n  é", " "))
    assert ids == [*next(parts), first, *next(parts), second, *next(parts)]
    assert decode(ids, BYTES) == prompt
    answer = [first, *BYTES.encode("return"), second, *BYTES.encode("!"), BYTES.eos_id]
    assert fill(ids, answer, BYTES) == "f(x):\n    return\n  é! "


def test_sentinels_are_recognized_at_any_position(pieces):
    for vocabulary in (BYTES, pieces):
        first, second = vocabulary.sentinel_ids[:2]
        ids = encode("Thank<extra_id_0> you <extra_id_1> on", vocabulary)
        assert [index for index in ids if index in (first, second)] == [first, second]
        space = "" if vocabulary is BYTES else " "  # bytes are decoded as they are
        assert decode(ids, vocabulary) == f"Thank{space}<extra_id_0> you <extra_id_1> on"
    assert fill(encode("the <extra_id_0>at", pieces), encode("<extra_id_0> bo", pieces), pieces) == "the boat"
    with pytest.raises(InputError, match="has <extra_id_100>, but the vocabulary has 100 sentinels"):
        encode("a <extra_id_100>", BYTES)


@given(words=st.lists(st.sampled_from(["the", "boat", "ona", "river"]), min_size=1, max_size=6), gap=st.integers(0, 5))
def test_a_gap_filled_with_its_original_restores_the_text(pieces, words, gap):
    gap = min(gap, len(words) - 1)
    hidden = [*words[:gap], "<extra_id_0>", *words[gap + 1 :]]
    answer = encode(f"<extra_id_0> {words[gap]} <extra_id_1>", pieces)
    assert fill(encode(" ".join(hidden), pieces), [*answer, pieces.eos_id, 9], pieces) == " ".join(words)


def test_gaps_without_an_answer_stay_and_other_answers_are_left_out(pieces):
    prompt = encode("the <extra_id_0> on <extra_id_1> is", pieces)
    answer = encode("you <extra_id_1> boat <extra_id_7> inviting", pieces)
    assert fill(prompt, answer, pieces) == "the <extra_id_0> on boat is"


def test_answers_are_those_of_the_model_to_the_encoded_prompt(tokenizer, pieces):
    config = run_config(model_config(vocab_size=256))
    model = random_model(config.model)
    prompts = ["the boat", "Thank you <extra_id_0> the river"]
    found = RECIPE.generate(config, model, tokenizer, prompts, max_length=6)
    for prompt, answer in zip(prompts, found, strict=True):
        ids = torch.tensor([[*encode(prompt, pieces), 1]])
        expected = sample(model, ids, max_length=6)
        assert answer["answers"][0]["text"] == decode(expected.ids_BL[0], pieces)
        assert answer["answers"][0]["score"] == pytest.approx(expected.scores_B.item(), abs=1e-4)
    assert found[0]["text"] == found[0]["answers"][0]["text"]
    assert found[1]["text"] == found[1]["answers"][0]["filled"]
    assert found[1]["text"].startswith("Thank you")


def test_language_models_continue_the_prompt(tokenizer, pieces):
    config = run_config(model_config("lm", vocab_size=256))
    data = config.data.model_copy(update={"denoising": config.data.denoising.model_copy(update={"name": "full_lm"})})
    config = config.model_copy(update={"data": data})
    model = random_model(config.model)
    (found,) = RECIPE.generate(config, model, tokenizer, ["the boat"], max_length=4)
    prompt = torch.tensor([encode("the boat", pieces)])
    expected = sample(model, None, max_length=prompt.shape[1] + 4, prompt_BP=prompt).ids_BL[0]
    assert found["text"] == decode(expected, pieces)
    assert found["text"].startswith("the boat")


def test_several_answers_are_separate(tokenizer):
    config = run_config(model_config(vocab_size=256))
    model = random_model(config.model)
    (beams,) = RECIPE.generate(config, model, tokenizer, ["the boat"], num=3, beams=4, max_length=5)
    scores = [answer["score"] for answer in beams["answers"]]
    assert scores == sorted(scores, reverse=True)
    assert len(beams["text"].split("\n")) == 3
    (drawn,) = RECIPE.generate(config, model, tokenizer, ["the boat"], num=4, temperature=3.0, max_length=5)
    assert len({answer["text"] for answer in drawn["answers"]}) > 1
    with pytest.raises(InputError, match="beams, temperature cannot be combined"):
        RECIPE.generate(config, model, tokenizer, ["the boat"], beams=4, temperature=1.0)


def test_exports_end_answers_where_the_vocabulary_does_and_bring_its_file(tmp_path, tokenizer):
    config = run_config(model_config(vocab_size=256))
    other = sentencepiece_folder(tmp_path, eos_id=3, bos_id=1)
    for folder, end_id in ((tokenizer, 1), (other, 3)):
        out = tmp_path / str(end_id)
        RECIPE.export_huggingface(config, random_model(config.model), folder, out)
        for name in ("config.json", "generation_config.json"):
            assert json.loads((out / name).read_text())["eos_token_id"] == end_id
        assert (out / "spiece.model").read_bytes() == (folder / "spiece.model").read_bytes()
