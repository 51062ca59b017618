"""The fuzzer in short, and whether it notices what it should. `make fuzz` runs the long one."""

import argparse
import os
import signal
import sys
import time
import zlib
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from target import Target
from targets import TARGETS

import fuzz

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")]

SLOW = {
    *("huggingface", "runs", "checkpoint-meta", "sentencepiece", "foreign-tokenizers", "t5x", "t5x-import"),
    *("config", "overrides", "foreign-configs", "webdataset", "tar-index", "img2dataset", "tfrecord", "seqio-cache"),
    *("rendered-rows", "gin", "run-folder", "row-files", "renderer"),
}
"""Targets that take more than 5 milliseconds, or seconds to begin. `test_damaged_input` has inputs for them."""


def options(work: Path, executions: int) -> argparse.Namespace:
    return argparse.Namespace(seconds=1e9, executions=executions, seed=7, work=str(work))


def test_hundreds_of_inputs_for_each_quick_reader(tmp_path):
    names = [name for name in TARGETS if name not in SLOW]
    rows = fuzz.fuzz(names, options(tmp_path, 200))
    assert {name: row["found"] for name, row in rows.items() if row["found"]} == {}
    assert {name: row["executions"] for name, row in rows.items()} == dict.fromkeys(names, 200)


def planted(folder: Path) -> None:
    """A reader with defects, one for each remainder."""
    match zlib.crc32((folder / "input").read_bytes()) % 9:
        case 1:
            raise RuntimeError("a defect")
        case 2:
            while True:
                pass
        case 3:
            bytes(2 << 30)
        case 4:
            os.kill(os.getpid(), signal.SIGSEGV)
        case 5:
            (folder.parent.parent / "outside").write_text("x")
        case 6:
            os.system("true")
        case 7:
            signal.setitimer(signal.ITIMER_PROF, 0)  # a native loop, which no handler can end
            begun = time.process_time()
            while time.process_time() - begun < 60:
                pass


def test_the_fuzzer_notices_errors_crashes_hangs_memory_programs_and_files_outside(tmp_path, monkeypatch):
    good = next(b"%d" % number for number in range(100) if zlib.crc32(b"%d" % number) % 9 == 0)
    monkeypatch.setitem(TARGETS, "planted", Target("planted", lambda folder: [{"input": good}], planted))
    monkeypatch.setattr(fuzz, "SECONDS", 0.1)
    monkeypatch.setattr(fuzz.Fuzzer.execute, "__kwdefaults__", {"is_traced": True, "seconds": 0.1})
    rows = fuzz.fuzz(["planted"], options(tmp_path, 50))
    causes = " | ".join(rows["planted"]["found"])
    for cause in ("RuntimeError", "TooSlow", "MemoryError", "SIGSEGV", "Forbidden", "hang"):
        assert cause in causes
    assert rows["planted"]["executions"] == 50
    logs = "".join(path.read_text() for path in tmp_path.glob("*.log"))
    assert "os.system" in logs
    assert "outside" in logs
    saved = next(path for path in tmp_path.glob("planted-*") if path.is_dir())
    assert zlib.crc32((saved / "input").read_bytes()) % 9
