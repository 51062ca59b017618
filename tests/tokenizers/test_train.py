"""Training: the fixed ids, one result for one input, and refusals with a number that works."""

import json
import logging
import random
import re

import numpy as np
import pytest
from typer.testing import CliRunner

from pretrainkit.cli.tokenizer import app
from pretrainkit.errors import DataError, InputError
from pretrainkit.tokenizers.load import load_tokenizer
from pretrainkit.tokenizers.train import TokenizerSettings, read_word_counts, train_tokenizer
from support.remedies import followed


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_fact_16_ids_of_bytes_and_control_pieces(unigram):
    tokenizer = load_tokenizer(unigram)
    pieces = tokenizer.pieces()
    assert pieces[:256] == [f"<0x{byte:02X}>" for byte in range(256)]
    assert pieces[256:261] == ["<unk>", "<s>", "</s>", "<mask>", "<pad>"]
    assert tokenizer.special.as_dict() == {"unk": 256, "cls": 257, "sep": 258, "mask": 259, "pad": 260}
    assert len(pieces) == tokenizer.vocab_size == 1500
    rows = (unigram / "sentencepiece.vocab").read_text(encoding="utf-8").split("\n")[:-1]
    assert [row.split("\t")[0] for row in rows] == pieces
    scores = [float(row.split("\t")[1]) for row in rows]
    assert scores[:261] == [0] * 261
    assert scores[261:] == sorted(scores[261:], reverse=True)
    assert pieces[261] not in pieces[:261]


def test_the_default_size_is_that_of_the_recipe():
    assert TokenizerSettings().vocab_size == 32128


def test_fact_16_protobuf_describes_its_content(unigram):
    from sentencepiece import sentencepiece_model_pb2

    model = sentencepiece_model_pb2.ModelProto.FromString((unigram / "sentencepiece.model").read_bytes())
    spec = model.trainer_spec
    assert (spec.unk_id, spec.bos_id, spec.eos_id, spec.pad_id) == (256, 257, 258, 260)
    assert (spec.vocab_size, list(spec.control_symbols)) == (1500, ["<mask>"])
    control = sentencepiece_model_pb2.ModelProto.SentencePiece.CONTROL
    assert [piece.type == control for piece in model.pieces[256:262]] == [False, True, True, True, True, False]
    assert model.normalizer_spec.name == "nmt_nfkc"
    assert list(spec.input) == ["words.tsv"]
    assert not spec.model_prefix


def test_fact_17_control_strings_and_blanks(unigram):
    tokenizer = load_tokenizer(unigram)
    encoded = tokenizer.encode_batch(["<mask>", "", " ", "\u200b", "\U00012000", "<0x41>"])
    assert 259 not in encoded[0]
    assert [len(ids) for ids in encoded[1:4]] == [0, 0, 0]
    assert encoded[4].tolist()[-4:] == list("\U00012000".encode())
    assert 65 not in encoded[5]
    assert not np.isin(np.concatenate(encoded), range(256, 261)).any()


def test_fact_18_characters_are_folded_and_case_is_kept(unigram):
    encode = load_tokenizer(unigram).encode_batch
    folded, plain = encode(["ﬁle", "Ａ", "a\u00a0b", "a\u200bb"]), encode(["file", "A", "a b", "a b"])
    assert [ids.tolist() for ids in folded] == [ids.tolist() for ids in plain]
    assert load_tokenizer(unigram).decode(encode(["The the THE"])[0]) == "The the THE"


def test_no_file_is_left_behind(unigram):
    assert sorted(files(unigram)) == [
        "manifest.json",
        "sentencepiece.model",
        "sentencepiece.vocab",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert [path.name for path in unigram.parent.iterdir()] == ["tokenizer"]


@pytest.mark.parametrize("kind", ["unigram", "wordpiece", "bpe"])
def test_equal_counts_give_equal_files_in_any_order_of_rows_and_files(kind, words, tmp_path):
    rows = words.read_text(encoding="utf-8").splitlines(keepends=True)[:600]
    random.Random(0).shuffle(rows)
    contents = {"all": rows, "a": sorted(rows[:300]), "b": rows[300:]}
    paths = [tmp_path / f"{name}.tsv" for name in contents]
    for path, content in zip(paths, contents.values()):
        path.write_text("".join(content), encoding="utf-8")
    settings = TokenizerSettings(kind=kind, vocab_size=420)
    train_tokenizer(paths[:1], tmp_path / "one", settings)
    train_tokenizer(paths[1:], tmp_path / "two", settings)
    assert files(tmp_path / "one") == files(tmp_path / "two")


@pytest.mark.parametrize("kind", ["unigram", "wordpiece", "bpe"])
def test_a_vocabulary_that_the_text_does_not_allow_is_refused_with_the_number_that_works(kind, words, tmp_path):
    with pytest.raises(DataError, match="at most") as refused:
        train_tokenizer([words], tmp_path / "large", TokenizerSettings(kind=kind, vocab_size=100_000))
    most = int(re.search(r"use --vocab-size (\d+) or less", str(refused.value))[1])
    assert list(tmp_path.iterdir()) == []
    train_tokenizer([words], tmp_path / "most", TokenizerSettings(kind=kind, vocab_size=most))
    assert load_tokenizer(tmp_path / "most").vocab_size == most


@pytest.mark.parametrize("kind", [pytest.param("unigram", marks=pytest.mark.slow), "wordpiece", "bpe"])
def test_without_a_size_a_small_text_gives_all_the_pieces_that_it_has(kind, words, tmp_path):
    def train(*more):
        return CliRunner().invoke(app, ["train", str(words), "--kind", kind, "--out", str(tmp_path / "out"), *more])

    refused = train("--vocab-size", "32128")
    most = int(re.search(r"use --vocab-size (\d+) or less", str(refused.exception))[1])
    for _ in range(2):  # the same command again leaves it as it is
        found = train()
        assert (found.exit_code, f"{most:,} pieces from" in found.output) == (0, True), found.exception
    assert load_tokenizer(tmp_path / "out").vocab_size == most


def test_a_vocabulary_too_small_for_the_characters_is_refused_with_the_number_that_works(words, tmp_path):
    with pytest.raises(DataError, match="characters of this text alone") as refused:
        train_tokenizer([words], tmp_path / "small", TokenizerSettings(vocab_size=270))
    least = int(re.search(r"use --vocab-size (\d+) or more", str(refused.value))[1])
    train_tokenizer([words], tmp_path / "least", TokenizerSettings(vocab_size=least))


@pytest.mark.parametrize("size", [0, 100, 261])
def test_a_vocabulary_without_room_for_learned_pieces_is_refused(size, words, tmp_path):
    with pytest.raises(DataError, match=f"--vocab-size is {size}"):
        train_tokenizer([words], tmp_path / "out", TokenizerSettings(vocab_size=size))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "no word"),
        (b"\n\n", "no word"),
        (b"a\t1\nb 2\n", "line 2"),
        (b"a\t1\nb\tx\n", "line 2"),
        (b"a\t1\n\nb\t0\n", "line 3"),
        (b"a\t1\nb\t2\t3\n", "line 2"),
        (b"a\t1\n\t3\n", "line 2"),
        (b"\xff\t1\n", "line 1: invalid UTF-8"),
    ],
)
def test_invalid_word_counts_are_refused_by_line(content, said, tmp_path):
    path = tmp_path / "words.tsv"
    path.write_bytes(content)
    with pytest.raises(DataError, match=said):
        train_tokenizer([path], tmp_path / "out", TokenizerSettings())
    assert [file.name for file in tmp_path.iterdir()] == ["words.tsv"]


def test_missing_word_counts_and_existing_output_are_refused(words, tmp_path):
    with pytest.raises(DataError, match=r"absent\.tsv cannot be read"):
        train_tokenizer([tmp_path / "absent.tsv"], tmp_path / "out", TokenizerSettings())
    (tmp_path / "note").write_text("mine")
    with pytest.raises(DataError, match="already exists"):
        train_tokenizer([words], tmp_path, TokenizerSettings(vocab_size=400))
    with pytest.raises(InputError, match="cannot write"):
        train_tokenizer([words], tmp_path / "note" / "out", TokenizerSettings(vocab_size=400))
    assert (tmp_path / "note").read_text() == "mine"


def test_settings_without_use_are_refused():
    with pytest.raises(DataError, match="--lowercase does not apply"):
        TokenizerSettings(lowercase=True)
    with pytest.raises(DataError, match="--max-length is 0"):
        TokenizerSettings(max_length=0)


def test_manifest_describes_the_tokenizer(unigram):
    manifest = json.loads((unigram / "manifest.json").read_bytes())
    assert (manifest["kind"], manifest["vocab_size"], manifest["special"]["mask"]) == ("unigram", 1500, 259)
    assert manifest["fingerprint"] == load_tokenizer(unigram).fingerprint


def test_the_same_training_again_leaves_the_tokenizer_as_it_is(words, tmp_path):
    out, settings = tmp_path / "made", TokenizerSettings(kind="wordpiece", vocab_size=400)
    manifest = train_tokenizer([words], out, settings)
    before = {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in out.iterdir()}
    assert train_tokenizer([words], out, settings) == json.loads(json.dumps(manifest))
    assert {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in out.iterdir()} == before
    other = tmp_path / "other.tsv"
    other.write_bytes(words.read_bytes() + b"unheard\t5\n")
    for source, changed in ((other, settings), (words, TokenizerSettings(kind="wordpiece", vocab_size=401))):
        with pytest.raises(DataError, match="already exists"):
            train_tokenizer([source], out, changed)


@pytest.mark.parametrize(
    ("kind", "text", "lowercase", "expected"),
    [
        ("unigram", "ſchiff daz", False, "'ſ' to 's'"),
        ("wordpiece", "ſchiff \ue8bf", False, "U+E8BF to nothing"),
        ("wordpiece", "Schiff \ue8bf Å", True, "U+E8BF to nothing"),
        ("wordpiece", "Schiff für", True, None),
        ("wordpiece", "ſchiff 船 ko\u0308nig", False, None),
        ("bpe", "ſchiff \ue8bf ﬁ 船 ko\u0308nig", False, None),
    ],
)
def test_characters_that_are_lost_before_the_text_is_split_are_reported(
    tmp_path, caplog, kind, text, lowercase, expected
):
    words = tmp_path / "words.tsv"
    words.write_text("".join(f"{word}\t9\n" for word in text.split()), encoding="utf-8")
    with caplog.at_level(logging.WARNING):
        train_tokenizer(
            [words], tmp_path / "out", TokenizerSettings(kind=kind, lowercase=lowercase), as_many_as_possible=True
        )
    assert len(caplog.messages) == (expected is not None)
    for message in caplog.messages:
        assert f"of the characters are changed before the text is split into pieces: {expected}" in message
        assert "--kind bpe" in followed(message, "tokenizers/train.py: … % of the characters are changed")


def test_words_that_are_too_long_to_learn_from_are_reported(tmp_path, caplog):
    words = tmp_path / "words.tsv"
    words.write_text(f"{'AC' * 2000}\t1\nCA\t50\n")
    with caplog.at_level(logging.WARNING):
        assert len(read_word_counts([words])) == 2
        assert not caplog.messages
        words.write_text(f"{'AC' * 2500}\t1\nCA\t50\n")
        assert len(read_word_counts([words])) == 1
    (message,) = caplog.messages
    assert message.startswith(
        "words of more than 4,192 bytes are left out (1), 98 % of the text\n  cut text without spaces"
    )
    words.write_text(f"{'AC' * 2500}\t1\n")
    with pytest.raises(
        DataError, match=r"no word to learn from, because words of more than 4,192 bytes are left out \(1\)\n  cut"
    ):
        read_word_counts([words])
