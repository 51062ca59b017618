"""kill -9 in the middle of any stage, and the same command again: the bytes of an undisturbed run, and what was
finished is not done again.

The process that is killed is a fork of this one, which has all modules in hand.
"""

import bz2
import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from pretrainkit.corpus import duplicates, shards, words
from pretrainkit.corpus.duplicates import DuplicateRule
from pretrainkit.corpus.minhash import MinHash
from pretrainkit.corpus.quality import Quality
from pretrainkit.corpus.shards import BuildSettings, build_corpus
from pretrainkit.corpus.words import count_words
from pretrainkit.files.sources import find_sources

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
NUM_FILES = 3
IN_ORDER = {"seed": None, "split_folders": False}
NEAR = DuplicateRule(minhash=MinHash(num_bands=4, rows_per_band=2))
STAGES = {
    "wikipedia": BuildSettings(num_shards=3, **IN_ORDER),
    "filter": BuildSettings(num_shards=3, quality=Quality(min_words=12), **IN_ORDER),
    "compress": BuildSettings(num_shards=3, compress="zst", **IN_ORDER),
    "dedup": BuildSettings(num_shards=3, duplicates=NEAR, **IN_ORDER),
    "split": BuildSettings(num_shards=3, heldout=0.2, duplicates=NEAR),
    "shards": BuildSettings(num_shards=3, heldout=0.2),
}


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    """Files of documents of 10 to 14 words; every fifth is there twice. And dumps."""
    folder = tmp_path_factory.mktemp("raw")
    for file in range(NUM_FILES):
        texts = [" ".join(f"w{(n - n % 5 // 4) * place}" for place in range(10 + n % 5)) for n in range(40)]
        (folder / f"{file}.jsonl").write_text("".join(json.dumps({"text": f"{file} {text}"}) + "\n" for text in texts))
        pages = "".join(
            f"<page><title>T{n}</title><ns>0</ns><id>{n + 1}</id>"
            f'<revision><id>1</id><text xml:space="preserve">Page {text}.</text></revision></page>\n'
            for n, text in enumerate(texts)
        )
        (folder / f"{file}.xml.bz2").write_bytes(bz2.compress(f"<mediawiki>\n{pages}</mediawiki>".encode()))
    return folder


@pytest.fixture(autouse=True)
def small_groups(monkeypatch):
    """Every file is a task of its own."""
    for module in (shards, duplicates, words):
        original = module.group_sources
        monkeypatch.setattr(module, "group_sources", lambda sources, *_, original=original: original(sources, 1))


def work(stage, raw, out):
    if stage == "words":
        out.mkdir(exist_ok=True)
        count_words(find_sources([raw / "*.jsonl"]), out / "words.tsv")
    else:
        sources = find_sources([raw / ("*.xml.bz2" if stage == "wikipedia" else "*.jsonl")])
        build_corpus(sources, out, STAGES[stage])


def killed_before(patch, module, name, after, do):
    """`do()` in another process, which is killed when it calls a function for the time after `after` calls."""
    process = os.fork()
    if not process:
        calls, original = [], getattr(module, name)

        def dying(*arguments, **options):
            if len(calls) == after:
                os.kill(os.getpid(), signal.SIGKILL)
            calls.append(None)
            return original(*arguments, **options)

        try:
            patch.setattr(module, name, dying)
            do()
        finally:
            os._exit(0)
    _, status = os.waitpid(process, 0)
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGKILL


def counted(patch, module, name):
    """Record the calls of a function in their order."""
    calls, original = [], getattr(module, name)

    def counting(*arguments, **options):
        calls.append(None)
        return original(*arguments, **options)

    patch.setattr(module, name, counting)
    return calls


def all_bytes(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize(("stage", "module", "name", "after", "left"), [
    ("wikipedia", shards, "scatter", 2, 1), ("wikipedia", shards, "gather_shard", 1, 2),
    ("filter", shards, "scatter", 1, 2), ("filter", shards, "gather_shard", 2, 1),
    ("compress", shards, "scatter", 1, 2), ("compress", shards, "gather_shard", 2, 1),
    ("dedup", duplicates, "sign_group", 2, 1), ("dedup", duplicates, "join_column", 3, 2),
    ("dedup", duplicates, "write_components", 0, 1), ("dedup", shards, "scatter", 1, 2),
    ("dedup", shards, "write_manifests", 0, 1),
    ("split", duplicates, "sign_group", 1, 2), ("split", duplicates, "join_column", 1, 4),
    ("split", shards, "scatter", 2, 1), ("split", shards, "gather_shard", 3, 1),
    ("shards", shards, "scatter", 1, 2), ("shards", shards, "gather_shard", 1, 3),
    ("words", words, "count_group", 2, 1), ("words", words, "write_table", 0, 1),
])  # fmt: skip
def test_a_killed_stage_resumes_where_it_was(tmp_path, raw, monkeypatch, stage, module, name, after, left):
    work(stage, raw, tmp_path / "whole")
    out = tmp_path / "out"
    killed_before(monkeypatch, module, name, after, lambda: work(stage, raw, out))
    assert not any(path.name == "manifest.json" for path in out.rglob("*.json"))
    calls = {each: counted(monkeypatch, *each) for each in EARLIER[stage] if each != (module, name)}
    again = counted(monkeypatch, module, name)
    work(stage, raw, out)
    assert len(again) == left
    place = EARLIER[stage].index((module, name))
    assert not any(calls[each] for each in EARLIER[stage][:place])
    assert all_bytes(out) == all_bytes(tmp_path / "whole")


BUILD = [(shards, "scatter"), (shards, "gather_shard"), (shards, "write_manifests")]
FIND = [(duplicates, "sign_group"), (duplicates, "join_column"), (duplicates, "write_components")]
EARLIER = {
    **dict.fromkeys(("wikipedia", "filter", "compress", "shards"), BUILD),
    **{stage: [*FIND, *BUILD] for stage in ("dedup", "split")},
    "words": [(words, "count_group"), (words, "write_table")],
}
"""Functions that each stage calls, in this order."""


def test_work_that_changed_meanwhile_is_repeated(tmp_path, raw, monkeypatch):
    """A list of duplicates depends on all files: where one has changed, no group may be taken over."""
    changed = tmp_path / "raw"
    changed.mkdir()
    for path in raw.glob("*.jsonl"):
        (changed / path.name).write_bytes(path.read_bytes())
    killed_before(monkeypatch, shards, "gather_shard", 1, lambda: work("dedup", changed, tmp_path / "out"))
    # The first file becomes a copy of the second: what was kept of the second is now removed.
    (changed / "0.jsonl").write_bytes((changed / "1.jsonl").read_bytes())
    work("dedup", changed, tmp_path / "out")
    work("dedup", changed, tmp_path / "again")
    assert all_bytes(tmp_path / "out") == all_bytes(tmp_path / "again")


def test_no_trace_of_the_work_is_left(tmp_path, raw):
    work("dedup", raw, tmp_path / "out")
    assert sorted(path.name for path in Path(tmp_path / "out").iterdir()) == [
        "manifest.json", *(f"part-{index:05d}-of-00003.jsonl" for index in range(3)),
    ]  # fmt: skip


@pytest.mark.parametrize("stage", ["words", "shards"])
def test_a_stage_that_was_killed_while_it_tidied_up_leaves_nothing_after_the_next(tmp_path, raw, monkeypatch, stage):
    work(stage, raw, tmp_path / "whole")
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        killed_before(patch, shutil, "rmtree", 0, lambda: work(stage, raw, out))
    assert [path for path in out.rglob(".*") if path.is_dir()]
    work(stage, raw, out)
    assert all_bytes(out) == all_bytes(tmp_path / "whole")
    assert not [path for path in out.rglob(".*") if path.is_dir()]
