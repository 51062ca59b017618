"""Tasks and results as files: what a cluster does with them, without a cluster."""

import os
import pickle
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from pretrainkit.errors import DataError, RunError
from pretrainkit.workers import task_folder
from pretrainkit.workers.task_folder import TaskFolder

SOURCE = str(Path(task_folder.__file__).parents[3])


def double(number):
    return 2 * number


def refuse(number):
    raise DataError(f"{number} is bad\n  give another")


def stumble(number):
    raise ZeroDivisionError("nobody thought of this")


@pytest.fixture(autouse=True)
def in_haste(monkeypatch):
    monkeypatch.setattr(task_folder, "_SILENT_SECONDS", 0.6)
    monkeypatch.setattr(task_folder, "_BEAT_SECONDS", 0.1)


def results_of(folder, num_tasks, is_over=True):
    return list(folder.results(num_tasks, lambda: is_over, 0.01))


def test_results_come_back_whatever_their_order(tmp_path):
    folder = TaskFolder.create(double, range(5), tmp_path)
    for number in (3, 0, 4, 2, 1):
        folder.perform(number)
    assert sorted(results_of(folder, 5)) == [0, 2, 4, 6, 8]
    assert not folder._numbers("alive")
    folder.remove()
    assert not folder.path.exists()


def test_a_task_works_where_the_command_was_given(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = TaskFolder.create(partial(Path.read_text), [Path("here.txt")], Path("work"))
    (tmp_path / "here.txt").write_text("found")
    monkeypatch.chdir("/")
    folder.perform(0)
    assert results_of(folder, 1) == ["found"]


@pytest.mark.parametrize(
    ("function", "kind", "message"),
    [(refuse, DataError, "7 is bad\n  give another"), (stumble, RunError, "nobody thought of this")],
)
def test_an_error_of_a_task_is_raised_by_the_command(tmp_path, function, kind, message):
    folder = TaskFolder.create(function, [7], tmp_path)
    with pytest.raises((DataError, ZeroDivisionError)):
        folder.perform(0)
    with pytest.raises(kind, match=message):
        results_of(folder, 1, is_over=False)


def test_workers_that_died_are_noticed_and_their_last_output_is_printed(tmp_path):
    folder = TaskFolder.create(double, range(3), tmp_path)
    folder.perform(1)
    (folder.logs / "deep").mkdir(parents=True)
    (folder.logs / "deep/7.out").write_text("Killed: out of memory\n")
    with pytest.raises(RunError, match=r"2 of 3 tasks were not finished(.|\n)*\| Killed: out of memory"):
        results_of(folder, 3)


def test_a_worker_without_a_beat_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(task_folder, "_LOST_SECONDS", 0.3)
    folder = TaskFolder.create(double, [1], tmp_path)
    (folder.path / "000000.alive").write_text("17")  # of a process that was killed
    with pytest.raises(RunError, match="1 of 1 tasks"):
        results_of(folder, 1, is_over=False)


def test_a_finished_task_is_not_done_again_and_a_stopped_one_not_begun(tmp_path):
    folder = TaskFolder.create(double, [1, 2], tmp_path)
    folder.perform(0)
    (folder.path / "000000.task").unlink()
    folder.perform(0)
    folder.stop()
    folder.perform(1)
    assert folder._numbers("result") == {0}


WORKER = """
import sys, time
from pathlib import Path
from pretrainkit.workers import task_folder
task_folder._BEAT_SECONDS = 0.1
task_folder.TaskFolder(Path(sys.argv[1])).perform(0)
"""


def test_a_new_attempt_stops_workers_of_an_earlier_one(tmp_path):
    earlier = TaskFolder.create(time.sleep, [600], tmp_path)
    command = [sys.executable, "-c", WORKER, str(earlier.path)]
    worker = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": SOURCE}, stderr=subprocess.PIPE)
    until(lambda: earlier._beats().get(0, "0") != "0")
    again = TaskFolder.create(double, [1], tmp_path)
    _, said = worker.communicate(timeout=20)
    assert worker.returncode == 1
    assert b"Stopped" in said
    assert [path.name for path in (tmp_path / "engine").iterdir()] == [again.path.name]


ORPHAN = """
import os, subprocess, sys
worker = subprocess.Popen([sys.executable, "-c", sys.argv[1], sys.argv[2]])
print(worker.pid, flush=True)
worker.wait()
"""


def test_a_worker_ends_with_the_process_that_started_it(tmp_path):
    folder = TaskFolder.create(time.sleep, [600], tmp_path)
    command = [sys.executable, "-c", ORPHAN, WORKER, str(folder.path)]
    parent = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": SOURCE}, stdout=subprocess.PIPE, text=True)
    assert parent.stdout
    worker = int(parent.stdout.readline())
    until(lambda: folder._beats().get(0, "0") != "0")
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    until(lambda: not is_alive(worker))


def is_alive(process):
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def until(is_so, seconds=30):
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_tasks_are_plain_pickles(tmp_path):
    folder = TaskFolder.create(double, [4], tmp_path)
    function, task, place = pickle.loads((folder.path / "000000.task").read_bytes())
    assert (function, task, place) == (double, 4, os.getcwd())
