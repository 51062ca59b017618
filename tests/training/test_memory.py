"""Freed memory stays with the process while it trains, and is returned afterwards."""

import os
import resource

import pytest
import torch

from pretrainkit.training.memory import freed_memory_kept

_BYTES = 48 << 20
CPU = torch.device("cpu")


def num_faults(rounds: int) -> int:
    """Pages that had to be got from the system to write a large array in each round."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(rounds):
        array = b"x" * _BYTES
        del array
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture(autouse=True)
def _has_mallopt(monkeypatch):
    for name in [name for name in os.environ if name.startswith("MALLOC_") or name == "GLIBC_TUNABLES"]:
        monkeypatch.delenv(name)
    with freed_memory_kept(CPU) as is_kept:
        if not is_kept:
            pytest.skip("the C library has no mallopt")


def test_large_arrays_of_later_steps_cost_no_pages():
    with freed_memory_kept(CPU) as is_kept:
        assert is_kept
        num_faults(1)
        assert num_faults(8) < 100


def test_afterwards_the_memory_is_given_back():
    before = resident_bytes()
    with freed_memory_kept(CPU):
        num_faults(1)
        assert resident_bytes() > before + _BYTES // 2
    assert resident_bytes() < before + _BYTES // 2


def test_the_users_own_settings_stay(monkeypatch):
    monkeypatch.setenv("MALLOC_ARENA_MAX", "2")
    with freed_memory_kept(CPU) as is_kept:
        assert not is_kept


def test_nothing_is_kept_for_other_devices():
    with freed_memory_kept(torch.device("meta")) as is_kept:
        assert not is_kept
