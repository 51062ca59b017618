"""Common steps of all demos: run commands like a user, and print them, so that a demo reads like a tutorial. A training
is killed without warning and resumed; losses that are computed twice must be equal in every digit.
"""

import json
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pretrainkit.errors import InputError, RunError

STEP_TIMEOUT_SECONDS = 600
"""Maximum time without a logged step before a training counts as stuck."""


class Walk:
    """A running demo with its folder, its chapters and the time since it began."""

    def __init__(self, folder: Path, num_chapters: int, seed: int) -> None:
        """`folder` is replaced if it has an earlier demo. Raises InputError if it has anything else."""
        self.folder, self.seed = folder, seed
        self.num_equal = 0
        """Number of losses that were computed twice and are equal."""
        self._chapter, self._num_chapters = 0, num_chapters
        self._began = time.monotonic()
        marker = folder / ".pretrainkit-demo"
        if folder.exists() and any(folder.iterdir()):
            if not marker.exists():
                raise InputError(f"{folder} has files that are not from a demo\n  give another folder: --out FOLDER")
            shutil.rmtree(folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            marker.touch()
        except OSError as error:
            raise InputError(f"cannot write {folder}\n  {error}\n  give another folder: --out FOLDER") from None

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def chapter(self, title: str, text: str) -> None:
        self._chapter += 1
        print(f"\n[{self._chapter}/{self._num_chapters}] {title}: {text}", flush=True)

    def train(
        self,
        title: str,
        text: str,
        *arguments: object,
        num_steps: int,
        checkpoint_steps: int,
        kill_after_step: int,
        shown: str = "",
    ) -> Path:
        """Train as a chapter: kill -9 in the middle, resume, and compare the losses that were computed twice. Return
        the run folder. Raises RunError if a loss differs in any digit, or if the training ends before it is killed.

        Args:
            arguments: Arguments of `pretrainkit train`: the preset and settings except those below.
            kill_after_step: Not a multiple of `checkpoint_steps`, so that some steps are computed twice.
            shown: Text to print below the heading.
        """
        self.chapter(title, f"{text}; killed without warning after step {kill_after_step}, then resumed")
        print(shown, end="")
        run = self.folder / "run"
        settings = (
            f"seed={self.seed}",
            f"num_steps={num_steps}",
            f"checkpoint.every_steps={checkpoint_steps}",
            "--out",
            run,
        )
        before = _train_until_killed(["train", *arguments, *settings], run, kill_after_step)
        print(f"\n  kill -9 after step {max(before)}; the newest checkpoint is the last multiple of {checkpoint_steps}")
        pretrainkit("resume", run)
        self.num_equal = _compare_losses(before, read_losses(run), checkpoint_steps)
        return run

    def report(self, run: Path) -> None:
        pretrainkit("report", run, "--out", self.folder / "report.html")

    def tell(self, results: Mapping[str, str], files: Mapping[str, object], hint: str) -> None:
        """Print the time, the files and what to do next, and at the end a line for each result with its baseline."""
        print(f"\n  Done in {self.seconds / 60:.1f} minutes.")
        equal = f"{self.num_equal} of {self.num_equal}, every digit"
        _print_rows({"losses equal after resume": equal, **files, "report": self.folder / "report.html"})
        print(f"  {hint}\n")
        _print_rows(results)

    def numbers(self, **headline: Any) -> dict[str, Any]:
        """Return the headline numbers, and those that all demos have."""
        return {
            **headline,
            "equal_losses_after_resume": self.num_equal,
            "seconds": round(self.seconds, 1),
            "report": str(self.folder / "report.html"),
        }


def pretrainkit(*arguments: object) -> None:
    """Print and run a pretrainkit command. Raises InputError or RunError according to its exit code."""
    done = subprocess.run(_print_command(arguments), check=False)
    if done.returncode == 130:
        raise KeyboardInterrupt
    if done.returncode:
        kind = InputError if done.returncode == InputError.exit_code else RunError
        raise kind(f"the command above failed with exit code {done.returncode}\n  see its message above")


def _print_rows(rows: Mapping[str, object]) -> None:
    """Print names and values in two columns."""
    width = max(map(len, rows)) + 3
    for name, value in rows.items():
        print(f"  {name:<{width}}{value}")


def _print_command(arguments: Iterable[object]) -> list[str]:
    """Print the command `pretrainkit ARGUMENTS`, and return its command line."""
    texts = [str(argument) for argument in arguments]
    print("  $ " + shlex.join(["pretrainkit", *texts]), flush=True)
    return [sys.executable, "-m", "pretrainkit", *texts]


def quiet_transformers() -> Any:
    """Import the package transformers, without its advice and progress bars."""
    from pretrainkit.exporting.torchvision_shim import import_transformers

    transformers = import_transformers()
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return transformers


def read_json(path: Path) -> Any:
    """Return the value in a JSON file."""
    return json.loads(path.read_bytes())


def read_json_lines(path: Path) -> list[Any]:
    """Return the values in a file of JSON lines."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def write_json_lines(path: Path, rows: Iterable[object]) -> None:
    """Write each value as a line of JSON."""
    lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    path.write_text("".join(lines), encoding="utf-8")


def read_losses(run: Path) -> dict[int, float]:
    """Return the losses by step of a metrics file, which may be growing."""
    path = run / "metrics.jsonl"
    if not path.exists():
        return {}
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    return {row["step"]: row["loss"] for row in map(json.loads, lines)}


def _train_until_killed(command: Iterable[object], run: Path, kill_after_step: int) -> dict[int, float]:
    """Start a training, kill -9 it, and return the losses that it logged, by step."""
    process = subprocess.Popen(_print_command(command))
    deadline, reached = time.monotonic() + STEP_TIMEOUT_SECONDS, 0
    try:
        while (step := max(read_losses(run), default=0)) < kill_after_step:
            if step > reached:
                deadline, reached = time.monotonic() + STEP_TIMEOUT_SECONDS, step
            if process.poll() is not None:
                raise RunError(f"the training ended before it was killed, with exit code {process.returncode}")
            if time.monotonic() > deadline:
                raise RunError(f"the training made no progress after step {reached} for {STEP_TIMEOUT_SECONDS} seconds")
            time.sleep(0.05)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.wait()
    return read_losses(run)


def _compare_losses(before: Mapping[int, float], after: Mapping[int, float], checkpoint_steps: int) -> int:
    first = max(before) // checkpoint_steps * checkpoint_steps
    twice = [step for step in before if step > first]
    wrong = [step for step in twice if before[step] != after[step]]
    if wrong or not twice:
        raise RunError(f"the resumed run differs from the first one: steps {wrong} of {twice} are not equal")
    print(f"\n  steps {twice[0]} to {twice[-1]} were computed twice, before the kill and after it:")
    for step in twice[:3]:
        print(f"    step {step}: {before[step]!r} and {after[step]!r}")
    print(f"    … all {len(twice)} logged losses are equal to the last digit")
    return len(twice)
