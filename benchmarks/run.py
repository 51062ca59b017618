"""Run the benchmarks one after another, each in a separate process, and print their Markdown.

    python benchmarks/run.py [--quick] [--only loader step ...] [--large] [--write]

With --write the tables are also written to benchmarks/RESULTS.md, together with the targets and whether they are
reached. If a benchmark was not run or failed, its old section is kept. Run nothing else at the same time. It takes 20
minutes on two fast cores, and over an hour on slow ones. --quick takes about two minutes and is not a measurement.
"""

import argparse
import os
import signal
import subprocess
import sys
import textwrap
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
"""Options that --large adds: the size of the target for shuffling, which needs 6 GB of free disk, and enough text that
the start of the worker processes does not matter."""
LIMIT_SECONDS = 1800
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}


def run(name: str, options: list[str], limit_seconds: float) -> tuple[str, str | None]:
    """Run a benchmark. Return its Markdown and its failure (None if it succeeded)."""
    command = [sys.executable, str(FOLDER / f"{name}.py"), *options]
    # In a separate session, so that its children can be ended with it.
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=os.environ | ENVIRONMENT, start_new_session=True
    )
    try:
        output, _ = process.communicate(timeout=limit_seconds)
    except subprocess.TimeoutExpired:
        return "", f"not finished after {limit_seconds:.0f} s"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return output.strip(), f"exit code {process.returncode}" if process.returncode else None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes: a test that everything runs")
    parser.add_argument("--only", nargs="+", choices=BENCHMARKS, default=BENCHMARKS, metavar="NAME")
    parser.add_argument("--large", action="store_true", help="the sizes of the targets: shuffle 2 GB, encode 80 MB")
    parser.add_argument("--write", action="store_true", help=f"write {FOLDER.name}/RESULTS.md")
    parser.add_argument("--limit", type=float, default=LIMIT_SECONDS, help="seconds that one benchmark may take")
    arguments = parser.parse_args()
    if arguments.quick and arguments.write:
        parser.error("--quick does not give valid measurements, so --write cannot record them; leave one of them out")

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
            head = textwrap.fill(f"`{command}`, {describe_machine()}", 100, break_on_hyphens=False)
            measured[name] = f"{head}\n\n{output}"
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
