"""Messages of a rank when another one has died."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pretrainkit.launch.rank import WORLD_SIZES, is_spare, lost_peer


@pytest.mark.parametrize("words", ["Connection closed by peer", "Connection reset by peer", "Broken pipe"])
def test_a_lost_rank_is_distinguished_from_other_failures(words):
    assert lost_peer(RuntimeError(f"[gloo/transport/tcp/pair.cc:553] {words} [127.0.0.1]:9637")) == words
    assert lost_peer(ValueError(words)) is None
    assert lost_peer(RuntimeError("shapes do not match")) is None


def test_ranks_that_batches_cannot_be_split_over_wait_until_the_others_finish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {WORLD_SIZES: "2,4,8", "RANK": "3", "WORLD_SIZE": "6", "MASTER_PORT": "1234"}.items():
        monkeypatch.setenv(name, value)
    assert not is_spare(tmp_path)
    assert os.environ["WORLD_SIZE"] == "4"
    monkeypatch.setenv("RANK", "5")
    monkeypatch.setenv("WORLD_SIZE", "6")
    (tmp_path / "finished-1234").touch()
    assert is_spare(tmp_path)
    assert "rank 5 waits, because batches cannot be split over 6 ranks: 4 train" in capsys.readouterr().out


def run_told(folder: Path, entry: str = "rank") -> "subprocess.CompletedProcess[str]":
    """Run the module `told` of a folder as rank 0, or an agent for it."""
    source = Path(sys.modules["pretrainkit"].__path__[0]).parent
    path = os.pathsep.join([str(folder), str(source)])
    environment = os.environ | {"PYTHONPATH": path, "PRETRAINKIT_LOG_FOLDER": str(folder), "RANK": "0"}
    words = {"rank": ["told"], "agent": ["1", "1:1", "", "id", "0", "told"]}[entry]
    command = [sys.executable, "-m", f"pretrainkit.launch.{entry}", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("entry", "interrupted", "code"),
    [("rank", "traceback", -signal.SIGINT), ("rank", "told", 130), ("agent", "socket", -signal.SIGINT)],
)
def test_an_interrupted_rank_prints_no_traceback(tmp_path: Path, entry: str, interrupted: str, code: int) -> None:
    """Also while modules of the standard library are loaded."""
    (tmp_path / f"{interrupted}.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    ended = run_told(tmp_path, entry)
    assert (ended.returncode, ended.stderr) == (code, "")


def test_a_rank_writes_its_stacks_to_its_log_and_continues(tmp_path: Path) -> None:
    (tmp_path / "told.py").write_text(
        "import os, signal\n\ndef here():\n    os.kill(os.getpid(), signal.SIGQUIT)\n\nhere()\nprint('done')\n"
    )
    ended = run_told(tmp_path)
    assert ended.returncode == 0
    assert ended.stdout == "done\n"
    log = (tmp_path / "rank-0.log").read_text()
    assert f'{tmp_path}/told.py", line 4 in here' in log
    assert log.endswith("done\n")
