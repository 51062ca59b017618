"""Tasks in several processes: every result once, errors and deaths surface."""

import os
import time

import pytest

from pretrainkit.errors import DataError, RunError
from pretrainkit.workers.processes import run_tasks
from support.remedies import followed


def place_of(number):
    time.sleep(0.01)
    return number, os.getpid()


def refuse_three(number):
    if number == 3:
        raise DataError("three is bad")
    return number


def die_elsewhere(parent):
    if os.getpid() != parent:
        os._exit(9)
    time.sleep(0.05)


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_every_result_comes_once(processes):
    assert sorted(number for number, _ in run_tasks(place_of, list(range(9)), processes)) == list(range(9))


@pytest.mark.parametrize("processes", [1, 2])
def test_an_error_of_a_worker_keeps_its_type(processes):
    with pytest.raises(DataError, match="three is bad"):
        list(run_tasks(refuse_three, list(range(6)), processes))


def test_a_process_that_dies_is_an_error_not_a_hang():
    with pytest.raises(RunError, match="a worker process died") as error:
        list(run_tasks(die_elsewhere, [os.getpid()] * 1000, 2))
    assert "fewer --workers" in followed(error.value, "workers/processes.py: a worker process died")
    assert len(list(run_tasks(die_elsewhere, [os.getpid()] * 4, 1))) == 4


def test_no_tasks_need_no_process():
    assert list(run_tasks(place_of, [], 2)) == []
