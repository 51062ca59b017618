"""Encoding: one output for any number of workers, exact continuation after a kill, and refusals that harm nothing."""

import errno
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from pretrainkit.corpus.readers import text_hash
from pretrainkit.errors import DataError, RunError
from pretrainkit.tokenizers import encode as encode_module
from pretrainkit.tokenizers import shard_encoder
from pretrainkit.tokenizers.encode import EncodeSettings, encode_corpus, shard_groups
from pretrainkit.tokenizers.load import load_tokenizer
from pretrainkit.tokenizers.punkt import FORMAT, VERSION
from pretrainkit.tokenizers.sentences import PlainSplitter, learn_punkt, load_splitter
from pretrainkit.tokenizers.shards import TokenShards
from pretrainkit.workers.processes import Quiet


class Notes(Quiet):
    def __init__(self):
        self.lines = []

    def note(self, message):
        self.lines.append(message)


SPLITTER = EncodeSettings(splitter="newline")


def files(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def texts_of(folder):
    rows = [row for path in sorted(folder.glob("*.jsonl")) for row in path.read_text(encoding="utf-8").splitlines()]
    return [json.loads(row)["text"] for row in rows]


def test_tokens_are_those_of_every_sentence_alone(corpus, unigram, tmp_path):
    manifests = encode_corpus([corpus], unigram, tmp_path / "out", workers=1)
    assert list(manifests) == ["train", "valid"]
    tokenizer = load_tokenizer(unigram)
    for split in manifests:
        shards = TokenShards.open(tmp_path / "out" / split, verify=True)
        split_text = load_splitter("punkt", shards.tokenizer_folder / "punkt.json")
        assert manifests[split]["splitter"] == split_text.settings | {"fingerprint": split_text.fingerprint}
        texts = [text for text in texts_of(corpus / split) if text.strip("\u200b ")]
        assert shards.num_documents == len(texts)
        for index, text in enumerate(texts):
            expected = [ids for ids in tokenizer.encode_batch(split_text(text)) if len(ids)]
            assert [ids.tolist() for ids in shards.document(index)] == [ids.tolist() for ids in expected]
        hashes = np.concatenate([shards.document_hashes(shard) for shard in range(shards.num_shards)])
        assert hashes.tolist() == [text_hash(text) for text in texts]
        assert load_tokenizer(shards.tokenizer_folder).fingerprint == shards.manifest["tokenizer"]["fingerprint"]


def test_documents_without_ids_are_dropped_and_counted(corpus, unigram, tmp_path):
    manifest = encode_corpus([corpus], unigram, tmp_path / "out", workers=1)["train"]
    assert manifest["skipped"]["empty_document"]["count"] == 2
    assert manifest["num_documents"] == 25


@pytest.mark.parametrize("kind", ["unigram", "wordpiece", "bpe"])
@pytest.mark.parametrize("workers", [1, 2])
def test_control_pieces_in_documents_are_text_or_control_as_in_the_original_library(kind, workers, request, tmp_path):
    transformers = pytest.importorskip("transformers")
    folder = request.getfixturevalue(kind)
    mask = load_tokenizer(folder).pieces()[load_tokenizer(folder).special.mask]
    texts = [f"a word {mask} and another", f"{mask}", "no such thing [X] <y>"]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    usual = transformers.AutoTokenizer.from_pretrained(folder)
    for choice in ("text", "ids"):
        settings = EncodeSettings(splitter="none", control_pieces=choice)
        out = tmp_path / choice
        notes = Notes()
        manifest = encode_corpus([tmp_path / "in.jsonl"], folder, out, settings, workers=workers, progress=notes)[""]
        shards = TokenShards.open(out, verify=True)
        found = [np.concatenate(shards.document(index)).tolist() for index in range(3)]
        expected = [
            usual(text, add_special_tokens=False, split_special_tokens=choice == "text")["input_ids"] for text in texts
        ]
        assert found == expected
        assert (usual.mask_token_id in found[0]) == (choice == "ids")
        assert manifest["control_pieces"] == {"read_as": choice, "num_documents": 2}
        assert [line for line in notes.lines if mask in line and "--control-pieces" in line and "2 documents" in line]
        encode_corpus([tmp_path / "in.jsonl"], folder, out, settings)  # complete already
    with pytest.raises(DataError, match="token shards of another"):
        encode_corpus([tmp_path / "in.jsonl"], folder, tmp_path / "ids", EncodeSettings(splitter="none"))


@pytest.mark.parametrize(("text", "is_reported"), [("the boat, the man. " * 9, False), ("ᚠᛇᚻ ᛒᛦᚦ the", True)])
def test_text_that_the_vocabulary_cannot_represent_is_reported(wordpiece, tmp_path, text, is_reported):
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": text}))
    notes = Notes()
    encode_corpus([tmp_path / "a.jsonl"], wordpiece, tmp_path / "out", SPLITTER, workers=1, progress=notes)
    assert any("67% of the tokens are [UNK]" in line for line in notes.lines) == is_reported


@pytest.mark.parametrize(("text", "is_reported"), [("the boat, the man, é. " * 9, False), ("ประเทศไทย the", True)])
def test_text_of_another_script_than_the_vocabulary_is_reported(unigram, tmp_path, text, is_reported):
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": text}))
    notes = Notes()
    encode_corpus([tmp_path / "a.jsonl"], unigram, tmp_path / "out", SPLITTER, workers=1, progress=notes)
    assert any("of the tokens are single bytes" in line for line in notes.lines) == is_reported


@pytest.mark.parametrize(
    ("kind", "splitter", "text", "is_reported"),
    [
        ("unigram", "none", "def f(x):\n    y = x\n\n    return y\n", True),
        ("bpe", "newline", "def f(x):\n\ty = x\n\treturn y\n", True),
        ("bpe", "none", "def f(x):\n    y = x\n\n    return y\n", False),
        ("unigram", "none", "  A title\n\nThe boat and\nthe man\nare\nhere.\n", False),
    ],
)
def test_lost_indents_of_source_code_are_reported(request, tmp_path, kind, splitter, text, is_reported):
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": text}))
    notes, settings = Notes(), EncodeSettings(splitter=splitter)
    folder = request.getfixturevalue(kind)
    encode_corpus([tmp_path / "a.jsonl"], folder, tmp_path / "out", settings, workers=1, progress=notes)
    assert any("1 documents have indented lines" in line for line in notes.lines) == is_reported


def test_a_corpus_without_control_pieces_does_not_mention_them(corpus, unigram, tmp_path):
    notes = Notes()
    manifest = encode_corpus([corpus], unigram, tmp_path / "out", SPLITTER, workers=1, progress=notes)["train"]
    assert manifest["control_pieces"] == {"read_as": "text", "num_documents": 0}
    assert not [line for line in notes.lines if "control" in line]


@pytest.mark.parametrize("workers", [2, 3])
def test_output_does_not_depend_on_workers(corpus, unigram, tmp_path, workers, monkeypatch):
    monkeypatch.setattr(shard_encoder, "BATCH_CHARACTERS", 3000)
    settings = EncodeSettings(splitter="regex")
    encode_corpus([corpus], unigram, tmp_path / "one", settings, workers=1)
    encode_corpus([corpus], unigram, tmp_path / "more", settings, workers=workers)
    assert files(tmp_path / "one") == files(tmp_path / "more")


def test_many_shards_are_completed_by_workers(prose, unigram, tmp_path):
    for index in range(5):
        (tmp_path / f"{index}.txt").write_text("\n".join(prose[index].split(". ")), encoding="utf-8")
    inputs = [tmp_path / f"{index}.txt" for index in range(5)]
    encode_corpus(inputs, unigram, tmp_path / "one", workers=1)
    encode_corpus(inputs, unigram, tmp_path / "two", workers=2)
    assert files(tmp_path / "one") == files(tmp_path / "two")
    shards = TokenShards.open(tmp_path / "one")
    assert shards.num_shards == 5
    # Lines of BERT text are sentences, whatever the splitter.
    assert len(shards.document(0)) == len(PlainSplitter("newline")("\n".join(prose[0].split(". "))))


def test_a_file_that_has_changed_since_is_read_again(corpus, unigram, tmp_path):
    """In one process, with everything at the same place."""
    folder, manifests = tmp_path / "tokenizer", []
    shutil.copytree(unigram, folder)
    for abbreviations in [["value", "object"], []]:
        content = {"collocations": [], "sentence_starters": [], "orthography": {}, "abbreviations": abbreviations}
        (folder / "punkt.json").write_text(json.dumps({"format": FORMAT, "version": VERSION} | content))
        manifests.append(encode_corpus([corpus / "valid"], folder, tmp_path / "out", workers=1)[""])
        shutil.rmtree(tmp_path / "out")
    first, second = manifests
    assert first["num_sentences"] < second["num_sentences"]
    assert first["fingerprint"] != second["fingerprint"]
    assert first["splitter"] != second["splitter"]


def test_parameters_beside_the_tokenizer_are_used(corpus, unigram, tmp_path):
    folder = tmp_path / "tokenizer"
    shutil.copytree(unigram, folder)
    first = encode_corpus([corpus], folder, tmp_path / "one", workers=1)["train"]
    shutil.copy(tmp_path / "one/train/tokenizer/punkt.json", folder)
    second = encode_corpus([corpus], folder, tmp_path / "two", workers=1)["train"]
    assert second == {name: value for name, value in first.items() if name != "learned_from"}


def test_complete_output_is_kept_and_other_output_refused(corpus, unigram, wordpiece, tmp_path):
    out = tmp_path / "out"
    encode_corpus([corpus], unigram, out, workers=1)
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    encode_corpus([corpus], unigram, out, workers=2)
    assert before == {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    content = files(out)
    with pytest.raises(DataError, match="another corpus, tokenizer or splitter"):
        encode_corpus([corpus], wordpiece, out)
    for other in [{"splitter": "none"}, {"splitter": "regex", "pattern": "x"}, {"punkt_rules": "sabertooth"}]:
        with pytest.raises(DataError, match="another corpus, tokenizer or splitter"):
            encode_corpus([corpus], unigram, out, EncodeSettings(**other))
    assert files(out) == content


def test_an_error_in_one_shard_keeps_the_others_for_the_next_attempt(corpus, unigram, tmp_path):
    out, bad = tmp_path / "out", corpus / "train/part-1.jsonl"
    settings = EncodeSettings(splitter="none")
    content = bad.read_bytes()
    bad.write_bytes(b'{"text": "broken\n')
    with pytest.raises(DataError, match=r"part-1\.jsonl, line 1"):
        encode_corpus([corpus / "train"], unigram, out, settings, workers=1)
    assert not (out / "manifest.json").exists()
    assert not list(out.glob("*00001-of*"))
    bad.write_bytes(content)
    first = out / "tokens-00000-of-00003.bin"
    before = first.stat().st_mtime_ns
    encode_corpus([corpus / "train"], unigram, out, settings, workers=1)
    assert first.stat().st_mtime_ns == before
    encode_corpus([corpus / "train"], unigram, tmp_path / "whole", settings, workers=1)
    assert files(out) == files(tmp_path / "whole")


def test_a_file_that_changed_after_its_shard_was_written_is_encoded_again(corpus, unigram, tmp_path):
    out, settings, bad = tmp_path / "out", EncodeSettings(splitter="none"), corpus / "train/part-1.jsonl"
    content = bad.read_bytes()
    bad.write_bytes(b'{"text": "broken\n')
    with pytest.raises(DataError, match=r"part-1\.jsonl, line 1"):
        encode_corpus([corpus / "train"], unigram, out, settings, workers=1)
    bad.write_bytes(content)
    (corpus / "train/part-0.jsonl").write_text('{"text": "another text"}\n')
    encode_corpus([corpus / "train"], unigram, out, settings, workers=1)
    encode_corpus([corpus / "train"], unigram, tmp_path / "whole", settings, workers=1)
    assert files(out) == files(tmp_path / "whole")


KILLED = """
import os, signal, sys
from pretrainkit.tokenizers import encode, shard_encoder
write = shard_encoder.write_shard
def stop_at_last(task, *rest):
    if task.index == task.num_shards - 1:
        list(rest[1])
        os.kill(os.getpid(), signal.SIGKILL)
    return write(task, *rest)
shard_encoder.write_shard = stop_at_last
settings = encode.EncodeSettings(splitter="regex")
encode.encode_corpus([sys.argv[1]], sys.argv[2], sys.argv[3], settings, workers=1)
"""


def test_a_killed_encoding_resumes_where_it_was(corpus, unigram, tmp_path):
    train, settings = corpus / "train", EncodeSettings(splitter="regex")
    command = [sys.executable, "-c", KILLED, str(train), str(unigram), str(tmp_path / "out")]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    with pytest.raises(DataError, match="no token shards"):
        TokenShards.open(tmp_path / "out")
    done = tmp_path / "out" / "tokens-00000-of-00003.bin"
    before = done.stat().st_mtime_ns
    encode_corpus([train], unigram, tmp_path / "out", settings, workers=1)
    assert done.stat().st_mtime_ns == before
    encode_corpus([train], unigram, tmp_path / "whole", settings, workers=1)
    assert files(tmp_path / "out") == files(tmp_path / "whole")


def test_a_finished_shard_that_was_damaged_is_written_again(corpus, unigram, tmp_path, monkeypatch):
    def fail(*_, **__):
        raise KeyboardInterrupt

    train, settings = corpus / "train", EncodeSettings(splitter="none")
    with monkeypatch.context() as patch:
        patch.setattr(encode_module, "finish_shards", fail)
        with pytest.raises(KeyboardInterrupt):
            encode_corpus([train], unigram, tmp_path / "out", settings, workers=1)
    (tmp_path / "out/tokens-00001-of-00003.bin").write_bytes(b"")
    encode_corpus([train], unigram, tmp_path / "out", settings, workers=1)
    TokenShards.open(tmp_path / "out", verify=True)


@pytest.mark.parametrize("has_begun", [False, True])
def test_an_encoding_that_was_stopped_while_it_tidied_up_leaves_nothing_after_the_next(
    corpus, unigram, tmp_path, monkeypatch, has_begun
):
    def remove(path, *rest, remove=shutil.rmtree, **options):
        if Path(path).name == ".work" and not has_begun:
            raise KeyboardInterrupt
        if Path(path).name == ".work":
            for task in Path(path).glob("*/task.json"):
                task.unlink()
            raise KeyboardInterrupt
        remove(path, *rest, **options)

    train, settings = corpus / "train", EncodeSettings(splitter="none")
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", remove)
        with pytest.raises(KeyboardInterrupt):
            encode_corpus([train], unigram, tmp_path / "out", settings, workers=1)
    TokenShards.open(tmp_path / "out", verify=True)
    encode_corpus([train], unigram, tmp_path / "out", settings, workers=1)
    assert not (tmp_path / "out" / ".work").exists()
    TokenShards.open(tmp_path / "out", verify=True)


def test_an_encoding_that_fails_within_its_first_shard_leaves_nothing_in_the_way(
    corpus, unigram, tmp_path, monkeypatch
):
    def replace(source, target, replace=os.replace):
        if Path(target).name == "task.json":
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(source))
        replace(source, target)

    train, settings = corpus / "train", EncodeSettings(splitter="none")
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", replace)
        with pytest.raises(RunError, match="run the same command again"):
            encode_corpus([train], unigram, tmp_path / "out", settings, workers=1)
    encode_corpus([train], unigram, tmp_path / "out", settings, workers=1)
    TokenShards.open(tmp_path / "out", verify=True)


@pytest.mark.parametrize("content", ["", '{"text": ""}\n{"text": " "}\n'])
def test_a_corpus_without_text_is_refused_and_leaves_nothing(content, unigram, tmp_path):
    (tmp_path / "empty.jsonl").write_text(content)
    with pytest.raises(DataError, match="no document has any text"):
        encode_corpus([tmp_path / "empty.jsonl"], unigram, tmp_path / "out", EncodeSettings(splitter="newline"))
    assert not list((tmp_path / "out").rglob("*"))


@pytest.mark.parametrize("name", ["tokenizer/", "manifest.json"])
def test_a_disk_that_is_full_at_the_end_keeps_the_shards_for_the_next_attempt(
    prose, wordpiece, tmp_path, monkeypatch, name
):
    """There is space for shards, but not for later files: the copy of the tokenizer, or the manifest of 300 shards."""
    monkeypatch.chdir(tmp_path)
    texts, out, whole = Path("texts"), Path("out"), Path("whole")
    texts.mkdir()
    for number in range(2 if name == "tokenizer/" else 300):
        (texts / f"{number}.jsonl").write_text(json.dumps({"text": prose[number % 2][:1000]}))
    encode_corpus([texts], wordpiece, whole, SPLITTER, workers=1)
    shard_bytes = max(path.stat().st_size for path in whole.glob("*.bin"))
    tokenizer_bytes = max(path.stat().st_size for path in wordpiece.iterdir())
    limit = shard_bytes if name == "tokenizer/" else tokenizer_bytes
    assert shard_bytes < tokenizer_bytes
    assert name == "tokenizer/" or tokenizer_bytes < (whole / "manifest.json").stat().st_size
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (max(limit, 2000), limits[1]))
    try:
        with pytest.raises(RunError, match=rf"no space left to write .*{re.escape(name)}"):
            encode_corpus([texts], wordpiece, out, SPLITTER, workers=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not (out / "manifest.json").exists()
    assert not [path for path in out.rglob(".*") if path.name != ".work"]
    assert {path.name for path in out.glob("*.bin")} == {path.name for path in whole.glob("*.bin")}
    encode_corpus([texts], wordpiece, out, SPLITTER, workers=1)
    assert files(out) == files(whole)


def test_sentence_boundaries_are_learned_once_for_an_output(corpus, wordpiece, tmp_path, monkeypatch):
    learned = []

    def learn(*arguments, **options):
        learned.append(arguments)
        return learn_punkt(*arguments, **options)

    def fail(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(encode_module, "learn_punkt", learn)
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(encode_module, "finish_shards", fail)
        with pytest.raises(KeyboardInterrupt):
            encode_corpus([corpus], wordpiece, out, workers=1)
    first = encode_corpus([corpus], wordpiece, out, workers=1)
    assert encode_corpus([corpus], wordpiece, out, workers=1) == first
    assert len(learned) == 1
    (corpus / "train/part-0.jsonl").write_text('{"text": "Another text. It has sentences."}\n')
    with pytest.raises(DataError, match="another corpus"):
        encode_corpus([corpus], wordpiece, out, workers=1)
    assert len(learned) == 2


def test_only_the_tokenizer_of_a_models_folder_is_copied(corpus, wordpiece, tmp_path):
    model = tmp_path / "model"
    shutil.copytree(wordpiece, model)
    (model / "model.safetensors").write_bytes(b"weights")
    encode_corpus([corpus], model, tmp_path / "out", SPLITTER, workers=1)
    copy = tmp_path / "out/train/tokenizer"
    assert {path.name for path in copy.iterdir()} == {path.name for path in wordpiece.iterdir()}


def test_output_that_is_not_ours_is_left_alone(corpus, unigram, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/note").write_text("x")
    with pytest.raises(DataError, match="not empty"):
        encode_corpus([corpus / "train"], unigram, tmp_path / "mine", EncodeSettings(splitter="none"))
    with pytest.raises(DataError, match="is a file"):
        encode_corpus([corpus / "train"], unigram, tmp_path / "mine/note", EncodeSettings(splitter="none"))
    with pytest.raises(DataError, match="cannot write"):
        encode_corpus([corpus / "train"], unigram, tmp_path / "mine/note/out", EncodeSettings(splitter="none"))
    assert files(tmp_path / "mine") == {"note": b"x"}


def test_wrong_settings_and_input_are_refused_before_any_work(corpus, unigram, tmp_path):
    out = tmp_path / "out"
    with pytest.raises(DataError, match="not a regular expression"):
        EncodeSettings(splitter="regex", pattern="(")
    with pytest.raises(DataError, match="does not exist"):
        encode_corpus([tmp_path / "absent"], unigram, out)
    with pytest.raises(DataError, match="holds no tokenizer"):
        encode_corpus([corpus], tmp_path, out)
    with pytest.raises(DataError, match="--workers is 0"):
        encode_corpus([corpus], unigram, out, EncodeSettings(splitter="none"), workers=0)
    assert not out.exists()


def test_very_many_files_share_shards():
    files = [object()] * 2500
    groups = shard_groups(files)
    assert len(groups) == encode_module.MAX_SHARDS
    assert sum(map(len, groups)) == 2500
    assert {len(group) for group in groups} == {2, 3}
    assert [len(group) for group in shard_groups(files[:3])] == [1, 1, 1]


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="needs process groups")
def test_workers_end_with_a_killed_parent(corpus, unigram, tmp_path):
    code = (
        "import sys, time\nfrom pretrainkit.tokenizers import encode, shard_encoder\n"
        "if __name__ == '__main__':\n"
        "    def wait(task, skips, encoded):\n"
        "        list(encoded), print('ready', flush=True), time.sleep(60)\n"
        "    shard_encoder.write_shard = wait\n"
        "    settings = encode.EncodeSettings(splitter='none')\n"
        "    encode.encode_corpus([sys.argv[1]], sys.argv[2], sys.argv[3], settings, workers=2)\n"
    )
    script = tmp_path / "script.py"
    script.write_text(code)
    command = [sys.executable, str(script), str(corpus / "valid"), str(unigram), str(tmp_path / "out")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout.readline() == b"ready\n"
        process.kill()
        process.wait()
        for _ in range(100):
            try:
                os.killpg(process.pid, 0)
            except ProcessLookupError:
                break
            time.sleep(0.1)
        else:
            os.killpg(process.pid, signal.SIGKILL)
            pytest.fail("workers outlived their parent")
