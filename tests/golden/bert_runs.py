"""The first batches of BERT and the losses of its first ten steps, from token shards that are written here.

Both are checked in, so that a change of the order, the chunks, the masks, the initial weights, the model, the loss or
the optimizer shows, whatever the change was meant to do. Nothing here draws from a generator that another version of
Python or NumPy may change.
"""

import hashlib
import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import pretrainkit
from pretrainkit.tokenizers.shard_writer import write_shards
from pretrainkit.tokenizers.special import SpecialIds

BATCHES = Path(__file__).with_name("bert_batches.json")
LOSSES = Path(__file__).with_name("bert_losses.json")
NUM_STEPS = 10
VOCAB_SIZE = 512

_TINY = ["num_steps=10", "schedule.num_warmup_steps=2", "data.batch_size=16", "seed=1"]
_NO_DROPOUT = ["model.hidden_dropout=0", "model.attention_dropout=0"]
_WINDOWS = ["model.num_layers=4", "model.global_every=3", "model.local_window=16"]
_WSD = ["schedule.name=wsd", "schedule.num_decay_steps=4"]

CASES: dict[str, tuple[str, list[str]]] = {
    "tiny rows": ("bert/tiny", [*_TINY, *_NO_DROPOUT, "data.batching=rows"]),
    "tiny packed": ("bert/tiny", [*_TINY, *_NO_DROPOUT, "data.batching=packed"]),
    "tiny packed, microbatches": ("bert/tiny", [*_TINY, *_NO_DROPOUT, "data.microbatch_size=4"]),
    "tiny with dropout": ("bert/tiny", _TINY),
    "tiny, lamb": (
        "bert/tiny",
        [*_TINY, *_NO_DROPOUT, "optimizer.name=lamb", "optimizer.peak_lr=2e-3", "schedule.name=cosine"],
    ),
    "modern tiny": ("bert/modern-tiny", _TINY),
    "modern tiny rows": ("bert/modern-tiny", [*_TINY, "data.batching=rows"]),
    "modern with windows, wsd": ("bert/modern-tiny", [*_TINY, *_WINDOWS, *_WSD, "objective.sentence_order=false"]),
}
"""Name to preset and settings. Rows, packed and microbatches are the same mathematics: equal but for rounding."""

BATCH_CASES: dict[str, list[str]] = {
    "rows": ["data.batching=rows"],
    "packed": ["data.batching=packed"],
    "packed to a fixed size": ["data.microbatch_tokens=2048"],
    "spans": ["objective.mask_unit=span", "objective.max_predictions=null"],
    "no sentence order, 30 %": [
        *("objective.sentence_order=false", "objective.masking_rate=0.3", "objective.max_predictions=null")
    ],
    "as Sabertooth": [
        *("data.batching=rows", "data.order=lanes", "data.chunking=sabertooth"),
        "objective.random_replacement=whole_vocabulary_compat",
    ],
}
"""Name to settings laid over bert/tiny."""


def make_token_shards(folder: Path) -> None:
    """240 documents whose tokens follow from the two before them, in three shards."""
    rng = random.Random(20)

    def below(bound: int) -> int:  # `random()` alone is the same in every version of Python
        return int(rng.random() * bound)

    num_learned = VOCAB_SIZE - 261
    shards: list[list[list[list[int]]]] = [[], [], []]
    for document in range(240):
        sentences, state = [], below(num_learned)
        for _ in range(1 + below(12)):
            sentence = []
            for _ in range(2 + below(28)):
                state = (
                    (state * 7 + 3 + below(2)) % num_learned if rng.random() < 0.85 else int(rng.random() ** 3 * 200)
                )
                sentence.append(261 + state)
            sentences.append(sentence)
        shards[document % 3].append(sentences)
    special = SpecialIds(unk=256, cls=257, sep=258, mask=259, pad=260)
    write_shards(folder, shards, vocab_size=VOCAB_SIZE, special=special)


@contextmanager
def token_shards() -> Iterator[Path]:
    """A folder of such shards, for as long as the block runs."""
    with TemporaryDirectory() as name:
        make_token_shards(Path(name))
        yield Path(name)


def batch_digest(batch: dict[str, np.ndarray]) -> dict[str, str]:
    """Array name to its shape, dtype and the beginning of its SHA-256."""
    return {
        name: f"{'x'.join(map(str, array.shape))} {array.dtype.newbyteorder('<').str} "
        f"{hashlib.sha256(np.ascontiguousarray(array, array.dtype.newbyteorder('<')).tobytes()).hexdigest()[:16]}"
        for name, array in sorted(batch.items())
    }


def first_batches(shards: Path) -> dict[str, list[dict[str, str]]]:
    """Case to the digests of the batches of steps 0 and 40, the second of which is in a later epoch."""
    found = {}
    for name, settings in BATCH_CASES.items():
        config = pretrainkit.load_config("bert/tiny", [f"data.train={shards}", "seed=3", *settings])
        found[name] = [batch_digest(next(pretrainkit.batches(config, start_step=step))) for step in (0, 40)]
    return found


def ten_losses(case: str, shards: Path) -> list[float]:
    """The training loss of ten steps in float32 on one thread of the CPU."""
    import torch

    preset, settings = CASES[case]
    always = [f"data.train={shards}", "precision.compute=float32", "log.every_steps=1", "checkpoint.asynchronous=false"]
    config = pretrainkit.load_config(preset, [*settings, *always])
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with TemporaryDirectory() as name:
            pretrainkit.train(config, Path(name) / "run", device="cpu")
            lines = (Path(name) / "run" / "metrics.jsonl").read_text().splitlines()
    finally:
        torch.set_num_threads(num_threads)
    return [json.loads(line)["loss"] for line in lines]


def write_batches() -> None:
    """Make bert_batches.json what the code does now."""
    with token_shards() as shards:
        _write(BATCHES, first_batches(shards))


def write_losses() -> None:
    """Make bert_losses.json what the code does now."""
    with token_shards() as shards:
        _write(LOSSES, {case: [round(loss, 6) for loss in ten_losses(case, shards)] for case in CASES})


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
