"""Cost of starting: CPU seconds of new processes, compared with the targets and with the import of torch.

The commands alternate in each round. The result is the minimum over the rounds. CPU seconds are user and system time of
the process and all its threads. `pretrainkit train` is stopped when it reports its first update, of bert/tiny with
batches of 8 from token shards of random text. In the last row it runs to the end, which also writes a checkpoint.

    python benchmarks/start.py [--rounds 5] [--quick]
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline import make_shards


@dataclass(frozen=True)
class Start:
    """One command to measure."""

    name: str
    words: Sequence[str]
    """Arguments of `python`."""
    target: float | None = None
    """Maximum CPU seconds."""
    until: str | None = None
    """Stop the process at the first line with this text; None lets it end."""


def starts(shards: str, run: Path) -> list[Start]:
    """Return the commands to measure. Runs write to the folder `run`, which must not exist."""
    command = ("-m", "pretrainkit")
    settings = ["num_steps=1", "schedule.num_warmup_steps=0", "data.batch_size=8", "data.microbatch_size=8"]
    train = (*command, "train", "bert/tiny", f"data.train={shards}", *settings)
    train = (*train, "--device", "cpu", "--json", "--out", str(run))
    return [
        Start("Python alone", ("-c", "pass")),
        Start("import torch", ("-c", "import torch")),
        Start("pretrainkit --help", (*command, "--help"), 0.15),
        Start("pretrainkit config check bert/base", (*command, "config", "check", "bert/base"), 0.4),
        *(
            Start(f"pretrainkit plan {words}", (*command, "plan", *words.split()), 5.0)
            for words in ("clip/zerovl", "fourm/xl-21", "t5/1.0-11b", "t5/1.1-xxl --gpus 256")
        ),
        Start("pretrainkit train bert/tiny, to the first update", train, 3.5, until='"event": "metrics"'),
        Start("pretrainkit train bert/tiny num_steps=1, to the end", train),
    ]


def cpu_seconds(start: Start) -> float:
    """Return the CPU seconds of one new process. It has one thread, so that waiting threads use no CPU time."""
    command = [sys.executable, *start.words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert process.stdout is not None
    is_reached = start.until is None
    for line in process.stdout:
        if start.until is not None and start.until in line:
            is_reached = True
            process.kill()
            break
    process.stdout.close()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if not is_reached or (start.until is None and process.returncode):
        raise SystemExit(f"{' '.join(command)}\n  ended with exit code {process.returncode} before it was measured")
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="two rounds")
    options = parser.parse_args()
    num_rounds = 2 if options.quick else options.rounds
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        measured = starts(make_shards(folder / "shards", 200, num_shards=2), folder / "run")
        seconds: dict[str, list[float]] = {start.name: [] for start in measured}
        for _ in range(num_rounds):
            for start in measured:
                seconds[start.name].append(cpu_seconds(start))
                shutil.rmtree(folder / "run", ignore_errors=True)
    print(f"Best of {num_rounds} fresh processes.\n\n| command | CPU-s | target |\n|---|---|---|")
    for start in measured:
        target = "" if start.target is None else f"<= {start.target}"
        print(f"| {start.name} | {min(seconds[start.name]):.2f} | {target} |")


if __name__ == "__main__":
    main()
