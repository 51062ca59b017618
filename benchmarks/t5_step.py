"""One training step of our T5 against `T5ForConditionalGeneration` of transformers, on the same examples.

    python benchmarks/t5_step.py [--rows full,documents,short] [--rounds 9] [--threads 1] [--quick]

4 + 4 layers of width 256 in the style of T5 1.1, inputs and targets of up to 512 and 114 tokens. Both: forward,
backward, clip to norm 1, fused AdamW, float32, no dropout, no z-loss. Contestants take turns within each round; what
counts is the median CPU time of a step. Before timing, both get the same weights and must give the same loss.

full: every row is full, as in span corruption. documents: of 16 % to 100 % of that. short: tasks of about a hundred
tokens. transformers pads its rows; ours are padded, and once more packed: as many examples in as few rows as they need.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from pretrainkit.recipes.clip.torchvision_shim import import_transformers
from pretrainkit.recipes.t5.config import T5DataConfig, T5ModelConfig, T5ObjectiveConfig, T5Run
from pretrainkit.recipes.t5.convert import write_huggingface
from pretrainkit.recipes.t5.model import build
from pretrainkit.recipes.t5.objective import T5Objective
from pretrainkit.training.run import OptimizerConfig

VOCAB_SIZE, INPUT_LENGTH, TARGET_LENGTH = 32_128, 512, 114
Examples = list[tuple[np.ndarray, np.ndarray]]
Batch = dict[str, Tensor]


def make_examples(kind: str, num: int, rng: np.random.Generator) -> Examples:
    """Random ids of the lengths of `kind`."""
    share = {"full": np.ones(num), "documents": rng.uniform(0.16, 1, num), "short": rng.uniform(0.1, 0.3, num)}[kind]
    lengths = np.stack((INPUT_LENGTH * share, TARGET_LENGTH * share), 1).astype(int)
    return [(rng.integers(2, VOCAB_SIZE, n), rng.integers(2, VOCAB_SIZE, m)) for n, m in lengths]


def to_rows(rows: list[Examples]) -> Batch:
    """A packed batch: each row holds these examples."""
    batch: dict[str, np.ndarray] = {}
    for side, part, length in (("encoder", 0, INPUT_LENGTH), ("decoder", 1, TARGET_LENGTH)):
        tokens, previous, segment = (np.zeros((len(rows), length), np.int32) for _ in range(3))
        for row, examples in enumerate(rows):
            start = 0
            for number, example in enumerate(examples, 1):
                stop = start + len(example[part])
                tokens[row, start:stop], segment[row, start:stop] = example[part], number
                previous[row, start + 1 : stop] = example[part][:-1]
                start = stop
        batch |= {f"{side}_segment_ids": segment, f"{side}_tokens": tokens, f"{side}_previous": previous}
    named = {
        "encoder_input_tokens": batch["encoder_tokens"],
        "decoder_target_tokens": batch["decoder_tokens"],
        "decoder_input_tokens": batch["decoder_previous"],
        "decoder_loss_weights": (batch["decoder_segment_ids"] > 0).astype(np.float32),
        "encoder_segment_ids": batch["encoder_segment_ids"],
        "decoder_segment_ids": batch["decoder_segment_ids"],
    }
    return {name: torch.from_numpy(array) for name, array in named.items()}


def packed(examples: Examples) -> list[Examples]:
    """First fit: the next example goes into the first row with room for both its parts."""
    rows: list[Examples] = []
    for example in examples:
        for row in rows:
            if all(sum(len(e[p]) for e in [*row, example]) <= n for p, n in ((0, INPUT_LENGTH), (1, TARGET_LENGTH))):
                row.append(example)
                break
        else:
            rows.append([example])
    return rows


def stepper(model: nn.Module, loss_of: Callable[[Batch], Tensor]) -> Callable[[Batch], float]:
    """CPU seconds of a training step with everything but the data."""
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, fused=True)

    def step(batch: Batch) -> float:
        start = time.process_time()
        loss_of(batch).backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return time.process_time() - start

    return step


def compare(kind: str, intermediate_size: int, batch_size: int, rounds: int) -> dict[str, float | str]:
    """Median useful tokens per CPU-second of each, and the ratios."""
    model = T5ModelConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=256,
        num_heads=4,
        intermediate_size=intermediate_size,
        num_encoder_layers=4,
        num_decoder_layers=4,
    )
    config = T5Run(
        num_steps=1,
        model=model,
        objective=T5ObjectiveConfig(z_loss=0.0, normalize_by="real_target_tokens"),
        data=T5DataConfig(batch_size=batch_size),
        optimizer=OptimizerConfig(peak_lr=1e-4),
    )
    torch.manual_seed(0)
    ours, objective = build(model), T5Objective(config)
    with tempfile.TemporaryDirectory() as folder:
        write_huggingface(ours.state_dict(), model, Path(folder) / "hf")
        theirs = import_transformers().T5ForConditionalGeneration.from_pretrained(Path(folder) / "hf").train()

    def our_loss(batch: Batch) -> Tensor:
        return objective.losses(ours, batch)["cross_ent_loss"].mean()

    def their_loss(batch: Batch) -> Tensor:
        target, inputs = batch["decoder_target_tokens"].long(), batch["encoder_input_tokens"].long()
        labels = target.masked_fill(target == 0, -100)
        return theirs(input_ids=inputs, attention_mask=(inputs != 0).long(), labels=labels).loss

    rng = np.random.default_rng(0)
    examples = [make_examples(kind, batch_size, rng) for _ in range(3)]
    padded = [to_rows([[example] for example in part]) for part in examples]
    dense = [to_rows(packed(part)) for part in examples]
    losses = [our_loss(padded[0]).item(), our_loss(dense[0]).item(), their_loss(padded[0]).item()]
    if max(losses) - min(losses) > 1e-4:
        raise SystemExit(
            f"not the same maths: our loss {losses[0]:.6f}, packed {losses[1]:.6f}, theirs {losses[2]:.6f}"
        )

    our_step, their_step = stepper(ours, our_loss), stepper(theirs, their_loss)
    times: dict[str, list[float]] = {"ours": [], "packed": [], "theirs": []}
    for number in range(-1, rounds):
        index = number % len(examples)
        taken = {
            "ours": our_step(padded[index]),
            "packed": our_step(dense[index]),
            "theirs": their_step(padded[index]),
        }
        if number >= 0:
            useful = sum(len(inputs) + len(target) for inputs, target in examples[index])
            for name, seconds in taken.items():
                times[name].append(useful / seconds)
    speed = {name: statistics.median(found) for name, found in times.items()}
    return {
        "rows": kind,
        "feed-forward": intermediate_size,
        "fill": round(float((padded[0]["encoder_input_tokens"] != 0).float().mean()), 2),
        "ours_tokens_per_s": round(speed["ours"]),
        "packed_tokens_per_s": round(speed["packed"]),
        "transformers_tokens_per_s": round(speed["theirs"]),
        "ratio": round(speed["ours"] / speed["theirs"], 2),
        "ratio_packed": round(speed["packed"] / speed["theirs"], 2),
    }


def main() -> None:
    """Print a table with a row per comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="full,documents,short")
    parser.add_argument("--feed-forward", type=int, default=1024, help="width of the feed-forward layers")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="few examples, one round: to see that it runs")
    options = parser.parse_args()
    if options.quick:
        options.batch_size, options.rounds = 2, 1
    torch.set_num_threads(options.threads)
    for index, kind in enumerate(options.rows.split(",")):
        row = compare(kind, options.feed_forward, options.batch_size, options.rounds)
        if not index:
            print(f"| {' | '.join(row)} |\n|{'---|' * len(row)}", flush=True)
        print(f"| {' | '.join(map(str, row.values()))} |", flush=True)


if __name__ == "__main__":
    main()
