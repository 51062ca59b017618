"""Every verb: its help, the line that lists it, and what wrong arguments do."""

import errno
import json
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from pretrainkit.cli.main import VERBS, main

HELP_OF_ALL = """
import contextlib, io, json, sys
from pretrainkit.cli.main import VERBS, main
found = {}
for words in [[], *([verb] for verb in VERBS)]:
    sys.argv = ["pretrainkit", *words, "--help"]
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        main()
    found[" ".join(words)] = out.getvalue()
heavy = ("torch", "transformers", "datasets", "pyarrow", "sentencepiece", "tokenizers", "nltk", "datatrove")
json.dump({"help": found, "heavy": [name for name in heavy if name in sys.modules]}, sys.stdout)
"""


@pytest.fixture(scope="module")
def helped() -> dict:
    done = subprocess.run([sys.executable, "-c", HELP_OF_ALL], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_help_of_all_verbs_imports_nothing_heavy(helped):
    assert helped["heavy"] == []


def test_help_lists_every_verb_with_its_line(helped):
    lines = [line.split(maxsplit=1) for line in helped["help"][""].splitlines()]
    for verb, line in VERBS.items():
        assert [verb, line] in lines


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help(helped, verb):
    text = helped["help"][verb]
    assert f"Usage: pretrainkit {verb}" in text
    assert "completion" not in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["trian"], "Did you mean 'train'?"),
        (["nosuch"], "There are: demo, new, recipes"),
        (["corpus", "shard"], "Did you mean 'shards'?"),
        (["train"], "Missing argument"),
        (["train", "bert/tiny", "--nope"], "there is no option --nope"),
        (["--nope"], "No such option: --nope"),
        (["plan", "bert/tiny", "--nodes", "0"], "the closest to it is --gpus: Number of devices of the run on all"),
        (["plan", "bert/tiny", "--ranks", "4"], "write: --gpus 4"),
        (["tokenizer", "encode", "--spliter", "none"], "No such option: --spliter; did you mean --splitter?"),
        (["data", "check", "--bogus"], "The options are --split, --format"),
        (["train", "bert/tiny", "--out"], "Run folder. Default: runs/PRESET-DATE-TIME."),
        (["recipes", "pixel"], "Example: pretrainkit recipes"),
        (["export"], "Example: pretrainkit export runs/mini --out exported"),
        (["tokenizer", "train", "words.tsv", "--out", "x", "--kind", "wordpeice"], "did you mean wordpiece?"),
        (
            ["train", "bert/tiny", "--nproc", "two"],
            "Invalid value for '--nproc': it must be a valid integer, not 'two'",
        ),
        (["infer", "x", "--out", "OUT", "--batch-size", "0"], "it must be greater than or equal to 1, not '0'"),
        (["infer"], "Missing argument 'MODEL'"),
        (["new", "bert", "s3://bucket/x", "--out", "OUT"], "s3://bucket/x is not a file or folder of this machine"),
        (["tokenizer", "train", "words.tsv", "--out", "x", "--kind", "morse"], "'morse' is not one of"),
        (["train", "bert/tinny"], "did you mean bert/tiny?"),
        (["train", "bret/tiny"], "did you mean 'bert'?"),
        (["train", "tiny"], "presets are written recipe/preset"),
        (["train", "nosuch.yaml"], "there is no config file nosuch.yaml"),
        (["train", "bert/tiny", "data.batchsize=3"], "closest: data.batch_size"),
        (["train", "bert/tiny", "seed"], "write settings as dotted.path=value"),
        (["train", "bert/tiny", "--launch", "mars"], "give one of: none, local"),
        (["train", "bert/tiny", "--launch", "local", "--nproc", "7"], "cannot be split over 7 ranks"),
        (["train", "bert/tiny", "--out", "OUT"], "data.train"),
        (["config", "show", "bert/tiny", "--under", "optimiser"], "parts: recipe, seed"),
        (["config", "check", "bert/tiny", "data.batch_size=10", "--nproc", "4"], "nearest values that fit"),
        (["config", "schema", "bart"], "did you mean 'bert'?"),
        (["resume", "NOWHERE"], "is not a run folder"),
        (["evaluate", "NOWHERE"], "there is no folder"),
        (["generate", "NOWHERE", "text"], "there is no folder"),
        (["export", "NOWHERE", "--out", "OUT"], "there is no folder"),
        (["import", "NOWHERE", "--out", "OUT"], "NOWHERE"),
        (["report", "NOWHERE"], "does not exist"),
        (["corpus", "shards", "--out", "OUT"], "nothing to read"),
        (["corpus", "stats", "NOWHERE"], "does not exist or contains no file"),
        (["corpus", "count-words", "NOWHERE"], "does not exist or contains no file"),
        (["tokenizer", "train", "NOWHERE", "--out", "OUT"], "NOWHERE"),
        (["tokenizer", "encode", "NOWHERE", "--tokenizer", "NOWHERE", "--out", "OUT"], "NOWHERE"),
        (["tokenizer", "inspect", "NOWHERE"], "NOWHERE"),
        (["demo", "--text", "NOWHERE"], "there is no file NOWHERE"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_words_end_with_code_2_one_message_and_nothing_written(cli, tmp_path, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    result = cli(*words)
    assert result.code == 2
    assert said in " ".join(result.err.replace("│", " ").split())
    assert "Traceback" not in result.err
    assert result.out == ""
    assert list(tmp_path.iterdir()) == []


def test_debug_shows_the_traceback_and_the_message(cli):
    result = cli("--debug", "train", "bert/tinny")
    assert result.code == 2
    assert "Traceback" in result.err
    assert result.err.rstrip().splitlines()[-2] == (
        "error: recipe 'bert' has no preset 'tinny'; did you mean bert/tiny?"
    )


def test_an_interrupt_ends_with_130_and_no_traceback(cli, monkeypatch):
    def interrupted(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("pretrainkit.api.resolve_config", interrupted)
    result = cli("train", "bert/tiny")
    assert result.code == 130
    assert "Traceback" not in result.err


def test_an_interrupt_while_the_command_line_is_loaded_prints_no_traceback(monkeypatch, capsys):
    from pretrainkit.cli.start import main as start

    class Interrupted:
        def __getattr__(self, name: str) -> object:
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "pretrainkit.cli.main", Interrupted())
    with pytest.raises(SystemExit) as ended:
        start()
    assert ended.value.code == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_processes_of_a_command_import_no_file_of_the_current_folder(tmp_path, monkeypatch):
    from pretrainkit.cli.start import main as start

    (tmp_path / "random.py").write_text("raise SystemExit(7)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONSAFEPATH", "")
    command = [sys.executable, "-c", "import random"]
    assert subprocess.run(command, check=False).returncode == 7
    ended = []
    fake = SimpleNamespace(main=lambda: ended.append(subprocess.run(command, check=False).returncode))
    monkeypatch.setitem(sys.modules, "pretrainkit.cli.main", fake)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    start()
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])  # as after `python -m pretrainkit`
    monkeypatch.setenv("PYTHONSAFEPATH", "")
    start()
    assert ended == [0, 7]


def test_a_file_on_a_disk_that_fails_is_one_message(cli, monkeypatch):
    def failed(*args: object, **kwargs: object) -> None:
        raise OSError(errno.EIO, "Input/output error", "/data/tokens.bin")

    monkeypatch.setattr("pretrainkit.api.train", failed)
    result = cli("train", "bert/tiny", "data.train=x")
    assert result.code == 1
    assert result.err.startswith("error: cannot read or write a file: the disk or the network file system fails\n")
    assert "Input/output error (/data/tokens.bin)" in result.err
    assert "Traceback" not in result.err


@pytest.mark.parametrize("name", ["ENOENT", "EDQUOT", "EROFS", "EACCES"])
def test_a_file_that_vanishes_or_a_quota_is_one_message_too(cli, monkeypatch, name):
    def failed(*args: object, **kwargs: object) -> None:
        raise OSError(getattr(errno, name), "so the system says", "/data/tokens.bin")

    monkeypatch.setattr("pretrainkit.api.train", failed)
    result = cli("train", "bert/tiny", "data.train=x")
    assert result.code == 1
    assert result.err.startswith("error: cannot read or write a file\n")
    assert "so the system says (/data/tokens.bin)" in result.err
    assert "Traceback" not in result.err


def test_a_failure_of_the_work_ends_with_1(cli, monkeypatch):
    from pretrainkit.errors import RunError

    def failed(*args: object, **kwargs: object) -> None:
        raise RunError("the disk is full\n  make room")

    monkeypatch.setattr("pretrainkit.api.train", failed)
    result = cli("train", "bert/tiny", "data.train=x")
    assert (result.code, result.err) == (1, "error: the disk is full\n  make room\n")


def test_module_and_command_are_the_same():
    done = subprocess.run([sys.executable, "-m", "pretrainkit", "nosuch"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "Usage: pretrainkit" in done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGBUS")
def test_a_mapped_file_that_gets_shorter_is_reported_with_the_place(tmp_path):
    code = """
import sys
import numpy as np
import pretrainkit.cli.main as cli
(path,) = sys.argv[1:]
np.zeros(1 << 20, np.uint8).tofile(path)
mapped = np.memmap(path, np.uint8, "r")
def app(prog_name):
    open(path, "w").close()
    mapped.sum()
cli.app = app
cli.main()
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "x.bin")], capture_output=True, text=True)
    assert done.returncode == -signal.SIGBUS
    assert done.stderr.startswith("Fatal Python error: Bus error")
    assert "line 10 in app" in done.stderr


@pytest.mark.parametrize(
    ("task", "said"),
    [
        ("cola", ": there is no such folder"),
        ("glue/cola", ": there is no such folder"),
        (
            "bert/tiny",
            "bert/tiny is not a task of glue\n  name a task, as in finetune cola; for a config file or another "
            "preset: pretrainkit train ",
        ),
    ],
)
def test_finetune_takes_a_task_or_the_preset_of_one(task, said, tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["pretrainkit", "finetune", task, "--from", str(tmp_path / "none")])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert said in capfd.readouterr().err
