"""Speed of the loader on pre-tokenized rows: examples per CPU-second, compared with alternatives.

A memory map of 400 000 rows of 128 uint16 tokens is read in shuffled order. All engines alternate in each round, so
that a busy machine slows all of them equally. The result is the best round. The last column is the ratio to ours within
the same run.

    python benchmarks/loader.py [--rounds 5] [--rows 400000] [--quick]
"""

import argparse
import importlib.util
import json
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from pretrainkit import rng
from pretrainkit.data.loader import Loader
from pretrainkit.data.order import Order
from pretrainkit.data.permutation import permute
from pretrainkit.data.plan import pack_rows, token_microbatches
from pretrainkit.data.rows import RowSource

ROW_LENGTH = 128
Engine = Callable[[int], Iterator[np.ndarray]]
"""Yields batches with at least the given number of examples."""


def make_rows(folder: Path, num_rows: int) -> np.memmap:
    """Write random tokens to disk, and return them as a memory map."""
    tokens = np.random.default_rng(0).integers(0, 32_128, (num_rows, ROW_LENGTH), np.uint16)
    tokens.tofile(folder / "rows.bin")
    return np.memmap(folder / "rows.bin", np.uint16, "r", shape=(num_rows, ROW_LENGTH))


def make_loader(rows: np.memmap, batch_size: int, **settings: object) -> Loader:
    source = RowSource([rows])
    return Loader(source, Order(source.sizes, seed=0), batch_size=batch_size, **settings)  # type: ignore[arg-type]


def engines(rows: np.memmap, batch_size: int) -> dict[str, tuple[Engine, float]]:
    """Return (engine, share of the examples) by name. Slow engines run on a smaller share."""

    def ours(num: int) -> Iterator[np.ndarray]:
        loader = make_loader(rows, batch_size)
        for step in range(num // batch_size):
            yield loader.step(step)[0]["tokens"]

    def ours_prefetched(num: int) -> Iterator[np.ndarray]:
        for prepared in make_loader(rows, batch_size).iterate(0, num // batch_size):
            yield prepared.microbatches[0]["tokens"]

    def gather(num: int) -> Iterator[np.ndarray]:
        order = np.random.default_rng(0).permutation(len(rows))
        for start in range(0, num, batch_size):
            yield rows[order[start : start + batch_size]]

    candidates: dict[str, tuple[Engine, float]] = {
        "ours: Loader.step": (ours, 1.0),
        "ours: Loader.iterate, one prefetch thread": (ours_prefetched, 1.0),
        "NumPy fancy indexing, permutation in memory (ceiling)": (gather, 1.0),
    }
    if importlib.util.find_spec("torch"):
        candidates |= torch_engines(rows, batch_size)
    if importlib.util.find_spec("datasets"):
        candidates["datasets (map-style, shuffled, NumPy format)"] = (datasets_engine(rows, batch_size), 0.05)
    return candidates


def torch_engines(rows: np.memmap, batch_size: int) -> dict[str, tuple[Engine, float]]:
    import torch
    from torch.utils.data import DataLoader, Dataset

    class PerItem(Dataset):
        def __len__(self) -> int:
            return len(rows)

        def __getitem__(self, index: int) -> np.ndarray:
            return rows[index]

    class PerBatch(PerItem):
        def __getitems__(self, indices: list[int]) -> np.ndarray:
            return rows[indices]

    def per_item(num: int) -> Iterator[np.ndarray]:
        stack = DataLoader(
            PerItem(), batch_size, shuffle=True, collate_fn=lambda items: torch.from_numpy(np.stack(items))
        )
        return (batch for _, batch in zip(range(num // batch_size), stack, strict=False))

    def per_batch(num: int) -> Iterator[np.ndarray]:
        whole = DataLoader(PerBatch(), batch_size, shuffle=True, collate_fn=torch.from_numpy)
        return (batch for _, batch in zip(range(num // batch_size), whole, strict=False))

    return {
        "torch DataLoader, __getitems__, 0 workers": (per_batch, 0.5),
        "torch DataLoader, per item, 0 workers": (per_item, 0.1),
    }


def datasets_engine(rows: np.memmap, batch_size: int) -> Engine:
    import datasets

    table = datasets.Dataset.from_dict({"tokens": rows[: len(rows) // 10]}).with_format("numpy")

    def run(num: int) -> Iterator[np.ndarray]:
        shuffled = table.shuffle(seed=0)
        for start in range(0, num, batch_size):
            yield shuffled[start : start + batch_size]["tokens"]

    return run


def examples_per_cpu_second(engine: Engine, num: int) -> float:
    num_seen, started = 0, time.process_time()
    for batch in engine(num):
        num_seen += len(batch)
    return num_seen / (time.process_time() - started)


def compare(rows: np.memmap, batch_size: int, num_rounds: int) -> None:
    candidates = engines(rows, batch_size)
    rates: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(num_rounds):
        for name, (engine, share) in candidates.items():
            rates[name].append(examples_per_cpu_second(engine, int(len(rows) * share)))
    best = {name: max(values) for name, values in rates.items()}
    print(f"\n### Batches of {batch_size}\n\n| engine | examples / CPU-s, best | median | of ours |\n|---|---|---|---|")
    for name, rate in best.items():
        median = statistics.median(rates[name])
        print(f"| {name} | {rate:,.0f} | {median:,.0f} | {rate / best['ours: Loader.step']:.2f} |")


def best_seconds(function: Callable[[], object], num_rounds: int) -> float:
    seconds = []
    for _ in range(num_rounds):
        started = time.process_time()
        function()
        seconds.append(time.process_time() - started)
    return min(seconds)


def restore_seconds(rows: np.memmap, step: int, num_rounds: int) -> float:
    """Return the seconds from a state to the first batch, with a new loader."""
    state = make_loader(rows, 64).state(step)

    def restore() -> None:
        loader = make_loader(rows, 64)
        loader.step(loader.check_state(state))

    return best_seconds(restore, num_rounds)


def restore_lanes_seconds(num_documents: int, num_rounds: int) -> float:
    """Return the seconds to restore lanes, for which the order of an epoch's documents is computed again."""
    documents = np.random.default_rng(0).integers(1, 20, num_documents)

    def restore() -> None:
        order = Order([documents.sum()], seed=0, mode="lanes", batch_size=64, document_sizes=[documents])
        order.records(np.arange(10**6, 10**6 + 64))

    return best_seconds(restore, num_rounds)


def parts(rows: np.memmap, num_rounds: int) -> None:
    positions, key = np.arange(16_384), np.array([1], np.uint64)
    order, keys = Order([len(rows)], seed=0), rng.fold(1, np.arange(1024))
    documents = np.random.default_rng(0).integers(1, 20, len(rows) // 10)
    lanes = Order([documents.sum()], seed=0, mode="lanes", batch_size=64, document_sizes=[documents])
    mixture = Order([len(rows), len(rows) // 2], seed=0, weights=[0.7, 0.3])
    lengths = np.clip(np.random.default_rng(0).lognormal(4.5, 0.9, 65_536), 1, 512).astype(np.int64)

    def cut() -> object:
        return token_microbatches(lengths[:1024], 8, 4096)

    num_draws, repeat = 1024 * 128, max(10, 4 * num_rounds)
    figures = [
        ("Feistel permutation, per index", lambda: permute(positions, len(rows), key), len(positions)),
        ("Order.records, shuffle, per example", lambda: order.records(positions), len(positions)),
        ("Order.records, two weighted components, per example", lambda: mixture.records(positions), len(positions)),
        ("Order.records, lanes, per example", lambda: lanes.records(positions), len(positions)),
        ("pack_rows to 512 in windows of 4096, per example", lambda: pack_rows(lengths, 512), len(lengths)),
        ("token_microbatches, 1024 examples on 8 ranks, per example", cut, 1024),
        ("rng.bits (1024, 128), per draw", lambda: rng.bits(keys, 128), num_draws),
        ("rng.uniform (1024, 128), per draw", lambda: rng.uniform(keys, 128), num_draws),
    ]
    print("\n### Parts\n\n| part | CPU-ns |\n|---|---|")
    for name, function, num in figures:
        print(f"| {name} | {best_seconds(function, repeat) / num * 1e9:.1f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--quick", action="store_true", help="small sizes, one round: a test that it runs")
    args = parser.parse_args()
    if args.quick:
        args.rounds, args.rows = 1, 100_000
    with tempfile.TemporaryDirectory() as folder:
        rows = make_rows(Path(folder), args.rows)
        for batch_size in (64, 1024):
            compare(rows, batch_size, args.rounds)
        parts(rows, args.rounds)
        state = json.dumps(make_loader(rows, 64).state(10**9))
        print("\n### Resuming\n\n| | |\n|---|---|")
        print(f"| state | {len(state)} bytes |")
        for step in (1000, 10**9):
            milliseconds = restore_seconds(rows, step, args.rounds) * 1e3
            print(f"| restore at step 10^{math.log10(step):.0f}, shuffle | {milliseconds:.1f} CPU-ms |")
        milliseconds = restore_lanes_seconds(500_000, args.rounds) * 1e3
        print(f"| restore, lanes of 500,000 documents | {milliseconds:.1f} CPU-ms |")


if __name__ == "__main__":
    main()
