"""Arrays of SLURM: what is submitted, and whole commands under programs that replace a cluster's.

A real cluster: tests/end_to_end/test_slurm_corpus.py.
"""

import json
import os
import re
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import pretrainkit
from pretrainkit.cli.corpus import app
from pretrainkit.cli.options import Execution
from pretrainkit.errors import InputError, MissingPackageError, RunError
from pretrainkit.workers.engine import Resources
from pretrainkit.workers.processes import Quiet
from pretrainkit.workers.slurm_config import SlurmJob
from pretrainkit.workers.slurm_engine import SlurmEngine

SBATCH = """#!{python}
# Runs the tasks of an array at once, in the background, or only keeps the script.
import os, re, subprocess, sys
from pathlib import Path
folder = Path({folder!r})
script = Path(sys.argv[-1]).read_text()
number = len(list(folder.glob("*.script")))
kept = folder / f"{{number}}.script"
kept.write_text(script)
(folder / f"{{number}}.words").write_text(" ".join(sys.argv[1:]))
if {runs}:
    last = int(re.search(r"--array=0-(\\d+)", script)[1])
    for task in range(last + 1):
        numbers = {{"SLURM_ARRAY_TASK_ID": str(task), "SLURM_NODELIST": "here", "SLURM_JOB_ID": str(number)}}
        with open(folder / f"{{number}}-{{task}}.log", "w") as log:
            worker = subprocess.Popen(
                ["bash", str(kept)], env={{**os.environ, **numbers, "RUN_OFFSET": "0"}}, stdout=log, stderr=log,
                start_new_session=True,
            )
        (folder / f"{{worker.pid}}.pid").touch()
print("Submitted batch job", number)
"""
SQUEUE = """#!/bin/bash
shopt -s nullglob
for file in {folder}/*.pid; do
  grep -qs '^State:.[^Z]' /proc/$(basename "$file" .pid)/status && echo RUNNING
done
exit 0
"""
SRUN = """#!/bin/bash
while [[ "$1" == -* || "$1" =~ ^[0-9]+$ ]]; do shift; done
exec "$@"
"""


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """A folder that keeps what was submitted; on the PATH programs by the names of SLURM's."""

    def made(runs):
        folder, programs = tmp_path / "cluster", tmp_path / "bin"
        folder.mkdir()
        programs.mkdir()
        scripts = {
            "sbatch": SBATCH.format(python=sys.executable, folder=str(folder), runs=runs),
            "squeue": SQUEUE.format(folder=folder),
            "srun": SRUN,
            "scontrol": '#!/bin/bash\necho "$3"\n',
            "scancel": f'#!/bin/bash\necho "$1" >> {folder}/cancelled\n',
        }
        for name, text in scripts.items():
            (programs / name).write_text(text)
            (programs / name).chmod(0o755)
        monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
        monkeypatch.setenv("PYTHONPATH", str(Path(pretrainkit.__path__[0]).parent))
        return folder

    return made


def all_bytes(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_a_command_gives_the_same_bytes_under_slurm(tmp_path, cluster):
    folder = cluster(runs=True)
    (tmp_path / "raw.jsonl").write_text("".join(json.dumps({"text": f"document {n}"}) + "\n" for n in range(50)))
    words = ["shuffle", str(tmp_path / "raw.jsonl"), "--num-shards", "2", "--out"]
    plain = CliRunner().invoke(app, [*words, str(tmp_path / "plain")])
    assert plain.exit_code == 0, plain.output
    under = CliRunner().invoke(
        app,
        [*words, str(tmp_path / "under"), "--engine", "slurm", "--slurm", "partition=cpu", "--slurm", "time=2:00:00"],
    )
    assert under.exit_code == 0, under.output + "".join(path.read_text() for path in folder.glob("*.log"))
    assert all_bytes(tmp_path / "plain") == all_bytes(tmp_path / "under")
    assert "SLURM: job 0, 1 tasks" in under.output
    assert len(list(folder.glob("*.script"))) == 2  # one job to read, one to write


def test_resources_that_a_job_requests(tmp_path, cluster):
    folder = cluster(runs=False)
    settings = SlurmJob(
        partition="cpu", time=90, account="lab", constraint="ssd", cpus_per_task=2, setup=("module load python",),
        sbatch={"reservation": "night", "exclusive": True, "overcommit": False},
    )  # fmt: skip
    results = SlurmEngine(settings).run(str, range(2500), Resources(100, 500_000_000), tmp_path / "work", Quiet())
    with pytest.raises(RunError, match="2500 of 2500 tasks were not finished"):
        list(results)  # nothing runs, as squeue reports
    script = (folder / "0.script").read_text()
    asked = dict(re.findall(r"^#SBATCH --([a-z-]+)(?:=(.*))?$", script, re.MULTILINE))
    assert asked == asked | {
        "partition": "cpu", "time": "90", "account": "lab", "constraint": "ssd", "cpus-per-task": "2", "mem": "763M",
        "reservation": "night", "exclusive": "", "nodes": "1", "requeue": "", "array": "0-833%100",
    }  # fmt: skip
    assert not {"overcommit", "mem-per-cpu", "qos", "nodelist"} & asked.keys()
    lines = [line.strip() for line in script.splitlines()]
    assert lines.index("module load python") < next(n for n, line in enumerate(lines) if "launch_pickled" in line)
    assert f'export PATH="{Path(sys.executable).parent}:$PATH"' in script
    assert (folder / "cancelled").read_text() == "0\n"
    assert len(list(folder.glob("*.script"))) == 1  # nothing besides the array


def test_the_memory_that_the_user_requests_is_used(tmp_path, cluster):
    folder = cluster(runs=False)
    for number, option in enumerate(["mem-per-cpu", "mem"]):
        settings = SlurmJob(sbatch={option: "7G"})
        with pytest.raises(RunError):
            list(SlurmEngine(settings).run(str, [1], Resources(1, 500_000_000), tmp_path / "work", Quiet()))
        assert re.findall(r"--(mem\S*)", (folder / f"{number}.script").read_text()) == [f"{option}=7G"]


def test_the_jobs_of_an_interrupted_command_are_cancelled_before_new_ones(tmp_path, cluster):
    folder = cluster(runs=False)
    earlier = tmp_path / "work/engine/1"
    earlier.mkdir(parents=True)
    (earlier / "job").write_text("4711")
    with pytest.raises(RunError):
        list(SlurmEngine().run(str, [1], Resources(1, 500_000_000), tmp_path / "work", Quiet()))
    assert (folder / "cancelled").read_text().split() == ["4711", "0"]


def test_refusals(tmp_path, cluster, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="there is no sbatch on this machine"):
        SlurmEngine().resources(None, 1, 1, 1_000_000_000)
    monkeypatch.undo()
    cluster(runs=False)
    (tmp_path / "bin/sbatch").write_text("#!/bin/bash\necho 'invalid partition specified: no' >&2; exit 1\n")
    with pytest.raises(InputError, match="rejected the job"):
        list(SlurmEngine().run(str, [1], Resources(1, 500_000_000), tmp_path / "work", Quiet()))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--slurm", "partition=cpu"], "--slurm partition=cpu has an effect only with --engine slurm"),
        (["--ray", "head:6379", "--engine", "slurm"], "--ray head:6379 has an effect only with --engine ray"),
        (["--engine", "slurm", "--slurm", "partitoin=cpu"], "partition"),
        (["--engine", "slurm", "--slurm", "sbatch={array: 0-3}"], "array"),
    ],
)
def test_options_that_do_not_go_together_are_named(tmp_path, words, message):
    (tmp_path / "raw.txt").write_text("One.\n")
    result = CliRunner().invoke(app, ["shuffle", str(tmp_path / "raw.txt"), "--out", str(tmp_path / "out"), *words])
    assert result.exit_code != 0
    assert message in str(result.exception) + result.output
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("engine", ["slurm", "ray"])
def test_an_engine_without_its_package_names_the_package(engine, monkeypatch):
    monkeypatch.setitem(sys.modules, "datatrove", None)
    with pytest.raises(MissingPackageError, match=rf"datatrove(?s:.)*pip install 'pretrainkit\[{engine}\]'"):
        Execution(engine=engine).open_engine()
    assert Execution().open_engine().is_local
