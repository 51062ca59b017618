"""Measure this project on one GPU: are the results correct, how fast is each recipe, and where is the time spent?

    python benchmarks/gpu.py --minutes 10 --out FOLDER [--only NAME ...] [--pretend] [--write]

Each part runs in a process of its own with a time limit, and writes FOLDER/NAME.json when it is done. FOLDER/gpu.md is
written again after each part. What a part prints is in FOLDER/NAME.log. Parts that do not fit into --minutes are
skipped, and the report names them; to measure them, run the same command again. With --ahead N, the next N parts load
and compile meanwhile; only one part at a time is timed.

    environment    versions, and the rates that matrix products and copies reach
    gradients-NAME a model of two layers: losses and gradients against the CPU's float32, in float32, bfloat16 and
                   compiled; memory is filled with garbage first
    short-runs     attention dropout of the flash kernel; 50 steps in bfloat16 against float32; a resumed run
    WORKLOAD       the real trainer on random examples that are held in memory: 20 steps to warm up, 50 timed by CUDA
                   events, then three under the profiler
    WORKLOAD+NAME  the same with one thing changed
    fit            the batch of T5's preset, which is too large for one microbatch: parallel.fit=auto chooses another
    pipeline       T5 from shards with the complete data path: how long the device waits for data
    transformers   BERT of transformers on the same batches, compiled, in bfloat16

MFU counts the matrix products of real tokens (3 x forward, nothing recomputed) over the datasheet's rate. --pretend
runs the same parts with the smallest presets and few steps on the CPU, to test the script; it measures nothing.

A machine without a network needs torch, Triton, NumPy, pydantic, PyYAML, safetensors, zstandard and this project's src
on PYTHONPATH; `zerovl` also needs timm and transformers.
"""

import argparse
import cProfile
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import yaml

import pretrainkit
from pretrainkit.data.loader import Loader
from pretrainkit.data.order import Order
from pretrainkit.data.source import BatchSource, Records
from pretrainkit.dist.env import World, init_world
from pretrainkit.dist.parallelize import CompiledApart
from pretrainkit.nn.relative_bias import RelativeBias
from pretrainkit.recipes.registry import find_recipe
from pretrainkit.training.folder import RunFolder
from pretrainkit.training.trainer import Trainer, initial_seed
from pretrainkit.training.watch import Watcher

WARM_UP, TIMED, PROFILED = 20, 50, 3
LIMIT_SECONDS = 180
"""Time limit of one part."""
SECTION = "gpu"


@dataclass(frozen=True)
class Workload:
    """A run to be measured."""

    preset: str
    batch_size: int
    words: tuple[str, ...] = ()
    """Changes to the preset's settings."""
    goal: float | None = None
    """MFU that the run must reach."""
    variants: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Further settings of each variant, by its name; `CHANGES` has the variants that change the model."""
    warm_up: int = WARM_UP
    timed: int = TIMED


@cache
def take_turn() -> Any:
    """Wait until no other part is timed. The turn ends with the process."""
    with suppress(ImportError):  # Windows has no such locks
        import fcntl

        lock = os.open(Path(tempfile.gettempdir()) / "pretrainkit-gpu-benchmark.lock", os.O_CREAT | os.O_WRONLY)
        fcntl.flock(lock, fcntl.LOCK_EX)
        return lock


def _leave_head(model: torch.nn.Module) -> None:
    """Compile only the blocks, not the head."""
    for module in model.modules():
        if isinstance(module, CompiledApart):
            cast(Any, module).compile = lambda **_: None


def _freeze_bias(model: torch.nn.Module) -> None:
    """Compute no gradients of the relative biases."""
    for module in model.modules():
        if isinstance(module, RelativeBias):
            module.requires_grad_(False)


def _use_graphs(model: torch.nn.Module) -> None:
    torch._inductor.config.triton.cudagraphs = True


CHANGES = {"plain-head": _leave_head, "fixed-bias": _freeze_bias, "cuda-graphs": _use_graphs}
"""Functions that change the model before it is compiled, by variant. The other variants only change settings."""
_EAGER = {"eager": ("parallel.compile=off",)}
_WIDE = {"wide-residual": ("precision.residual=float32",)}
_BLOCKS = _EAGER | _WIDE
_ADAMW = ("optimizer.name=adamw", "optimizer.peak_lr=1e-4", "optimizer.max_grad_norm=1.0")
_NO_DROPOUT = ("model.attention_dropout=0", "model.hidden_dropout=0")
WORKLOADS = {
    "bert-base": Workload(
        "bert/base",
        512,
        goal=0.45,
        variants=_BLOCKS | {"no-dropout": _NO_DROPOUT, "cuda-graphs": ()},
    ),
    "bert-large": Workload("bert/large", 256, goal=0.50),
    "t5-base": Workload(
        "t5/1.1-base", 128, goal=0.45, variants=_EAGER | {"adamw": _ADAMW, "plain-head": (), "fixed-bias": ()}
    ),
    "pixel-base": Workload("pixel/base", 64, goal=0.40, variants=_BLOCKS),
    "zerovl": Workload("clip/zerovl", 512, goal=0.40, variants=_WIDE),
    "zerovl-accumulated": Workload("clip/zerovl", 4096, ("data.microbatch_size=512",), warm_up=4, timed=8),
    "fourm-b": Workload("fourm/b-7", 256, goal=0.45, variants=_EAGER),
}
TINY = {
    "bert": ("bert/tiny", 4),
    "t5": ("t5/tiny", 2),
    "pixel": ("pixel/tiny", 2),
    "clip": ("clip/tiny", 4),
    "fourm": ("fourm/tiny", 2),
    "image_tokenizer": ("image_tokenizer/tiny", 2),
}
"""Smallest preset and a batch size, by recipe."""
TWO_LAYERS = {
    "bert": ("bert/base", "model.num_layers=2", "model.vocab_size=4096", *_NO_DROPOUT),
    "bert-modern": ("bert/modern-base", "model.num_layers=2", "model.vocab_size=4096"),
    "t5": ("t5/1.1-base", "model.num_encoder_layers=2", "model.num_decoder_layers=2", "model.vocab_size=4096"),
    "pixel": ("pixel/base", "model.num_layers=2", "model.decoder_num_layers=2", *_NO_DROPOUT),
    "clip": ("clip/vit-b-16", "model.image.num_layers=2", "model.text.num_layers=2", "model.projection.dropout=0"),
    "fourm": ("fourm/b-7", "model.num_encoder_layers=2", "model.num_decoder_layers=2"),
    "image_tokenizer": ("image_tokenizer/tiny",),
    "image_tokenizer-conv": ("image_tokenizer/tiny-conv",),
}
"""Models of real widths, so that their kernels are those of real runs."""


def bound(preset: str, words: Sequence[str]) -> tuple[Any, Any]:
    """Return the recipe and the config of a preset, changed so that it needs no data."""
    recipe: Any = find_recipe(preset.partition("/")[0])
    fixed = ["data.prefetch=2", "checkpoint.keep_last=1", "evaluate.num_samples=0"]
    if preset == "clip/zerovl":  # its towers without their weights, which would have to be downloaded
        from transformers import BertConfig

        folder = Path(tempfile.gettempdir()) / "bert-base-uncased"
        BertConfig(architectures=["BertModel"]).save_pretrained(folder)
        fixed += ["model.image.pretrained=false", "model.text.pretrained=false", f"model.text.name={folder}"]
    config, _ = recipe.without_data(pretrainkit.load_config(preset, [*fixed, *words]))
    return recipe, config


def random_batch(recipe: Any, config: Any, num: int, seed: int) -> dict[str, np.ndarray]:
    """Return the longest examples that the config allows. Ids and pixels are random, because a GPU multiplies zeros
    faster."""
    rng = np.random.default_rng(seed)
    batch = recipe.assumed_batch(config, num)
    most = getattr(config.model, "vocab_size", None) or 90
    for name, array in batch.items():
        if array.dtype == np.uint8 and (array.ndim == 4 or "patches" in name):
            batch[name] = rng.integers(0, 256, array.shape, np.uint8)
        elif name in ("input_ids", "masked_lm_ids") or (name.endswith("_tokens") and array.ndim == 2):
            batch[name] = rng.integers(1, most, array.shape).astype(array.dtype)
    return batch


class InMemory(BatchSource):
    """Examples without a data path: four batches of each size in turn."""

    fingerprint = "random"

    def __init__(self, recipe: Any, config: Any, num: int) -> None:
        self._make, self._kept = partial(random_batch, recipe, config), dict[tuple[int, int], dict[str, np.ndarray]]()
        self._num = num

    @property
    def sizes(self) -> tuple[int, ...]:
        return (self._num,)

    def lengths(self, records: Records) -> np.ndarray:
        return np.ones(len(records), np.int64)

    def build(self, records: Records) -> dict[str, np.ndarray]:
        key = len(records), int(records.index[0]) % 4
        if key not in self._kept:
            self._kept[key] = self._make(*key)
        return dict(self._kept[key])


def trainer_of(
    recipe: Any,
    config: Any,
    folder: Path,
    world: World,
    watcher: Watcher,
    change: Callable[[torch.nn.Module], None] = lambda model: None,
) -> Trainer:
    """Return the real trainer on examples in memory. `change` is called with the model first."""
    size = config.data.batch_size
    source = InMemory(recipe, config, 4 * size)
    order = Order(source.sizes, weights=[None], mode="shuffle", seed=config.seed, batch_size=size)
    loader = Loader(source, order, batch_size=size, microbatch_size=config.data.microbatch_size)
    torch.manual_seed(initial_seed(config.seed))
    model = recipe.build_model(config).to(world.device)
    change(model)
    return Trainer(config, RunFolder(folder), world, model, recipe.build_objective(config), loader, [], watcher)


def _num_segments() -> int:
    return int(torch.cuda.memory_stats()["segment.all.allocated"])


class Timer(Watcher):
    """Records the time of every step, and profiles the steps after the timed ones."""

    def __init__(self, warm_up: int, timed: int, device: torch.device) -> None:
        self.warm_up, self.timed, self.device = warm_up, timed, device
        self.marks: list[Any] = []
        self.first_seconds = 0.0
        self.host_ms: float | None = None
        """Time that the host needs for a step while the device has nothing to do."""
        self.kernels: dict[str, float] = {}
        self.launches = 0.0
        self.segments = 0
        """Blocks of memory that the device was asked for during the timed steps. Each may stop it."""
        self._began = time.perf_counter()
        self._profiler: Any = None
        self._calls = cProfile.Profile()

    def stepped(self, step: int, num_steps: int) -> None:
        on_gpu = self.device.type == "cuda"
        if on_gpu:
            self.marks.append(torch.cuda.Event(enable_timing=True))
            self.marks[-1].record()
        else:
            self.marks.append(time.perf_counter())
        if step == 1:
            if on_gpu:
                torch.cuda.synchronize()
                torch.cuda.empty_cache()
            self.first_seconds = time.perf_counter() - self._began
            take_turn()
        if step == self.warm_up - 1 and on_gpu:
            torch.cuda.synchronize()
            self._step_began = time.perf_counter()
        if step == self.warm_up and on_gpu:
            self.host_ms = 1e3 * (time.perf_counter() - self._step_began)
            self.segments = -_num_segments()
            torch.cuda.set_sync_debug_mode("warn")
        if step == self.warm_up + self.timed and on_gpu:
            torch.cuda.set_sync_debug_mode("default")
            self.segments += _num_segments()
            from torch.profiler import ProfilerActivity, profile

            torch.cuda.synchronize()
            self._profiler = profile(activities=[ProfilerActivity.CUDA])
            self._profiler.start()
            self._calls.enable()
        if step == self.warm_up + self.timed + PROFILED and self._profiler is not None:
            self._calls.disable()
            torch.cuda.synchronize()
            self._profiler.stop()
            for event in self._profiler.key_averages():
                self.launches += event.count / PROFILED
                if seconds := event.self_device_time_total * 1e-6:
                    name = f"{event.count / PROFILED:.0f} x {event.key}"
                    self.kernels[name] = self.kernels.get(name, 0.0) + seconds / PROFILED

    def calls(self) -> list[tuple[float, str]]:
        """Return the milliseconds per step that the longest Python functions of the main thread take by themselves."""
        self._calls.create_stats()
        own = [(1e3 * row[2] / PROFILED, f"{Path(f[0]).name}:{f[1]} {f[2]}") for f, row in self._calls.stats.items()]
        return sorted(own, reverse=True)[:20]

    def milliseconds(self) -> list[float]:
        """Return the time of each timed step."""
        marks = pairwise(self.marks[self.warm_up - 1 : self.warm_up + self.timed])
        if self.device.type == "cuda":
            return [first.elapsed_time(second) for first, second in marks]
        return [1e3 * (second - first) for first, second in marks]


_KINDS = (
    ("attention", ("flash", "fmha", "flex_attention")),
    ("products", ("gemm", "cutlass", "cublas", "nvjet", "splitkreduce", "triton_tem")),
    ("optimizer", ("multi_tensor_apply", "foreach")),
    ("copies", ("memcpy", "memset", "direct_copy", "catarray")),
)
"""Kinds of kernels, each with parts of the names of its kernels. A kernel has the first kind that fits its name."""


def by_kind(kernels: Mapping[str, float]) -> dict[str, float]:
    """Return the seconds of the kernels of each kind. Kernels of no kind are norms, element-wise work and losses."""
    results = dict.fromkeys([*(kind for kind, _ in _KINDS), "norms, element-wise, losses"], 0.0)
    for name, seconds in kernels.items():
        fitting = (kind for kind, parts in _KINDS if any(part in name.lower() for part in parts))
        results[next(fitting, "norms, element-wise, losses")] += seconds
    return results


def train(workload: Workload, variant: str, device: str, folder: Path, *, pretend: bool) -> dict[str, Any]:
    """Measure the real trainer on examples in memory."""
    words = workload.variants.get(variant, ())
    preset, size = workload.preset, workload.batch_size
    given: tuple[str, ...] = ("parallel.compile=on", *workload.words, *words)
    warm_up, timed = workload.warm_up, workload.timed
    if pretend:
        (preset, size), given, warm_up, timed = TINY[preset.partition("/")[0]], tuple(words), 2, 3
    num_steps = warm_up + timed + PROFILED
    fixed = (f"num_steps={num_steps}", f"log.every_steps={num_steps}", f"data.batch_size={size}")
    recipe, config = bound(preset, (*fixed, *given))
    with init_world(device) as world, warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        timer = Timer(warm_up, timed, world.device)
        trainer = trainer_of(recipe, config, folder, world, timer, CHANGES.get(variant, lambda model: None))
        last = trainer.fit()
    microbatch = config.data.microbatch_size or size
    cost = trainer.objective.cost(random_batch(recipe, config, microbatch, 0))
    waits = Counter(f"{w.filename}:{w.lineno}" for w in warned if "called a synchronizing" in str(w.message))
    steps = sorted(timer.milliseconds())
    seconds = statistics.median(steps) / 1e3
    peak, kinds = trainer.peak.flops_per_second, by_kind(timer.kernels)
    results = {
        "preset": preset,
        "words": " ".join(given),
        "batch": size,
        "loss": last["loss"],
        "ms": 1e3 * seconds,
        "p90 ms": steps[int(0.9 * (len(steps) - 1))],
        "examples / s": size / seconds,
        "tokens / s": cost.tokens * size / microbatch / seconds,
        "MFU": cost.flops * size / microbatch / seconds / peak if peak else None,
        "goal": workload.goal,
        "GiB": torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else None,
        "first step, s": timer.first_seconds,
        "waits": sum(waits.values()),
        "where": dict(waits),
        "kernels, ms": {kind: 1e3 * value for kind, value in kinds.items()},
        "host ms": timer.host_ms,
        "launches": timer.launches,
        "segments": timer.segments,
        "idle, ms": 1e3 * (seconds - sum(kinds.values())) if timer.kernels else None,
        "longest calls": timer.calls(),
        "longest": sorted(((1e3 * s, name[:160]) for name, s in timer.kernels.items()), reverse=True)[:40],
    }
    if "torch._dynamo" in sys.modules:
        counters = sys.modules["torch._dynamo"].utils.counters
        results |= {"graphs": counters["stats"]["unique_graphs"], "breaks": sum(counters["graph_break"].values())}
    return results


def environment(device: str, *, pretend: bool) -> dict[str, Any]:
    """Return versions, and the rates that matrix products and copies reach on this device."""
    take_turn()
    results: dict[str, Any] = {"torch": torch.__version__, "device": device}
    size, most = (64, 256) if pretend else (8192, 65_536)
    if device == "cuda":
        results |= {"device": torch.cuda.get_device_name(), "capability": list(torch.cuda.get_device_capability())}
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    widths = (768, 1024, 2048, 3072, 4096) if not pretend else (32,)
    shapes = [(size, size, size), *((most, k, n) for k in widths for n in widths)]
    for m, k, n in shapes:
        a, b = (torch.randn(shape, device=device).to(dtype) for shape in ((m, k), (k, n)))
        seconds = seconds_of(lambda a=a, b=b: a @ b, device, 3 if pretend else 20)
        results[f"{m} x {k} x {n}, TFLOP/s"] = 2e-12 * m * k * n / seconds
    block = torch.randn((1 << 20) if pretend else (1 << 30), device=device)
    results["copy, TB/s read and written"] = 2e-12 * block.nbytes / seconds_of(block.clone, device, 3)
    return results


def seconds_of(work: Callable[[], Any], device: str, num: int) -> float:
    """Return the mean seconds of a call, by the clock of the device."""
    for _ in range(3):
        work()
    if device != "cuda":
        began = time.perf_counter()
        for _ in range(num):
            work()
        return (time.perf_counter() - began) / num
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    for _ in range(num):
        work()
    last.record()
    torch.cuda.synchronize()
    return first.elapsed_time(last) / 1e3 / num


def gradients_of(
    recipe: Any, config: Any, device: torch.device, compute: str, compiled: str
) -> dict[str, torch.Tensor]:
    """Return the gradients of an update of two microbatches on the host, by parameter, and the loss terms as
    `losses`."""
    from pretrainkit.dist.devices import to_device as move
    from pretrainkit.dist.env import World
    from pretrainkit.dist.parallelize import parallelize, unwrap
    from pretrainkit.training.accumulate import accumulate, seed_dropout
    from pretrainkit.training.precision import resolve_precision, set_matmul_precision
    from pretrainkit.training.run import ParallelConfig, PrecisionConfig
    from pretrainkit.training.trainer import to_device

    torch.manual_seed(0)
    world = World(device=device)
    precision = resolve_precision(PrecisionConfig(compute=compute, matmul_tf32=False), device)
    set_matmul_precision(precision)
    model = move(recipe.build_model(config), device).train()
    wrapped = parallelize(model, ParallelConfig(compile=compiled), world, precision.compute_dtype)
    if device.type == "cuda":  # so that memory that a kernel does not write is not zero
        garbage = [torch.full((1 << 22,), torch.nan, device=device) for _ in range(64)]
        del garbage
    batches = [to_device(random_batch(recipe, config, 3, seed), device) for seed in (0, 1)]
    sums = accumulate(
        recipe.build_objective(config),
        wrapped,
        batches,
        precision=precision,
        world=world,
        seed_dropout=lambda index: seed_dropout(0, 0, index, 0, device),
    )
    results = {n: p.grad.float().cpu() for n, p in unwrap(wrapped).named_parameters() if p.grad is not None}
    return results | {"losses": torch.stack([term.mean().float().cpu() for term in sums.values()])}


CORRECT = {
    "float32": ("float32", "off", 1e-4),
    "bfloat16": ("bfloat16", "off", 0.1),
    "compiled": ("bfloat16", "on", 0.1),
}
"""Ways to compute a gradient on the device, with the largest allowed difference to the CPU's in float32, as a share of
its norm."""


def gradients(name: str, device: str, *, pretend: bool) -> dict[str, Any]:
    """Compare the gradients of a small model of a recipe with those of the CPU."""
    results: dict[str, Any] = {}
    preset, *words = (TINY[name.partition("-")[0]][0],) if pretend else TWO_LAYERS[name]
    recipe, config = bound(preset, ("num_steps=1", *words))
    expected = gradients_of(recipe, config, torch.device("cpu"), "float32", "off")
    size = max(float(grad.norm()) for grad in expected.values())
    for way, (compute, compiled, most) in CORRECT.items():
        if pretend and way != "float32":
            continue
        try:
            grads = gradients_of(recipe, config, torch.device(device), compute, compiled)
        except Exception as error:
            traceback.print_exc()
            results[way] = {"good": False, "worst": str(error).partition("\n")[0][:200]}
            continue
        off = {n: float((grads[n] - g).norm() / (g.norm() + 1e-3 * size)) for n, g in expected.items() if n in grads}
        worst = max(off, key=lambda n: (off[n] != off[n], off[n]))  # NaN first
        # In bfloat16, the gradients of these models differ as much on a CPU.
        most = max(most, 0.3) if name.endswith("-conv") and compute != "float32" else most
        is_good = off[worst] <= most and grads.keys() == expected.keys()
        print(way, {n: round(value, 4) for n, value in off.items()})
        loss = float((grads["losses"] - expected["losses"]).norm() / expected["losses"].norm())
        results[way] = {"good": is_good, "worst": off[worst], "in": worst, "loss": loss}
    return results


def short_runs(device: str, *, pretend: bool) -> dict[str, Any]:
    """Check attention dropout, the losses of 50 steps in bfloat16 against float32, and a run that was stopped and
    resumed."""
    results: dict[str, Any] = {}
    if device == "cuda":
        results["attention dropout"] = attention_dropout(torch.device(device))
    num_steps = 4 if pretend else 50
    with tempfile.TemporaryDirectory() as place:
        losses = {
            compute: short_run(Path(place) / compute, num_steps, (f"precision.compute={compute}",), device)
            for compute in ("float32", "bfloat16")
        }
        again = short_run(
            Path(place) / "float32", num_steps, ("precision.compute=float32",), device, stop=num_steps // 2
        )
    off = {
        f"{num_steps} steps in bfloat16": (losses["bfloat16"], 0.02),
        "stopped and resumed": (again, 0.0 if device == "cpu" else 1e-5),
    }
    for name, (losses_of_run, most) in off.items():
        worst = max(abs(a - b) / b for a, b in zip(losses_of_run, losses["float32"], strict=True))
        results[name] = {"good": worst <= most, "worst": worst, "in": "loss"}
    return results


def attention_dropout(device: torch.device, num_seeds: int = 400) -> dict[str, Any]:
    """Check the flash kernel with dropout: its mean over many seeds must be the result without dropout, and gradients
    must be finite even for tokens that belong to no example."""
    from pretrainkit.nn.cuda.attention import VarlenLayout

    ends = torch.tensor([0, 100, 228, 300], dtype=torch.int32, device=device)  # 20 tokens belong to no example
    layout = VarlenLayout(ends, 128, 320)
    torch.manual_seed(0)
    qkv = torch.randn(320, 3, 12, 64, device=device).bfloat16().requires_grad_()
    plain = layout.attend(qkv, window=None, dropout_rate=0.0)[:300].float()
    mean, squares = torch.zeros_like(plain), torch.zeros_like(plain)
    is_finite = True
    for _ in range(num_seeds):
        garbage = torch.full((1 << 22,), torch.nan, device=device)
        del garbage
        mixed = layout.attend(qkv, window=None, dropout_rate=0.1)
        (grad,) = torch.autograd.grad(mixed[:300].float().square().sum(), qkv)
        is_finite &= bool(grad.isfinite().all())
        mixed = mixed[:300].detach().float()
        mean, squares = mean + mixed / num_seeds, squares + mixed.square() / num_seeds
    error = (squares - mean.square()).clamp(min=0).sqrt() / num_seeds**0.5
    deviations = float(((mean - plain) / (error + 1e-3)).square().mean().sqrt())  # 1 if only chance differs
    return {"good": is_finite and 0.3 < deviations < 1.3, "worst": deviations, "in": "deviations of the mean"}


def short_run(folder: Path, num_steps: int, words: Sequence[str], device: str, *, stop: int = 0) -> list[float]:
    """Return the losses of a run of bert/tiny, or of one that ends at step `stop` as if killed, and is then resumed."""

    class Killed(Watcher):
        def stepped(self, step: int, num_steps: int) -> None:
            if step == stop + 1:
                raise KeyboardInterrupt

    preset, size = TINY["bert"]
    fixed = (f"num_steps={num_steps}", "log.every_steps=1", f"data.batch_size={size}", "parallel.compile=off")
    every = f"checkpoint.every_steps={stop or num_steps}"
    recipe, config = bound(preset, (*fixed, every, *words))
    if stop:
        folder = folder.with_name(f"{folder.name}-resumed")
    for is_resumed in (False, True) if stop else (False,):
        with init_world(device) as world:
            trainer = trainer_of(recipe, config, folder, world, Killed() if stop and not is_resumed else Watcher())
            if is_resumed and not trainer.restore():
                raise SystemExit("the stopped run left no checkpoint")
            with suppress(KeyboardInterrupt):
                trainer.fit()
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["loss"] for line in lines]


def pipeline(device: str, *, pretend: bool) -> dict[str, Any]:
    """Measure T5 from token shards on a disk: span corruption on the host while the device computes."""
    take_turn()
    size, num_steps = (2, 4) if pretend else (128, 60)
    return from_shards(device, num_steps, (f"data.batch_size={size}", *_ADAMW), pretend=pretend)[0]


def fit(device: str, *, pretend: bool) -> dict[str, Any]:
    """Run two steps of T5's own batch, which needs several microbatches, and compare the memory with the plan."""
    take_turn()
    given = ("parallel.fit=auto", "parallel.compile=off", *(["data.batch_size=4"] if pretend else []))
    results, used = from_shards(device, 2, given, pretend=pretend)
    results = {"batch": used["data"]["batch_size"], "microbatch": used["data"]["microbatch_size"]} | results
    if device == "cuda":
        results["GiB"] = torch.cuda.max_memory_allocated() / 2**30
        results["GiB of the card"] = torch.cuda.get_device_properties(0).total_memory / 2**30
    return results


def from_shards(
    device: str, num_steps: int, given: Sequence[str], *, pretend: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Train T5 on random shards. Return the figures of the last line of the log, and the settings of the run."""
    from denoising import make_shards

    preset = TINY["t5"][0] if pretend else "t5/1.1-base"
    with tempfile.TemporaryDirectory() as place:
        shards = make_shards(Path(place) / "shards", 5_000 if pretend else 200_000)
        fixed = (f"data.train={shards.folder}", f"num_steps={num_steps}", f"log.every_steps={num_steps // 2}")
        config = pretrainkit.load_config(preset, [*fixed, "checkpoint.keep_last=1", *given])
        pretrainkit.train(config, Path(place) / "run", device=device)
        used = yaml.safe_load((Path(place) / "run/config.yaml").read_text(encoding="utf-8"))
        lines = (Path(place) / "run/metrics.jsonl").read_text(encoding="utf-8").splitlines()
    last = json.loads(lines[-1])
    names = ("examples_per_second", "tokens_per_second", "seconds_per_step", "data_wait_share", "mfu")
    return {name: last[name] for name in names if name in last}, used


def transformers(device: str, *, pretend: bool) -> dict[str, Any]:
    """Measure BERT of transformers on full rows of 128 tokens, like ours: autocast, compiled, clipping to norm 1, fused
    AdamW."""
    from transformers import BertConfig, BertForPreTraining

    import step

    shape = step.Shape(2, 128, 4) if pretend else step.Shape(12, 768, 512)
    config = step.run_config(shape, step.VOCAB_SIZE)
    values = step.to_huggingface_config(config.model, has_sentence_order=True)
    model = BertForPreTraining(BertConfig(**values, attn_implementation="sdpa")).to(device)
    rows = step.make_rows(np.full(shape.batch_size, 128), step.VOCAB_SIZE, np.random.default_rng(0))
    batch = {name: array.to(device) for name, array in step.huggingface_batch(rows, is_modern=False).items()}
    called = model if pretend else torch.compile(model)

    def loss_of(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        with torch.autocast(device, torch.bfloat16):
            return called(**batch).loss

    one_step = partial(step.stepper(model, loss_of), batch)
    one_step()
    take_turn()
    seconds = seconds_of(one_step, device, 2 if pretend else TIMED)
    return {
        "ms": 1e3 * seconds,
        "examples / s": shape.batch_size / seconds,
        "tokens / s": 128 * shape.batch_size / seconds,
    }


def part(name: str, device: str, *, pretend: bool) -> dict[str, Any]:
    """Run a part and return its results."""
    others = {
        "environment": environment,
        **{f"gradients-{name}": partial(gradients, name) for name in TWO_LAYERS},
        "short-runs": short_runs,
        "fit": fit,
        "pipeline": pipeline,
        "transformers": transformers,
    }
    if name in others:
        return others[name](device, pretend=pretend)
    workload, _, variant = name.partition("+")
    with tempfile.TemporaryDirectory() as place:
        return train(WORKLOADS[workload], variant, device, Path(place) / "run", pretend=pretend)


NAMES = (
    "environment",
    *(f"gradients-{name}" for name in TWO_LAYERS),
    "short-runs",
    *WORKLOADS,
    *(f"{name}+{variant}" for name, workload in WORKLOADS.items() for variant in workload.variants),
    "fit",
    "pipeline",
    "transformers",
)
"""Names of the parts, the most important first."""


def shown(value: Any) -> str:
    """Return the text of a value in a cell."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 100 else f"{value:,.0f}"
    return str(value)


def report(out: Path) -> str:
    """Return the Markdown of all parts that are done, with the names of the missing ones."""
    done = {
        name: json.loads((out / f"{name}.json").read_text("utf-8"))
        for name in NAMES
        if (out / f"{name}.json").is_file()
    }
    rows = {
        name: results
        for name, results in done.items()
        if name.partition("+")[0] in WORKLOADS and "error" not in results
    }
    columns = (
        "batch",
        "ms",
        "p90 ms",
        "examples / s",
        "tokens / s",
        "MFU",
        "goal",
        "GiB",
        "first step, s",
        "graphs",
        "breaks",
        "waits",
        "host ms",
        "launches",
        "segments",
    )
    device = done.get("environment", {}).get("device", "unknown")
    parts = [f"`python benchmarks/gpu.py`, {time.strftime('%Y-%m-%d')}, {device}"]
    if rows:
        lines = [
            f"| {name} | {' | '.join(shown(results.get(column)) for column in columns)} |"
            for name, results in rows.items()
        ]
        parts.append("\n".join([f"| run | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|", *lines]))
        kinds = list(next(iter(rows.values()))["kernels, ms"])
        lines = []
        for name, results in rows.items():
            cells = [*(results["kernels, ms"][kind] for kind in kinds), results["idle, ms"]]
            lines.append(f"| {name} | {' | '.join(map(shown, cells))} |")
        parts.append(
            "\n".join([f"| ms of a step | {' | '.join(kinds)} | idle |", "|---" * (len(kinds) + 2) + "|", *lines])
        )
    checks = {name: results for name, results in done.items() if name.startswith("gradients-")}
    if checks:
        ways, lines = list(CORRECT), []
        for name, results in checks.items():
            cells = (shown(results.get(way, {}).get("worst")) for way in ways)
            lines.append(f"| {name.removeprefix('gradients-')} | {' | '.join(cells)} |")
        head = [f"| largest error of a gradient | {' | '.join(ways)} |", "|---" * (len(ways) + 1) + "|"]
        parts.append("\n".join([*head, *lines]))
    for name, results in done.items():
        if name not in rows and name not in checks:
            parts.append("\n".join([f"{name}:\n", *(f"- {key}: {shown_all(value)}" for key, value in results.items())]))
    missing = [name for name in NAMES if name not in done]
    parts.append("\n".join(textwrap.wrap(f"Not measured: {', '.join(missing) or 'nothing'}.", 100)))
    return "\n\n".join(parts) + "\n"


def shown_all(value: Any) -> str:
    """Return the text of a value, or of several by name."""
    return ", ".join(f"{key} {shown(item)}" for key, item in value.items()) if isinstance(value, dict) else shown(value)


def run_part(name: str, options: argparse.Namespace, end: float) -> str:
    """Run a part in a new process, until `end` by the monotonic clock. Return how it ended."""
    began = time.monotonic()
    if end - began < 10:
        return "skipped"
    seconds = min(end - began, LIMIT_SECONDS)
    words = ["--part", name, "--out", str(options.out), *(["--pretend"] if options.pretend else [])]
    with (options.out / f"{name}.log").open("w", encoding="utf-8") as log:
        process = subprocess.Popen(
            [sys.executable, __file__, *words],
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return f"not done after {seconds:.0f} s"
    if not process.returncode:
        results = json.loads((options.out / f"{name}.json").read_text("utf-8"))
        wrong = [key for key, value in results.items() if isinstance(value, dict) and value.get("good") is False]
        return f"wrong: {', '.join(wrong)}" if wrong else "done"
    printed = Path(log.name).read_text(encoding="utf-8").strip().splitlines()
    return f"failed: {printed[-1] if printed else process.returncode}; see {log.name}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES, metavar="NAME")
    parser.add_argument("--pretend", action="store_true", help="the smallest presets on the CPU: a test that it runs")
    parser.add_argument("--write", action="store_true", help="put the report into RESULTS.md")
    parser.add_argument("--ahead", type=int, default=0, metavar="N", help="load and compile the next N parts meanwhile")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not options.pretend and not torch.cuda.is_available():
        print("error: no CUDA device here\n  run it on a machine with a GPU, or try the script with --pretend")
        return 2
    if options.part:
        results = part(options.part, "cpu" if options.pretend else "cuda", pretend=options.pretend)
        (options.out / f"{options.part}.json").write_text(json.dumps(results, indent=1), encoding="utf-8")
        return 0
    options.out.mkdir(parents=True, exist_ok=True)
    start, has_failed = time.monotonic(), False
    end = start + 60 * options.minutes
    with ThreadPoolExecutor(1 + options.ahead) as pool:
        names = [name for name in options.only if not (options.out / f"{name}.json").is_file()]
        for name, became in zip(names, pool.map(partial(run_part, options=options, end=end), names), strict=True):
            has_failed |= became not in ("done", "skipped")
            print(f"{name}: {became}, {time.monotonic() - start:.0f} s after the start", flush=True)
            (options.out / "gpu.md").write_text(report(options.out), encoding="utf-8")
    print(report(options.out))
    if options.write and not options.pretend:
        from results import read_results, write_results
        from run import BENCHMARKS, FOLDER

        sections, by_hand = read_results(FOLDER / "RESULTS.md")
        write_results(FOLDER / "RESULTS.md", sections | {SECTION: report(options.out)}, BENCHMARKS, by_hand)
    return int(has_failed)


if __name__ == "__main__":
    sys.exit(main())
