"""Loading: every kind of folder gives the same interface; broken ones are refused."""

import json
import shutil

import numpy as np
import pytest
import tokenizers

from pretrainkit.errors import DataError
from pretrainkit.tokenizers.load import load_tokenizer
from pretrainkit.tokenizers.special import SpecialIds


@pytest.fixture(params=["unigram", "wordpiece", "bpe", "unigram-json"])
def folder(request, tmp_path):
    if request.param != "unigram-json":
        return request.getfixturevalue(request.param)
    shutil.copy(request.getfixturevalue("unigram") / "tokenizer.json", tmp_path)
    return tmp_path


def test_text_never_becomes_control_ids(folder):
    tokenizer = load_tokenizer(folder)
    specials = [piece for piece, flag in zip(tokenizer.pieces(), tokenizer.is_special) if flag]
    ids = np.concatenate(tokenizer.encode_batch([f"a {piece} b {piece}" for piece in specials]))
    assert not (tokenizer.is_special[ids] & (ids != tokenizer.special.unk)).any()


def test_decode_gives_the_text_back(folder):
    tokenizer = load_tokenizer(folder)
    text = "the value of the expression is an object"
    ids = tokenizer.encode(text)
    special = tokenizer.special
    assert ids.dtype == np.int32
    assert tokenizer.decode([special.cls, *ids.tolist(), special.sep, special.pad]).strip() == text


def test_words_begin_where_they_do(folder):
    tokenizer = load_tokenizer(folder)
    ids = tokenizer.encode("the unquestionable value")
    assert tokenizer.is_word_start()[ids].sum() == 3
    assert tokenizer.is_word_start()[list(tokenizer.special.as_dict().values())].all()


def test_learned_ids_are_neither_control_nor_byte_pieces(folder):
    tokenizer = load_tokenizer(folder)
    learned = tokenizer.learned_ids()
    others = set(range(tokenizer.vocab_size)) - set(learned.tolist())
    pieces = tokenizer.pieces()
    expected = {i for i, p in enumerate(pieces) if p.startswith("<0x") and len(p) == 6}
    assert others == expected | set(tokenizer.special.as_dict().values())


def test_threads_do_not_change_ids(folder, prose):
    tokenizer = load_tokenizer(folder)
    one, two = tokenizer.encode_batch(prose[:8]), tokenizer.encode_batch(prose[:8], num_threads=2)
    assert all(np.array_equal(a, b) for a, b in zip(one, two))


def test_kinds(unigram, wordpiece, bpe):
    assert [load_tokenizer(path).kind for path in (unigram, wordpiece, bpe)] == ["unigram", "wordpiece", "bpe"]
    assert load_tokenizer(wordpiece).special == SpecialIds(unk=1, cls=2, sep=3, mask=4, pad=0)
    lower, upper = load_tokenizer(wordpiece).encode_batch(["the value", "THE Value"])
    assert lower.tolist() == upper.tolist()


def test_special_tokens_of_a_foreign_folder_are_recognized_by_their_names(wordpiece, tmp_path):
    content = (wordpiece / "tokenizer.json").read_text()
    (tmp_path / "tokenizer.json").write_text(content.replace("[MASK]", "<<hide>>"))
    with pytest.raises(DataError, match="has no mask piece"):
        load_tokenizer(tmp_path)
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"mask_token": {"content": "<<hide>>"}}))
    assert load_tokenizer(tmp_path).special.mask == 4


def test_folders_without_a_tokenizer_are_refused(tmp_path):
    with pytest.raises(DataError, match="holds no tokenizer"):
        load_tokenizer(tmp_path)
    with pytest.raises(DataError, match="holds no tokenizer"):
        load_tokenizer(tmp_path / "absent")


@pytest.mark.parametrize("name", ["sentencepiece.model", "manifest.json"])
@pytest.mark.parametrize("content", [b"", b"{}", b"\x00garbage"])
def test_broken_folders_are_refused(name, content, unigram, tmp_path):
    shutil.copytree(unigram, tmp_path / "tokenizer")
    (tmp_path / "tokenizer" / name).write_bytes(content)
    with pytest.raises(DataError, match=r"is broken|has no id"):
        load_tokenizer(tmp_path / "tokenizer")


@pytest.mark.parametrize("name", ["sentencepiece.model", "tokenizer.json"])
def test_a_broken_model_without_manifest_is_refused(name, tmp_path):
    (tmp_path / name).write_bytes(b"{}")
    with pytest.raises(DataError, match="is broken"):
        load_tokenizer(tmp_path)


def test_a_model_that_is_not_the_manifests_is_refused(unigram, wordpiece, tmp_path):
    shutil.copytree(unigram, tmp_path / "tokenizer")
    manifest = json.loads((unigram / "manifest.json").read_bytes()) | {"vocab_size": 1400}
    (tmp_path / "tokenizer" / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(DataError, match=r"has 1500 pieces, but manifest\.json has 1400"):
        load_tokenizer(tmp_path / "tokenizer")


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_bytes_of_incomplete_characters_are_shown_as_numbers(kind, request):
    tokenizer = load_tokenizer(request.getfixturevalue(kind))
    ids = tokenizer.encode("the 中 word").tolist()
    second = next(place for place in range(len(ids)) if "\ufffd" in tokenizer.decode(ids[:place]))
    assert tokenizer.readable(ids).strip() == "the 中 word"
    assert tokenizer.readable(ids[:second]).strip() == "the \\xe4"
    assert tokenizer.readable(ids[second:]) == "\\xb8\\xad word"


@pytest.mark.parametrize("is_of_letters", [False, True])
def test_pieces_of_a_list_of_words_begin_words_unless_decoding_joins_them(tmp_path, is_of_letters):
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "A", "C"]
    model = tokenizers.Tokenizer(tokenizers.models.WordLevel({piece: i for i, piece in enumerate(pieces)}, "[UNK]"))
    if is_of_letters:
        model.decoder = tokenizers.decoders.Fuse()
    model.save(str(tmp_path / "tokenizer.json"))
    loaded = load_tokenizer(tmp_path)
    assert loaded.is_word_start()[5:].tolist() == [not is_of_letters] * 2
    assert loaded.marks_words() is not is_of_letters
