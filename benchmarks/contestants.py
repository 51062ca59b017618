"""Training steps of several models, each in a process of its own, that take turns.

In its turn a contestant makes a step with each of its batches, as in training one follows another. The first of a turn
is not counted: it finds in the cache what the others left there.

Their own, because our trainer tells the C library to keep freed memory and transformers leaves that as it is.
A benchmark calls `measure`, which starts the same file again once for each contestant; that calls `serve`.
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
    """The options that all such benchmarks have, and those by which contestants are started."""
    parser.add_argument("--batch-size", type=int, default=batch_size)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=threads, help="0: one, then as many as there are cores")
    parser.add_argument("--quick", action="store_true", help="few examples, one round: to see that it runs")
    parser.add_argument("--verbose", action="store_true", help="show what the contestants complain about")
    parser.add_argument("--contestant", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)


def parse_options(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """With --quick as little as runs."""
    options = parser.parse_args()
    if options.quick and not options.contestant:
        options.batch_size, options.rounds = 2, 1
    return options


def thread_counts(options: argparse.Namespace) -> list[int]:
    """How many threads to compare with, one comparison after another."""
    return [options.threads] if options.threads else sorted({1, os.cpu_count() or 1})


def stepper(model: nn.Module, loss_of: Callable[[Batch], Tensor]) -> Callable[[Batch], float]:
    """CPU seconds of a training step with everything but the data."""
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


def serve(said: Mapping[str, Any], step: Callable[[Batch], float], batches: Sequence[Batch]) -> None:
    """A contestant: says something, then makes a step for every line that it reads."""
    print(json.dumps(said), flush=True)
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
    """What each contestant said first, and the median of what it did per CPU-second.

    Args:
        script: The benchmark.
        names: Of the contestants.
        arguments: The script's own, the same for all.
        options: Those of `add_options`.
        folder: Where contestants find weights and leave gradients.
        check: Given what all said, ends the program where they do not compute the same.
    """
    with ExitStack() as stack:
        said, steps = {}, {}
        for name in names:
            started = _contestant(script, name, arguments, options, folder)
            said[name], steps[name] = stack.enter_context(started)
        check(said)
        speeds: dict[str, list[float]] = {name: [] for name in names}
        for number in range(options.rounds + 1):  # the first of all is a warm-up
            for name in names:
                turn = [useful / steps[name]() for useful in said[name]["useful"]]
                if number:
                    speeds[name] += turn[1:] or turn
    return said, {name: statistics.median(found) for name, found in speeds.items()}


@contextmanager
def _contestant(
    script: str, name: str, arguments: Sequence[Any], options: argparse.Namespace, folder: Path
) -> Iterator[tuple[Any, Callable[[], Any]]]:
    """A process: what it said first, and a function that lets it make a step and gives the CPU seconds."""
    threads = {"OMP_NUM_THREADS": str(options.threads)}
    if not name.startswith("theirs") or name.endswith("tuned"):
        threads["GOMP_SPINCOUNT"] = "10000"  # as `pretrainkit` sets it: threads that wait soon sleep
    given = ["--contestant", name, "--folder", folder, "--batch-size", options.batch_size, "--threads", options.threads]
    with subprocess.Popen(
        list(map(str, [sys.executable, script, *given, *arguments])),
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
