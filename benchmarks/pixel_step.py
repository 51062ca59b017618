"""Compare a training step of our PIXEL with `ViTMAEForPreTraining` of transformers, on equal rendered texts and masks.

    python benchmarks/pixel_step.py [--texts rendered,full,documents] [--patches 144,529] [--corpus FILE ...]
                                    [--rounds 7] [--threads 1] [--quick]

The model is that of pixel/tiny: 4 layers of width 128, and a decoder with 2 layers of width 96. Texts have up to 144 or
529 patches of 16 x 16 pixels, of which a quarter are hidden. A step is forward, backward, clipping to norm 1 and fused
AdamW in float32 without dropout. transformers gets its input format: texts wrapped into squares of 12 x 12 or 23 x 23
patches in three colours, as float32. Steps run on one thread and on as many threads as there are cores, which is
torch's default. Each contestant has its own process, and they take turns in each round; the result is the median CPU
time of a step. Before timing, all get the same weights and, for full texts, must give the same loss and gradients.

Kinds of texts:
rendered: rows of real prose by the original's rule (whole paragraphs as long as they fit), from text files or from the
documentation of Python on this machine, which has more short documents than books.
full: random strokes like letters that fill every canvas.
documents: such strokes on 16 % to 100 % of each canvas. transformers also computes the blank after a text and includes
it in the loss; ours does not.
"""

import argparse
import itertools
import math
import tempfile
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from contestants import Batch, add_options, measure, parse_options, serve, stepper, thread_counts
from pretrainkit.demo.prose import plain_text_documents, standard_library_documents
from pretrainkit.exporting.torchvision_shim import import_transformers
from pretrainkit.recipes.pixel.batch import pack
from pretrainkit.recipes.pixel.config import PixelObjectiveConfig, PixelRun
from pretrainkit.recipes.pixel.convert import from_huggingface_state, to_huggingface_state, write_huggingface
from pretrainkit.recipes.pixel.masking import draw_masks
from pretrainkit.recipes.pixel.model import build
from pretrainkit.recipes.pixel.objective import PixelObjective
from pretrainkit.recipes.pixel.presets import tiny
from pretrainkit.rendering.config import RendererConfig
from pretrainkit.rendering.render_chunk import pieces
from pretrainkit.rendering.renderer import Renderer
from pretrainkit.rng import fold
from pretrainkit.training.memory import freed_memory_kept
from rendering import default_font

PATCH = 16
OURS, THEIRS, THEIRS_KEPT = "ours", "theirs", "theirs, memory kept"
RATE = "useful patches / CPU-s"
NUM_BATCHES = 3
NUM_ROWS = 400
"""Number of rendered rows of real prose, from which batches are drawn."""
Texts = tuple[np.ndarray, np.ndarray, np.ndarray]
Rendered = tuple[np.ndarray, np.ndarray]


def run_config(num_patches: int) -> PixelRun:
    """Return pixel/tiny for texts of `num_patches`, with positions, zero, last norm and masks of published models."""
    config = tiny()
    published = {"positions": "grid", "pixel_zero": "black", "initializer_range": 0.02}
    update = {"max_patches": num_patches, "decoder_norm_epsilon": 1e-12, **published}
    model = config.model.model_copy(update=update)
    data = config.data.model_copy(update={"max_patches": num_patches})
    objective = PixelObjectiveConfig(mask_region="canvas")
    return config.model_copy(update={"model": model, "data": data, "objective": objective})


def make_texts(kind: str, num: int, num_patches: int, seed: int, rendered: Rendered | None = None) -> Texts:
    """Return grey canvases, the numbers of patches before each end patch, and masks."""
    rng = np.random.default_rng(seed)
    if rendered is None:
        pixels, num_text = draw_strokes(kind, num, num_patches, rng)
    else:
        chosen = rng.choice(len(rendered[1]), num, replace=False)
        pixels, num_text = (part[chosen] for part in rendered)
    masks = draw_masks(run_config(num_patches).objective, fold(seed, np.arange(num)), num_text, num_patches)
    return pixels, num_text, masks


def draw_strokes(kind: str, num: int, num_patches: int, rng: np.random.Generator) -> Rendered:
    """Draw random strokes like letters. Return canvases and the numbers of patches before each end patch."""
    share = np.ones(num) if kind == "full" else rng.uniform(0.16, 1, num)
    num_text = np.minimum((num_patches * share).astype(np.int32), num_patches - 1)
    ink = rng.random((num, PATCH, num_patches * PATCH)) < 0.3
    ink[:, :3] = ink[:, 13:] = False
    pixels = np.where(ink, rng.integers(0, 200, ink.shape), 255).astype(np.uint8)
    for row, length in enumerate(num_text.tolist()):
        pixels[row, :, length * PATCH :] = 255
        pixels[row, :, length * PATCH : (length + 1) * PATCH] = 0
    return pixels, num_text


def render_rows(corpus: Sequence[Path], num_patches: int, num: int) -> Rendered:
    """Render the first `num` rows of the documents by the original's rule."""
    documents = [part for path in corpus for part in plain_text_documents(path)] or standard_library_documents()
    with tempfile.TemporaryDirectory() as folder:
        config = RendererConfig(
            font_file=default_font(Path(folder)), max_seq_length=num_patches, parity=True, on_missing="ignore"
        )
        renderer = Renderer(config)
        rows = (renderer(row) for _, text in documents for row in pieces(renderer, text, "original") if row)
        encodings = list(itertools.islice(rows, num))
    if len(encodings) < num:
        raise SystemExit(f"{len(encodings)} rows of {num_patches} patches in {corpus}, at least {num} are needed")
    pixels = np.stack([encoding.pixel_values for encoding in encodings])
    return pixels, np.array([encoding.num_text_patches for encoding in encodings], np.int32)


def to_squares(texts: Texts) -> Batch:
    """Return the input of transformers: pixels (B, 3, H, H) in [0, 1], and noise that hides the masked patches."""
    pixels, _, masks = texts
    side = math.isqrt(masks.shape[1])
    rows = pixels.reshape(len(pixels), PATCH, side, side * PATCH).swapaxes(1, 2).reshape(len(pixels), side * PATCH, -1)
    grey = torch.from_numpy(rows).float() / 255
    return {"pixel_values": grey[:, None].repeat(1, 3, 1, 1), "noise": torch.from_numpy(masks.astype(np.float32))}


def to_streams(texts: Texts) -> Batch:
    """Return the input of our model."""
    return {name: torch.from_numpy(array) for name, array in pack(*texts).items()}


def make_ours(num_patches: int) -> tuple[nn.Module, Callable[[Batch], Tensor]]:
    """Return our model, always with the same weights, and its loss function."""
    config = run_config(num_patches)
    torch.manual_seed(0)
    model, objective = build(config.model), PixelObjective(config)
    return model, lambda batch: objective.losses(model, batch)["masked_patch_loss"].mean()


def make_theirs(weights: Path, num_patches: int) -> tuple[nn.Module, Callable[[Batch], Tensor]]:
    """Return the model of transformers with the weights of a folder, and its loss function."""
    model = (
        import_transformers()
        .ViTMAEForPreTraining.from_pretrained(weights, image_size=math.isqrt(num_patches) * PATCH)
        .train()
    )
    for name, parameter in model.named_parameters():
        if "pos" in name:  # from_pretrained does not freeze the fixed tables
            parameter.requires_grad_(False)
    return model, lambda batch: model(**batch).loss


def contend(
    name: str, kind: str, num_patches: int, batch_size: int, threads: int, folder: Path, corpus: Sequence[Path]
) -> None:
    """Run a contestant: write its gradients, report its loss, then make a step for every line of its input."""
    torch.set_num_threads(threads)
    rendered = render_rows(corpus, num_patches, NUM_ROWS) if kind == "rendered" else None
    texts = [make_texts(kind, batch_size, num_patches, seed, rendered) for seed in range(NUM_BATCHES)]
    is_theirs = name != OURS
    batches = [to_squares(part) if is_theirs else to_streams(part) for part in texts]
    with nullcontext() if name == THEIRS else freed_memory_kept(torch.device("cpu")):
        model, loss_of = make_theirs(folder / "weights", num_patches) if is_theirs else make_ours(num_patches)
        loss = loss_of(batches[0])
        loss.backward()
        if is_theirs:
            for parameter in model.parameters():
                parameter.data = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            model.save_pretrained(folder / name)
            model, loss_of = make_theirs(folder / "weights", num_patches)
        else:
            grads = {key: torch.zeros_like(p) if p.grad is None else p.grad for key, p in model.named_parameters()}
            torch.save(to_huggingface_state(grads, run_config(num_patches).model), folder / f"{name}.pt")
            model.zero_grad(set_to_none=True)
        step = stepper(model, loss_of)
        useful = [int(num_text.sum()) + len(num_text) for _, num_text, _ in texts]
        serve({"loss": loss.item(), "useful": useful}, step, batches)


def refuse_different_maths(losses: dict[str, float], num_patches: int, folder: Path) -> None:
    """Exit if losses or gradients of the contestants differ by more than rounding."""
    if max(losses.values()) - min(losses.values()) > 1e-5:
        raise SystemExit(f"not the same maths: losses {losses}")
    from pretrainkit.exporting.safetensors import read_tensors

    config = run_config(num_patches).model
    ours = from_huggingface_state(torch.load(folder / f"{OURS}.pt", weights_only=True), config)
    for name in set(losses) - {OURS}:
        theirs = from_huggingface_state(read_tensors(folder / name), config)
        for key, grad in ours.items():
            error = float((grad - theirs[key]).norm() / grad.norm().clamp(min=1e-12))
            if error > 1e-3:
                raise SystemExit(f"not the same maths: the gradient of {key} is off by {error:.1e} of its norm")


def compare(
    kind: str, num_patches: int, names: list[str], options: argparse.Namespace
) -> dict[str, tuple[float, float]]:
    """Return each contestant's median of useful patches per CPU-second, and the share of the canvases with text."""
    with tempfile.TemporaryDirectory() as folder_name:
        folder = Path(folder_name)
        state = make_ours(num_patches)[0].state_dict()
        write_huggingface(state, run_config(num_patches), folder / "weights", model_type="vit_mae")

        def check(first_lines: dict[str, Any]) -> None:
            if kind == "full":
                refuse_different_maths(
                    {name: first["loss"] for name, first in first_lines.items()}, num_patches, folder
                )

        arguments = ["--texts", kind, "--patches", num_patches, "--corpus", *options.corpus]
        first_lines, speeds = measure(__file__, names, arguments, options, folder, check)
    fill = sum(first_lines[names[0]]["useful"]) / (NUM_BATCHES * options.batch_size * num_patches)
    return {name: (speed, fill) for name, speed in speeds.items()}


def main() -> None:
    """Print a table with a row per contestant and comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", default="rendered,full,documents")
    parser.add_argument("--patches", default="144,529")
    parser.add_argument("--corpus", type=Path, nargs="*", default=[])
    add_options(parser, batch_size=16, threads=0)
    options = parse_options(parser)
    if options.contestant:
        size, threads = options.batch_size, options.threads
        contend(options.contestant, options.texts, int(options.patches), size, threads, options.folder, options.corpus)
        return
    columns = ("texts", "patches", "threads", "canvas filled", "contestant", RATE, "times transformers")
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for num_patches, kind, threads in itertools.product(
        map(int, options.patches.split(",")), options.texts.split(","), thread_counts(options)
    ):
        names = [OURS, THEIRS, THEIRS_KEPT] if kind == "full" else [OURS, THEIRS]
        options.threads = threads
        results = compare(kind, num_patches, names, options)
        for name, (speed, fill) in results.items():
            numbers = [f"{fill:.0%}", name, f"{speed:,.0f}", f"{speed / results[THEIRS][0]:.2f}"]
            print(f"| {' | '.join(map(str, [kind, num_patches, threads, *numbers]))} |", flush=True)


if __name__ == "__main__":
    main()
