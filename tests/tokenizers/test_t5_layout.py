"""Tokenizers with T5's ids: pad 0, eos 1, unk 2, then bytes, then learned pieces; sentinels behind them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretrainkit.errors import DataError
from pretrainkit.tasks.vocabulary import SentencePieceVocabulary
from pretrainkit.tokenizers.load import HuggingFaceTokenizer, load_tokenizer
from pretrainkit.tokenizers.train import TokenizerSettings, train_tokenizer
from pretrainkit.tokenizers.unigram import T5_SPECIAL


@pytest.fixture(scope="module")
def t5_folder(words, tmp_path_factory):
    folder = tmp_path_factory.mktemp("t5") / "tokenizer"
    train_tokenizer([words], folder, TokenizerSettings(vocab_size=1280, layout="t5"))
    return folder


def test_pad_eos_and_unk_come_first_and_bytes_next(t5_folder):
    tokenizer = load_tokenizer(t5_folder)
    pieces = tokenizer.pieces()
    assert pieces[:3] == ["<pad>", "</s>", "<unk>"]
    assert pieces[3:259] == [f"<0x{byte:02X}>" for byte in range(256)]
    assert len(pieces) == 1280
    assert tokenizer.special == T5_SPECIAL
    assert tokenizer.is_special.nonzero()[0].tolist() == [0, 1, 2]
    assert tokenizer.learned_ids().tolist() == list(range(259, 1280))


def test_a_vocabulary_of_a_task_adds_sentinels_behind_the_pieces(t5_folder):
    vocabulary = SentencePieceVocabulary(t5_folder, extra_ids=100)
    assert (vocabulary.pad_id, vocabulary.eos_id, vocabulary.unk_id, vocabulary.size) == (0, 1, 2, 1380)
    assert vocabulary.sentinel_ids == tuple(range(1379, 1279, -1))
    text = "The value of an expression, 𒀀."
    assert vocabulary.encode(text) == load_tokenizer(t5_folder).encode(text).tolist()
    assert vocabulary.decode(vocabulary.encode(text)) == text
    assert not {0, 1, 2} & set(vocabulary.encode("</s> <pad> <unk> <0x41>"))


@settings(max_examples=60)
@given(text=st.lists(st.one_of(st.sampled_from(["</s>", "<pad>", " ", "é", "<0x41>"]), st.text("aeTh .é", max_size=5))))
def test_the_tokenizers_library_gives_equal_ids(t5_folder, text):
    other = HuggingFaceTokenizer(t5_folder, T5_SPECIAL)
    assert other.encode("".join(text)).tolist() == load_tokenizer(t5_folder).encode("".join(text)).tolist()


def test_transformers_ends_a_text_with_eos(t5_folder):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(t5_folder)
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id) == (0, 1, 2)
    made = tokenizer("The value.")
    assert made["input_ids"] == [*load_tokenizer(t5_folder).encode("The value.").tolist(), 1]
    assert set(made) == {"input_ids", "attention_mask"}


def test_other_kinds_have_no_such_layout(words, tmp_path):
    with pytest.raises(DataError, match="--layout t5 does not apply to --kind bpe"):
        TokenizerSettings(kind="bpe", layout="t5")
    with pytest.raises(DataError, match="it must be above 259: 256 bytes and 3 control pieces come first"):
        train_tokenizer([words], tmp_path / "x", TokenizerSettings(vocab_size=259, layout="t5"))
