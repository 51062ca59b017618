"""Measure training steps of several models (contestants), each in a separate process, alternately.

In its turn a contestant runs one step with each of its batches. The first step of a turn is not counted, because the
other contestants have filled the CPU's cache.

The processes are separate because our trainer makes the C library keep freed memory, and transformers does not. A
benchmark calls `measure`, which starts the same file again for each contestant; that process calls `serve`.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

Batch = dict[str, Tensor]


def add_options(parser: argparse.ArgumentParser, *, batch_size: int, threads: int = 1) -> None:
    """Add the options that all such benchmarks have, and the hidden options of contestants."""
    parser.add_argument("--batch-size", type=int, default=batch_size)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=threads, help="0: first one, then the number of cores")
    parser.add_argument("--quick", action="store_true", help="few examples, one round: a test that it runs")
    parser.add_argument("--verbose", action="store_true", help="show the error output of the contestants")
    parser.add_argument("--contestant", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)


def parse_options(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Parse the options; --quick sets the smallest sizes."""
    options = parser.parse_args()
    if options.quick and not options.contestant:
        options.batch_size, options.rounds = 2, 1
    return options


def thread_counts(options: argparse.Namespace) -> list[int]:
    """Return the numbers of threads for which to run the comparison."""
    return [options.threads] if options.threads else sorted({1, os.cpu_count() or 1})


def stepper(model: nn.Module, loss_of: Callable[[Batch], Tensor]) -> Callable[[Batch], float]:
    """Return a function that runs a training step without data preparation and returns its CPU seconds."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, fused=True)

    def step(batch: Batch) -> float:
        start = time.process_time()
        loss_of(batch).backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return time.process_time() - start

    return step


def serve(report: Mapping[str, Any], step: Callable[[Batch], float], batches: Sequence[Batch]) -> None:
    """Run a contestant: print its report, then run a step for every line on the standard input."""
    print(json.dumps(report), flush=True)
    for number, _ in enumerate(sys.stdin):
        print(step(batches[number % len(batches)]), flush=True)


def measure(
    script: str,
    names: Sequence[str],
    arguments: Sequence[Any],
    options: argparse.Namespace,
    folder: Path,
    check: Callable[[dict[str, Any]], None],
) -> tuple[dict[str, Any], dict[str, float]]:
    """Return the report of each contestant, and the median of its useful work per CPU-second.

    Args:
        script: Path of the benchmark.
        names: Names of the contestants.
        arguments: The script's own arguments, the same for all contestants.
        options: The options of `add_options`.
        folder: Folder in which contestants find weights and write gradients.
        check: Gets all reports, and ends the program if the contestants do not compute the same.
    """
    with ExitStack() as stack:
        reports, steps = {}, {}
        for name in names:
            started = _contestant(script, name, arguments, options, folder)
            reports[name], steps[name] = stack.enter_context(started)
        check(reports)
        speeds: dict[str, list[float]] = {name: [] for name in names}
        for number in range(options.rounds + 1):  # the first round is a warm-up
            for name in names:
                turn = [useful / steps[name]() for useful in reports[name]["useful"]]
                if number:
                    speeds[name] += turn[1:] or turn
    return reports, {name: statistics.median(values) for name, values in speeds.items()}


@contextmanager
def _contestant(
    script: str, name: str, arguments: Sequence[Any], options: argparse.Namespace, folder: Path
) -> Iterator[tuple[Any, Callable[[], Any]]]:
    """Start a contestant; yield its report, and a function that runs a step and returns its CPU seconds."""
    threads = {"OMP_NUM_THREADS": str(options.threads)}
    if not name.startswith("theirs") or name.endswith("tuned"):
        threads["GOMP_SPINCOUNT"] = "10000"  # like `pretrainkit`: waiting threads soon sleep
    options_of_contestant = [
        "--contestant",
        name,
        "--folder",
        folder,
        "--batch-size",
        options.batch_size,
        "--threads",
        options.threads,
    ]
    with subprocess.Popen(
        list(map(str, [sys.executable, script, *options_of_contestant, *arguments])),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=None if options.verbose else subprocess.DEVNULL,
        text=True,
        env=os.environ | threads,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        to, out = process.stdin, process.stdout

        def ask(line: str | None) -> Any:
            if line is not None:
                to.write(line)
                to.flush()
            answer = out.readline()
            if not answer:
                raise SystemExit(f"{name} of {' '.join(map(str, arguments))} ended early; see --verbose")
            return json.loads(answer)

        yield ask(None), lambda: ask("step\n")
        to.close()
