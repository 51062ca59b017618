"""The record of launches in `RUN/launch`."""

from dataclasses import replace

import pytest

from pretrainkit.errors import DataError, InputError
from pretrainkit.launch.folder import Launch, LaunchFolder

LAUNCH = Launch("slurm", ("train", "x.yaml"), ("train", "x.yaml", "--resume"), 2, 4, 4, 3, {"time": 60}, {"git": "abc"})


def test_launches_come_back_as_they_were_and_the_newest_is_last(tmp_path):
    folder = LaunchFolder(tmp_path / "run")
    folder.add(replace(LAUNCH, job_ids=("12",)))
    folder.add(replace(LAUNCH, job_ids=("13",)))
    first, second = folder.launches()
    assert (first.job_ids, second.job_ids) == (("12",), ("13",))
    assert folder.last() == second
    assert second.words == LAUNCH.words
    assert second.world_size == 8


def test_attempts_record_how_they_ended_and_after_which_checkpoint(tmp_path):
    folder = LaunchFolder(tmp_path)
    folder.add(LAUNCH)
    (tmp_path / "checkpoints/step-00000004").mkdir(parents=True)
    (tmp_path / "checkpoints/.incomplete-step-00000008").mkdir()
    folder.record_end("12", 130, "its time limit", "requeued")
    (row,) = folder.attempts()
    del row["time"]
    expected = {"job": "12", "code": 130, "cause": "its time limit", "checkpoint": "step-00000004", "then": "requeued"}
    assert row == expected


def test_a_new_launch_is_not_cancelled_any_more(tmp_path):
    folder = LaunchFolder(tmp_path)
    folder.add(LAUNCH)
    folder.cancel()
    assert folder.is_cancelled
    folder.add(LAUNCH)
    assert not folder.is_cancelled


def test_one_launcher_at_a_time(tmp_path):
    folder = LaunchFolder(tmp_path)
    with folder.held():
        assert LaunchFolder(tmp_path).is_held
        with pytest.raises(InputError, match="another launcher"), LaunchFolder(tmp_path).held():
            pass
    assert not folder.is_held


def test_no_launch_and_a_damaged_file_are_explained(tmp_path):
    with pytest.raises(InputError, match="was not launched"):
        LaunchFolder(tmp_path).last()
    (tmp_path / "launch").mkdir()
    (tmp_path / "launch/launches.json").write_text('[{"kind": 1')
    with pytest.raises(DataError, match="damaged: Invalid JSON") as refused:
        LaunchFolder(tmp_path).launches()
    assert "pydantic" not in str(refused.value)
