"""Commands of the corpus on a real Ray cluster of this machine: the same bytes, also when the command is killed.

Ray is no dependency of the tests, and its workers take seconds to start: set PRETRAINKIT_TEST_RAY=1.
"""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import pretrainkit
from pretrainkit.errors import InputError, MissingPackageError
from pretrainkit.workers import ray_engine
from pretrainkit.workers.ray_engine import RayEngine
from support import ray_cluster

WHY_NOT = None if os.environ.get("PRETRAINKIT_TEST_RAY") == "1" else "takes minutes: set PRETRAINKIT_TEST_RAY=1"
if WHY_NOT is None and importlib.util.find_spec("ray") is None:
    WHY_NOT = "needs Ray: pip install 'pretrainkit[ray]'"
on_a_cluster = pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))
RAY = ("--engine", "ray", "--memory", "300MB")


@pytest.fixture(scope="module")
def cluster():
    with ray_cluster.running() as environment:
        yield {**os.environ, **environment, "PYTHONPATH": str(Path(pretrainkit.__path__[0]).parent)}


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    """More than fits into a task, so there are two; half of the documents occur twice."""
    folder = tmp_path_factory.mktemp("raw")
    text = " ".join(f"w{place * 7919 % 1009}" for place in range(8000))
    for file in (0, 1):
        lines = (json.dumps({"text": f"{n % 750} {file * n % 2} {text}"}) + "\n" for n in range(1800))
        (folder / f"{file}.jsonl").write_text("".join(lines))
    return folder


def command(*words):
    return [sys.executable, "-m", "pretrainkit", "corpus", *map(str, words)]


def all_bytes(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.slow
@on_a_cluster
def test_dedup_gives_the_same_bytes(cluster, raw, tmp_path):
    for name, engine in (("here", ()), ("there", RAY)):
        words = command("dedup", raw, "--method", "exact", "--num-shards", "2", "--out", tmp_path / name, *engine)
        subprocess.run(words, env=cluster, check=True, timeout=300)
    assert all_bytes(tmp_path / "here") == all_bytes(tmp_path / "there")
    assert json.loads((tmp_path / "there/manifest.json").read_bytes())["num_documents"] < 3600


@pytest.mark.slow
@on_a_cluster
def test_a_killed_command_resumes(cluster, raw, tmp_path):
    words = ("shuffle", raw, "--num-shards", "2", "--out")
    subprocess.run(command(*words, tmp_path / "whole"), env=cluster, check=True, timeout=300)
    out = tmp_path / "killed"
    killed = subprocess.Popen(command(*words, out, *RAY, "--workers", "1"), env=cluster)
    deadline = time.monotonic() + 200
    while not list(out.glob(".work/task-*/task.json")):
        assert time.monotonic() < deadline
        assert killed.poll() is None
        time.sleep(0.05)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    again = subprocess.run(
        command(*words, out, *RAY), env=cluster, check=True, timeout=300, capture_output=True, text=True
    )
    assert "of 2 groups of files were already read" in again.stderr
    assert all_bytes(out) == all_bytes(tmp_path / "whole")


@pytest.mark.slow
@on_a_cluster
@pytest.mark.parametrize(
    ("content", "words", "message"),
    [
        ('{"text": "good"}\nbroken\n', (), "raw.jsonl, line 2: "),
        ('{"text": "good"}\n', ("--memory", "64GB"), "no machine of the Ray cluster has a core and 64300 MB"),
    ],
)
def test_a_failure_is_a_single_message(cluster, tmp_path, content, words, message):
    (tmp_path / "raw.jsonl").write_text(content)
    result = subprocess.run(
        command("shuffle", tmp_path / "raw.jsonl", "--out", tmp_path / "out", *RAY, *words),
        env=cluster, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs Ray: pip install 'pretrainkit[ray]'")
def test_a_cluster_that_does_not_answer_is_one_message():
    with pytest.raises(InputError, match=r"no Ray cluster answers at 127.0.0.1:1: (.|\n)*ray start --head"):
        RayEngine("127.0.0.1:1").resources(None, 1, 1, 1_000_000_000)


def test_without_ray_the_install_line_is_given(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingPackageError, match=r"pip install 'pretrainkit\[ray\]'"):
        RayEngine().resources(None, 1, 1, 1_000_000_000)
    assert ray_engine.RayPipelineExecutor  # datatrove itself needs no Ray until it works
