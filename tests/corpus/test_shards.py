import json
import os
import pickle
import signal
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from pretrainkit.cli.corpus import app
from pretrainkit.corpus import shards
from pretrainkit.corpus.readers import read_documents
from pretrainkit.corpus.shards import BuildSettings, EmptyCorpus, HeldOut, build_corpus, shard_ranks
from pretrainkit.errors import DataError
from pretrainkit.files.manifest import read_manifest, verify
from pretrainkit.files.sources import find_sources
from pretrainkit.workers.engine import LocalEngine
from pretrainkit.workers.processes import Quiet
from support.remedies import followed


class Notes(Quiet):
    def __init__(self):
        self.lines = []

    def note(self, message):
        self.lines.append(message)


def make_input(folder, num_files=3, num_documents=40):
    folder.mkdir(exist_ok=True)
    for file in range(num_files):
        lines = [
            json.dumps({"text": f"document {file} {index} " + "é" * index, "meta": {"n": index}})
            for index in range(num_documents)
        ]
        (folder / f"{file}.jsonl").write_text("\n".join(lines) + "\n")
    return find_sources([folder])


def all_bytes(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.rglob("part-*"))}


def texts(folder):
    return [document.text for document in read_documents(find_sources([folder]))]


@pytest.fixture
def small_groups(monkeypatch):
    """Every file is a task of its own."""
    original = shards.group_sources
    monkeypatch.setattr(shards, "group_sources", lambda sources: original(sources, 1))


class SizingEngine(LocalEngine):
    """Keeps the size of the largest task of the last stage."""

    def run(self, function, tasks, resources, work, progress):
        self.largest = max(len(pickle.dumps(task)) for task in tasks)
        return super().run(function, tasks, resources, work, progress)


@pytest.mark.usefixtures("small_groups")
def test_tasks_that_write_shards_do_not_grow_with_the_input(tmp_path):
    """A cluster gets each task as a file. 10 TB are 10,000 tasks, each of which reads thousands of runs."""
    sizes = []
    for num_files in (2, 60):
        engine = SizingEngine()
        sources = make_input(tmp_path / f"in{num_files:02d}", num_files, 4)
        build_corpus(sources, tmp_path / f"out{num_files:02d}", BuildSettings(num_shards=2), workers=1, engine=engine)
        sizes.append(engine.largest)
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize(
    ("num_shards", "sizes"),
    [(2, [5, 4]), (3, [3, 3, 3]), (4, [3, 3, 3]), (5, [2, 2, 2, 2, 1]), (6, [2, 2, 2, 2, 1]), (10, [1] * 9)],
)
def test_compat_shard_sizes(tmp_path, num_shards, sizes):
    """Acceptance fact 5."""
    ranks = shard_ranks(9, num_shards, "sabertooth")
    assert [b - a for a, b in pairwise(ranks)] == sizes
    sources = make_input(tmp_path / "in", 1, 9)
    settings = BuildSettings(num_shards=num_shards, rule="sabertooth", split_folders=False, seed=None)
    manifest = build_corpus(sources, tmp_path / "out", settings)["train"]
    assert [shard["num_documents"] for shard in manifest["shards"]] == sizes
    assert manifest["shards"][-1]["name"] == f"part-{len(sizes) - 1:05d}-of-{num_shards:05d}.jsonl"


@given(num_documents=st.integers(0, 1000), num_shards=st.integers(1, 60))
def test_even_shards_differ_by_one_at_most(num_documents, num_shards):
    """Defect 3: N shards are N files."""
    ranks = shard_ranks(num_documents, num_shards, "even")
    sizes = [b - a for a, b in pairwise(ranks)]
    assert (len(sizes), sum(sizes)) == (num_shards, num_documents)
    assert max(sizes) - min(sizes) <= 1


def test_no_document_is_lost_and_copies_stay_on_one_side(tmp_path):
    sources = make_input(tmp_path / "in", 1, 200) * 2
    manifests = build_corpus(sources, tmp_path / "out", BuildSettings(num_shards=4, heldout=0.2))
    train, valid = texts(tmp_path / "out/train"), texts(tmp_path / "out/valid")
    assert Counter(train + valid) == Counter(document.text for document in read_documents(sources))
    assert not set(train) & set(valid)
    assert 0.1 < len(valid) / 400 < 0.3
    assert manifests["train"]["num_documents"] == len(train)
    for split in ("train", "valid"):
        assert verify(tmp_path / "out" / split) == manifests[split]
    assert not (tmp_path / "out/.work").exists()


def test_held_out_documents_do_not_depend_on_seed_or_order():
    one, two = BuildSettings(heldout=0.3, seed=1), BuildSettings(heldout=0.3, seed=None)
    assert all(HeldOut(one).split_of(str(n)) == HeldOut(two).split_of(str(n)) for n in range(200))


@pytest.mark.parametrize("compress", ["none", "zst"])
def test_workers_and_memory_change_nothing(tmp_path, compress, small_groups):
    sources = make_input(tmp_path / "in")
    settings = BuildSettings(num_shards=3, heldout=0.1, compress=compress, seed=3)
    build_corpus(sources, tmp_path / "one", settings, workers=1)
    build_corpus(sources, tmp_path / "two", settings, workers=2, memory_bytes=400_000_000)
    assert all_bytes(tmp_path / "one") == all_bytes(tmp_path / "two")
    for split in ("train", "valid"):
        one, two = (tmp_path / name / split / "manifest.json" for name in ("one", "two"))
        assert one.read_bytes() == two.read_bytes()
    if compress == "zst":
        for path in (tmp_path / "one").rglob("part-*"):
            assert zstandard.ZstdDecompressor().decompressobj().decompress(path.read_bytes()).count(b"\n") > 0


def test_another_seed_gives_another_order_and_no_seed_keeps_it(tmp_path):
    sources = make_input(tmp_path / "in")
    orders = {}
    for seed in (None, 0, 1):
        out = tmp_path / f"out-{seed}"
        build_corpus(sources, out, BuildSettings(num_shards=2, seed=seed, split_folders=False))
        orders[seed] = texts(out)
    assert orders[None] == [document.text for document in read_documents(sources)]
    assert sorted(orders[0]) == sorted(orders[1]) == sorted(orders[None])
    assert len({tuple(order) for order in orders.values()}) == 3


CRASH = """
import os, signal, sys
from pathlib import Path
from pretrainkit.corpus import shards
from pretrainkit.files.sources import find_sources

original_groups, calls = shards.group_sources, []
shards.group_sources = lambda sources: original_groups(sources, 1)
function, after = sys.argv[3], int(sys.argv[4])
original = getattr(shards, function)

def dying(*arguments, **options):
    if len(calls) == after:
        os.kill(os.getpid(), signal.SIGKILL)
    calls.append(None)
    return original(*arguments, **options)

setattr(shards, function, dying)
settings = shards.BuildSettings(num_shards=5, heldout=0.1)
shards.build_corpus(find_sources([sys.argv[1]]), Path(sys.argv[2]), settings, workers=1)
"""


@pytest.mark.parametrize(("function", "after", "note"), [
    ("scatter", 0, None), ("scatter", 2, "2 of 3 groups"), ("gather_shard", 3, "3 of 6 shards"),
    ("write_manifests", 0, "6 of 6"),
])  # fmt: skip
def test_a_command_repeated_after_kill_9_has_the_same_result(tmp_path, small_groups, function, after, note):
    sources = make_input(tmp_path / "in")
    settings = BuildSettings(num_shards=5, heldout=0.1)
    build_corpus(sources, tmp_path / "whole", settings, workers=1)
    command = [sys.executable, "-c", CRASH, tmp_path / "in", tmp_path / "out", function, str(after)]
    source_folder = str(Path(shards.__file__).parents[2])
    died = subprocess.run(command, env={**os.environ, "PYTHONPATH": source_folder}, check=False)
    assert died.returncode == -signal.SIGKILL
    half = all_bytes(tmp_path / "out")
    whole = all_bytes(tmp_path / "whole")
    assert all(whole[name] == content for name, content in half.items() if name in half)
    notes = Notes()
    build_corpus(sources, tmp_path / "out", settings, workers=1, progress=notes)
    assert all_bytes(tmp_path / "out") == whole
    assert not (tmp_path / "out/.work").exists()
    if note:
        assert any(note in line for line in notes.lines)


def test_a_shard_that_was_damaged_before_resuming_is_written_again(tmp_path, monkeypatch):
    sources = make_input(tmp_path / "in")
    settings = BuildSettings(num_shards=3)

    def fail(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(shards, "write_manifests", fail)
    with pytest.raises(KeyboardInterrupt):
        build_corpus(sources, tmp_path / "out", settings)
    monkeypatch.undo()
    damaged = next((tmp_path / "out/train").glob("part-00001*"))
    good = damaged.read_bytes()
    damaged.write_bytes(good.replace(b"document", b"docuMENT"))
    notes = Notes()
    build_corpus(sources, tmp_path / "out", settings, progress=notes)
    assert damaged.read_bytes() == good
    assert any("2 of 3 shards" in line for line in notes.lines)


def test_a_complete_corpus_is_kept_and_another_is_refused(tmp_path):
    sources = make_input(tmp_path / "in")
    build_corpus(sources, tmp_path / "out", BuildSettings(num_shards=2))
    before = all_bytes(tmp_path / "out")
    notes = Notes()
    build_corpus(sources, tmp_path / "out", BuildSettings(num_shards=2), progress=notes)
    assert "already complete" in notes.lines[0]
    for settings in (
        BuildSettings(num_shards=3),
        BuildSettings(num_shards=2, seed=9),
        BuildSettings(split_folders=False),
    ):
        with pytest.raises(DataError, match="already has"):
            build_corpus(sources, tmp_path / "out", settings)
    assert all_bytes(tmp_path / "out") == before


def test_a_shard_of_somebody_else_is_not_overwritten(tmp_path):
    """Acceptance fact 6."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out/part-00000-of-00001.jsonl").write_text("precious")
    with pytest.raises(DataError, match="already has part-00000"):
        build_corpus(make_input(tmp_path / "in"), tmp_path / "out", BuildSettings(split_folders=False))
    assert (tmp_path / "out/part-00000-of-00001.jsonl").read_text() == "precious"


def test_an_unfinished_corpus_with_other_settings_is_refused(tmp_path, monkeypatch):
    sources = make_input(tmp_path / "in")

    def fail(task):
        raise KeyboardInterrupt

    monkeypatch.setattr(shards, "gather_shard", fail)
    with pytest.raises(KeyboardInterrupt):
        build_corpus(sources, tmp_path / "out", BuildSettings())
    with pytest.raises(DataError, match="not finished"):
        build_corpus(sources, tmp_path / "out", BuildSettings(num_shards=2))


def test_two_processes_do_not_write_one_folder(tmp_path):
    from pretrainkit.files.work import work_folder

    make_input(tmp_path / "in", 1, 4)
    command = ["shards", str(tmp_path / "in"), "--heldout", "0", "--out"]
    with work_folder(tmp_path / "out" / ".work", {}, tmp_path / "out"):
        error = CliRunner().invoke(app, [*command, str(tmp_path / "out")]).exception
        assert "name another --out" in followed(error, "files/work.py: another process is writing")
        assert CliRunner().invoke(app, [*command, str(tmp_path / "other")]).exit_code == 0


def test_bad_input_in_several_tasks_is_counted_together(tmp_path, small_groups):
    for number in range(2):
        (tmp_path / f"{number}.jsonl").write_text('{"text": "Whole."}\n{"text": "bro\n')
    command = ["shards", str(tmp_path), "--heldout", "0", "--out", str(tmp_path / "out")]
    error = CliRunner().invoke(app, [*command, "--max-bad", "1"]).exception
    assert "--max-bad N" in followed(error, "files/skips.py: the input has … bad records; … were allowed")
    assert CliRunner().invoke(app, [*command, "--max-bad", "2"]).exit_code == 0


def test_an_input_without_documents_leaves_nothing_behind(tmp_path):
    (tmp_path / "x.jsonl").write_text('{"content": "a"}\n{"content": "b"}\n')
    with pytest.raises(EmptyCorpus, match="2 no text") as caught:
        build_corpus(find_sources([tmp_path / "x.jsonl"]), tmp_path / "out", BuildSettings())
    assert "--text-key" in str(caught.value)


def test_a_corpus_with_nothing_left_to_train_on_is_refused_with_a_fix(tmp_path):
    with pytest.raises(DataError, match="left to train on"):
        build_corpus(make_input(tmp_path / "in", 1, 5), tmp_path / "out", BuildSettings(heldout=0.999))


@pytest.mark.parametrize("num_documents", [2, 5, 12, 40])
def test_a_share_that_would_hold_out_nothing_is_raised(tmp_path, num_documents):
    sources = make_input(tmp_path / "in", 1, num_documents)
    notes = Notes()
    manifests = build_corpus(sources, tmp_path / "out", BuildSettings(heldout=0.0001), progress=notes)
    [note] = [line for line in notes.lines if "--heldout" in line]
    share = float(note.split("--heldout ")[-1].split()[0].rstrip(",:"))
    assert "0.0001" in note
    assert manifests["valid"]["settings"]["heldout_used"] == share
    assert 1 <= manifests["valid"]["num_documents"] < num_documents
    # With that share, the shards are the same; with the first one again, all of them are complete.
    same = build_corpus(sources, tmp_path / "same", BuildSettings(heldout=share))
    assert [same[split]["fingerprint"] for split in same] == [manifests[split]["fingerprint"] for split in same]
    assert "heldout_used" not in same["valid"]["settings"]
    assert build_corpus(sources, tmp_path / "out", BuildSettings(heldout=0.0001)) == manifests


def test_ten_books_are_held_out_by_the_command(tmp_path):
    for number in range(10):
        (tmp_path / f"book{number}.txt").write_text(f"The story of {number * 31}.\n\nIt ends here.\n" * 20)
    command = ["shards", "--books", str(tmp_path / "book*.txt"), "--out", str(tmp_path / "out"), "--heldout", "0.02"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    assert "holds out at least one" in result.output
    assert CliRunner().invoke(app, command).exit_code == 0
    held_out = read_manifest(tmp_path / "out" / "valid")["num_documents"]
    assert 1 <= held_out <= 3


def test_a_single_document_is_not_advised_to_be_held_out(tmp_path):
    with pytest.raises(DataError, match="the only document would not be held out") as caught:
        build_corpus(make_input(tmp_path / "in", 1, 1), tmp_path / "out", BuildSettings(heldout=0.0001))
    assert "--heldout 0 for no held-out data" in str(caught.value)
    sources = make_input(tmp_path / "in", 1, 1)
    assert list(build_corpus(sources, tmp_path / "out", BuildSettings(heldout=0))) == ["train"]


@pytest.mark.parametrize(
    "settings", [{"num_shards": 0}, {"heldout": 1.0}, {"heldout": -0.1}, {"heldout": 0.1, "split_folders": False}]
)
def test_settings_out_of_range_are_refused(settings):
    with pytest.raises(DataError) as error:
        BuildSettings(**settings)
    if "split_folders" in settings:
        followed(error.value, "corpus/build_settings.py: held-out data needs the folders train/ and valid/")
        assert BuildSettings(**settings | {"heldout": 0}) != BuildSettings(**settings | {"split_folders": True})


def test_more_shards_than_documents_are_all_written(tmp_path):
    build_corpus(make_input(tmp_path / "in", 1, 3), tmp_path / "out", BuildSettings(num_shards=5, compress="zst"))
    assert len(list((tmp_path / "out/train").glob("part-*-of-00005.jsonl.zst"))) == 5
    assert len(texts(tmp_path / "out/train")) == 3
