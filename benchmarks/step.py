"""One training step of our BERT against `transformers`, with the same batches, optimizer and threads.

The peer is `BertForPreTraining`, or `ModernBertForMaskedLM` for the modern shapes (dropout 0 in both).

    python benchmarks/step.py [--shape mini] [--rows full,mixed] [--rounds 9] [--threads 1] [--quick]

Both run forward, backward, clip to norm 1, fused AdamW, float32, dropout 0.1. The contestants alternate within each
round. The results are the median CPU time of a step and the ratio of the medians. Before timing, both get the same
weights and must give the same loss without dropout. `transformers` computes logits at every position and also
computes padding. Ours computes logits only for predictions, and no padding; the benchmark measures the value of this.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from pretrainkit.recipes.bert.config import (
    BertDataConfig,
    BertModelConfig,
    BertObjectiveConfig,
    BertRun,
    ModernModelConfig,
)
from pretrainkit.recipes.bert.convert import from_huggingface_state, to_huggingface_config
from pretrainkit.recipes.bert.model import BertForPretraining, build
from pretrainkit.recipes.bert.objective import BertObjective
from pretrainkit.training.optimizers.config import OptimizerConfig

VOCAB_SIZE = 30_522


@dataclass(frozen=True)
class Shape:
    """Size of a model and of its batch."""

    num_layers: int
    hidden_size: int
    batch_size: int
    is_modern: bool = False


SHAPES = {
    "tiny": Shape(2, 128, 16),
    "mini": Shape(4, 256, 8),
    "base": Shape(12, 768, 2),
    "large": Shape(24, 1024, 2),
    "modern-tiny": Shape(2, 128, 16, is_modern=True),
    "modern-base": Shape(22, 768, 2, is_modern=True),
}


def run_config(shape: Shape, vocab_size: int) -> BertRun:
    """Return a config with the model of `shape`."""
    size = {
        "vocab_size": vocab_size,
        "hidden_size": shape.hidden_size,
        "num_layers": shape.num_layers,
        "num_heads": shape.hidden_size // 64,
    }
    model: BertModelConfig | ModernModelConfig
    if shape.is_modern:
        model = ModernModelConfig(**size, intermediate_size=shape.hidden_size * 3 // 2)
    else:
        model = BertModelConfig(**size, intermediate_size=4 * shape.hidden_size)
    return BertRun(
        num_steps=1,
        model=model,
        objective=BertObjectiveConfig(sentence_order=not shape.is_modern),
        data=BertDataConfig(batch_size=shape.batch_size),
        optimizer=OptimizerConfig(peak_lr=1e-4),
    )


def mixed_lengths(num: int, rng: np.random.Generator) -> np.ndarray:
    """Return log-normal lengths of short documents, limited to 128 tokens: the mean fill is just under 60 %."""
    return np.clip(np.exp(rng.normal(4.2, 0.75, num)), 12, 128).astype(np.int64)


def make_rows(lengths: np.ndarray, vocab_size: int, rng: np.random.Generator) -> dict[str, Tensor]:
    """Return a `rows` batch of random pairs: width 128, predictions of 15 % of the tokens, at most 20."""
    num, width, slots = len(lengths), 128, 20
    batch = {
        "input_ids": np.zeros((num, width), np.int32),
        "token_type_ids": np.zeros((num, width), np.int32),
        "masked_lm_positions": np.zeros((num, slots), np.int32),
        "masked_lm_ids": np.zeros((num, slots), np.int32),
        "masked_lm_weights": np.zeros((num, slots), np.float32),
        "next_sentence_label": rng.integers(0, 2, num),
        "lengths": lengths.astype(np.int32),
    }
    for row, length in enumerate(lengths):
        batch["input_ids"][row, :length] = rng.integers(261, vocab_size, length)
        batch["token_type_ids"][row, length // 2 : length] = 1
        predictions = slots if length == width else min(slots, max(1, int(0.15 * length)))
        batch["masked_lm_positions"][row, :predictions] = np.sort(rng.permutation(length - 2)[:predictions] + 1)
        batch["masked_lm_ids"][row, :predictions] = rng.integers(261, vocab_size, predictions)
        batch["masked_lm_weights"][row, :predictions] = 1
    batch["input_mask"] = np.arange(width) < lengths[:, None]
    return {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in batch.items()}


def huggingface_batch(rows: dict[str, Tensor], *, is_modern: bool) -> dict[str, Tensor]:
    """Return the same batch for transformers: labels at every position, -100 where nothing is predicted."""
    labels = torch.full(rows["input_ids"].shape, -100)
    row, slot = rows["masked_lm_weights"].nonzero(as_tuple=True)
    labels[row, rows["masked_lm_positions"][row, slot].long()] = rows["masked_lm_ids"][row, slot].long()
    shared = {"input_ids": rows["input_ids"].long(), "attention_mask": rows["input_mask"].long(), "labels": labels}
    if is_modern:
        return shared
    return {
        **shared,
        "token_type_ids": rows["token_type_ids"].long(),
        "next_sentence_label": rows["next_sentence_label"],
    }


def our_loss(model: BertForPretraining, objective: BertObjective, rows: dict[str, Tensor]) -> Tensor:
    """Return the sum of the means of both loss terms."""
    return torch.stack([term.total / term.weight for term in objective.losses(model, rows).values()]).sum()


def stepper(model: nn.Module, loss_of: Callable[[dict[str, Tensor]], Tensor]) -> Callable[[dict[str, Tensor]], None]:
    """Return a training step without data preparation."""
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, fused=True)
    model.train()

    def step(batch: dict[str, Tensor]) -> None:
        loss_of(batch).backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def cpu_seconds(work: Callable[[], None]) -> float:
    """Return the CPU time that `work` takes in all threads of this process."""
    start = time.process_time()
    work()
    return time.process_time() - start


def compare(shape_name: str, rows_name: str, rounds: int) -> dict[str, float | str]:
    """Return the median CPU milliseconds of a step of both, and the ratio."""
    from pretrainkit.exporting.torchvision_shim import import_transformers

    import_transformers()
    from transformers import BertConfig, BertForPreTraining, ModernBertConfig, ModernBertForMaskedLM

    shape = SHAPES[shape_name]
    rng = np.random.default_rng(0)
    config = run_config(shape, VOCAB_SIZE)
    torch.manual_seed(0)
    ours = build(config.model, has_sentence_order=not shape.is_modern)
    values = to_huggingface_config(config.model, has_sentence_order=not shape.is_modern)
    config_class, model_class = (
        (ModernBertConfig, ModernBertForMaskedLM) if shape.is_modern else (BertConfig, BertForPreTraining)
    )
    theirs = model_class(config_class(**values, attn_implementation="sdpa"))
    ours.load_state_dict(from_huggingface_state(theirs.state_dict(), config.model))
    objective = BertObjective(config)

    num_batches = 8
    if rows_name == "full":
        lengths = np.full((num_batches, shape.batch_size), 128)
    else:
        lengths = mixed_lengths(num_batches * shape.batch_size, rng).reshape(num_batches, -1)
    batches = [make_rows(part, VOCAB_SIZE, rng) for part in lengths]
    their_batches = [huggingface_batch(batch, is_modern=shape.is_modern) for batch in batches]

    ours.eval(), theirs.eval()
    with torch.no_grad():
        ours_loss, theirs_loss = our_loss(ours, objective, batches[0]), theirs(**their_batches[0]).loss
    if abs(ours_loss - theirs_loss) > 1e-4:
        raise SystemExit(f"different results: our loss {ours_loss:.6f}, theirs {theirs_loss:.6f}")

    our_step = stepper(ours, lambda batch: our_loss(ours, objective, batch))
    their_step = stepper(theirs, lambda batch: theirs(**batch).loss)
    our_times, their_times = [], []
    for number in range(-2, rounds):
        batch, their_batch = batches[number % num_batches], their_batches[number % num_batches]
        our_time = cpu_seconds(lambda batch=batch: our_step(batch))
        their_time = cpu_seconds(lambda batch=their_batch: their_step(batch))
        if number >= 0:
            our_times.append(our_time)
            their_times.append(their_time)
    ours_ms, theirs_ms = 1e3 * statistics.median(our_times), 1e3 * statistics.median(their_times)
    host = {name: tensor.numpy() for name, tensor in batches[0].items()}
    return {
        "shape": shape_name,
        "rows": rows_name,
        "fill": round(float(lengths.mean()) / 128, 3),
        "ours_ms": round(ours_ms, 1),
        "transformers_ms": round(theirs_ms, 1),
        "ratio": round(theirs_ms / ours_ms, 2),
        "gflops_per_second": round(objective.cost(host).flops * 1e-9 / statistics.median(our_times), 1),
    }


def main() -> None:
    """Print a table with a row per comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="tiny,mini,base,modern-base", help=f"of {', '.join(SHAPES)}")
    parser.add_argument("--rows", default="full,mixed")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="small sizes, one round: a test that it runs")
    options = parser.parse_args()
    if options.quick:
        options.shape, options.rounds = "mini", 1
    torch.set_num_threads(options.threads)
    has_head = False
    for shape in options.shape.split(","):
        for rows in options.rows.split(","):
            row = compare(shape, rows, options.rounds)
            if not has_head:
                print(f"| {' | '.join(row)} |\n|{'---|' * len(row)}", flush=True)
                has_head = True
            print(f"| {' | '.join(map(str, row.values()))} |", flush=True)


if __name__ == "__main__":
    main()
