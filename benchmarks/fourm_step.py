"""Benchmark one training step of our 4M against the original's model, apple/ml-4m, on the same tokens.

    ML4M=FOLDER python benchmarks/fourm_step.py [--mixtures tiny,21] [--rounds 7] [--threads 1] [--quick]

The original is not a package: see `ml4m.py` for its installation. The model is that of fourm/tiny, 4 + 4 layers of
width 192. The data are those of its preset (tiny: 64 input and 64 target slots per example) and of the published
mixture of 21 modalities (256 and 256). The benchmark uses one thread, and then the default of torch, one per core. Each
contestant makes the step of its own training loop in float32, without data loading: forward, backward, clip to norm 1,
AdamW with a weight decay of 0.05 for everything but norms, zero_grad. Ours uses `accumulate`, `clip_gradients` and the
trainer's optimizer. Theirs uses its create_optimizer and its scaler (off), and reads the losses of all modalities after
each forward pass. It runs without DistributedDataParallel, which its script always uses. Each contestant has a separate
process, and they take turns of three steps. The result is the median CPU time of a step that follows another. Before
timing, all contestants get the same weights and must have the same loss and the same gradients.

"ours" and "theirs" compute the same examples, masked by the original's rule, which leaves slots empty. "packed" is how
ours trains: the same number of rows, with empty slots filled by further draws. "theirs, tuned" is the original with
those of our improvements that need no change of the model: fused AdamW, keeping freed memory, and letting idle
threads sleep soon. A useful token is in a slot that is not empty.
"""

import argparse
import itertools
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import ml4m
from contestants import Batch, add_options, measure, parse_options, serve, thread_counts
from fourm_contents import make_contents
from pretrainkit import rng
from pretrainkit.recipes.fourm.batch import with_places
from pretrainkit.recipes.fourm.config import FourMRun, MaskingConfig
from pretrainkit.recipes.fourm.masking import Masking
from pretrainkit.recipes.fourm.mixtures import PUBLISHED, Bound
from pretrainkit.recipes.fourm.modality import MOD21, published
from pretrainkit.recipes.fourm.model import FourM, build
from pretrainkit.recipes.fourm.objective import FourMObjective
from pretrainkit.recipes.fourm.original import to_original
from pretrainkit.recipes.fourm.presets import tiny
from pretrainkit.training.accumulate import accumulate
from pretrainkit.training.memory import freed_memory_kept
from pretrainkit.training.optimizers.build import (
    build_optimizer,
    clip_gradients,
    parameters_of,
    set_learning_rate,
    step_if_finite,
)
from pretrainkit.training.precision import resolve_precision
from pretrainkit.training.run import PrecisionConfig

OURS, PACKED, THEIRS, THEIRS_TUNED = "ours", "packed", "theirs", "theirs, tuned"
NUM_BATCHES = 3
_RATE = 1e-4
VOCAB_SIZE, FIRST_SENTINEL, NUM_RESERVED = 5_400, 5, 4_300
EXAMPLES = {"tiny": 32, "21": 16}


def run_config(mixture: str) -> FourMRun:
    """Return fourm/tiny with a small vocabulary; for mixture 21 with its modalities and budgets."""
    config = tiny()
    modalities = config.model.modalities
    masking = config.masking
    if mixture == "21":
        modalities = tuple(published(name) for name in MOD21)
        published_mixture = PUBLISHED["mod21-all2allmix-rgb2all-capT5bias"]
        masking = MaskingConfig(num_input_tokens=256, num_target_tokens=256, mixture=published_mixture)
    sized = tuple(
        modality.model_copy(update={"vocab_size": VOCAB_SIZE}) if modality.kind == "sequence" else modality
        for modality in modalities
    )
    model = config.model.model_copy(update={"modalities": sized})
    return config.model_copy(update={"model": model, "masking": masking})


def make_batch(mixture: str, unused: str, num: int, seed: int) -> dict[str, np.ndarray]:
    """Return a masked batch of random contents with ordinary lengths, in the form of our data pipeline."""
    config = run_config(mixture)
    modalities, names = config.model.modalities, [modality.name for modality in config.model.modalities]
    masking = config.masking.model_copy(update={"unused": unused})
    contents, values = make_contents(modalities, num, (NUM_RESERVED, VOCAB_SIZE), np.random.default_rng(seed))
    mask = Masking(masking, modalities, Bound(masking.mixture, modalities, names), FIRST_SENTINEL)
    return with_places(mask(contents, rng.fold(seed, np.arange(num))) | values, modalities)


def make_ours(mixture: str) -> tuple[FourM, Callable[[Batch], Tensor]]:
    """Return our model, always with the same weights, and its loss function."""
    config = run_config(mixture)
    torch.manual_seed(0)
    model, objective = build(config.model).train(), FourMObjective(config)
    scales = objective.scales

    def loss(batch: Batch) -> Tensor:
        sums = objective.losses(model, batch)
        return torch.stack(
            [sums[name].total * scale / sums[name].weight.clamp(min=1) for name, scale in scales.items()]
        ).sum()

    return model, loss


def make_theirs(mixture: str) -> tuple[nn.Module, Callable[[Any], tuple[Tensor, dict[str, Tensor]]]]:
    """Return the original's model with the same weights, and a function for its loss and the losses of modalities."""
    config = run_config(mixture)
    model = ml4m.make_model(config.model)
    model.load_state_dict(to_original(make_ours(mixture)[0]))
    budgets = config.masking.num_input_tokens, config.masking.num_target_tokens
    return model.train(), lambda views: model(views, *budgets)


def our_step(mixture: str, model: FourM) -> Callable[[Batch], None]:
    """Return the training step of our trainer for one process."""
    config = run_config(mixture)
    objective, optimizer = FourMObjective(config), build_optimizer(model, config.optimizer)
    precision = resolve_precision(PrecisionConfig(compute="float32"), torch.device("cpu"))

    def step(batch: Batch) -> None:
        set_learning_rate(optimizer, _RATE)
        optimizer.zero_grad(set_to_none=True)
        sums = accumulate(objective, model, [batch], precision=precision)
        norm = clip_gradients(parameters_of(optimizer), config.optimizer)
        step_if_finite(optimizer, precision, norm)
        torch.stack([norm, *(part for term in sums.values() for part in term)]).tolist()

    return step


def their_step(
    mixture: str, model: nn.Module, loss_of: Callable[[Any], tuple[Tensor, dict[str, Tensor]]], *, is_tuned: bool
) -> Callable[[Any], None]:
    """Return the training step of the original's loop for one process."""
    settings = run_config(mixture).optimizer
    optimizer = ml4m.make_optimizer(model, settings)
    if is_tuned:
        optimizer = torch.optim.AdamW(optimizer.param_groups, betas=(settings.beta1, settings.beta2), fused=True)
    scaler = ml4m.make_scaler()

    def step(views: Any) -> None:
        for group in optimizer.param_groups:
            group["lr"] = _RATE * group["lr_scale"]
        loss, losses = loss_of(views)
        for value in (loss, *losses.values()):
            value.item()
        scaler(loss, optimizer, clip_grad=settings.max_grad_norm, parameters=model.parameters())
        optimizer.zero_grad()

    return step


def timed(step: Callable[[Any], None]) -> Callable[[Any], float]:
    """Return a function that makes a step and returns its CPU seconds."""

    def timed_step(batch: Any) -> float:
        start = time.process_time()
        step(batch)
        return time.process_time() - start

    return timed_step


def contend(name: str, mixture: str, batch_size: int, threads: int, folder: Path) -> None:
    """Run a contestant: write its gradients, print its loss, then make a step for every line of its input."""
    torch.set_num_threads(threads)
    is_theirs, unused = name not in (OURS, PACKED), "pack" if name == PACKED else "pad"
    host = [make_batch(mixture, unused, batch_size, seed) for seed in range(NUM_BATCHES)]
    modalities = run_config(mixture).model.modalities
    batches: list[Any] = [
        ml4m.to_views(batch, modalities)
        if is_theirs
        else {key: torch.from_numpy(array) for key, array in batch.items()}
        for batch in host
    ]
    with nullcontext() if name == THEIRS else freed_memory_kept(torch.device("cpu")):
        if is_theirs:
            theirs, both_of = make_theirs(mixture)
            model: nn.Module = theirs
            loss = both_of(batches[0])[0]
            step = their_step(mixture, theirs, both_of, is_tuned=name == THEIRS_TUNED)
        else:
            ours, loss_of = make_ours(mixture)
            model, loss, step = ours, loss_of(batches[0]), our_step(mixture, ours)
        loss.backward()
        torch.save(_gradients(model, mixture), folder / f"{name}.pt")
        model.zero_grad(set_to_none=True)
        useful = [int(batch["encoder_length"].sum() + batch["decoder_length"].sum()) for batch in host]
        serve({"loss": loss.item(), "useful": useful}, timed(step), batches)


def _gradients(model: nn.Module, mixture: str) -> dict[str, Tensor]:
    """Return the gradients by the original's names."""
    grads = {key: torch.zeros_like(p) if p.grad is None else p.grad for key, p in model.named_parameters()}
    if not isinstance(model, FourM):
        return grads
    holder, _ = make_ours(mixture)
    for key, parameter in holder.named_parameters():
        parameter.data = grads[key]
    return to_original(holder)


def refuse_different_maths(losses: dict[str, float], folder: Path) -> None:
    """Exit with a message if losses or gradients of the contestants differ by more than rounding."""
    if max(losses.values()) - min(losses.values()) > 1e-5:
        raise SystemExit(f"the contestants compute different losses: {losses}")
    ours = torch.load(folder / f"{OURS}.pt", weights_only=True)
    for name in set(losses) - {OURS}:
        for key, theirs in torch.load(folder / f"{name}.pt", weights_only=True).items():
            error = float((ours[key] - theirs).norm() / theirs.norm().clamp(min=1e-9))
            if error > 1e-3:
                raise SystemExit(
                    f"the contestants compute different gradients of {key}: they differ by {error:.1e} of its norm"
                )


def main() -> None:
    """Print a table with a row for each contestant."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mixtures", default=",".join(EXAMPLES))
    add_options(parser, batch_size=0, threads=0)
    options = parse_options(parser)
    if options.contestant:
        contend(options.contestant, options.mixtures, options.batch_size, options.threads, options.folder)
        return
    ml4m.sources()
    names, chosen_size = [OURS, PACKED, THEIRS, THEIRS_TUNED], options.batch_size
    columns = (
        "mixture",
        "threads",
        "contestant",
        "slots filled",
        "examples / CPU-s",
        "times theirs",
        "useful tokens / CPU-s",
    )
    print(f"| {' | '.join(columns)} | times their tokens |\n|{'---|' * (len(columns) + 1)}")
    for mixture, threads in itertools.product(options.mixtures.split(","), thread_counts(options)):
        options.threads = threads
        options.batch_size = chosen_size or EXAMPLES[mixture]
        config = run_config(mixture)
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)

            def check(first_outputs: dict[str, Any], folder: Path = folder) -> None:
                losses = {name: first["loss"] for name, first in first_outputs.items() if name != PACKED}
                refuse_different_maths(losses, folder)

            first_outputs, speeds = measure(__file__, names, ["--mixtures", mixture], options, folder, check)
        slots = NUM_BATCHES * options.batch_size * config.example_tokens
        filled = {name: sum(first_outputs[name]["useful"]) / slots for name in names}
        rates = {name: speeds[name] / filled[name] / config.example_tokens for name in names}
        for name in names:
            row = [mixture, str(threads), name, f"{filled[name]:.0%}", f"{rates[name]:,.1f}"]
            row += [
                f"{rates[name] / rates[THEIRS]:.2f}",
                f"{speeds[name]:,.0f}",
                f"{speeds[name] / speeds[THEIRS]:.2f}",
            ]
            print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
