"""Vocabularies: ids of sentinels, what decoding does, and equality by content."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretrainkit.errors import ConfigError, DataError
from pretrainkit.tasks.vocabulary import (
    ByteVocabulary,
    PassThroughVocabulary,
    SentencePieceVocabulary,
    TokenizerJsonVocabulary,
    check_equal,
)
from pretrainkit.tasks.vocabulary_folder import open_vocabulary


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A SentencePiece model with T5's ids: pad 0, EOS 1, UNK 2."""
    import sentencepiece

    folder = tmp_path_factory.mktemp("model")
    texts = ["the quick brown fox jumps over the lazy dog", "pack my box with five dozen liquor jugs"] * 20
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_prefix=str(folder / "spiece"), vocab_size=60, pad_id=0, eos_id=1, unk_id=2,
        bos_id=-1, hard_vocab_limit=False, minloglevel=2, num_threads=1,
    )  # fmt: skip
    return folder / "spiece.model"


def test_sentencepiece_sentinels_count_down_from_the_last_id(model):
    plain, extended = SentencePieceVocabulary(model), SentencePieceVocabulary(model.parent, extra_ids=100)
    assert extended.size == plain.size + 100
    assert extended.sentinel_ids == tuple(range(extended.size - 1, plain.size - 1, -1))
    assert plain.sentinel_ids == ()
    assert (extended.pad_id, extended.eos_id, extended.unk_id) == (0, 1, 2)


def test_sentinels_that_a_model_has_as_its_own_symbols_are_used_wherever_they_are(model, tmp_path):
    """Symbols defined in training precede all other pieces."""
    import sentencepiece

    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["the quick brown fox jumps"] * 9), model_prefix=str(tmp_path / "spiece"), vocab_size=30,
        pad_id=0, eos_id=1, unk_id=2, bos_id=-1, hard_vocab_limit=False, minloglevel=2,
        user_defined_symbols=["<extra_id_0>", "<extra_id_1>"],
    )  # fmt: skip
    vocabulary = open_vocabulary(tmp_path)
    assert vocabulary.sentinel_ids == (3, 4)
    assert 4 in vocabulary.encode("fox <extra_id_1> jumps")


def test_a_sentinel_in_text_is_recognized_only_at_the_start_of_a_word(model):
    vocabulary = SentencePieceVocabulary(model, extra_ids=10)
    last = vocabulary.size - 1
    assert vocabulary.encode("the <extra_id_0> fox <extra_id_3>").count(last) == 1
    assert vocabulary.encode("<extra_id_3>") == [last - 3]
    assert last not in vocabulary.encode("fox<extra_id_0>")
    assert vocabulary.encode("the fox") == SentencePieceVocabulary(model).encode("the fox")
    assert vocabulary.encode_batch(["the", "fox"]) == [vocabulary.encode("the"), vocabulary.encode("fox")]


def test_decoding_ends_at_eos_and_reads_foreign_ids_as_unk(model):
    vocabulary = SentencePieceVocabulary(model)
    ids = vocabulary.encode("the lazy dog")
    assert vocabulary.decode([*ids, 1, *ids]) == "the lazy dog"
    assert vocabulary.decode([*ids, vocabulary.size + 5]) == vocabulary.decode([*ids, vocabulary.unk_id])
    assert 1 not in ids


def test_sentencepiece_vocabularies_are_equal_by_content(model, tmp_path):
    added = SentencePieceVocabulary(model, extra_ids=20)
    (tmp_path / "with.model").write_bytes(added._content)
    (tmp_path / "copy.model").write_bytes(model.read_bytes())
    inside = SentencePieceVocabulary(tmp_path / "with.model")
    assert inside == added
    assert inside.sentinel_ids == added.sentinel_ids
    assert SentencePieceVocabulary(tmp_path / "copy.model", 20) == added
    assert hash(inside) == hash(added)
    assert SentencePieceVocabulary(model, extra_ids=19) != added
    check_equal("t", inside, added)
    with pytest.raises(ConfigError, match=r"task 't' and the model have different vocabularies\n  task: .*\n  model: "):
        check_equal("t", SentencePieceVocabulary(model), added)


def test_creating_a_vocabulary_reads_no_file_and_using_it_names_missing_files(tmp_path):
    vocabulary = SentencePieceVocabulary(tmp_path / "none")
    with pytest.raises(DataError, match="has no SentencePiece model"):
        vocabulary.encode("a")
    (tmp_path / "broken.model").write_bytes(b"not a model")
    with pytest.raises(DataError, match="is not a SentencePiece model"):
        assert SentencePieceVocabulary(tmp_path / "broken.model").size
    with pytest.raises(ConfigError, match="extra_ids is -1"):
        ByteVocabulary(-1)


def test_vocabularies_are_pickled_without_loaded_files(model):
    vocabulary = SentencePieceVocabulary(model, 5)
    assert vocabulary.encode("fox")
    assert len(pickle.dumps(vocabulary)) < 500
    assert pickle.loads(pickle.dumps(vocabulary)) == vocabulary


@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_bytes_come_back_as_they_were(text):
    vocabulary = ByteVocabulary(extra_ids=3)
    assert vocabulary.decode([*vocabulary.encode(text), 1, 77]) == text
    assert vocabulary.encode(text) == [byte + 3 for byte in text.encode()]


def test_the_ids_of_bytes():
    plain, extended = ByteVocabulary(), ByteVocabulary(extra_ids=100)
    assert (plain.size, extended.size) == (259, 359)
    assert plain.sentinel_ids == tuple(range(258, 247, -1))
    assert extended.sentinel_ids == tuple(range(358, 258, -1))
    assert plain.decode([2, 0, 100, 258, 300]) == "a"
    assert plain == ByteVocabulary()
    assert plain != extended


def test_ids_pass_through():
    vocabulary = PassThroughVocabulary(20)
    assert vocabulary.encode("3 14") == [3, 14]
    assert vocabulary.decode([3, 14, 1, 5]) == "3 14"
    with pytest.raises(DataError, match="id 20 is outside a vocabulary of 20 ids"):
        vocabulary.encode("20")
    with pytest.raises(DataError, match="'x' is not a row of ids"):
        vocabulary.encode("x")


@pytest.fixture(scope="module")
def json_file(tmp_path_factory):
    import tokenizers

    pieces = {"<pad>": 0, "</s>": 1, "<unk>": 2, "the": 3, "fox": 4, "<extra_id_1>": 5, "<extra_id_0>": 6, "[X]": 7}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(pieces, unk_token="<unk>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    made.add_special_tokens(["<extra_id_0>", "<extra_id_1>"])
    path = tmp_path_factory.mktemp("json") / "tokenizer.json"
    made.save(str(path))
    return path


def test_a_tokenizer_json_has_the_sentinels_it_names_or_those_added(json_file, tmp_path):
    vocabulary = TokenizerJsonVocabulary(json_file)
    assert vocabulary.encode("the fox jumps") == [3, 4, 2]
    assert vocabulary.encode_batch(["the", "fox"]) == [[3], [4]]
    assert vocabulary.sentinel_ids == (6, 5)
    assert vocabulary.decode([3, 4, 1, 3]) == "the fox"
    assert TokenizerJsonVocabulary(json_file.parent, sentinels=["[X]"]).sentinel_ids == (7,)
    added = TokenizerJsonVocabulary(json_file, extra_ids=3)
    assert (added.size, added.sentinel_ids) == (11, (10, 9, 8))
    (tmp_path / "tokenizer.json").write_bytes(json_file.read_bytes())
    assert TokenizerJsonVocabulary(tmp_path) == vocabulary != added
    with pytest.raises(DataError, match=r"has no piece '\[EOS\]'\n  set its eos piece"):
        assert TokenizerJsonVocabulary(json_file, eos="[EOS]").eos_id
