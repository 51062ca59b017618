"""Examine what this machine can do, and report how to install what is missing."""

from __future__ import annotations

import json
import os
import platform
import shlex
import shutil
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import distribution, version
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Literal

from pretrainkit.exporting import torchvision_shim
from pretrainkit.exporting.torchvision_shim import lacks_operators
from pretrainkit.launch.cloud import INSTALL_SKY
from pretrainkit.running.exercises import Outcome, exercise
from pretrainkit.training.folder import installed_version

NEEDED = ("transformers", "tokenizers", "sentencepiece", "safetensors", "pyarrow", "zstandard")
"""Packages of every installation whose compiled parts or versions may not fit together."""

EXTRAS: Mapping[str, tuple[str, ...]] = {
    "vision": ("pillow", "simplejpeg", "timm", "torchvision"),
    "lpips": ("lpips",),
    "open-clip": ("open_clip_torch",),
    "rendering": ("freetype-py",),
    "demo": ("matplotlib",),
    "hub": ("datasets",),
    "languages": ("py3langid",),
    "s3": ("s3fs",),
    "gcs": ("gcsfs",),
    "http": ("aiohttp",),
    "text-metrics": ("sacrebleu", "rouge-score"),
    "wandb": ("wandb",),
    "mlflow": ("mlflow-skinny",),
    "trackio": ("trackio",),
    "cluster": ("datatrove",),
    "slurm": ("submitit",),
    "t5x": ("tensorstore", "gin-config"),
    "ray": ("ray",),
}
"""Optional packages, by the extra that installs them."""


_PACKAGE = Path(__file__).parents[1]
HELPERS = tuple(
    ".".join(("pretrainkit", *source.relative_to(_PACKAGE).with_suffix("").parts))
    for source in sorted(_PACKAGE.rglob("_*.c"))
)
"""Names of the compiled modules. Their sources are installed too, so the list does not depend on what was built."""


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    name: str
    state: Literal["good", "missing", "limited", "broken"]
    """limited: it works, but slowly or in part. broken: it is installed, but fails."""
    text: str
    """The result in words."""
    fix: str = ""
    """Instructions to fix it; empty if there is nothing to fix."""


def diagnose() -> list[Finding]:
    """Return everything about this machine that decides what can be trained on it, and how fast.

    Imports torch. Other packages are tested in a separate process.
    """
    packages = {name: installed_version(name) for name in (*NEEDED, *chain(*EXTRAS.values()))}
    outcomes = exercise([*(name for name, installed in packages.items() if installed), *helpers_built(), "Pango"])
    return [
        *_machine(),
        *_torch(),
        helpers_finding(outcomes),
        _rendering(outcomes["Pango"]),
        *_packages(packages, outcomes),
        *_launchers(),
    ]


def _machine() -> Iterator[Finding]:
    from pretrainkit.dist.devices import cpu

    processor = cpu()
    memory = "" if processor.memory_bytes is None else f", {processor.memory_bytes / 2**30:.0f} GiB of memory"
    yield Finding("system", "good", f"{platform.platform()}, Python {sys.version.split()[0]}")
    yield Finding("CPU", "good", f"{processor.name}, {os.cpu_count()} cores{memory}")
    free = shutil.disk_usage(".").free / 2**30
    fix = "" if free > 10 else "runs of base size keep some GB of checkpoints: use another disk with --out"
    yield Finding("disk", "limited" if fix else "good", f"{free:.0f} GiB free in this folder", fix)


def _torch() -> Iterator[Finding]:
    import torch

    from pretrainkit.dist.devices import attention_back_ends, collective_back_ends, devices
    from pretrainkit.training.precision import has_fast_bfloat16

    accelerators = devices()
    kind, memory = accelerators[0].type, accelerators[0].memory_bytes
    yield Finding("torch", "good", torch.__version__)
    if kind == "cpu":
        built = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPUs"
        fix = "with an NVIDIA GPU: install its driver and torch for CUDA (pytorch.org); CPUs can train small models"
        yield Finding("accelerator", "missing", f"none: this torch is built for {built}", fix)
    else:
        described = f"{len(accelerators)} x {accelerators[0].name}" + (
            "" if memory is None else f", {memory / 2**30:.0f} GiB each"
        )
        yield Finding("accelerator", "good", f"{kind}: {described}")
    fast = has_fast_bfloat16(torch.device(kind))
    text = "in hardware" if fast else "not in hardware: precision.compute=auto chooses float32"
    yield Finding("bfloat16", "good" if fast else "limited", text)
    yield compiling(kind)
    kernels = ", ".join(attention_back_ends(kind))
    yield Finding("attention", "good" if kernels else "limited", kernels or f"no fused kernels are known for {kind}")
    collectives = collective_back_ends()
    if not collectives:
        yield Finding("collectives", "missing", "torch was built without torch.distributed", "install torch from PyPI")
    else:
        fix = "NCCL is missing: install torch for CUDA" if kind == "cuda" and "nccl" not in collectives else ""
        yield Finding("collectives", "limited" if fix else "good", ", ".join(collectives), fix)


def compiling(device_type: str) -> Finding:
    """Return the result for `torch.compile`, which needs compilers that depend on the type of the devices."""
    from pretrainkit.dist.parallelize import missing_for_compiling

    if missing := missing_for_compiling(device_type):
        requirement, command = missing
        text = f"models run uncompiled, which is slower on GPUs: {requirement} is missing"
        return Finding("torch.compile", "limited", text, command)
    return Finding("torch.compile", "good", "its compiler is installed")


def helpers_built() -> list[str]:
    """Return the compiled modules that were built."""
    return [name for name in HELPERS if find_spec(name) is not None]


def helpers_finding(outcomes: Mapping[str, Outcome]) -> Finding:
    """Return the result for the compiled modules, from tests of those that were built."""
    broken = {name: outcomes[name].fault for name in HELPERS if name in outcomes and outcomes[name].fault}
    if broken:
        name, fault = next(iter(broken.items()))
        text = f"{len(broken)} cannot be loaded, such as {name}: {fault}"
        return Finding("compiled helpers", "broken", text, _build())
    missing = [name for name in HELPERS if name not in outcomes]
    if missing:
        names = [name.removeprefix("pretrainkit.") for name in missing]
        slower = ", ".join(map(factor, names))
        cost = f"Python code replaces them and is slower (factors of CPU time: {slower})"
        return Finding("compiled helpers", "limited", f"not built: {', '.join(names)}; {cost}", _build())
    return Finding("compiled helpers", "good", ", ".join(name.removeprefix("pretrainkit.") for name in HELPERS))


def factor(name: str) -> str:
    """Return what a compiled module is for, and how many times as much CPU time Python takes, from the comment at the
    top of its source. docs/installing.md explains how it was measured."""
    source = (_PACKAGE / f"{name.replace('.', '/')}.c").read_text("utf-8")
    return source.partition("Factor of CPU time without it: ")[2].partition("\n")[0]


def _build() -> str:
    """Return the command that builds all helpers."""
    root = Path(import_module("pretrainkit").__path__[0]).parents[1]
    python = shlex.quote(sys.executable)
    origin = json.loads(distribution("pretrainkit").read_text("direct_url.json") or "{}").get("url", "pretrainkit")
    from_wheel = origin.endswith(".whl")  # which has no setup.py to build with
    source = "." if from_wheel else shlex.quote(origin)
    build = f"{python} -m pip install --force-reinstall --no-deps --no-cache-dir {source}"
    build = f"in a clone of pretrainkit: {build}" if from_wheel else build
    if (root / "setup.py").is_file():
        build = f"cd {shlex.quote(str(root))} && {python} setup.py build_ext --inplace --force"
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    if shutil.which(compiler[0]) is None:
        return f"no compiler {compiler[0]}: apt install gcc python3-dev (macOS: xcode-select --install), then: {build}"
    return build


def _rendering(outcome: Outcome) -> Finding:
    if not outcome.fault:
        return Finding("Pango", "good", "draws text as the reference of PIXEL does")
    fault, _, fix = outcome.fault.removeprefix("MissingLibraryError: ").partition("\n")
    return Finding("Pango", "missing", fault, fix.strip())


def _packages(versions: Mapping[str, str | None], outcomes: Mapping[str, Outcome]) -> Iterator[Finding]:
    for extra, packages in {"": NEEDED, **EXTRAS}.items():
        there = [f"{name} {versions[name]}" for name in packages if versions[name] and outcomes[name] == Outcome()]
        missing = [name for name in packages if not versions[name]]
        text = ", ".join([*there, *(f"no {name}" for name in missing)])
        fix = f"pip install 'pretrainkit[{extra}]'" if missing else ""
        yield Finding(f"[{extra}]" if extra else "packages", "missing" if missing else "good", text, fix)
        for name in packages:
            if versions[name] and outcomes[name] != Outcome():
                yield finding_of(name, outcomes[name])


def finding_of(name: str, outcome: Outcome) -> Finding:
    """Return the result for an installed package that does not work, or not completely."""
    if lacks_operators(outcome.fault):
        fix = f"for all programs of this environment: {shlex.quote(sys.executable)} -m {torchvision_shim.__name__}"
        return Finding(name, "broken", f"torchvision is built for another torch: {outcome.fault}", fix)
    if outcome.fault:
        fix = f"{shlex.quote(sys.executable)} -m pip install --force-reinstall --no-deps {name}=={version(name)}"
        return Finding(name, "broken", outcome.fault, fix)
    fix = "pretrainkit does not need it; for other programs, install torch and torchvision from one index (pytorch.org)"
    return Finding(name, "limited", outcome.lack, fix)


def _launchers() -> Iterator[Finding]:
    if shutil.which("sbatch"):
        yield Finding("SLURM", "good", "sbatch is installed")
    else:
        yield Finding("SLURM", "missing", "sbatch is not installed: submit jobs from a login node of a cluster")
    if shutil.which("sky"):
        yield Finding("SkyPilot", "good", "sky is installed")
    else:
        yield Finding("SkyPilot", "missing", "sky is not installed; --launch cloud calls it", INSTALL_SKY)
