"""Machines that come and go while a run trains: here each is a launcher with one rank, on this machine."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support import SUPPORT
from support.command_line import NO_DROPOUT, losses

MACHINE = """
import sys
from pathlib import Path
from pretrainkit.launch.folder import Launch
from pretrainkit.launch.local import launch_local
run, meet, *words = sys.argv[1:]
launch = Launch("local", (), tuple(words), max_restarts=20, elastic="1:4", meet=meet, world_sizes=(1, 2, 4))
sys.exit(launch_local(launch, Path(run), module="support.paced_training"))
"""
SECONDS = 240
"""Most for each of the rounds. Machines that are lost are noticed after about 20 seconds."""


class Cluster:
    """Machines of one run, each a launcher in a session of its own."""

    def __init__(self, run: Path, pace: Path, words: list[str]) -> None:
        with socket.socket() as probe:
            probe.bind(("localhost", 0))
            self.meet = f"localhost:{probe.getsockname()[1]}"
        self.run, self.pace, self.words = run, pace, words
        pace.mkdir()
        self.go(0)

    def start(self) -> subprocess.Popen[bytes]:
        source = Path(sys.modules["pretrainkit"].__path__[0]).parent
        path = os.pathsep.join([str(SUPPORT.parent), str(source)])
        words = [sys.executable, "-c", MACHINE, str(self.run), self.meet, *self.words]
        with open(self.pace / "printed", "ab") as file:
            environment = os.environ | {"PYTHONPATH": path, "PACE": str(self.pace)}
            return subprocess.Popen(words, env=environment, start_new_session=True, stdout=file, stderr=file)

    def go(self, step: int) -> None:
        """Let the ranks make updates up to this one."""
        (self.pace / "go.new").write_text(str(step))
        os.replace(self.pace / "go.new", self.pace / "go")

    def wait(self, num_ranks: int, after: int = 0) -> int:
        """Wait until training starts with `num_ranks`, after `after` rounds. Returns the rounds so far."""
        path, deadline = self.pace / "rounds", time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            rounds = path.read_text().splitlines() if path.is_file() else []
            if any(line.startswith(f"{num_ranks} ") for line in rounds[after:]):
                return len(rounds)
            time.sleep(0.1)
        raise AssertionError(f"no round of {num_ranks} ranks after {rounds}\n{(self.pace / 'printed').read_text()}")

    def wait_for_step(self, step: int) -> None:
        path, deadline = self.run / "metrics.jsonl", time.monotonic() + SECONDS
        while not (path.is_file() and f'"step": {step},' in path.read_text()):
            assert time.monotonic() < deadline, (self.pace / "printed").read_text()
            time.sleep(0.1)


def lose(machine: subprocess.Popen[bytes]) -> None:
    """Kill a launcher and all that it started, as if its machine had lost power."""
    children = {machine.pid}
    for _ in range(3):  # launcher, agent, rank
        for entry in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = entry.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) in children:
                children.add(int(entry.parent.name))
    for pid in children:
        os.kill(pid, signal.SIGKILL)
    machine.wait()


@pytest.mark.skipif(os.environ.get("PRETRAINKIT_TEST_ELASTIC") != "1", reason="takes minutes")
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_1_2_1_4_2_ranks_have_the_losses_of_one(
    settings: list[str], finished_without_dropout: Path, tmp_path: Path
) -> None:
    """Ranks that are stopped, because a machine comes or leaves, make one more update than `go` allows."""
    run = tmp_path / "run"
    words = ["train", *settings, *NO_DROPOUT, "checkpoint.keep_last=9", "--out", str(run), "--resume"]
    cluster = Cluster(run, tmp_path / "pace", words)
    machines = [cluster.start()]
    try:
        rounds = cluster.wait(1)
        cluster.go(2)
        cluster.wait_for_step(2)
        machines.append(cluster.start())
        rounds = cluster.wait(2, rounds)
        cluster.go(5)
        cluster.wait_for_step(5)
        lose(machines.pop())
        cluster.go(6)
        rounds = cluster.wait(1, rounds)
        cluster.wait_for_step(6)
        machines += [cluster.start() for _ in range(3)]
        rounds = cluster.wait(4, rounds)
        leaving = machines[2:]
        for machine in leaving:
            machine.terminate()
        cluster.go(9)
        assert [machine.wait(SECONDS) for machine in leaving] == [130, 130]
        cluster.wait(2, rounds)
        cluster.go(12)
        assert [machine.wait(SECONDS) for machine in machines[:2]] == [0, 0]
    finally:
        for machine in machines:
            if machine.poll() is None:
                lose(machine)
    assert losses(run) == pytest.approx(losses(finished_without_dropout), rel=1e-5)
    printed = (tmp_path / "pace/printed").read_text()
    assert "Traceback" not in printed
    assert not list((run / "logs").glob("finished-*"))
