"""`pretrainkit corpus` from the outside: what it prints, exit codes, wrong input."""

import errno
import gzip
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import zstandard

import pretrainkit.errors
from pretrainkit.cli import main as cli
from pretrainkit.files.manifest import HashingFile

SOURCE_FOLDER = str(Path(pretrainkit.errors.__file__).parents[1])


@pytest.fixture
def run(monkeypatch, capfd):
    """Runs a command in this process and gives (exit code, standard output, standard error)."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["pretrainkit", "corpus", *map(str, arguments)])
        code = 0
        try:
            cli.main()
        except SystemExit as done:
            code = done.code or 0
        captured = capfd.readouterr()
        assert "Traceback" not in captured.err
        return code, captured.out, captured.err

    return call


def good_input(folder, num_documents=50):
    lines = [json.dumps({"text": f"document number {index}"}) for index in range(num_documents)]
    (folder / "good.jsonl").write_text("\n".join(lines) + "\n")
    return folder / "good.jsonl"


def files_in(folder):
    return sorted(path.name for path in folder.rglob("*")) if folder.exists() else []


@pytest.mark.parametrize(
    ("name", "options", "is_named"),
    [
        *(("a.fa", (), True), ("a.txt", (), False), ("A.TXT", (), False), ("a.00001", (), False)),
        ("a.fa", ("--format", "book"), False),
    ],
)
def test_unusual_suffixes_that_are_read_as_sentences_are_named(tmp_path, run, name, options, is_named):
    (tmp_path / name).write_text(">seq1 of a species\nACGT\nACGT\n")
    code, _, err = run("stats", tmp_path / name, *options)
    assert code == 0
    assert err.count("files with the suffix") == is_named
    assert ("the suffix .fa are read as text: each line is a sentence" in err) == is_named


def test_shards_then_words_then_stats(tmp_path, run):
    code, out, _ = run("shards", good_input(tmp_path), "--out", tmp_path / "c", "--num-shards", 3, "--heldout", 0.2)
    assert code == 0
    assert f"{tmp_path}/c/train: " in out
    assert f"{tmp_path}/c/valid: " in out
    assert files_in(tmp_path / "c/train") == ["manifest.json", *(f"part-0000{n}-of-00003.jsonl" for n in range(3))]
    code, out, _ = run("count-words", tmp_path / "c/train", tmp_path / "c/valid", "--out", tmp_path / "w.tsv", "--json")
    assert (code, json.loads(out)["num_words"]) == (0, 150)
    code, out, _ = run("count-words", tmp_path / "w.tsv")
    assert (code, out.splitlines()[:2]) == (0, ["document\t50", "number\t50"])
    code, out, _ = run("stats", tmp_path / "c/train", tmp_path / "c/valid", "--json")
    assert json.loads(out)["num_documents"] == 50
    code, out, _ = run("stats", tmp_path / "c/train")
    assert "words per document" in out
    code, out, _ = run("shuffle", tmp_path / "c/train", "--out", tmp_path / "s", "--num-shards", 2, "--json")
    assert json.loads(out)["train"]["settings"]["split_folders"] is False
    code, _, err = run("shuffle", tmp_path / "c/train", "--out", tmp_path / "s", "--num-shards", 2)
    assert (code, "already complete" in err) == (0, True)


def test_books_and_extracted_wikipedia(tmp_path, run):
    (tmp_path / "book.txt").write_text(" One \n\n two\n")
    (tmp_path / "wiki_00").write_text("<doc>\nTitle\nArticle.\n</doc>\n")
    assert run("books", tmp_path / "book.txt", "--out", tmp_path / "b")[0] == 0
    assert (tmp_path / "b/part-00000-of-00001.jsonl").read_text() == '{"text":"One\\ntwo","meta":{"dataset":"Books"}}\n'
    options = [
        "--books",
        tmp_path / "book*",
        "--wiki",
        tmp_path / "wiki_*",
        "--no-shuffle",
        "--heldout",
        0,
        "--num-shards",
        1,
    ]
    assert run("shards", *options, "--out", tmp_path / "c")[0] == 0
    lines = (tmp_path / "c/train/part-00000-of-00001.jsonl").read_text().splitlines()
    assert lines[0] == '{"text":"Article.","meta":{"dataset":"Wikipedia"}}'
    assert lines[1].endswith('"meta":{"dataset":"Books"}}')


def test_compat_exit_codes(tmp_path, run):
    """Acceptance fact 6: with --compat sabertooth the original's; else ours, which is 2 for all of these."""
    source, out = good_input(tmp_path, 9), tmp_path / "c"
    (tmp_path / "empty.jsonl").write_text("")
    compat = ["--compat", "sabertooth", "--num-shards", 4]
    assert run("shards", source, "--out", out, *compat)[0] == 1  # the folder is missing
    out.mkdir()
    assert run("shards", tmp_path / "no-*.jsonl", "--out", out, *compat)[0] == 1
    assert run("shards", tmp_path / "no-*.jsonl", "--out", out)[0] == 2
    code, _, err = run("shards", tmp_path / "empty.jsonl", "--out", out, *compat)
    assert (code, "no documents" in err) == (0, True)
    assert run("shards", source, "--out", out, *compat)[0] == 0
    sizes = [len((out / f"part-0000{n}-of-00004.jsonl").read_text().splitlines()) for n in range(3)]
    assert sizes == [3, 3, 3]
    (out / "manifest.json").unlink()
    assert run("shards", source, "--out", out, *compat)[0] == 1  # a target exists
    assert run("shards", source, "--out", out)[0] == 2


def test_counter_exit_codes(tmp_path, run):
    """Acceptance fact 10, but 2 where the original gives 1 for no arguments: as everywhere in this program."""
    assert run("count-words")[0] == 2
    assert run("count-words", tmp_path / "missing.txt")[0] == 2


def write_raw(raw, name="x.jsonl"):
    def make(folder):
        (folder / name).write_bytes(raw)
        return folder / name

    return make


packed = zstandard.ZstdCompressor().compress(b'{"text": "a b c"}\n' * 99)
WRONG_INPUT = {
    "empty": (write_raw(b""), "no document"),
    "blank": (write_raw(b"\n \n"), "no document"),
    "broken line": (write_raw(b'{"text": "a"}\n{"text": \n'), "x.jsonl, line 2: invalid json"),
    "invalid UTF-8": (write_raw(b'{"text": "a"}\n{"text": "\xe9"}\n'), "x.jsonl, line 2: invalid utf8"),
    "invalid UTF-8 in text": (write_raw(b"caf\xe9\n", "x.txt"), "x.txt, line 1: invalid utf8"),
    "truncated zst": (write_raw(packed[:-5], "x.jsonl.zst"), "x.jsonl.zst is truncated"),
    "truncated gz": (write_raw(gzip.compress(b'{"text": "a"}\n')[:-9], "x.jsonl.gz"), "x.jsonl.gz is truncated"),
    "not zst": (write_raw(b'{"text": "a"}\n' * 9, "x.jsonl.zst"), "x.jsonl.zst is not zstd data"),
    "not parquet": (write_raw(b"PAR1", "x.parquet"), "x.parquet is not a parquet file"),
    "no text": (write_raw(b'{"body": "a"}\n'), "--text-key"),
    "missing": (lambda folder: folder / "nowhere.jsonl", "nowhere.jsonl"),
    "unmatched": (lambda folder: folder / "*.nothing", "matches no file"),
    "word counts": (write_raw(b"a\t1\n", "x.tsv"), "x.tsv"),
    "table": (write_raw(b"id;text\n1;a\n", "x.csv"), "write a column of text as JSON lines"),
    "UTF-16": (write_raw("text\n".encode("utf-16"), "x.txt"), "iconv -f UTF-16"),
    "UTF-16 without a mark": (write_raw(("text\n" * 9).encode("utf-16-le"), "x.txt"), "iconv -f UTF-16LE -t UTF-8"),
    "UTF-16 of Cyrillic": (
        write_raw(("здравствуй мир\n" * 9).encode("utf-16-be"), "x.txt"),
        "iconv -f UTF-16BE -t UTF-8",
    ),
}


@pytest.mark.parametrize("verb", ["shards", "shuffle"])
@pytest.mark.parametrize("name", WRONG_INPUT)
def test_wrong_input_is_one_message_exit_1_and_nothing_half_written(tmp_path, run, verb, name):
    make, message = WRONG_INPUT[name]
    before = files_in(tmp_path)
    source = make(tmp_path)
    code, out, err = run(verb, source, "--out", tmp_path / "out" / "deep")
    assert code == 2
    assert message in err
    assert ("\n" + err).count("\nerror: ") == 1
    assert not out
    assert set(files_in(tmp_path)) == {*before, *([source.name] if source.exists() else [])}


@pytest.mark.parametrize(
    "name", [name for name in WRONG_INPUT if name not in ("word counts", "empty", "blank", "no text")]
)
def test_wrong_input_of_the_counter(tmp_path, run, name):
    make, message = WRONG_INPUT[name]
    code, _, err = run("count-words", make(tmp_path), "--out", tmp_path / "out.tsv")
    assert (code, message in err) == (2, True)
    assert not [found for found in files_in(tmp_path) if "out" in found]
    assert run("stats", make(tmp_path))[0] == 2


@pytest.mark.parametrize(
    "argument", ["--num-shards=0", "--heldout=1", "--workers=0", "--memory=lots", "--memory=1MB", "--max-bad=-1"]
)
def test_arguments_out_of_range(tmp_path, run, argument):
    code, _, err = run("shards", good_input(tmp_path), "--out", tmp_path / "out", argument)
    assert (code, argument.partition("=")[0] in err or "size" in err) == (2, True)
    assert files_in(tmp_path) == ["good.jsonl"]


def test_commands_without_input_are_refused(run):
    for verb in ("books", "shuffle", "stats", "count-words"):
        options = ["--out", "x"] if verb in ("books", "shuffle") else []
        code, _, err = run(verb, *options)
        assert (code, "nothing to read" in err) == (2, True)


def test_bad_lines_within_the_budget_are_counted_in_the_manifest(tmp_path, run):
    source = good_input(tmp_path)
    source.write_text(source.read_text() + "broken\n")
    code, _, err = run("shards", source, "--out", tmp_path / "out", "--max-bad", 1, "--heldout", 0)
    assert (code, f"warning: {source}, line 51: skipped, invalid json" in err) == (0, True)
    manifest = json.loads((tmp_path / "out/train/manifest.json").read_text())
    assert manifest["skipped"] == {"invalid_json": {"count": 1, "examples": [f"{source}, line 51"]}}
    assert manifest["num_documents"] == 50


def test_output_that_cannot_be_written(tmp_path, run):
    (tmp_path / "file").write_text("precious")
    for verb in ("shards", "shuffle", "books"):
        for out in (tmp_path / "file", tmp_path / "file/below", "/proc/pretrainkit-cannot-write-here"):
            code, _, err = run(verb, good_input(tmp_path), "--out", out)
            assert (code, str(out) in err) == (2, True)
    for out in (tmp_path, tmp_path / "file", tmp_path / "file/below"):
        assert run("count-words", good_input(tmp_path), "--out", out)[0] == 2
    assert (tmp_path / "file").read_text() == "precious"


@pytest.mark.parametrize("limit", [2000, 20_000])
@pytest.mark.parametrize("verb", ["shards", "count-words"])
def test_a_full_disk_is_one_message_exit_1_and_nothing_half_written(tmp_path, verb, limit):
    """RLIMIT_FSIZE makes the system refuse to write more, as a full disk does."""
    source = tmp_path / "big.jsonl"
    source.write_text("\n".join(json.dumps({"text": f"{index:x} " * 20}) for index in range(3000)))
    out = tmp_path / ("words.tsv" if verb == "count-words" else "out")
    command = [sys.executable, "-m", "pretrainkit", "corpus", verb, source, "--out", out]

    def tighten():
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    environment = {**os.environ, "PYTHONPATH": SOURCE_FOLDER}
    done = subprocess.run(command, preexec_fn=tighten, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "no space left" in done.stderr
    assert "Traceback" not in done.stderr
    assert not [name for name in files_in(tmp_path) if name.startswith(("part-", "words"))]
    again = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr


def test_a_disk_that_fills_while_shards_are_written_keeps_the_finished_ones(tmp_path, run, monkeypatch):
    original, calls = HashingFile.write, []

    def filling(file, data):
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        calls.append(data)
        return original(file, data)

    monkeypatch.setattr(HashingFile, "write", filling)
    arguments = ["shards", good_input(tmp_path), "--out", tmp_path / "out", "--num-shards", 4, "--heldout", 0]
    code, _, err = run(*arguments)
    assert (code, "no space left" in err) == (1, True)
    assert len([name for name in files_in(tmp_path / "out") if name.startswith("part-")]) == 2
    calls.append(None)
    code, _, err = run(*arguments)
    assert (code, "kept: 2 of 4 shards" in err) == (0, True)


def test_help_is_there_and_imports_nothing_heavy():
    code = (
        "import sys; sys.argv = ['pretrainkit', 'corpus', 'shards', '--help']\n"
        "from pretrainkit.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "assert not {'torch', 'pyarrow', 'numpy', 'datatrove', 'zstandard'} & set(sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": SOURCE_FOLDER},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "--num-shards" in done.stdout


def test_an_interrupt_prints_how_to_resume(tmp_path, run, monkeypatch):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("pretrainkit.corpus.shards.gather_shard", interrupted)
    code, _, err = run("shuffle", good_input(tmp_path), "--out", tmp_path / "out")
    assert (code, "run the same command again" in err) == (130, True)
