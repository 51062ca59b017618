"""The campaigns in short: 20 kills of a few stages that start fast, a few faults, and a soak of seconds.
`make campaign-kill`, `make campaign-faults` and `make campaign-soak` run the long ones."""

import json
import subprocess
import sys
from pathlib import Path
from shutil import which

import pytest

CAMPAIGN = Path(__file__).with_name("kill.py")
STAGES = ("train bert", "corpus split", "tokenizer encode", "corpus pack", "corpus count-words")


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for inputs and trials, which both campaigns share."""
    return tmp_path_factory.mktemp("campaigns")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_20_kills_change_no_result(work: Path) -> None:
    words = ["--kills", "20", "--seed", "7", "--minutes", "5", "--work", str(work)]
    command = [sys.executable, str(CAMPAIGN), *words, "--chain", "3", "--exact", "--stages", *STAGES]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "seed 7" in ended.stdout
    rows = json.loads((work / "kills.json").read_text("utf-8"))["seeds"]["7"]
    assert sum(sum(row["kills"].values()) for row in rows.values()) >= 20
    assert {name for name, row in rows.items() if row["kills"]} == set(STAGES)


@pytest.mark.skipif(not sys.platform.startswith("linux") or which("cc") is None, reason="needs Linux and a C compiler")
def test_faults_of_disks_and_checkpoints_lose_nothing(work: Path) -> None:
    words = ["--faults", "--kills", "4", "--seed", "4", "--minutes", "5", "--work", str(work)]
    command = [sys.executable, str(CAMPAIGN), *words, "--chain", "1", "--exact", "--stages", "train bert"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    rows = json.loads((work / "kills.json").read_text("utf-8"))["faults"]["4"]
    assert sum(rows["train bert"]["kills"].values()) >= 4


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_killed_ranks_end_with_the_losses_of_undisturbed_ones(tmp_path: Path) -> None:
    words = ["--minutes", "0.1", "--every", "0.03", "--recipes", "bert", "--seed", "3", "--work", str(tmp_path)]
    command = [sys.executable, str(CAMPAIGN.with_name("soak.py")), *words]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "all equal, all flat" in ended.stdout
    assert sum(json.loads((tmp_path / "bert-3/kills.json").read_text("utf-8")).values()) >= 1
    roles = {json.loads(line)[1] for line in (tmp_path / "bert-3/killed-life/samples.jsonl").read_text().splitlines()}
    assert roles >= {"launcher", "rank 0", "rank 1"}
