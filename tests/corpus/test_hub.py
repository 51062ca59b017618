"""Data sets of the hub into shards: nothing twice, nothing left out, whatever breaks in between."""

import json
import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import pretrainkit
from pretrainkit.cli.corpus import app
from pretrainkit.corpus import hub
from pretrainkit.corpus.hub import FETCHED, HubRequest, fetched
from pretrainkit.corpus.readers import read_documents
from pretrainkit.corpus.shards import BuildSettings, build_corpus
from pretrainkit.errors import DataError, MissingPackageError, PretrainKitError
from pretrainkit.files.sources import find_sources
from pretrainkit.workers.engine import LocalEngine
from support.hub_stand_in import datasets, huggingface_hub, stand_in

SOURCE_FOLDER = str(Path(pretrainkit.__file__).parents[1])
SMALL_PART = 4000
IN_ORDER = BuildSettings(num_shards=2, seed=None, split_folders=False)


@pytest.fixture(autouse=True)
def no_cache(monkeypatch, tmp_path):
    hub._open.cache_clear()
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def make_set(folder, kind="parquet", num_files=3, num_rows=400):
    """A local data set of several files, and its texts in order."""
    folder.mkdir()
    texts = [[f"text {file} {row} " + "wörter " * (row % 7) for row in range(num_rows)] for file in range(num_files)]
    for file, column in enumerate(texts):
        if kind == "parquet":
            table = pa.table({"text": column, "url": [f"http://e.org/{row}" for row in range(num_rows)]})
            pq.write_table(table, folder / f"train-{file:05d}.parquet", row_group_size=90)
        else:
            rows = (json.dumps({"text": text, "url": f"u{row}"}) for row, text in enumerate(column))
            (folder / f"train-{file:05d}.jsonl").write_text("\n".join(rows) + "\n")
    return [text for column in texts for text in column]


def stream(request, out, settings=IN_ORDER, **options):
    with fetched(request, out, part_bytes=SMALL_PART, **{"workers": 1} | options) as sources:
        return build_corpus(sources, out, settings, workers=1)


def texts_in(folder):
    return [document.text for document in read_documents(find_sources([folder]))]


def bytes_of(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_all_documents_once_in_order_with_provenance(tmp_path, kind):
    texts = make_set(tmp_path / "set", kind)
    request = HubRequest(name=str(tmp_path / "set"), meta_columns=("url",))
    manifest = stream(request, tmp_path / "out")["train"]
    assert texts_in(tmp_path / "out") == texts
    first = next(read_documents(find_sources([tmp_path / "out"])))
    assert first.meta == {"dataset": "set", "url": "http://e.org/0" if kind == "parquet" else "u0"}
    assert {source["name"] for source in manifest["sources"]} == {str(tmp_path / "set")}
    assert {source["file"] for source in manifest["sources"]} == {0, 1, 2}
    assert max(source["part"] for source in manifest["sources"]) >= 3
    assert not (tmp_path / "out" / FETCHED).exists()


@pytest.mark.parametrize("broken_at", [1, 250, 777])
@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_a_break_leaves_neither_duplicates_nor_holes_and_nothing_is_streamed_again(
    tmp_path, monkeypatch, kind, broken_at
):
    texts = make_set(tmp_path / "set", kind)
    request = HubRequest(name=str(tmp_path / "set"))
    stream(request, tmp_path / "undisturbed")
    original, seen = hub._record, []

    def breaks(row, request):
        seen.append(row["text"])
        if len(seen) == broken_at:
            raise ConnectionError("the line is dead")
        return original(row, request)

    monkeypatch.setattr(hub, "_record", breaks)
    with pytest.raises(DataError, match="the stream stopped: the line is dead") as caught:
        stream(request, tmp_path / "out")
    assert "run the same command again" in str(caught.value) or "check the network" in str(caught.value)
    num_first = len(seen)
    stream(request, tmp_path / "out")
    longest_part = SMALL_PART // len(json.dumps({"text": "text 0 0 ", "meta": {"dataset": "set"}}))
    assert len(texts) <= len(seen) <= len(texts) + min(num_first, longest_part)
    assert bytes_of(tmp_path / "out") == bytes_of(tmp_path / "undisturbed")


def test_a_killed_process_resumes_and_gives_the_same_bytes(tmp_path):
    make_set(tmp_path / "set", "jsonl")
    code = (
        "import os, signal, sys; from pretrainkit.corpus import hub\n"
        "original, left = hub._record, list(range(500))\n"
        "hub._record = lambda *row: original(*row) if left and [left.pop()] else os.kill(os.getpid(), signal.SIGKILL)\n"
        "os.fsync = lambda descriptor: None\n"
        "with hub.fetched(hub.HubRequest(name=sys.argv[1]), sys.argv[2], part_bytes=int(sys.argv[3])): pass\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "set"), str(tmp_path / "out"), str(SMALL_PART)]
    environment = os.environ | {"PYTHONPATH": SOURCE_FOLDER, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "home")}
    killed = subprocess.run(command, env=environment, capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    assert len(list((tmp_path / "out" / FETCHED).rglob("part-*.jsonl"))) > 3
    request = HubRequest(name=str(tmp_path / "set"))
    stream(request, tmp_path / "out")
    stream(request, tmp_path / "whole")
    assert bytes_of(tmp_path / "out") == bytes_of(tmp_path / "whole")


def test_files_that_other_processes_stream_in_any_order_change_no_byte(tmp_path):
    make_set(tmp_path / "set")
    request = HubRequest(name=str(tmp_path / "set"))
    settings = BuildSettings(heldout=0.2)
    stream(request, tmp_path / "one", settings, workers=1)

    class AnotherOrder(LocalEngine):
        """Runs tasks like two processes: tasks and results are pickled, and come in any order."""

        def run(self, function, tasks, resources, work, progress):
            return [pickle.loads(pickle.dumps(function(pickle.loads(pickle.dumps(task))))) for task in reversed(tasks)]

    stream(request, tmp_path / "two", settings, workers=2, engine=AnotherOrder())
    assert bytes_of(tmp_path / "one") == bytes_of(tmp_path / "two")


@pytest.mark.parametrize("wanted", [1, 399, 400, 401, 1000, 5000])
def test_no_more_documents_than_wanted_and_the_first_of_them(tmp_path, wanted):
    texts = make_set(tmp_path / "set")
    stream(HubRequest(name=str(tmp_path / "set"), max_documents=wanted), tmp_path / "out")
    assert texts_in(tmp_path / "out") == texts[:wanted]


def test_rows_without_a_text_are_counted_and_do_not_count_as_documents(tmp_path):
    (tmp_path / "set").mkdir()
    pq.write_table(pa.table({"text": ["a", None, "b", "", "c"]}), tmp_path / "set/train.parquet")
    manifest = stream(HubRequest(name=str(tmp_path / "set"), max_documents=3), tmp_path / "out")["train"]
    assert texts_in(tmp_path / "out") == ["a", "b", ""]
    assert manifest["skipped"]["no_text"]["count"] == 1


def test_a_changed_set_is_noticed(tmp_path):
    make_set(tmp_path / "set")
    request = HubRequest(name=str(tmp_path / "set"))
    with pytest.raises(RuntimeError), fetched(request, tmp_path / "out", part_bytes=SMALL_PART):
        raise RuntimeError
    pq.write_table(pa.table({"text": ["new"], "url": [""]}), tmp_path / "set/train-00003.parquet")
    with pytest.raises(DataError, match="started from other input"), fetched(request, tmp_path / "out"):
        pass


def test_a_set_of_the_hub_is_pinned_to_a_commit_and_not_requested_again(tmp_path, monkeypatch):
    rows = [{"text": f"text {index}", "id": index} for index in range(40)]
    asked = stand_in(monkeypatch, {("some/set", "en"): rows})
    arguments = ["hub", "some/set", "--config", "en", "--revision", "v2", "--out", str(tmp_path / "out")]
    arguments += ["--heldout", "0.2", "--num-shards", "2", "--workers", "1"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert set(asked.revisions) == {"commit-of-v2"}
    assert (tmp_path / "out/valid/manifest.json").exists()
    manifest = json.loads((tmp_path / "out/train/manifest.json").read_bytes())
    source = manifest["sources"][0]
    assert (source["address"], source["revision"], source["commit"]) == ("some/set", "v2", "commit-of-v2")
    assert sorted(texts_in(tmp_path / "out/train") + texts_in(tmp_path / "out/valid")) == sorted(
        row["text"] for row in rows
    )
    num_asked = len(asked.asked)
    again = CliRunner().invoke(app, arguments)
    assert (again.exit_code, len(asked.asked)) == (0, num_asked)
    assert "already complete" in again.output
    other = CliRunner().invoke(app, [*arguments, "--max-documents", "3"])
    assert isinstance(other.exception, DataError)
    assert "other settings" in str(other.exception)


def test_an_attempt_continues_with_the_commit_that_it_began_with(tmp_path, monkeypatch):
    asked = stand_in(monkeypatch, {("some/set", None): [{"text": f"text {index} " * 9} for index in range(300)]})
    request, original, seen = HubRequest(name="some/set"), hub._record, []

    def breaks(row, request):
        seen.append(row)
        if len(seen) == 200:
            raise ConnectionError("the line is dead")
        return original(row, request)

    monkeypatch.setattr(hub, "_record", breaks)
    with pytest.raises(DataError, match="the line is dead"):
        stream(request, tmp_path / "out")
    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", lambda *args, **named: SimpleNamespace(sha="newer"))
    sources = stream(request, tmp_path / "out")["train"]["sources"]
    assert {source["commit"] for source in sources} == {"commit-of-main"} == set(asked.revisions)
    assert stream(request, tmp_path / "new")["train"]["sources"][0]["commit"] == "newer"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"column": "txt"}, "no column 'txt'\n  its columns are: text, url; name one of them with --column"),
        ({"meta_columns": ("date",)}, "no column 'date'\n  its columns are: text, url; name one of them with --meta"),
        (
            {"split": "dev"},
            "no such split: Bad split: dev. Available splits: ['train']\n  name one of them with --split",
        ),
        ({"config": "en"}, "no such configuration: BuilderConfig 'en' not found. Available: ['default']"),
        ({"revision": "main"}, "is a folder, which has no revisions\n  leave out --revision"),
        ({"name": "/no/such/folder"}, "/no/such/folder is neither a folder nor a file\n  give the name of a data set"),
    ],
)
def test_wrong_requests_are_one_message_and_leave_nothing(tmp_path, change, message):
    make_set(tmp_path / "set")
    request = HubRequest(**({"name": str(tmp_path / "set")} | change))
    with pytest.raises(PretrainKitError) as caught, fetched(request, tmp_path / "out"):
        pass
    assert message in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_an_unknown_set_and_numbers_in_place_of_text(tmp_path, monkeypatch):
    stand_in(monkeypatch, {("some/set", None): [{"id": 1}]})
    for request, message in [
        (HubRequest(name="nobody/nothing"), "nobody/nothing cannot be opened: 404"),
        (HubRequest(name="some/set", column="id"), "column 'id' contains Value('int64'), not text"),
    ]:
        with pytest.raises(DataError) as caught, fetched(request, tmp_path / "out"):
            pass
        assert message in str(caught.value)
    with pytest.raises(DataError, match="--max-documents is 0"):
        HubRequest(name="some/set", max_documents=0)


def test_without_the_library_the_message_names_the_package(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with (
        pytest.raises(MissingPackageError, match=r"pip install 'pretrainkit\[hub\]'"),
        fetched(HubRequest(name="some/set"), tmp_path / "out"),
    ):
        pass
