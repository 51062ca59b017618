"""Runs the benchmarks one after another, each in a process of its own, and prints their Markdown.

    python benchmarks/run.py [--quick] [--only loader step ...] [--large] [--write]

With --write the tables also go to benchmarks/RESULTS.md, together with the targets and whether they are reached; a
benchmark that was not run, or failed, keeps what stands there. Let nothing else run meanwhile. About 20 minutes on two
cores; --quick takes about two and is no measurement.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from results import compare_with_targets, describe_machine, read_results, write_results

FOLDER = Path(__file__).resolve().parent
BENCHMARKS = (
    "loader",
    "pipeline",
    "denoising",
    "step",
    "t5_step",
    "pixel_step",
    "fourm_step",
    "contrast",
    "accumulation",
    "tokenizing",
    "sentences",
    "words",
    "wikipedia",
    "shuffle",
    "images",
    "rendering",
    "rendered_rows",
    "fourm_masking",
    "start",
)
LARGE = {"shuffle": ("--size", "2GB"), "tokenizing": ("--megabytes", "80", "--rounds", "3")}
"""What --large adds: the size that the target of shuffling speaks of, for which 6 GB of disk must be free, and text
enough that the start of the worker processes does not count."""
LIMIT_SECONDS = 600
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}


def run(name: str, options: list[str], limit_seconds: float) -> tuple[str, str | None]:
    """The Markdown of a benchmark, and what went wrong (None: nothing)."""
    command = [sys.executable, str(FOLDER / f"{name}.py"), *options]
    # A session of its own, so that its children end with it.
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=os.environ | ENVIRONMENT, start_new_session=True
    )
    try:
        output, _ = process.communicate(timeout=limit_seconds)
    except subprocess.TimeoutExpired:
        return "", f"not done after {limit_seconds:.0f} s"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return output.strip(), f"exit code {process.returncode}" if process.returncode else None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes: to see that everything runs")
    parser.add_argument("--only", nargs="+", choices=BENCHMARKS, default=BENCHMARKS, metavar="NAME")
    parser.add_argument("--large", action="store_true", help="the sizes of the targets: shuffle 2 GB, encode 80 MB")
    parser.add_argument("--write", action="store_true", help=f"write {FOLDER.name}/RESULTS.md")
    parser.add_argument("--limit", type=float, default=LIMIT_SECONDS, help="seconds that one benchmark may take")
    arguments = parser.parse_args()
    if arguments.quick and arguments.write:
        parser.error("--quick measures too little to be written down; leave one of the two out")

    measured: dict[str, str] = {}
    failures: dict[str, str] = {}
    for name in arguments.only:
        options = ["--quick"] if arguments.quick else list(LARGE.get(name, ())) if arguments.large else []
        print(f"running {name} ...", file=sys.stderr, flush=True)
        began = time.monotonic()
        output, failure = run(name, options, arguments.limit)
        seconds = time.monotonic() - began
        if failure is None:
            command = " ".join([f"python benchmarks/{name}.py", *options])
            measured[name] = f"`{command}`, {describe_machine()}\n\n{output}"
        else:
            failures[name] = failure
        print(f"## {name}\n\n{output}\n\n({failure or 'done'}, {seconds:.0f} s)\n", flush=True)

    print(f"## Targets\n\n{compare_with_targets(measured, arguments.only)}")
    if arguments.write and measured:
        path = FOLDER / "RESULTS.md"
        old, by_hand = read_results(path)
        write_results(path, old | measured, BENCHMARKS, by_hand)
        print(f"wrote {path}", file=sys.stderr)
    for name, failure in failures.items():
        print(f"failed: {name}: {failure}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
