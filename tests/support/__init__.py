"""Shared code of tests: generated data, small models, stand-ins of other systems, scripts for processes of their
own."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

SUPPORT = Path(__file__).parent


def answers_of(module: str, *words: str) -> dict[str, Any]:
    """Run a module of this package in a process of its own, and return the JSON object that it prints."""
    path = os.pathsep.join([str(SUPPORT.parent), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-m", f"support.{module}", *words],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found
