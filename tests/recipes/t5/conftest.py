"""Data of the runs in `t5_runs`, written once: tasks of a module are known to the whole process."""

import pytest

from support.t5_runs import shards_of, write_tasks


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("t5")
    return [shards_of(root / name, num, seed) for seed, (name, num) in enumerate([("a", 300), ("b", 60), ("v", 40)])]


@pytest.fixture(scope="session")
def module(tmp_path_factory):
    """A module that defines tasks."""
    return write_tasks(tmp_path_factory.mktemp("tasks"))
