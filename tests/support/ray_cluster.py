"""A Ray cluster of this machine alone, which the tests start and end."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(num_cpus: int = 2, memory_bytes: int = 4_000_000_000) -> Iterator[dict[str, str]]:
    """A head on loopback; gives the environment in which its drivers run."""
    folder = tempfile.mkdtemp(prefix="ray-")  # short, because sockets are in it
    port = _free_port()
    environment = {
        "RAY_ADDRESS": f"127.0.0.1:{port}",
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_TMPDIR": folder,
    }
    command = [sys.executable, "-c", "from ray.scripts.scripts import main; main()", "start", "--head", "--block"]
    options = {
        "node-ip-address": "127.0.0.1",
        "port": port,
        "num-cpus": num_cpus,
        "memory": memory_bytes,
        "object-store-memory": 80_000_000,
        "include-dashboard": "false",
        "temp-dir": folder,
    }
    log = Path(folder) / "head.log"
    with open(log, "wb") as written:
        head = subprocess.Popen(
            [*command, *(f"--{name}={value}" for name, value in options.items())],
            env={**os.environ, **environment, "RAY_ADDRESS": ""},
            stdout=written,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + 60
        while b"Ray runtime started" not in log.read_bytes():
            assert head.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        yield environment
    finally:
        head.terminate()
        with suppress(subprocess.TimeoutExpired):
            head.wait(20)
        with suppress(ProcessLookupError):
            os.killpg(head.pid, signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)
