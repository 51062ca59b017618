"""Scripts run by a Python that is warm: a fork of one that has loaded torch, its sharding and its checkpoints.

A new start costs each process of each test 4 to 6 CPU-seconds, nearly all of it for those imports. A fork is a
process of its own all the same: it loads pretrainkit itself, has an environment, a standard output and an end of its
own, and shares no memory, thread, lock or process group with anyone.
"""

import atexit
import functools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from support import SUPPORT


class Ended(NamedTuple):
    """A process that has ended."""

    returncode: int
    """Negative: the signal that ended it."""
    stdout: str
    stderr: str


def run_warm(script: Path, *arguments: object, environment: Mapping[str, str] | None = None) -> Ended:
    """`python SCRIPT ARGUMENTS...` with these variables besides those of this process."""
    return run_all_warm(script, arguments, [environment or {}])[0]


def run_all_warm(script: Path, arguments: Sequence[object], environments: Sequence[Mapping[str, str]]) -> list[Ended]:
    """The same, as many times side by side as there are environments; what hangs is killed."""
    own = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    words = [str(word) for word in arguments]
    with tempfile.TemporaryDirectory() as place:
        folders = [Path(place, str(number)) for number in range(len(environments))]
        starts = []
        for folder, environment in zip(folders, environments, strict=True):
            folder.mkdir()
            start = {"script": str(script), "arguments": words, "folder": str(folder), "working": os.getcwd()}
            starts.append(start | {"environment": own | environment})
        codes = _run(starts)
        said = [[(folder / name).read_text("utf-8", "replace") for name in ("out", "err")] for folder in folders]
    return [Ended(code, *texts) for code, texts in zip(codes, said, strict=True)]


def _run(starts: Sequence[Mapping[str, object]]) -> list[int]:
    server = _server()
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write(json.dumps(starts).encode() + b"\n")
    codes: list[int] = json.loads(server.stdout.readline())
    return codes


@functools.cache
def _server() -> "subprocess.Popen[bytes]":
    """One for all tests of this process; it ends when this process does."""
    command = [sys.executable, str(SUPPORT / "warm_server.py")]
    server = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    atexit.register(server.communicate)
    return server
