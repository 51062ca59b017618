"""The command line: the verbs work, wrong input is one message and exit code 2."""

import json
import re
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from pretrainkit.cli.corpus import app as corpus_app
from pretrainkit.cli.tokenizer import app
from pretrainkit.errors import DataError, InputError
from pretrainkit.tokenizers.shards import TokenShards
from support.remedies import followed


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=True)


def test_from_words_to_shards(words, corpus, tmp_path):
    folder, out = tmp_path / "tokenizer", tmp_path / "tokens"
    result = run("train", words, "--vocab-size", 1200, "--sentences-from", corpus / "train", "--out", folder)
    assert result.exit_code == 0, result.output
    assert "1,200 pieces" in result.stdout
    assert (folder / "punkt.json").is_file()
    result = run("encode", corpus, "--tokenizer", folder, "--out", out, "--workers", 1, "--json")
    assert result.exit_code == 0, result.output
    manifests = json.loads(result.stdout)
    assert manifests["train"]["num_documents"] == 25
    result = run("inspect", out / "train", "--verify", "--json")
    assert json.loads(result.stdout)["fingerprint"] == manifests["train"]["fingerprint"]
    assert "vocab size" in run("inspect", folder).stdout
    assert "sentences" in run("inspect", out / "valid").stdout
    shown = run("inspect", out / "valid", "--document", 0).stdout
    assert "documents" in shown
    pieces = run("show", "The value. The object.", "--tokenizer", folder, "--json").stdout.splitlines()
    assert [len(json.loads(line)["ids"]) > 0 for line in pieces] == [True, True]


def test_punkt_rules(words, tmp_path):
    folder = tmp_path / "tokenizer"
    (tmp_path / "text.jsonl").write_text('{"text": "\\"It rains.\\" He leaves. It ends."}\n')
    inputs = ["--sentences-from", tmp_path / "text.jsonl"]
    assert run("train", words, "--vocab-size", 1200, *inputs, "--out", folder).exit_code == 0
    shown = {
        rules: run("show", '"It rains." He leaves.', "--tokenizer", folder, "--punkt-rules", rules).stdout.splitlines()
        for rules in ("default", "nltk", "sabertooth")
    }
    assert shown["default"] == shown["nltk"]
    assert [len(lines) for lines in shown.values()] == [2, 2, 2]
    assert shown["default"] != shown["sabertooth"]
    result = run("encode", tmp_path / "text.jsonl", "--tokenizer", folder, "--out", tmp_path / "tokens", "--json")
    manifest = json.loads(result.stdout)[""]
    assert manifest["splitter"]["rules"] == "default"
    assert manifest["splitter"]["parameters"] == json.loads((folder / "manifest.json").read_bytes())["punkt"]
    wrong = run("encode", tmp_path, "--tokenizer", folder, "--out", "x", "--splitter", "none", "--punkt-rules", "nltk")
    assert isinstance(wrong.exception, InputError)
    assert "has no rules" in str(wrong.exception)


@pytest.mark.parametrize(
    ("splitter", "name", "counts"),
    [
        ("none", "text.jsonl", "1 document, N tokens"),
        ("newline", "text.jsonl", "1 document, 2 sentences, N tokens"),
        ("none", "text.bert.txt", "1 document, 2 sentences, N tokens"),
    ],
)
def test_whole_documents_are_not_called_sentences(splitter, name, counts, unigram, tmp_path):
    text = "One line.\nAnother line."
    (tmp_path / name).write_text(json.dumps({"text": text}) if "json" in name else f"{text}\n", encoding="utf-8")
    words = ("encode", tmp_path / name, "--tokenizer", unigram, "--out", tmp_path / "out", "--splitter", splitter)
    shown = run(*words).stdout
    assert re.sub(r"\d+ token", "N token", shown).partition(": ")[2].startswith(f"{counts} in 1 shard")


def test_a_tokenizer_that_is_not_the_shards_is_refused(unigram, wordpiece, corpus, tmp_path):
    assert run("encode", corpus, "--tokenizer", unigram, "--out", tmp_path / "out", "--splitter", "none").exit_code == 0
    own = tmp_path / "out/train/tokenizer"
    for path in own.iterdir():
        path.unlink()
    for path in wordpiece.iterdir():
        (own / path.name).write_bytes(path.read_bytes())
    result = run("inspect", tmp_path / "out/train")
    assert isinstance(result.exception, InputError)
    assert "is not the tokenizer that encoded" in str(result.exception)


def test_documents_that_are_not_split_are_not_called_sentences(unigram, corpus, tmp_path):
    run("encode", corpus / "valid", "--tokenizer", unigram, "--out", tmp_path / "out", "--splitter", "none")
    assert "sentences" not in run("inspect", tmp_path / "out").stdout
    assert json.loads(run("inspect", tmp_path / "out", "--json").stdout)["num_sentences"] == 5


@pytest.mark.parametrize("document", [-1, 99])
def test_documents_that_are_not_there_are_refused(document, unigram, corpus, tmp_path):
    run("encode", corpus / "valid", "--tokenizer", unigram, "--out", tmp_path / "out", "--splitter", "none")
    result = run("inspect", tmp_path / "out", "--document", document)
    assert isinstance(result.exception, InputError)
    assert "the documents are 0 to 4" in str(result.exception)


def test_inspecting_the_folder_above_names_the_splits(unigram, corpus, tmp_path):
    run("encode", corpus, "--tokenizer", unigram, "--out", tmp_path / "out", "--splitter", "none")
    result = run("inspect", tmp_path / "out")
    assert "name one of the folders in it" in str(result.exception)


@pytest.mark.parametrize("place", ["corpus", "corpus/train"])
def test_a_corpus_is_encoded_as_advised(place, unigram, prose, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("\n\n".join(prose), encoding="utf-8")
    shards = CliRunner().invoke(corpus_app, ["shards", "text.txt", "--out", "corpus", "--heldout", "0.2"])
    assert shards.exit_code == 0, shards.exception
    advice = followed(run("inspect", place).exception, "tokenizers/shards.py: … is a corpus of text")
    words = advice.partition("pretrainkit tokenizer ")[2].split()
    own = {"DIR": str(unigram), "FOLDER": "tokens"}
    assert run(*(own.get(word, word) for word in words), "--splitter", "newline").exit_code == 0
    assert run("inspect", "tokens" if "/" in place else "tokens/train").exit_code == 0


def test_texts_at_an_address_are_encoded_as_advised(unigram, prose, tmp_path):
    (tmp_path / "text.txt").write_text("\n\n".join(prose), encoding="utf-8")
    address = (tmp_path / "text.txt").as_uri()
    with pytest.raises(DataError) as refused:
        TokenShards.open(address)
    advice = followed(refused.value, "tokenizers/shards.py: … is an address")
    words = advice.partition("pretrainkit tokenizer ")[2].split()
    own = {"DIR": str(unigram), "FOLDER": str(tmp_path / "tokens")}
    assert run(*(own.get(word, word) for word in words), "--splitter", "newline").exit_code == 0
    assert TokenShards.open(tmp_path / "tokens").num_tokens > 0
    with pytest.raises(DataError, match=r"^hf://datasets/someone/texts is an address"):
        TokenShards.open("hf://datasets/someone/texts")


def test_a_name_too_long_for_the_system_is_refused(unigram, corpus, tmp_path):
    result = run("encode", corpus, "--tokenizer", unigram, "--out", tmp_path / ("n" * 300), "--splitter", "none")
    assert isinstance(result.exception, DataError)
    assert "cannot write" in str(result.exception)


@pytest.mark.parametrize(
    "arguments",
    [
        ("train", "absent.tsv", "--out", "tokenizer"),
        ("train", "words.tsv", "--out", "tokenizer", "--vocab-size", "32000"),
        ("train", "words.tsv", "--out", "words.tsv/tokenizer", "--vocab-size", "300"),
        ("encode", "absent", "--tokenizer", "absent", "--out", "tokens"),
        ("train", "words.tsv", "--out", "n" * 300, "--vocab-size", "300"),
        ("inspect", "absent"),
        ("show", "text", "--tokenizer", "absent"),
    ],
)
def test_wrong_input_is_one_message_exit_code_2_and_nothing_written(arguments, tmp_path):
    (tmp_path / "words.tsv").write_text("the\t5\nvalue\t3\n")
    command = [sys.executable, "-m", "pretrainkit", "tokenizer", *arguments]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 2, result.stderr
    assert "error: " in result.stderr
    assert "Traceback" not in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["words.tsv"]


def test_nothing_heavy_is_imported_for_help():
    heavy = {"torch", "numpy", "nltk", "tokenizers"}
    code = f"import sys, pretrainkit.cli.tokenizer; print(sorted({heavy} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
