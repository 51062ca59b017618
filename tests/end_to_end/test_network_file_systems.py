"""Stages on a network file system. Unlike on a local disk, an open file that is removed stays in its folder under
another name, so the folder cannot be removed. Seen with FUSE (bindfs); NFS does the same."""

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from support.command_line import succeed
from support.generated_text import documents
from support.t5_runs import write_tasks


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_no_stage_has_a_file_of_its_work_folder_open_when_it_removes_it(
    tmp_path: Path, latin_font: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed, still_open = [], []
    rmtree = shutil.rmtree

    def watched(path: Path, *args: bool, **kwargs: bool) -> None:
        if "work" in Path(path).name and Path(path).exists():
            removed.append(str(path))
            still_open.extend(name for name in open_files() if name.startswith(f"{path}/"))
        rmtree(path, *args, **kwargs)

    monkeypatch.setattr("shutil.rmtree", watched)
    text, corpus, words, tasks = (tmp_path / name for name in ("text.jsonl", "corpus", "words.tsv", "tasks"))
    text.write_text("".join(json.dumps({"text": one}) + "\n" for one in documents(40)), encoding="utf-8")
    tasks.mkdir()
    # Tasks of their own names: those of the tests of T5 may be defined once in a process.
    module = Path(write_tasks(tasks)).rename(tasks / "mounted_tasks.py")
    module.write_text(module.read_text("utf-8").replace("t5_source", "mounted"), encoding="utf-8")

    succeed("corpus", "shards", text, "--heldout", 0.2, "--workers", 1, "--out", corpus)
    succeed("corpus", "dedup", text, "--method", "minhash", "--workers", 1, "--out", tmp_path / "distinct")
    succeed("corpus", "count-words", corpus / "train/*.jsonl", "--workers", 1, "--out", words)
    succeed("tokenizer", "train", words, "--vocab-size", 300, "--kind", "wordpiece", "--out", tmp_path / "tokenizer")
    tokens = ("--tokenizer", tmp_path / "tokenizer", "--splitter", "newline", "--workers", 1)
    succeed("tokenizer", "encode", corpus, *tokens, "--out", tmp_path / "tokens")
    succeed("render", corpus, "--renderer", latin_font, "--max-patches", 30, "--workers", 1, "--out", tmp_path / "rows")
    cached = ("mounted_marked", "--module", module, "--num-shards", 2, "--workers", 1)
    succeed("tasks", "cache", *cached, "--out", tmp_path / "cached")

    assert len(removed) >= 6, removed
    assert not still_open
    assert not list(tmp_path.rglob("*work"))


def open_files() -> list[str]:
    """Files that this process has open or mapped."""
    numbers = (f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd"))
    mapped = [line.split(maxsplit=5)[5:] for line in Path("/proc/self/maps").read_text().splitlines()]
    return [os.readlink(number) for number in numbers if os.path.islink(number)] + [
        name for row in mapped for name in row
    ]
