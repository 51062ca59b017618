"""One contrastive training step of our towers against OpenCLIP, with the same pairs, optimizer and threads.

    python benchmarks/contrast.py [--batch 256] [--rounds 9] [--threads 2] [--context 25,77] [--quick]

The towers of `clip/tiny`: ViT 3 x 128 on 64 x 64 pixels in patches of 8, causal text transformer 2 x 128; batch 256,
float32, InfoNCE with a learned temperature. OpenCLIP's step is that of its training loop: model, `ClipLoss`, backward,
clip to norm 1, AdamW, clamp of the logit scale, on normalized float images and captions padded to its context length.
Our step starts from uint8 images and also normalizes them. The contestants alternate within each round. The results are
the median time of a step and the ratio of the medians. Before timing, both get the same weights and must give the same
loss and the same gradient norm.

ZeroVL pads to a context of 25; OpenCLIP's default is 77. Captions have 8 to 20 tokens in both.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from pretrainkit.exporting.torchvision_shim import import_torchvision
from pretrainkit.recipes.clip.model import DualEncoder
from pretrainkit.recipes.clip.objective import ClipObjective
from pretrainkit.recipes.clip.presets import tiny
from pretrainkit.training.accumulate import accumulate
from pretrainkit.training.precision import Precision

VOCAB_SIZE = 4096
END = VOCAB_SIZE - 1
"""OpenCLIP reads a caption at its highest id."""
LAYER_NAMES = {
    "attention_norm": "ln_1",
    "attention.qkv.weight": "attn.in_proj_weight",
    "attention.qkv.bias": "attn.in_proj_bias",
    "attention.out": "attn.out_proj",
    "feed_forward_norm": "ln_2",
    "feed_forward.up": "mlp.c_fc",
    "feed_forward.down": "mlp.c_proj",
}


def make_pairs(num: int, width: int, rng: np.random.Generator) -> dict[str, Tensor]:
    """Return random uint8 images and captions of 8 to 20 tokens, padded with 0 to `width`."""
    lengths = rng.integers(8, 21, num)
    ids = np.zeros((num, width), np.int32)
    for row, length in enumerate(lengths):
        ids[row, :length] = rng.integers(1, END, length)
        ids[row, length - 1] = END
    return {
        "image": torch.from_numpy(rng.integers(0, 256, (num, 3, 64, 64), np.uint8)),
        "input_ids": torch.from_numpy(ids),
        "num_tokens": torch.from_numpy(lengths.astype(np.int32)),
        "image_group": torch.arange(num),
        "caption_group": torch.arange(num),
        "bad": torch.zeros(num, dtype=torch.int8),
    }


def their_state(ours: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return our weights under OpenCLIP's names."""
    state = {
        "visual.class_embedding": ours["image.encoder.class_token"],
        "visual.positional_embedding": ours["image.encoder.position_embedding"],
        "visual.conv1.weight": ours["image.encoder.patch.weight"].view(-1, 3, 8, 8),
        "visual.proj": ours["image_projection.linear.weight"].T,
        "token_embedding.weight": ours["text.encoder.token.weight"],
        "positional_embedding": ours["text.encoder.position_embedding"],
        "text_projection": ours["text_projection.linear.weight"].T,
        "logit_scale": ours["temperature.log_scale"].squeeze(0),
    }
    for part in ("weight", "bias"):
        state[f"visual.ln_pre.{part}"] = ours[f"image.encoder.norm_before.{part}"]
        state[f"visual.ln_post.{part}"] = ours[f"image.encoder.norm_after.{part}"]
        state[f"ln_final.{part}"] = ours[f"text.encoder.norm_after.{part}"]
    for name, tensor in ours.items():
        tower, _, rest = name.partition(".encoder.layers.")
        if rest:
            number, _, leaf = rest.partition(".")
            for mine, theirs in LAYER_NAMES.items():
                if leaf == mine or leaf.startswith(f"{mine}."):
                    prefix = "visual.transformer" if tower == "image" else "transformer"
                    state[f"{prefix}.resblocks.{number}.{theirs}{leaf.removeprefix(mine)}"] = tensor
    return state


def build_both(context: int) -> tuple[nn.Module, ClipObjective, nn.Module, nn.Module]:
    """Return our model and objective, and OpenCLIP's model and loss, with equal weights."""
    import_torchvision()
    import open_clip

    config = tiny()
    text = config.model.text.model_copy(update={"vocab_size": VOCAB_SIZE, "max_positions": context})
    config = config.model_copy(update={"model": config.model.model_copy(update={"text": text})})
    torch.manual_seed(0)
    ours = DualEncoder(config)
    theirs = open_clip.CLIP(
        embed_dim=128,
        vision_cfg={"layers": 3, "width": 128, "head_width": 32, "patch_size": 8, "image_size": 64, "mlp_ratio": 4.0},
        text_cfg={"context_length": context, "vocab_size": VOCAB_SIZE, "width": 128, "heads": 4, "layers": 2},
        output_dict=True,
    )
    theirs.load_state_dict(their_state(ours.state_dict()), strict=True)
    return ours, ClipObjective(config), theirs, open_clip.ClipLoss()


def compare(context: int, batch_size: int, rounds: int) -> dict[str, float]:
    """Return pairs per second of both, and the ratios of their median step times, by the clock and in CPU time."""
    ours, objective, theirs, contrast = build_both(context)
    rng = np.random.default_rng(0)
    batches = [make_pairs(batch_size, context, rng) for _ in range(4)]
    their_batches = [
        {"image": (batch["image"].float() / 255 - 0.5) / 0.5, "text": batch["input_ids"].long()} for batch in batches
    ]
    precision = Precision(torch.device("cpu"), torch.float32, uses_tf32=False, scaler=None)

    def our_gradient(batch: dict[str, Tensor]) -> Tensor:
        terms = accumulate(objective, ours, [batch], precision=precision)
        return terms["contrastive_loss"].mean()

    def their_gradient(batch: dict[str, Tensor]) -> Tensor:
        loss = contrast(**theirs(batch["image"], batch["text"]), output_dict=True)["contrastive_loss"]
        loss.backward()
        return loss.detach()

    ours.train(), theirs.train()
    our_step = stepper(ours, our_gradient, lambda: objective.after_update(ours))
    their_step = stepper(theirs, their_gradient, lambda: theirs.logit_scale.data.clamp_(0, np.log(100)))
    our_first, their_first = our_step(batches[0]), their_step(their_batches[0])
    for mine, peer in zip(our_first, their_first, strict=True):
        if abs(mine - peer) > 1e-4 * abs(peer):
            raise SystemExit(f"different results: our loss and gradient norm {our_first}, theirs {their_first}")
    times: dict[str, list[tuple[float, float]]] = {"ours": [], "theirs": []}
    for number in range(-2, rounds):
        for name, step, batch in (
            ("ours", our_step, batches[number % 4]),
            ("theirs", their_step, their_batches[number % 4]),
        ):
            clock, cpu = time.perf_counter(), time.process_time()
            step(batch)
            if number >= 0:
                times[name].append((time.perf_counter() - clock, time.process_time() - cpu))
    medians = {name: [statistics.median(column) for column in zip(*rows)] for name, rows in times.items()}
    return {
        "context": context,
        "batch": batch_size,
        "ours_pairs_per_s": round(batch_size / medians["ours"][0], 1),
        "open_clip_pairs_per_s": round(batch_size / medians["theirs"][0], 1),
        "ratio_clock": round(medians["theirs"][0] / medians["ours"][0], 2),
        "ratio_cpu": round(medians["theirs"][1] / medians["ours"][1], 2),
    }


def stepper(
    model: nn.Module, gradient: Callable[[dict[str, Tensor]], Tensor], after: Callable[[], object]
) -> Callable[[dict[str, Tensor]], tuple[float, float]]:
    """Return a training step without data preparation. The step returns the loss and the gradient norm."""
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=1e-5, fused=True)

    def step(batch: dict[str, Tensor]) -> tuple[float, float]:
        optimizer.zero_grad(set_to_none=True)
        loss = gradient(batch)
        norm = torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        with torch.no_grad():
            after()
        return loss.item(), norm.item()

    return step


def main() -> None:
    """Print a table with a row per context length."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--context", default="25,77")
    parser.add_argument("--quick", action="store_true", help="small sizes, one round: a test that it runs")
    options = parser.parse_args()
    if options.quick:
        options.batch, options.rounds, options.context = 32, 1, "25"
    torch.set_num_threads(options.threads)
    for number, context in enumerate(options.context.split(",")):
        row = compare(int(context), options.batch, options.rounds)
        if number == 0:
            print("| " + " | ".join(row) + " |\n|" + "---|" * len(row))
        print("| " + " | ".join(map(str, row.values())) + " |", flush=True)


if __name__ == "__main__":
    main()
