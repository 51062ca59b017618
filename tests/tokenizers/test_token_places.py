"""The places of tokens in their texts, by each kind of tokenizer."""

import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretrainkit.tasks.vocabulary import ByteVocabulary
from pretrainkit.tokenizers.offsets import byte_offsets, huggingface_offsets, sentencepiece_offsets

TEXTS = st.lists(st.text("ab €ä日本🙂\t", max_size=20), max_size=4)


@pytest.fixture(scope="module")
def sentencepiece_model():
    import sentencepiece

    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["ab ba aab", "日本 ä b"] * 20),
        model_writer=written,
        vocab_size=270,
        byte_fallback=True,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=written.getvalue())


@settings(deadline=None, max_examples=50)
@given(texts=TEXTS)
def test_sentencepiece_tokens_cover_all_letters_in_order(texts, sentencepiece_model):
    ids, sizes, places = sentencepiece_offsets(sentencepiece_model, texts)
    assert sizes.tolist() == [len(one) for one in sentencepiece_model.encode(texts)]
    assert ids.tolist() == [i for one in sentencepiece_model.encode(texts) for i in one]
    ends = np.cumsum(sizes)
    for text, begin, end in zip(texts, ends - sizes, ends, strict=True):
        own = places[begin:end]
        covered = {k for first, last in own for k in range(first, last)}
        assert {k for k, letter in enumerate(text) if not letter.isspace()} <= covered
        assert (np.diff(own[:, 0]) >= 0).all()


@given(texts=TEXTS)
def test_bytes_are_within_their_characters(texts):
    ids, sizes, places = byte_offsets(texts, 3)
    assert ids.tolist() == [i for text in texts for i in ByteVocabulary().encode(text)]
    ends = np.cumsum(sizes)
    for text, begin, end in zip(texts, ends - sizes, ends, strict=True):
        assert "".join(text[first:last] for first, last in places[begin:end]) == text


@given(texts=TEXTS)
def test_word_pieces_are_within_their_words(texts):
    from tokenizers import Tokenizer, models, pre_tokenizers

    model = Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1, "##a": 2, "b": 3, "##b": 4, "日": 5}, unk_token="[UNK]"))
    model.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    ids, sizes, places = huggingface_offsets(model, texts)
    ends = np.cumsum(sizes)
    for text, begin, end in zip(texts, ends - sizes, ends, strict=True):
        for token, (first, last) in zip(ids[begin:end], places[begin:end], strict=True):
            assert {1: "a", 2: "a", 3: "b", 4: "b", 5: "日"}.get(token, text[first:last]) == text[first:last]
