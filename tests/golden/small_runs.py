"""The losses of ten updates of small models of every recipe and optimizer, with dropout as a run has it.

They show a change of the initial weights, the models, the objectives or the optimizers, but not of data, which
order.json and bert_batches.json show.
"""

import json
from pathlib import Path

import torch

from pretrainkit.recipes.clip.config import ClipObjectiveConfig
from pretrainkit.training.accumulate import accumulate, seed_dropout
from pretrainkit.training.optimizers.build import build_optimizer, clip_gradients, parameters_of, step_if_finite
from pretrainkit.training.precision import resolve_precision
from pretrainkit.training.run import PrecisionConfig
from support.small_work import CASES, Work, clip

LOSSES = Path(__file__).with_name("small_losses.json")
NUM_STEPS = 10
MAX_LR = 0.01
"""Losses of a model that diverges would show the last digit of every product."""
RUNS = CASES | {"clip, sigmoid": lambda: clip(objective=ClipObjectiveConfig(loss="siglip"))}
del RUNS["clip constant temperature"]  # so sharp that processors differ by more than the tolerance after ten updates


def ten_losses(work: Work) -> list[float]:
    """Return the loss of each update, in float32 on one thread of the CPU."""
    model, objective, batches, settings = work
    settings = settings.model_copy(update={"peak_lr": min(settings.peak_lr, MAX_LR)})
    device = torch.device("cpu")
    precision, optimizer = (
        resolve_precision(PrecisionConfig(compute="float32"), device),
        build_optimizer(model, settings),
    )
    microbatches = [{name: torch.from_numpy(array) for name, array in batch.items()} for batch in batches]
    model.train()
    losses, num_threads = [], torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for step in range(NUM_STEPS):
            optimizer.zero_grad(set_to_none=True)
            terms = accumulate(
                objective,
                model,
                microbatches,
                precision=precision,
                seed_dropout=lambda index, step=step: seed_dropout(0, step, index, 0, device),  # type: ignore[misc]
            )
            losses.append(sum(scale * float(terms[name].mean()) for name, scale in objective.scales.items()))
            step_if_finite(optimizer, precision, clip_gradients(parameters_of(optimizer), settings))
            with torch.no_grad():
                objective.after_update(model)
    finally:
        torch.set_num_threads(num_threads)
    return losses


def write() -> None:
    """Make small_losses.json what the code does now."""
    losses = {case: [float(f"{loss:.7g}") for loss in ten_losses(make())] for case, make in RUNS.items()}
    LOSSES.write_text(json.dumps(losses, indent=1) + "\n", encoding="utf-8")
