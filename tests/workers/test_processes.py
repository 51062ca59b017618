"""Tasks in several processes: every result once, this process takes part, errors and deaths surface."""

import os
import time

import pytest

from pretrainkit.errors import DataError, RunError
from pretrainkit.workers.processes import run_tasks, share_tasks
from support.remedies import followed


def place_of(number):
    time.sleep(0.01)
    return number, os.getpid()


def refuse_three(number):
    if number == 3:
        raise DataError("three is bad")
    return number


def refuse_elsewhere(parent):
    if os.getpid() != parent:
        raise DataError("only the parent may")
    time.sleep(0.05)


def die_elsewhere(parent):
    if os.getpid() != parent:
        os._exit(9)
    time.sleep(0.05)


@pytest.mark.parametrize("way", [run_tasks, share_tasks])
@pytest.mark.parametrize("processes", [1, 2, 3])
def test_every_result_comes_once(way, processes):
    assert sorted(number for number, _ in way(place_of, list(range(9)), processes)) == list(range(9))


def test_sharing_begins_in_this_process_and_keeps_to_the_number_of_processes():
    places = [place for _, place in share_tasks(place_of, list(range(100)), 2)]
    assert places[0] == os.getpid()
    assert len(set(places)) <= 2


@pytest.mark.parametrize("way", [run_tasks, share_tasks])
@pytest.mark.parametrize("processes", [1, 2])
def test_an_error_of_a_worker_keeps_its_type(way, processes):
    with pytest.raises(DataError, match="three is bad"):
        list(way(refuse_three, list(range(6)), processes))


def test_an_error_in_another_process_ends_the_work():
    with pytest.raises(DataError, match="only the parent"):
        list(share_tasks(refuse_elsewhere, [os.getpid()] * 1000, 2))


@pytest.mark.parametrize("way", [run_tasks, share_tasks])
def test_a_process_that_dies_is_an_error_not_a_hang(way):
    with pytest.raises(RunError, match="a worker process died") as error:
        list(way(die_elsewhere, [os.getpid()] * 1000, 2))
    assert "fewer --workers" in followed(error.value, "workers/processes.py: a worker process died")
    assert len(list(way(die_elsewhere, [os.getpid()] * 4, 1))) == 4


def test_no_tasks_need_no_process():
    assert list(share_tasks(place_of, [], 2)) == []
