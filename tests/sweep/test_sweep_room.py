"""Runs are started as long as they fit into memory."""

import json
import os
import subprocess
import sys
import threading

import pytest

from pretrainkit.sweep import runs
from pretrainkit.sweep.memory import ALONE_SECONDS, Machine, MemoryBudget, Usage, gpu_of
from pretrainkit.sweep.plan import Plan
from pretrainkit.sweep.runs import Sweep, Worker

GB = 10**9


class Small(Machine):
    """A machine of `total` bytes, with a GPU, on which every run takes the same."""

    def __init__(self, total, run, gpu_total=None, gpu_run=0):
        super().__init__()
        self.__dict__.update(total=total, run=run, gpu_total=gpu_total, gpu_run=gpu_run, pids=set())

    def free_bytes(self):
        return self.total - len(self.pids) * self.run

    def usage(self, pid):
        return Usage(self.run, self.run) if pid in self.pids else Usage(0, 0)

    def free_gpu_bytes(self):
        return None if self.gpu_total is None else self.gpu_total - len(self.pids) * self.gpu_run


class StandIn(Worker):
    """Runs that end when the expected number runs, or none will follow; the first one once it was measured."""

    def __init__(self, machine, num_expected, num_runs):
        super().__init__()
        self.machine, self.expected, self.left = machine, num_expected, num_runs
        self.most, self.change, self.was_seen = 0, threading.Condition(), threading.Event()

    def pids(self):
        if self.machine.pids:
            self.was_seen.set()
        return sorted(self.machine.pids)

    def run(self, words, log):
        folder = words[words.index("--out") + 1]
        os.makedirs(f"{folder}/checkpoints/step-00000001")
        is_first = not self.most
        with self.change:
            pid = self.left
            self.left -= 1
            self.machine.pids.add(pid)
            self.most = max(self.most, len(self.machine.pids))
            self.change.notify_all()
            if not is_first:
                full = self.change.wait_for(lambda: self.most >= self.expected or not self.left, timeout=20)
                assert full
        if is_first:
            assert self.was_seen.wait(20)
        with self.change:
            with open(f"{folder}/summary.json", "w") as file:
                json.dump({"valid_score": 1.0}, file)
            self.machine.pids.discard(pid)
        return 0

    def stop(self):
        pass


@pytest.mark.parametrize(
    ("machine", "most"),
    [
        (Small(100 * GB, GB), 4),
        (Small(7 * GB, 2 * GB), 3),
        (Small(3 * GB, 2 * GB), 1),
        (Small(1 * GB, 2 * GB), 1),
        (Small(100 * GB, GB, gpu_total=16 * GB, gpu_run=7 * GB), 2),
    ],
)
def test_no_more_runs_than_fit_run_at_a_time(machine, most, tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "_MEASURE_SECONDS", 0.01)
    told = []
    plan = Plan(origin=str(tmp_path), tasks=("rte",), num_seeds=8, lrs=(1e-3,))
    worker = StandIn(machine, most, 8)
    Sweep(plan, tmp_path / "out", 4, say=told.append, worker=worker, machine=machine).run()
    assert worker.most == most
    fewer = [line for line in told if "runs at a time" in line]
    assert len(fewer) == (most < 4)
    assert not fewer or fewer[0].startswith(f"{most} of 4 runs at a time")
    assert len(told) == 8 + len(fewer)


def test_a_second_run_waits_until_the_memory_of_the_first_is_known():
    now, machine = [0.0], Small(100 * GB, GB)
    memory = MemoryBudget(machine, print, 4, clock=lambda: now[0])
    assert memory.fits([], 0)
    memory.begin()
    machine.pids.add(1)
    memory.measure([1])
    assert not memory.fits([1], 1)
    now[0] = ALONE_SECONDS
    assert memory.fits([1], 1)


def test_a_machine_without_measurements_runs_the_requested_number(tmp_path):
    machine = Machine(proc=tmp_path, groups=tmp_path)
    assert (machine.free_bytes(), machine.free_gpu_bytes(), machine.usage(1)) == (None, None, Usage(0, 0))
    memory = MemoryBudget(machine, print, 4)
    memory.begin()
    memory.end()
    assert memory.fits([1, 2, 3], 3)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc of Linux")
def test_a_process_counts_with_those_it_started():
    code = (
        "import mmap, sys; x = mmap.mmap(-1, 60_000_000); x.write(bytes(20_000_000) * 3); x.close(); "
        "print(flush=True); sys.stdin.read()"
    )
    outer = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {code!r}])"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", outer], **pipes) as process:
        process.stdout.readline()
        found = Machine().usage(process.pid)
        process.stdin.close()
    assert found.peak > 70_000_000  # the child's array and two interpreters
    assert 0 < found.now < found.peak - 50_000_000
    assert Machine().usage(process.pid) == Usage(0, 0)


MEMINFO = "MemTotal: 16000 kB\nMemFree: 10 kB\nMemAvailable: 8000 kB\n"
V2, V1 = "memory.max memory.current inactive_file", "memory.limit_in_bytes memory.usage_in_bytes total_inactive_file"


@pytest.mark.parametrize(
    ("own", "groups", "expected"),
    [
        ("0::/", {}, 8000 * 1024),
        ("0::/", {"": (V2, "max", 5)}, 8000 * 1024),
        ("0::/a/b", {"a/b": (V2, "max", 5), "a": (V2, "1000000", 400_000)}, 700_000),
        ("0::/seen/outside", {"": (V2, "1000000", 400_000)}, 700_000),
        ("0::/a", {"a": (V2, "1000", 5000)}, 96_000 - 0),
        ("4:cpu,memory:/job\n0::/", {"memory/job": (V1, "2000000", 400_000)}, 1_700_000),
        ("4:memory:/job\n0::/", {"memory/job": (V1, str(2**63 - 4096), 400_000)}, 8000 * 1024),
    ],
)
def test_the_limits_of_control_groups_count(own, groups, expected, tmp_path):
    (tmp_path / "self").mkdir()
    (tmp_path / "meminfo").write_text(MEMINFO)
    (tmp_path / "self" / "cgroup").write_text(own + "\n")
    for name, (files, limit, used) in groups.items():
        folder = tmp_path / "groups" / name
        folder.mkdir(parents=True, exist_ok=True)
        limit_file, used_file, cached = files.split()
        (folder / limit_file).write_text(limit)
        (folder / used_file).write_text(str(used))
        (folder / "memory.stat").write_text(f"anon 7\n{cached} 100000\n")
    assert Machine(proc=tmp_path, groups=tmp_path / "groups").free_bytes() == expected


@pytest.mark.parametrize(
    ("device", "visible", "expected"),
    [
        ("cpu", None, None),
        (None, None, "0"),
        ("cuda:1", None, "1"),
        ("cuda:1", "4,GPU-7", "GPU-7"),
        ("cuda", "-1", None),
        (None, "", None),
        ("mps", None, None),
    ],
)
def test_the_gpu_of_the_runs_is_known_by_the_name_its_driver_gives(device, visible, expected, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert gpu_of(device) == expected
