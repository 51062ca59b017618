"""T5 1.1 base on a GPU: sequences of 512 inputs and 114 targets per second, and MFU. Needs CUDA; not run by run.py.

    python benchmarks/gpu_t5.py [--preset t5/1.1-base] [--batch-size 128] [--steps 60] [--settings path=value ...]

The trainer itself on random tokens, as `pretrainkit train` runs it: bfloat16, compiled blocks, FlexAttention, span
corruption on the host, AdamW. Rates are those that it logs, after the steps in which it compiles; MFU counts the
floating-point operations of real tokens alone (see the recipe's README) over the datasheet's peak. The second row is
without torch.compile. Goal on an H200: 1,047 sequences per second, an MFU of 45 %; nanoT5 on an A100: 229.

With --cpu a tiny preset runs on the CPU: to see that the script works, no measurement.
"""

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

import pretrainkit
from denoising import make_shards

EVERY = 10
"""Steps between two lines of the log."""


def measure(preset: str, settings: list[str], device: str, num_steps: int, warmup: int, folder: Path) -> dict[str, Any]:
    """Medians of what the trainer logs after `warmup` steps, and the most memory that it held."""
    every = min(EVERY, num_steps)
    fixed = [f"num_steps={num_steps}", f"log.every_steps={every}", "checkpoint.keep_last=1"]
    config = pretrainkit.load_config(preset, [*fixed, *settings])
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    pretrainkit.train(config, folder, device=device)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    kept = [line for line in lines if line["step"] > warmup] or lines[-1:]
    found = {
        name: statistics.median(line[name] for line in kept)
        for name in ("examples_per_second", "tokens_per_second", "seconds_per_step", "mfu")
        if name in kept[0]
    }
    return found | {"memory": torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else 0.0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="t5/1.1-base")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--warmup", type=int, default=20, help="steps that do not count, the compiling ones above all")
    parser.add_argument("--settings", nargs="*", default=[], metavar="path=value", help="on top of the preset's")
    parser.add_argument("--cpu", action="store_true", help="a tiny preset on the CPU, to see that it runs")
    options = parser.parse_args()
    if not options.cpu and not torch.cuda.is_available():
        print("error: no CUDA device here\n  run it on a machine with a GPU, or try the script with --cpu")
        sys.exit(2)
    device, preset, size = "cuda", options.preset, options.batch_size
    num_steps, warmup = options.steps, options.warmup
    if options.cpu:
        device, preset, size, num_steps, warmup = "cpu", "t5/tiny", 4, 4, 2
    name = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    print(f"{preset}, batches of {size}, {name}, torch {torch.__version__}\n")
    print("| compile | sequences / s | tokens / s | ms / step | MFU | memory, GiB |\n|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as place:
        shards = make_shards(Path(place) / "shards", 5_000 if options.cpu else 200_000)
        for compiled in ("off",) if options.cpu else ("auto", "off"):
            settings = [
                *(f"data.train={shards.folder}", f"data.batch_size={size}", f"parallel.compile={compiled}"),
                *("optimizer.name=adamw", "optimizer.peak_lr=1e-4", "optimizer.max_grad_norm=1.0"),
                "objective.normalize_by=real_target_tokens",
                *options.settings,
            ]
            got = measure(preset, settings, device, num_steps, warmup, Path(place) / f"run-{compiled}")
            mfu = f"{got['mfu']:.1%}" if "mfu" in got else "unknown peak"
            print(
                f"| {compiled} | {got['examples_per_second']:,.1f} | {got['tokens_per_second']:,.0f} | "
                f"{1000 * got['seconds_per_step']:,.1f} | {mfu} | {got['memory']:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
