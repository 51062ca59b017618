"""Two processes of a trivial module: exit codes, logs, signals, and no orphans."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pretrainkit.errors import InputError
from pretrainkit.launch.folder import Launch, LaunchFolder
from pretrainkit.launch.local import launch_local, worst
from pretrainkit.launch.rank import Stalls, rank_file

pytestmark = pytest.mark.slow

RANK_MODULE = """
import os, signal, sys, time
rank, mode, folder = os.environ["RANK"], sys.argv[1], sys.argv[2]
stopped = []
signal.signal(signal.SIGTERM, lambda *_: stopped.append(1))
signal.signal(signal.SIGINT, lambda *_: stopped.append(1))
print("hello from", rank, "of", os.environ["WORLD_SIZE"], flush=True)
if mode == "fail" and rank == "1":
    sys.exit(2)
if mode == "crash" and rank == "1":
    raise RuntimeError("rank 1 broke")
if mode == "hang" and rank == "0":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    hang, time.sleep = time.sleep, lambda seconds: hang(min(seconds, 1))  # of the watching threads
    hang(120)  # as in NCCL: no signal is heard
if mode == "stall":
    from pretrainkit.launch.rank import Progress
    Progress().updated()
    os.makedirs(f"{folder}/run/checkpoints/step-00000004", exist_ok=True)
    if rank == "1":
        os.kill(os.getpid(), signal.SIGSTOP)
    def wait_for_rank_1():
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        time.sleep(120)
    wait_for_rank_1()
if mode in ("segfault", "further", "hang") and rank == "1":
    if mode in ("further", "hang"):
        os.makedirs(f"{folder}/run/checkpoints/step-00000004")
    open(f"{folder}/killed", "w").close()
    os.kill(os.getpid(), signal.SIGKILL)
if mode == "addresses":
    sockets = [os.readlink(f"/proc/{os.getppid()}/fd/{fd}") for fd in os.listdir(f"/proc/{os.getppid()}/fd")]
    rows = [line.split() for kind in ("tcp", "tcp6") for line in open(f"/proc/net/{kind}")]
    print(*(row[1] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in sockets), os.environ["MASTER_ADDR"])
    sys.exit(0)
if mode == "done":
    open(f"{folder}/done-{rank}", "w").close()
if mode not in ("done", "later"):
    open(f"{folder}/ready-{rank}", "w").close()
    deadline = time.monotonic() + 30
    while not stopped and time.monotonic() < deadline:
        time.sleep(0.05)
    if mode == "slow":
        os.makedirs(f"{folder}/run/checkpoints/step-00000004", exist_ok=True)
        time.sleep(1)
    open(f"{folder}/saved-{rank}", "w").close()
    sys.exit(130)
if mode == "later":
    assert os.path.exists(f"{folder}/saved-0") and os.path.exists(f"{folder}/saved-1")
"""


@pytest.fixture
def folder(rank_module: Callable[[str, str], Path]) -> Path:
    return rank_module("trivial_rank", RANK_MODULE)


def two_ranks(mode: str, folder: Path) -> Launch:
    return Launch("local", (mode, str(folder)), (), processes_per_node=2)


def test_two_ranks_run_and_each_has_its_place(
    folder: Path, capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    assert launch_local(two_ranks("done", folder), folder / "run", module="trivial_rank") == 0
    shown = capfd.readouterr()
    assert shown.out == "hello from 0 of 2\n"
    assert "Traceback" not in shown.err
    assert (folder / "run/logs/rank-1.log").read_text() == "hello from 1 of 2\n"
    assert (folder / "run/logs/rank-0.log").read_text() == shown.out
    assert sorted(path.name for path in (folder / "run/logs").iterdir()) == ["rank-0.log", "rank-1.log"]
    assert not any((tmp_path / "temporary").iterdir())


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_only_this_machine_can_connect_to_its_ranks(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert launch_local(two_ranks("addresses", folder), folder / "run", module="trivial_rank") == 0
    *listening, meeting = capfd.readouterr().out.splitlines()[1].split()
    assert meeting == "127.0.0.1"
    assert [address.split(":")[0] for address in listening] == ["0100007F"]


@pytest.mark.parametrize(("mode", "code"), [("fail", 2), ("crash", 1), ("segfault", 1)])
def test_the_worst_rank_decides_and_the_others_are_stopped(
    folder: Path, mode: str, code: int, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    assert launch_local(two_ranks(mode, folder), folder / "run", module="trivial_rank") == code
    assert "Traceback" not in capfd.readouterr().err
    if mode == "crash":
        assert "RuntimeError: rank 1 broke" in caplog.text


def test_ranks_start_again_soon_after_one_failed_though_another_hears_no_signal(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    launch = replace(two_ranks("hang", folder), words_again=("done", str(folder)), max_restarts=1)
    assert launch_local(launch, folder / "run", module="trivial_rank") == 0
    assert "it waits for rank 1, which has failed" in capfd.readouterr().err
    killed, *again = (os.path.getmtime(folder / name) for name in ("killed", "done-0", "done-1"))
    assert max(again) - killed < 30


def test_ranks_that_finish_no_step_write_where_they_are_and_start_again_even_if_one_is_frozen(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    launch = replace(two_ranks("stall", folder), words_again=("done", str(folder)), max_restarts=1, hang_minutes=0.02)
    assert launch_local(launch, folder / "run", module="trivial_rank") == 0
    assert "no rank finished an update for 0.02 minutes" in caplog.text
    assert "--hang-minutes 0.08" in caplog.text
    assert "in wait_for_rank_1" in (folder / "run/logs/rank-0.log").read_text()
    assert sorted(path.name for path in (folder / "run/logs").iterdir()) == ["rank-0.log", "rank-1.log"]


def test_only_changes_of_the_time_of_the_last_step_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("pretrainkit.launch.rank.time.monotonic", lambda: now)
    stalls = Stalls(tmp_path, [0], 60)
    assert not stalls.detected()
    now += 3600
    assert not stalls.detected()  # before the first step
    step = rank_file(tmp_path, 0, "step")
    for hours in (0, -1, 5):  # the clock of the file system jumps
        step.touch()
        os.utime(step, (7200 + 3600 * hours,) * 2)
        now += 50
        assert not stalls.detected()
    now += 61
    assert stalls.detected()
    step.unlink()  # it evaluates
    assert not stalls.detected()
    assert not Stalls(tmp_path, [0], 0).detected()


def test_after_a_failure_the_ranks_start_again_where_there_is_more_to_start_from(folder: Path) -> None:
    run = folder / "run"
    launch = replace(two_ranks("further", folder), words_again=("done", str(folder)), max_restarts=1)
    assert launch_local(launch, run, module="trivial_rank") == 0
    assert (run / "logs/rank-1.log").read_text() == "hello from 1 of 2\n" * 2
    rows = LaunchFolder(run).attempts()
    assert [(row["code"], row["checkpoint"], row["then"]) for row in rows] == [
        (1, "step-00000004", "restarted"),
        (0, "step-00000004", "ended"),
    ]


def start(folder: Path) -> subprocess.Popen[bytes]:
    """A launcher whose two ranks wait to be stopped."""
    code = (
        "import sys; from pathlib import Path; from pretrainkit.launch.local import Launch, launch_local; "
        "launch = Launch('local', ('wait', sys.argv[1]), (), processes_per_node=2); "
        "sys.exit(launch_local(launch, Path(sys.argv[1], 'run'), module='trivial_rank'))"
    )
    launcher = subprocess.Popen([sys.executable, "-c", code, str(folder)], stdout=subprocess.DEVNULL)
    wait_for(folder / "ready-0", folder / "ready-1")
    return launcher


def wait_for(*paths: Path) -> None:
    deadline = time.monotonic() + 60
    while not all(path.exists() for path in paths):
        assert time.monotonic() < deadline, f"waited in vain for {paths}"
        time.sleep(0.05)


def test_an_elastic_machine_shares_the_run_reports_a_killed_rank_and_ends_when_it_is_cancelled(folder: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        meet = f"localhost:{probe.getsockname()[1]}"
    code = (
        "import sys; from pathlib import Path; from pretrainkit.launch.local import Launch, launch_local; "
        "launch = Launch('local', (), ('wait', sys.argv[1]), max_restarts=1, elastic='1:1', meet=sys.argv[2], "
        "world_sizes=(1,)); sys.exit(launch_local(launch, Path(sys.argv[1], 'run'), module='trivial_rank'))"
    )
    with open(folder / "errors", "w") as errors:
        words = [sys.executable, "-c", code, str(folder), meet]
        launcher = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=errors)
    wait_for(folder / "ready-0")
    (folder / "ready-0").unlink()
    run = LaunchFolder(folder / "run")
    os.kill(int(rank_file(run.rank_logs()[0].parent, 0, "pid").read_text()), signal.SIGKILL)
    wait_for(folder / "ready-0")  # its agent has started it again
    assert (folder / "errors").read_text().startswith("error: rank 0 was killed by SIGKILL, which the system sends")
    run.require_free(shared=True)
    with pytest.raises(InputError, match="another launcher"):
        run.require_free()
    assert [path.parent.name for path in run.rank_logs()] == [f"{socket.gethostname()}-{launcher.pid}"]
    run.cancel()
    assert launcher.wait(60) == 130
    assert (folder / "saved-0").exists()
    assert run.attempts()[-1]["cause"] == "stopped by a signal"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_reach_the_ranks_which_save_and_end(folder: Path, number: int) -> None:
    launcher = start(folder)
    launcher.send_signal(number)
    assert launcher.wait(30) == 130
    assert (folder / "saved-0").exists()
    assert (folder / "saved-1").exists()


def test_a_launcher_that_is_refused_leaves_the_first_one_its_logs_and_its_place(folder: Path) -> None:
    launcher = start(folder)
    run = folder / "run"
    held = LaunchFolder(run)
    held.add(Launch("local", ("train",), (), job_ids=(str(launcher.pid),)))
    with pytest.raises(InputError, match="another launcher"):
        launch_local(two_ranks("done", folder), run, module="trivial_rank")
    assert (run / "logs/rank-1.log").read_text() == "hello from 1 of 2\n"
    assert held.last().job_ids == (str(launcher.pid),)
    launcher.terminate()
    assert launcher.wait(30) == 130


def test_ranks_end_when_the_launcher_is_killed(folder: Path) -> None:
    launcher = start(folder)
    pids = [int((folder / f"run/logs/rank-{rank}.pid").read_text()) for rank in range(2)]
    launcher.kill()
    launcher.wait()
    wait_for(folder / "saved-0", folder / "saved-1")
    deadline = time.monotonic() + 20
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_ranks_are_not_replaced_before_they_have_saved(folder: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from pretrainkit.launch.local import Launch, launch_local; "
        "place = sys.argv[1]; "
        "launch = Launch('local', ('slow', place), ('later', place), processes_per_node=2, max_restarts=1); "
        "sys.exit(launch_local(launch, Path(place, 'run'), 'trivial_rank'))"
    )
    launcher = subprocess.Popen([sys.executable, "-c", code, str(folder)], stdout=subprocess.DEVNULL)
    wait_for(folder / "ready-0", folder / "ready-1")
    rank = int((folder / "run/logs/rank-0.pid").read_text())
    agent = int(Path(f"/proc/{rank}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(agent, signal.SIGKILL)
    assert launcher.wait(60) == 0
    assert [row["then"] for row in LaunchFolder(folder / "run").attempts()] == ["restarted", "ended"]


def test_a_number_of_processes_and_a_folder_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="at least 1"):
        launch_local(Launch("local", (), (), processes_per_node=0), tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write logs"):
        launch_local(Launch("local", (), ()), tmp_path / "file")


@pytest.mark.parametrize(
    ("codes", "was_asked_to_stop", "expected"),
    [
        ([0, 0], False, 0),
        ([0, 130], True, 130),
        ([130, None], True, 130),
        ([130, None], False, 1),
        ([None, 2], False, 2),
        ([2, 1], False, 1),
        ([0, 7], False, 1),
        ([None, 0], False, 1),
    ],
)
def test_the_worst_exit_code(codes: list[int | None], was_asked_to_stop: bool, expected: int) -> None:
    assert worst(codes, was_asked_to_stop) == expected
