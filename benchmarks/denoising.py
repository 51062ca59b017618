"""T5's batches from tokens: span corruption compared with the usual collator, and packing. One core, CPU seconds.

    python benchmarks/denoising.py [--rounds 5] [--batches 40] [--quick]

Span corruption turns 568 tokens into 512 inputs and 114 targets. The peer follows the published algorithm of the
collators of transformers' T5 example and of nanoT5 step by step: a mask for each example by shuffling and counting,
then sentinels, filtering and end marks for the whole batch. The originals get a list of ids for each example from their
data sets; the peer is also measured on one array in memory. Ours looks up the segments, reads them from the memory map
and fills rows. All engines alternate in each round. The result is the best round.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pretrainkit.data.order import Order
from pretrainkit.data.source import Records
from pretrainkit.recipes.t5 import features
from pretrainkit.recipes.t5.config import T5DataConfig, T5ModelConfig, T5Run
from pretrainkit.recipes.t5.features import Ints, Placement, best_fit, placed
from pretrainkit.recipes.t5.ragged import Ragged
from pretrainkit.recipes.t5.source import DenoisingSource, bind, open_source
from pretrainkit.tokenizers.shard_writer import write_shards
from pretrainkit.tokenizers.shards import TokenShards
from pretrainkit.tokenizers.special import SpecialIds
from pretrainkit.training.optimizers.config import OptimizerConfig

VOCAB_SIZE, NUM_TOKENS, ROW = 32_000, 568, 512
SPECIAL = SpecialIds(unk=2, cls=3, sep=1, mask=4, pad=0)
Table = NDArray[np.int32]


def make_shards(folder: Path, num_documents: int) -> TokenShards:
    """Write random documents of skewed lengths, 150 tokens on average, similar to short web pages and task examples."""
    rng = np.random.default_rng(0)
    sizes = np.minimum(1 + rng.gamma(1.2, 125, num_documents).astype(int), ROW - 1)
    write_shards(
        folder, [[[rng.integers(5, VOCAB_SIZE, size)] for size in sizes]], vocab_size=VOCAB_SIZE, special=SPECIAL
    )
    return TokenShards.open(folder)


def open_ours(folder: Path) -> DenoisingSource:
    run = T5Run(
        num_steps=1,
        model=T5ModelConfig(
            hidden_size=8, num_heads=1, intermediate_size=8, num_encoder_layers=1, num_decoder_layers=1
        ),
        data=T5DataConfig(train=str(folder), batch_size=128),
        optimizer=OptimizerConfig(name="adafactor", peak_lr=1.0, max_grad_norm=0.0),
    )
    return open_source(bind(run), "train")


class UsualCollator:
    """Span corruption as in the collators of transformers' example and of nanoT5."""

    def __init__(self, vocab_size: int, end: int) -> None:
        self.vocab_size, self.end = vocab_size, end

    def __call__(self, tokens_BL: Table) -> dict[str, Table]:
        num_rows, length = tokens_BL.shape
        is_noise = np.stack([self._mask(length) for _ in range(num_rows)])
        inputs = self._filtered(tokens_BL, self._sentinels(is_noise.astype(np.int8)))
        labels = self._filtered(tokens_BL, self._sentinels((~is_noise).astype(np.int8)))
        read = np.zeros_like(labels)
        read[:, 1:] = labels[:, :-1]
        return {"input_ids": inputs, "labels": labels, "decoder_input_ids": read}

    def _mask(self, length: int) -> NDArray[np.bool_]:
        num_noise = min(max(round(length * 0.15), 1), length - 1)
        num_spans = max(round(num_noise / 3.0), 1)
        noise = self._parts(num_noise, num_spans)
        clean = self._parts(length - num_noise, num_spans)
        starts = np.cumsum(np.stack([clean, noise], axis=1).reshape(-1))[:-1]
        is_start = np.zeros(length, np.int8)
        is_start[starts] = True
        return np.cumsum(is_start) % 2 == 1

    @staticmethod
    def _parts(num_items: int, num_parts: int) -> NDArray[np.int64]:
        is_first = np.arange(num_items - 1) < num_parts - 1
        np.random.shuffle(is_first)  # noqa: NPY002 (as the originals do)
        part = np.cumsum(np.pad(is_first, [[1, 0]]))
        return np.unique(part, return_counts=True)[1]

    def _sentinels(self, mask_BL: NDArray[np.int8]) -> NDArray[np.integer]:
        start = mask_BL - np.roll(mask_BL, 1, axis=-1) * mask_BL
        start[:, 0] = mask_BL[:, 0]
        number = np.where(start != 0, np.cumsum(start, axis=-1), start)
        ids = np.where(number != 0, self.vocab_size - number, 0)
        return ids - (mask_BL - start)

    def _filtered(self, tokens_BL: Table, sentinels_BL: NDArray[np.integer]) -> Table:
        full = np.where(sentinels_BL != 0, sentinels_BL, tokens_BL)
        kept = full[full >= 0].reshape(len(tokens_BL), -1)
        return np.concatenate([kept, np.full((len(tokens_BL), 1), self.end, np.int32)], axis=-1).astype(np.int32)


def measure(engines: dict[str, Callable[[], int]], rounds: int) -> dict[str, list[float]]:
    """Return the units per CPU-second of each round, by the name of the engine."""
    rates: dict[str, list[float]] = {name: [] for name in engines}
    for _ in range(rounds):
        for name, engine in engines.items():
            began = time.process_time()
            num = engine()
            rates[name].append(num / (time.process_time() - began))
    return rates


def corruption(source: DenoisingSource, batch_size: int, num_batches: int, rounds: int) -> None:
    order = Order(source.sizes, seed=0)
    (component,) = source.components
    records = [order.records(np.arange(i * batch_size, (i + 1) * batch_size)) for i in range(num_batches)]
    full = component.index.lengths(np.arange(len(component.index))) == NUM_TOKENS
    some = np.flatnonzero(full)[:batch_size]
    tokens_BL = component.index.read(component.shards, some).values.reshape(-1, NUM_TOKENS)
    collator = UsualCollator(VOCAB_SIZE + 100, 1)
    theirs = collator(tokens_BL)
    zeros = np.zeros(len(some), np.int64)
    same = source.build(Records(zeros, zeros, some, zeros.astype(np.uint64)))
    assert theirs["input_ids"].shape == same["encoder_input_tokens"].shape
    assert theirs["labels"].shape == same["decoder_target_tokens"].shape

    def ours() -> int:
        for batch in records:
            source.build(batch)
        return batch_size * len(records)

    def usual(read: Callable[[], Table]) -> Callable[[], int]:
        def run() -> int:
            num = max(1, num_batches // 8)
            for _ in range(num):
                collator(read())
            return len(tokens_BL) * num

        return run

    lists = tokens_BL.tolist()
    engines = {
        "ours: DenoisingSource.build": ours,
        "the usual collator, from lists": usual(lambda: np.array([np.array(row) for row in lists])),
        "the usual collator, from one array": usual(lambda: tokens_BL),
    }
    rates = measure(engines, rounds)
    best = max(rates["ours: DenoisingSource.build"])
    print(f"\n### Span corruption, batches of {batch_size}\n")
    print("| engine | examples / CPU-s, best | median | ours, times |\n|---|---|---|---|")
    for name, values in rates.items():
        print(f"| {name} | {max(values):,.0f} | {statistics.median(values):,.0f} | {best / max(values):.1f} |")


def next_fit(lengths: Mapping[str, Ints], widths: Mapping[str, int]) -> Placement:
    """Pack like SeqIO: in order, into the last row if all sequences of the example fit, else into a new row. Every
    max(widths)-th example also begins a new row. The arguments are those of `best_fit`."""
    group, names = max(widths.values()), list(lengths)
    table = np.stack([lengths[name] for name in names], axis=1).tolist()
    limits = [widths[name] for name in names]
    rows, row, used = [], -1, [0] * len(names)
    for example, sizes in enumerate(table):
        used = [have + size for have, size in zip(used, sizes, strict=True)]
        if example % group == 0 or any(have > limit for have, limit in zip(used, limits, strict=True)):
            row, used = row + 1, sizes
        rows.append(row)
    return placed(np.array(rows, np.int64), lengths, row + 1)


def packing(shards: TokenShards, rounds: int) -> None:
    """Measure packing: whole documents in rows of 512 for a language model, and inputs with targets for an
    encoder-decoder."""
    ends = shards.sentence_ends(0)
    lengths, starts = np.diff(ends, prepend=0), np.concatenate([[0], ends[:-1]])
    order = np.random.default_rng(1).permutation(len(starts))
    fill: dict[str, float] = {}

    def rows(name: str, packer: features.Packer, *, has_inputs: bool) -> Callable[[], int]:
        def run() -> int:
            num_rows = num_tokens = 0
            for begin in range(0, len(order), 4096):
                some = order[begin : begin + 4096]
                text = Ragged(shards.gather_flat(starts[some], lengths[some]).astype(np.int32), lengths[some])
                if has_inputs:
                    batch = features.encoder_decoder(text, text.head(100), ROW, 114, packer=packer)
                else:
                    batch = features.language_model(text, ROW, packer=packer)
                table = batch["encoder_input_tokens" if has_inputs else "decoder_target_tokens"]
                num_rows, num_tokens = num_rows + len(table), num_tokens + len(text.values)
            fill[name] = num_tokens / (num_rows * ROW)
            return num_rows

        return run

    settings = {
        "best fit, one sequence": (best_fit, False),
        "next fit (SeqIO), one sequence": (next_fit, False),
        "best fit, inputs and targets": (best_fit, True),
        "next fit (SeqIO), inputs and targets": (next_fit, True),
    }
    engines = {name: rows(name, packer, has_inputs=both) for name, (packer, both) in settings.items()}
    rates = measure(engines, rounds)
    print(f"\n### Packing into rows of {ROW}, from a memory map\n")
    print("| packer | rows / CPU-s, best | median | slots filled |\n|---|---|---|---|")
    for name, values in rates.items():
        print(f"| {name} | {max(values):,.0f} | {statistics.median(values):,.0f} | {100 * fill[name]:.1f} % |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, default=40, help="number for each engine and round")
    parser.add_argument("--quick", action="store_true", help="small sizes: a test that everything runs")
    arguments = parser.parse_args()
    rounds, num_batches, num_documents = arguments.rounds, arguments.batches, 60_000
    if arguments.quick:
        rounds, num_batches, num_documents = 2, 4, 5_000
    with tempfile.TemporaryDirectory() as folder:
        shards = make_shards(Path(folder) / "shards", num_documents)
        source = open_ours(shards.folder)
        for batch_size in (32, 128):
            corruption(source, batch_size, num_batches, rounds)
        packing(shards, rounds)


if __name__ == "__main__":
    main()
