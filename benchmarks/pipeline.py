"""The whole BERT pipeline from token shards to masked batches: examples per CPU-second, against the Hugging Face stack.

Ours: shuffled order, token gather, random split into two segments, trimming, swap (sentence order), [CLS] and [SEP],
token types, 15 % masking 80/10/10. Hugging Face: `datasets` (memory-mapped Arrow) + torch `DataLoader` +
`DataCollatorForLanguageModeling` for the same examples, stored as finished rows of 128. It does no split, no trimming
and no sentence order, so it does less work. The engines alternate in each round, all in one process without workers.

    python benchmarks/pipeline.py [--rounds 5] [--documents 20000] [--quick]
"""

import argparse
import importlib.util
import json
import statistics
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from pretrainkit.data.loader import Loader
from pretrainkit.data.order import Order
from pretrainkit.recipes.bert.chunks import chunk_index
from pretrainkit.recipes.bert.config import BertDataConfig, BertModelConfig, BertObjectiveConfig, BertRun
from pretrainkit.recipes.bert.source import BertSource, bind, open_source
from pretrainkit.tokenizers.shard_writer import ShardWriter, finish_shards
from pretrainkit.tokenizers.special import SpecialIds
from pretrainkit.training.optimizers.config import OptimizerConfig

VOCAB_SIZE = 32_128
SPECIAL = SpecialIds(unk=256, cls=257, sep=258, mask=259, pad=260)
Engine = Callable[[int], Iterator[int]]
"""Makes batches with at least the given number of examples, and yields the size of each batch."""


def make_shards(folder: Path, num_documents: int, mean_sentences: int = 20, num_shards: int = 4) -> str:
    """Write random documents with sentences of 24 tokens on average, and a tokenizer that defines the word starts."""
    rng = np.random.default_rng(0)
    entries = []
    for shard in range(num_shards):
        sentences = rng.geometric(1 / mean_sentences, num_documents // num_shards)
        tokens = np.clip(rng.lognormal(3.0, 0.6, sentences.sum()), 1, 400).astype(np.int64)
        with ShardWriter(folder, shard, num_shards, VOCAB_SIZE) as writer:
            ids = rng.integers(261, VOCAB_SIZE, tokens.sum())
            writer.add(ids, tokens, sentences, rng.integers(0, 2**63, len(sentences)).astype(np.uint64))
        entries.append(writer.entry)
    finish_shards(folder, entries, vocab_size=VOCAB_SIZE, special=SPECIAL)
    write_tokenizer(folder / "tokenizer")
    return str(folder)


def write_tokenizer(folder: Path) -> None:
    """Write a WordPiece vocabulary in which every fourth piece continues a word."""
    from tokenizers import Tokenizer, models

    roles = {256: "[UNK]", 257: "[CLS]", 258: "[SEP]", 259: "[MASK]", 260: "[PAD]"}
    vocabulary = {roles.get(i, f"{'' if i % 4 else '##'}p{i}"): i for i in range(VOCAB_SIZE)}
    folder.mkdir()
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.add_special_tokens(list(roles.values()))
    tokenizer.save(str(folder / "tokenizer.json"))


def open_run(folder: str, batch_size: int, objective: dict | None = None, **data: object) -> BertSource:
    config = BertRun(
        num_steps=1,
        model=BertModelConfig(hidden_size=64, num_layers=1, num_heads=1, intermediate_size=64),
        objective=BertObjectiveConfig(**(objective or {})),
        data=BertDataConfig(**({"train": folder, "batch_size": batch_size} | data)),
        optimizer=OptimizerConfig(peak_lr=1e-3),
    )
    return open_source(bind(config), "train")


def ours(source: BertSource, batch_size: int) -> Engine:
    loader = Loader(source, Order(source.sizes, seed=0), batch_size=batch_size)

    def run(num: int) -> Iterator[int]:
        for step in range(-(-num // batch_size)):
            yield len(loader.step(step)[0]["lengths"])

    return run


def unmasked_rows(source: BertSource) -> np.ndarray:
    """Return all examples as finished rows (N, 128) without masking: the input of Hugging Face's stack."""
    loader = Loader(source, Order(source.sizes, seed=0, mode="sequential"), batch_size=1)
    batch = source.build(loader.order.records(np.arange(sum(source.sizes))))
    ids = batch["input_ids"]
    row, slot = np.nonzero(batch["masked_lm_weights"])
    ids[row, batch["masked_lm_positions"][row, slot]] = batch["masked_lm_ids"][row, slot]
    return ids


def hugging_face(rows: np.ndarray, folder: Path, batch_size: int) -> dict[str, Engine]:
    """Return the stack as in its documentation, and its fastest variant (NumPy in and out)."""
    import datasets
    import pyarrow
    import torch
    from tokenizers import Tokenizer, models
    from transformers import DataCollatorForLanguageModeling, PreTrainedTokenizerFast

    datasets.disable_progress_bars()
    names = {"unk_token": "t256", "cls_token": "t257", "sep_token": "t258", "mask_token": "t259", "pad_token": "t260"}
    words = models.WordLevel({f"t{i}": i for i in range(VOCAB_SIZE)}, unk_token="t256")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(words), **names)
    columns = {
        "input_ids": rows.astype(np.int32),
        "attention_mask": (rows != SPECIAL.pad).astype(np.int8),
        "special_tokens_mask": np.isin(rows, (SPECIAL.cls, SPECIAL.sep, SPECIAL.pad)).astype(np.int8),
    }
    arrays = {k: pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(v.ravel()), 128) for k, v in columns.items()}
    path = folder / f"arrow-{batch_size}"
    datasets.Dataset(pyarrow.table(arrays)).save_to_disk(path)
    stored = datasets.load_from_disk(path)

    def engine(table: datasets.Dataset, tensors: str) -> Engine:
        collator = DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15, return_tensors=tensors)
        batches = torch.utils.data.DataLoader(table, batch_size, shuffle=True, collate_fn=collator)

        def run(num: int) -> Iterator[int]:
            for _, batch in zip(range(-(-num // batch_size)), batches, strict=False):
                yield len(batch["input_ids"])

        return run

    return {
        "Hugging Face, as documented": engine(stored, "pt"),
        "Hugging Face, NumPy in and out": engine(stored.with_format("numpy"), "np"),
    }


def examples_per_cpu_second(engine: Engine, num: int) -> float:
    started = time.process_time()
    num_made = sum(engine(num))
    return num_made / (time.process_time() - started)


def compare(title: str, engines: dict[str, tuple[Engine, int]], num_rounds: int) -> None:
    """Print a table of rates. The ratio is that of the first engine to each engine, the median over the rounds."""
    rates: dict[str, list[float]] = {name: [] for name in engines}
    for engine, _ in engines.values():
        sum(engine(1))
    for _ in range(num_rounds):
        for name, (engine, num) in engines.items():
            rates[name].append(examples_per_cpu_second(engine, num))
    first = next(iter(rates.values()))
    print(
        f"\n### {title}\n\n| engine | examples / CPU-s, best | median | first engine is faster by |\n|---|---|---|---|"
    )
    for name, values in rates.items():
        ratio = statistics.median(a / b for a, b in zip(first, values, strict=True))
        print(f"| {name} | {max(values):,.0f} | {statistics.median(values):,.0f} | {ratio:.1f} x |")


def index_speed() -> None:
    """Measure the index of chunks of 10 million sentences."""
    rng = np.random.default_rng(0)
    sentence_ends = np.cumsum(np.clip(rng.lognormal(3.0, 0.6, 10_000_000), 1, 400).astype(np.int64))
    document_ends = np.arange(1, 500_001) * 20
    print(
        "\n### Index of the chunks of 10 M sentences\n\n| chunking | CPU-s | chunks | tokens lost |\n|---|---|---|---|"
    )
    for chunking in ("sabertooth", "lossless"):
        started = time.process_time()
        index = chunk_index(sentence_ends, document_ends, chunking=chunking, max_tokens=126)
        seconds = time.process_time() - started
        lost = index.num_tokens_lost(126, True) / sentence_ends[-1]
        print(f"| {chunking} | {seconds:.2f} | {len(index):,} | {lost:.1%} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--documents", type=int, default=20_000)
    parser.add_argument("--quick", action="store_true", help="small sizes, one round: a test that it runs")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.documents = 1, 4000
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        long, short = (
            make_shards(folder / "long", options.documents),
            make_shards(folder / "short", options.documents, 3),
        )
        source = open_run(long, 64)
        print(textwrap.fill(f"{sum(source.sizes):,} examples; {json.dumps(source.summary())}", 100))
        rows = unmasked_rows(open_run(long, 64, batching="rows"))
        for batch_size in (64, 1024):
            engines = {
                f"ours, {kind}": (ours(open_run(long, batch_size, batching=kind), batch_size), 60_000)
                for kind in ("rows", "packed")
            }
            if importlib.util.find_spec("datasets") and importlib.util.find_spec("transformers"):
                stack = hugging_face(rows, folder, batch_size)
                engines |= {kind: (engine, 4096) for kind, engine in stack.items()}
            compare(f"Batches of {batch_size}, masking and sentence order", engines, options.rounds)
        kinds: dict[str, tuple[str, dict, dict]] = {
            "token, packed": (long, {}, {}),
            "whole words": (long, {"mask_unit": "whole_word"}, {}),
            "spans": (long, {"mask_unit": "span"}, {}),
            "30 % of the tokens": (long, {"masking_rate": 0.3, "max_predictions": None}, {}),
            "lossless chunks": (long, {}, {"chunking": "lossless"}),
            "short documents, rows": (short, {}, {"batching": "rows"}),
            "short documents, packed": (short, {}, {}),
            "512 tokens": (long, {"max_predictions": 80}, {"max_seq_length": 512}),
        }
        engines = {
            name: (ours(open_run(path, 1024, objective, **data), 1024), 30_000)
            for name, (path, objective, data) in kinds.items()
        }
        compare("Other settings, batches of 1024", engines, options.rounds)
    index_speed()


if __name__ == "__main__":
    main()
