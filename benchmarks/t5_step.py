"""One training step of our T5 against `T5ForConditionalGeneration` of transformers, with the same examples.

    python benchmarks/t5_step.py [--rows full,documents,short] [--rounds 7] [--threads 1] [--quick]

4 + 4 layers of width 256 in the style of T5 1.1, inputs and targets of up to 512 and 114 tokens. Both run forward,
backward, clip to norm 1, fused AdamW, float32, no dropout, no z-loss. Each contestant has a separate process, because
our trainer makes the C library keep freed memory. We do the same here; transformers does not, but one row measures
it with this setting. They alternate in each round. The result is the median CPU time of a step. Before timing, all get
the same weights and must give the same loss and the same gradients.

full: every row is full, as in span corruption. documents: 16 % to 100 % of that length. short: tasks of about a hundred
tokens. transformers pads its rows. Ours are measured twice: padded, and packed, with several examples in a row.
"""

import argparse
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from contestants import Batch, add_options, measure, parse_options, serve, stepper
from pretrainkit.exporting.torchvision_shim import import_transformers
from pretrainkit.recipes.t5.config import T5DataConfig, T5ModelConfig, T5ObjectiveConfig, T5Run
from pretrainkit.recipes.t5.convert import to_huggingface_state, write_huggingface
from pretrainkit.recipes.t5.model import build
from pretrainkit.recipes.t5.objective import T5Objective
from pretrainkit.training.memory import freed_memory_kept
from pretrainkit.training.optimizers.config import OptimizerConfig

VOCAB_SIZE, INPUT_LENGTH, TARGET_LENGTH = 32_128, 512, 114
OURS, PACKED, THEIRS, THEIRS_KEPT = "ours", "packed", "theirs", "theirs, memory kept"
NUM_BATCHES = 3
Examples = list[tuple[np.ndarray, np.ndarray]]


def make_examples(kind: str, num: int, rng: np.random.Generator) -> Examples:
    """Return examples of random ids with the lengths of `kind`."""
    share = {"full": np.ones(num), "documents": rng.uniform(0.16, 1, num), "short": rng.uniform(0.1, 0.3, num)}[kind]
    lengths = np.stack((INPUT_LENGTH * share, TARGET_LENGTH * share), 1).astype(int)
    return [(rng.integers(2, VOCAB_SIZE, n), rng.integers(2, VOCAB_SIZE, m)) for n, m in lengths]


def to_rows(rows: list[Examples]) -> Batch:
    """Return a packed batch whose rows contain these examples."""
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
    """Pack by first fit: put each example in the first row with enough space for both its parts."""
    rows: list[Examples] = []
    for example in examples:
        for row in rows:
            if all(sum(len(e[p]) for e in [*row, example]) <= n for p, n in ((0, INPUT_LENGTH), (1, TARGET_LENGTH))):
                row.append(example)
                break
        else:
            rows.append([example])
    return rows


def model_config(intermediate_size: int) -> T5ModelConfig:
    """Return a config with 4 + 4 layers of width 256."""
    return T5ModelConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=256,
        num_heads=4,
        intermediate_size=intermediate_size,
        num_encoder_layers=4,
        num_decoder_layers=4,
    )


def make_ours(config: T5ModelConfig, batch_size: int) -> tuple[nn.Module, Callable[[Batch], Tensor]]:
    """Return our model, always with the same weights, and its loss per target token."""
    run = T5Run(
        num_steps=1,
        model=config,
        objective=T5ObjectiveConfig(z_loss=0.0, normalize_by="real_target_tokens"),
        data=T5DataConfig(batch_size=batch_size),
        optimizer=OptimizerConfig(peak_lr=1e-4),
    )
    torch.manual_seed(0)
    model, objective = build(config), T5Objective(run)
    return model, lambda batch: objective.losses(model, batch)["cross_ent_loss"].mean()


def make_theirs(weights: Path) -> tuple[nn.Module, Callable[[Batch], Tensor]]:
    """Return the model of transformers with the weights of a folder, and the same loss."""
    model = import_transformers().T5ForConditionalGeneration.from_pretrained(weights).train()

    def loss(batch: Batch) -> Tensor:
        target, inputs = batch["decoder_target_tokens"].long(), batch["encoder_input_tokens"].long()
        labels = target.masked_fill(target == 0, -100)
        return model(input_ids=inputs, attention_mask=(inputs != 0).long(), labels=labels).loss

    return model, loss


def contend(name: str, kind: str, intermediate_size: int, batch_size: int, threads: int, folder: Path) -> None:
    """Run a contestant: write its loss and gradients, then run a step for every line on the standard input."""
    torch.set_num_threads(threads)
    config = model_config(intermediate_size)
    rng = np.random.default_rng(0)
    examples = [make_examples(kind, batch_size, rng) for _ in range(NUM_BATCHES)]
    is_theirs = name in (THEIRS, THEIRS_KEPT)
    batches = [to_rows(packed(part) if name == PACKED else [[example] for example in part]) for part in examples]
    with nullcontext() if name == THEIRS else freed_memory_kept(torch.device("cpu")):
        model, loss_of = make_theirs(folder / "weights") if is_theirs else make_ours(config, batch_size)
        loss = loss_of(batches[0])
        loss.backward()
        grads = {key: parameter.grad for key, parameter in model.named_parameters() if parameter.grad is not None}
        torch.save(grads if is_theirs else to_huggingface_state(grads, config), folder / f"{name}.pt")
        model.zero_grad(set_to_none=True)
        step = stepper(model, loss_of)
        useful = [sum(len(inputs) + len(target) for inputs, target in part) for part in examples]
        fill = float((batches[0]["encoder_input_tokens"] != 0).float().mean())
        serve({"loss": loss.item(), "useful": useful, "fill": fill}, step, batches)


def refuse_different_results(losses: dict[str, float], folder: Path) -> None:
    """End the program if the losses or gradients of the contestants differ by more than rounding errors."""
    if max(losses.values()) - min(losses.values()) > 1e-4:
        raise SystemExit(f"different results: losses {losses}")
    grads = {name: torch.load(folder / f"{name}.pt", weights_only=True) for name in losses}
    for name, their_grads in grads.items():
        for key, grad in grads[OURS].items():
            other = their_grads[key]
            error = float((grad - other).norm() / grad.norm())
            if error > 1e-3:
                raise SystemExit(
                    f"different results: the gradient of {key} of {name} differs by {error:.1e} of its norm"
                )


def compare(kind: str, names: list[str], options: argparse.Namespace) -> dict[str, tuple[float, float]]:
    """Return the median of useful tokens per CPU-second, and the fill of the rows, for each contestant."""
    config = model_config(options.feed_forward)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write_huggingface(make_ours(config, options.batch_size)[0].state_dict(), config, folder / "weights")

        def check(reports: dict[str, Any]) -> None:
            refuse_different_results({name: report["loss"] for name, report in reports.items()}, folder)

        arguments = ["--rows", kind, "--feed-forward", options.feed_forward]
        reports, speeds = measure(__file__, names, arguments, options, folder, check)
    return {name: (speed, reports[name]["fill"]) for name, speed in speeds.items()}


def main() -> None:
    """Print a table with a row per comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="full,documents,short")
    parser.add_argument("--feed-forward", type=int, default=1024, help="width of the feed-forward layers")
    add_options(parser, batch_size=8)
    options = parse_options(parser)
    if options.contestant:
        size, threads = options.batch_size, options.threads
        contend(options.contestant, options.rows, options.feed_forward, size, threads, options.folder)
        return
    print("| rows | slots filled | contestant | useful tokens / CPU-s | times transformers |\n|---|---|---|---|---|")
    for kind in options.rows.split(","):
        names = [OURS, THEIRS, THEIRS_KEPT] if kind == "full" else [OURS, PACKED, THEIRS]
        results = compare(kind, names, options)
        for name, (speed, fill) in results.items():
            print(f"| {kind} | {fill:.0%} | {name} | {speed:,.0f} | {speed / results[THEIRS][0]:.2f} |", flush=True)


if __name__ == "__main__":
    main()
