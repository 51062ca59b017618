"""Task files of SkyPilot: their overrides, and the commands of their script on every machine."""

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import get_args

import pytest
from typer.testing import CliRunner

from pretrainkit.cli.launch import app
from pretrainkit.config.loader import config_from_overrides
from pretrainkit.config.yaml import parse_yaml
from pretrainkit.errors import ConfigError, InputError
from pretrainkit.launch import cloud
from pretrainkit.launch.cloud import CloudConfig
from pretrainkit.launch.folder import Launch
from support.command_line import succeed

TASKS = get_args(CloudConfig.model_fields["task"].annotation)
FIELDS = {"name", "num_nodes", "resources", "envs", "setup", "run", "file_mounts", "workdir"}
VALIDATE = "import sys, sky\nfor path in sys.argv[1:]: print(sky.Task.from_yaml(path).num_nodes)"


def task_of(*words: str, **options):
    config = config_from_overrides(CloudConfig, words, "--cloud")
    return cloud.task_of(config, **{"name": "try", "command": ["doctor"], **options})


@pytest.mark.parametrize("name", TASKS)
def test_every_task_file_is_complete_and_its_scripts_are_shell(name):
    task = task_of(f"task={name}")
    assert task.keys() <= FIELDS
    assert task["envs"]["COMMAND"] == "doctor"
    assert ("accelerators" in task["resources"]) == (name != "corpus")
    for part in ("setup", "run"):
        done = subprocess.run(["bash", "-n"], input=task[part], text=True, capture_output=True)
        assert done.returncode == 0, done.stderr


def test_settings_are_laid_over_the_file():
    words = [
        "task=nodes",
        "accelerators=A100:4",
        "use_spot=true",
        "bucket=gs://mine",
        "setup=[echo ready]",
        "disk_size=99",
    ]
    task = task_of(*words, num_nodes=3, command=["corpus", "stats", "my corpus"])
    assert task["num_nodes"] == 3
    assert task["resources"]["accelerators"] == "A100:4"
    assert task["resources"]["disk_size"] == 99
    assert task["resources"]["use_spot"] is True
    assert task["file_mounts"] == {"/bucket": {"source": "gs://mine", "mode": "MOUNT_CACHED"}}
    assert task["setup"].endswith("echo ready\n")
    assert task["envs"]["COMMAND"] == "corpus stats 'my corpus'"


@pytest.mark.parametrize(("machines", "processes", "has_ranks"), [(1, 1, False), (1, 2, True), (2, 1, True)])
def test_the_script_starts_one_rank_per_gpu_of_every_machine(tmp_path, machines, processes, has_ranks):
    """The script runs with a Python that records its arguments."""
    binaries = tmp_path / "pretrainkit-venv/bin"
    binaries.mkdir(parents=True)
    (binaries / "activate").write_text(f"export PATH={binaries}:$PATH\n")
    (binaries / "python").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (binaries / "python").chmod(0o755)
    ranks = {"NUM_NODES": machines, "NODE_RANK": machines - 1, "NUM_GPUS_PER_NODE": processes}
    sky = ranks | {"NODE_IPS": "10.0.0.1\n10.0.0.2"}
    environment = {f"SKYPILOT_{name}": str(value) for name, value in sky.items()}
    environment |= {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "COMMAND": "train '~/a b' --out ~/c"}
    done = subprocess.run(["bash", "-c", task_of()["run"]], env=environment, text=True, capture_output=True, check=True)
    words = done.stdout.splitlines()
    assert words[-5:] == ["pretrainkit", "train", "~/a b", "--out", f"{tmp_path}/c"]
    assert ("torch.distributed.run" in words) == has_ranks
    if has_ranks:
        given = dict(pairwise(words))
        assert given["--nnodes"] == str(machines)
        assert given["--node-rank"] == str(machines - 1)
        assert given["--nproc-per-node"] == str(processes)
        assert given["--master-addr"] == "10.0.0.1"


def launch(**settings) -> Launch:
    return Launch("cloud", (), (), 2, 8, 8, 5, CloudConfig(**settings).model_dump(mode="json"))


def test_a_run_travels_with_its_config_and_its_code_and_writes_to_the_bucket(tmp_path):
    run = tmp_path / "my-run"
    (command,) = cloud.launch_run(run, launch(task="nodes", bucket="s3://mine", use_spot=True), dry_run=True)
    assert command[:3] == ["sky", "jobs", "launch"]
    task = parse_yaml(Path(command[-1]).read_text(), "task.yaml")
    assert "--out /bucket/runs/my-run --resume" in task["envs"]["COMMAND"]
    assert "--max-restarts 5" in task["run"]
    assert task["resources"]["accelerators"] == "H100:8"
    assert {"~/pretrainkit-run/config.yaml", "~/pretrainkit-run/code", "/bucket"} <= task["file_mounts"].keys()
    assert (run / "launch/code/pretrainkit/cli/main.py").is_file()
    requirements = (run / "launch/requirements.txt").read_text()
    assert "torch" in requirements
    assert "extra ==" not in requirements
    assert ("pillow" in requirements) == (find_spec("PIL") is not None)  # what recipes need that is optional
    assert "pytest" not in requirements
    assert not (run / "launch/launches.json").exists()


def test_a_run_without_a_bucket_would_be_lost(tmp_path):
    with pytest.raises(ConfigError, match="bucket"):
        cloud.launch_run(tmp_path / "run", launch(), dry_run=True)


@pytest.mark.parametrize(
    ("places", "settings", "advice"),
    [
        ((1, 1, 0), {"task": "gpu-8"}, "give --gpus-per-node 8"),
        ((1, 2, 0), {"task": "gpu"}, "give --gpus-per-node 1"),
        ((1, 4, 4), {"task": "gpu", "accelerators": "A100:8"}, "give --gpus-per-node 8"),
        ((1, 2, 0), {"task": "corpus"}, "one process on one host"),
        ((2, 1, 0), {"task": "tpu-vm"}, "one process on one host"),
        ((1, 1, 0), {"task": "tpu-pod"}, "one process on one host"),
        ((1, 1, 1), {"autostop": 5, "use_spot": True}, "leave out autostop"),
    ],
)
def test_machines_whose_devices_no_rank_would_use_are_refused(tmp_path, monkeypatch, places, settings, advice):
    monkeypatch.setenv("HOME", str(tmp_path))
    asked = Launch("cloud", (), (), *places, 3, CloudConfig(bucket="s3://mine", **settings).model_dump(mode="json"))
    with pytest.raises(ConfigError, match=advice):
        cloud.launch_run(tmp_path / "run", asked, dry_run=True)


@pytest.mark.parametrize("name", ["my pod", "a/b", "2nd", "seed=0", "-h", ""])
def test_machines_have_names_that_skypilot_takes(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="cannot be the name"):
        cloud.require_name(name)
    for command in (["create"], ["delete"], ["ssh-config"]):
        assert isinstance(CliRunner().invoke(app, [*command, "--dry-run", "--", name]).exception, InputError)
    assert not list(tmp_path.iterdir())


def test_a_bucket_is_an_address():
    with pytest.raises(ConfigError, match="s3://mine"):
        task_of("bucket=mine")


def test_machines_become_git_remotes_that_are_pushed_to_together(tmp_path, monkeypatch):
    """The repositories are real; folders replace the machines."""
    monkeypatch.setenv("HOME", str(tmp_path))
    here, machines = tmp_path / "here", [tmp_path / "pod", tmp_path / "pod-worker1"]
    for folder in (here, *machines):
        folder.mkdir()

    def git(*words: str, folder: Path = here) -> str:
        return subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-q")
    for machine in machines:
        git("config", f"url.{machine}/.insteadOf", f"{machine.name}:")
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    (here / "a.txt").write_text("one")
    for text in ("one", "two"):  # again, as after a change of the machines
        (here / "a.txt").write_text(text)
        git("add", "a.txt")
        git(*who, "commit", "-qm", text)
        for command in cloud.provision("pod", task_of("task=nodes"), CloudConfig(), tmp_path, dry_run=True)[1:]:
            if command[0] == "ssh":
                home = os.environ | {"HOME": str(tmp_path / command[1])}
                subprocess.run(["bash", "-c", command[2]], env=home, check=True, capture_output=True)
            else:
                git(*command[1:])
        git("push", "pod")
        assert [(machine / "checkout/a.txt").read_text() for machine in machines] == [text, text]
    git(*who, "commit", "-qam", "there", "--allow-empty", folder=machines[0] / "checkout")
    git("fetch", "pod")
    assert git("log", "-1", "--format=%s", "pod/pushed") == "there"


@pytest.mark.parametrize(
    ("accelerators", "hosts"),
    [("tpu-v3-8", 1), ("tpu-v3-32", 4), ("tpu-v6e-8", 1), ("tpu-v6e-32", 8), ("tpu-v5p-16", 2), ("H100:8", 1)],
)
def test_every_host_of_a_pod_is_a_git_remote(tmp_path, monkeypatch, accelerators, hosts):
    monkeypatch.setenv("HOME", str(tmp_path))
    task = task_of("task=tpu-pod", f"accelerators={accelerators}")
    commands = cloud.provision("pod", task, CloudConfig(), tmp_path, dry_run=True)
    assert [command[1] for command in commands if command[0] == "ssh"] == cloud.host_aliases("pod", hosts)
    assert cloud.num_hosts(task) == hosts


def test_hosts_have_the_names_that_skypilot_wrote(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    path = tmp_path / ".sky/generated/ssh/pod"
    path.parent.mkdir(parents=True)
    path.write_text("# Added by sky\nHost pod\n  HostName 10.0.0.1\nHost pod-worker1\n  HostName 10.0.0.2\n")
    assert cloud.host_aliases("pod", 1) == ["pod", "pod-worker1"]


def test_actions_on_machines_answer_in_json_and_skypilot_prints_elsewhere(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    (tmp_path / "sky").write_text('#!/bin/sh\necho "pod  UP  of: $*"\n')
    (tmp_path / "sky").chmod(0o755)
    actions = {"create": [], "run": ["doctor"], "ssh-config": [], "delete": [], "provision": ["--dry-run"]}
    for action, words in actions.items():
        answer = json.loads(succeed("launch", action, "pod", *words, "--json"))
        assert answer["name"] == "pod", action
        assert answer["dry_run"] == (action == "provision")
        assert [word for word in answer["commands"][0] if word == "pod"] == ["pod"]
        assert ("hosts" in answer) == (action == "ssh-config")
        shown = capfd.readouterr()
        assert ("pod  UP" in shown.err) != (action == "provision")
        assert not shown.out
    state = json.loads(succeed("launch", "status", "pod", "--json"))
    assert state == {"name": "pod", "state": "pod  UP  of: status --refresh pod"}


def test_without_skypilot_the_install_line_is_given(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(InputError, match=r"pipx install 'skypilot>=0\.10'"):
        cloud.delete("pod", dry_run=False)


def test_skypilot_takes_every_task_file(tmp_path):
    """It runs the real package, in this interpreter or in that of PRETRAINKIT_SKYPILOT_PYTHON, without an account."""
    python = os.environ.get("PRETRAINKIT_SKYPILOT_PYTHON") or (sys.executable if find_spec("sky") else None)
    if python is None or shutil.which(python) is None:
        pytest.skip("skypilot is not installed: set PRETRAINKIT_SKYPILOT_PYTHON to a Python that has it")
    paths = [cloud.write_task(task_of(f"task={name}"), tmp_path / f"{name}.yaml") for name in TASKS]
    (command,) = cloud.launch_run(
        tmp_path / "run", launch(task="nodes", bucket="s3://mine", use_spot=True), dry_run=True
    )
    environment = {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    command = [python, "-c", VALIDATE, *map(str, paths), command[-1]]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split()[-1] == "2"
