"""`--sweep` of `train --launch slurm`: which runs it makes, and what is refused before anything is submitted."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pretrainkit.cli.launching import sweep_settings
from pretrainkit.cli.main import app_of
from pretrainkit.errors import ConfigError, InputError
from pretrainkit.launch import slurm
from pretrainkit.launch.folder import Launch, LaunchFolder, launched_runs
from support.remedies import followed

LAUNCH = Launch("slurm", ("train",), ("train", "--resume"), job_ids=("12",))


def test_a_sweep_is_all_combinations():
    found = sweep_settings(["optimizer.peak_lr=1e-4,3e-4", "seed=0,1"])
    assert [name for name, _ in found] == [
        "peak_lr=1e-4,seed=0",
        "peak_lr=1e-4,seed=1",
        "peak_lr=3e-4,seed=0",
        "peak_lr=3e-4,seed=1",
    ]
    assert found[2][1] == ["optimizer.peak_lr=3e-4", "seed=0"]


def test_lists_are_values_and_folders_have_names_of_one_part():
    (first, second) = sweep_settings(["data.train=/a/b,[/a/c,/d]"])
    assert first == ("train=_a_b", ["data.train=/a/b"])
    assert second == ("train=_a_c,_d_", ["data.train=[/a/c,/d]"])


@pytest.mark.parametrize(
    ("word", "said"), [("seed", "needs a setting"), ("=1,2", "needs a setting"), ("seed=0,0", "two runs")]
)
def test_a_path_without_runs_is_refused(word, said):
    with pytest.raises(ConfigError, match=said):
        sweep_settings([word])


def test_the_words_of_the_advice_are_a_sweep():
    with pytest.raises(ConfigError) as error:
        sweep_settings(["seed"])
    advice = followed(error.value, "cli/launching.py: --sweep … needs a setting and its values")
    assert len(sweep_settings([re.search(r"--sweep (\S+)", advice)[1]])) == 2


def test_a_setting_is_swept_once():
    with pytest.raises(ConfigError) as error:
        sweep_settings(["seed=0,1", "data.batch_size=8,16", "seed=2"])
    advice = followed(error.value, "cli/launching.py: --sweep … is given twice")
    assert [settings for _, settings in sweep_settings([re.search(r"--sweep (\S+)", advice)[1]])] == [
        ["seed=0"],
        ["seed=1"],
        ["seed=2"],
    ]


def test_a_run_whose_first_job_waits_is_not_resumed(tmp_path, monkeypatch):
    monkeypatch.setattr(slurm, "state", lambda job_id: "PENDING (Resources)")
    LaunchFolder(tmp_path / "run").add(LAUNCH)
    result = CliRunner().invoke(app_of("resume"), [str(tmp_path / "run"), "--launch", "slurm"])
    assert "is in the queue: PENDING" in str(result.exception)


def test_a_folder_of_runs_means_all_of_them(tmp_path):
    for name in ("b", "a"):
        LaunchFolder(tmp_path / name).add(LAUNCH)
    assert [folder.run.name for folder in launched_runs(tmp_path)] == ["a", "b"]
    assert [folder.run.name for folder in launched_runs(tmp_path / "b")] == ["b"]
    with pytest.raises(InputError, match="was not launched"):
        launched_runs(tmp_path / "c")


@pytest.mark.parametrize(
    ("state", "is_alive"),
    [
        ("RUNNING", True),
        ("PENDING (BeginTime)", True),
        ("COMPLETING", True),
        ("UNREACHABLE (Unable to contact slurm controller)", True),
        ("COMPLETED", False),
        ("FAILED (NonZeroExitCode)", False),
        ("UNKNOWN", False),
    ],
)
def test_a_run_has_one_job_at_a_time(tmp_path, monkeypatch, state, is_alive):
    monkeypatch.setattr(slurm, "state", lambda job_id: state)
    folder = LaunchFolder(tmp_path)
    slurm.require_idle(folder)
    folder.add(LAUNCH)
    assert slurm.living_job(folder) == ("12" if is_alive else None)
    if is_alive:
        with pytest.raises(InputError, match=f"job 12 of .* is in the queue: {state.split()[0]}"):
            slurm.require_idle(folder)


def test_jobs_of_a_sweep_keep_the_code_they_were_submitted_with(tmp_path: Path, monkeypatch):
    source = tmp_path / "source/pretrainkit"
    source.mkdir(parents=True)
    (source / "__init__.py").write_text("old")
    monkeypatch.setattr("pretrainkit.__file__", str(source / "__init__.py"))
    assert slurm.copy_code(tmp_path, is_shared=True).name == "code"
    (source / "__init__.py").write_text("new")
    assert slurm.copy_code(tmp_path, is_shared=True).name == "code-2"
    assert (tmp_path / "code/pretrainkit/__init__.py").read_text() == "old"
    assert slurm.copy_code(tmp_path).name == "code"
    assert (tmp_path / "code/pretrainkit/__init__.py").read_text() == "new"
