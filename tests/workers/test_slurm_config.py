"""Durations as SLURM writes them, and options that the launcher keeps for itself."""

import re

import pytest

from pretrainkit.config.loader import config_from_overrides
from pretrainkit.errors import ConfigError
from pretrainkit.workers.slurm_config import SlurmConfig
from support.remedies import followed


@pytest.mark.parametrize(
    ("text", "minutes"),
    [
        ("90", 90),
        ("4:00:00", 240),
        ("10:30", 11),
        ("119:59", 120),
        ("2-12", 3600),
        ("1-0:30", 1470),
        ("1-01:01:01", 1502),
    ],
)
def test_a_duration_is_read_as_slurm_reads_it(text, minutes):
    assert config_from_overrides(SlurmConfig, [f"time={text}"], "--slurm").time == minutes


def test_a_job_lasts_until_it_can_be_signalled_to_end():
    with pytest.raises(ConfigError) as refused:
        config_from_overrides(SlurmConfig, ["time=3", "signal_seconds=300"], "--slurm")
    advice = followed(refused.value, "workers/slurm_config.py: time=… minutes and signal_seconds=…")
    time = re.search(r"time=\d+", advice)[0]
    assert config_from_overrides(SlurmConfig, [time, "signal_seconds=300"], "--slurm").time == 7


def test_words_become_settings():
    words = ["partition=gpu", "setup=[module load cuda, ulimit -n 4096]", "sbatch={reservation: night}", "mem_gb=64"]
    found = config_from_overrides(SlurmConfig, words, "--slurm")
    assert found.partition == "gpu"
    assert found.setup == ("module load cuda", "ulimit -n 4096")
    assert found.sbatch == {"reservation": "night"}
    assert found.mem_gb == 64


@pytest.mark.parametrize(
    ("word", "named"),
    [
        ("partitoin=gpu", "closest: partition"),
        ("time=soon", "time"),
        ("time=0", "time"),
        ("partition", "NAME=VALUE"),
        ("sbatch={requeue: false}", "launcher itself sets"),
        ("time=3", "at least time=4"),
    ],
)
def test_invalid_values_are_refused_by_name(word, named):
    with pytest.raises(ConfigError, match="--slurm") as caught:
        config_from_overrides(SlurmConfig, [word], "--slurm")
    assert named in str(caught.value)
