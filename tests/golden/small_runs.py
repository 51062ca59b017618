"""The losses of ten updates of small models of every recipe and optimizer, with dropout as a run has it.

They show a change of the initial weights, the models, the objectives or the optimizers, but not of data, which
order.json and bert_batches.json show.
"""

import json
from pathlib import Path

import torch

from pretrainkit.recipes.clip.config import ClipObjectiveConfig, MixupConfig, TemperatureConfig
from pretrainkit.recipes.t5.presets import UMT5_OPTIMIZER
from pretrainkit.training.accumulate import accumulate, seed_dropout
from pretrainkit.training.optimizers.build import build_optimizer, clip_gradients, parameters_of, step_if_finite
from pretrainkit.training.precision import resolve_precision
from pretrainkit.training.run import PrecisionConfig
from support.small_work import CASES, Work, clip, pixel, preset, t5

LOSSES = Path(__file__).with_name("small_losses.json")
NUM_STEPS = 10
MAX_LR = 0.01
"""Losses of a model that diverges would show the last digit of every product."""
MILD = TemperatureConfig(kind="constant", value=0.2)
CODER = ("hidden_size=16", "num_layers=1", "num_heads=2")
MLP = ("width=16", "num_blocks=1")
UNET = ("width=8", "multipliers=[1,2]", "num_blocks=1", "attention_at=[2]")
UVIT = ("widths=[8,16]", "num_blocks=1", *CODER)


def image_tokenizer(name: str, decoder: tuple[str, ...], encoder: tuple[str, ...] = CODER) -> Work:
    """Return work of a published preset with small coders and few codes."""
    words = [f"model.encoder.{word}" for word in encoder] + [f"model.decoder.{word}" for word in decoder]
    if encoder != MLP:
        words += ["model.image_size=16", "model.patch_size=4"]
    return preset(f"image_tokenizer/{name}", *words, "model.quantizer.size=32", "model.quantizer.width=16", num=2)


FAMILIES = {
    "t5 umt5": lambda: t5("umt5", UMT5_OPTIMIZER, normalize_by="real_target_tokens"),
    "pixel rotary": lambda: pixel(positions="rotary"),
    "clip, sigmoid": lambda: clip(objective=ClipObjectiveConfig(loss="siglip")),
    "clip, mixup": lambda: clip(objective=ClipObjectiveConfig(mixup=MixupConfig()), temperature=MILD),
    "image_tokenizer rgb": lambda: image_tokenizer("rgb", UNET),
    "image_tokenizer rgb-uvit": lambda: image_tokenizer("rgb-uvit", UVIT),
    "image_tokenizer semseg-coco": lambda: image_tokenizer("semseg-coco", CODER),
    "image_tokenizer clip-b16": lambda: image_tokenizer("clip-b16", CODER),
    "image_tokenizer human-poses": lambda: image_tokenizer("human-poses", MLP, MLP),
    "image_tokenizer sam-mask": lambda: image_tokenizer("sam-mask", CODER),
}
"""Families of presets that CASES lacks, except dinov2-global and imagebind-global: processors choose other codes there
within ten updates."""
RUNS = CASES | FAMILIES
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
