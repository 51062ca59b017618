"""What this machine can do, and what to install for the rest."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Literal

EXTRAS: Mapping[str, tuple[str, ...]] = {
    "vision": ("pillow", "simplejpeg", "timm", "torchvision"),
    "rendering": ("freetype-py",),
    "demo": ("matplotlib",),
    "hub": ("datasets",),
    "text-metrics": ("sacrebleu", "rouge-score"),
    "wandb": ("wandb",),
    "slurm": ("submitit",),
    "cloud": ("skypilot",),
    "ray": ("ray",),
}
"""Optional packages, by the extra that installs them."""


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    name: str
    state: Literal["good", "missing", "limited"]
    """limited: it works, but slower or with less than it could."""
    text: str
    """What was found."""
    mend: str = ""
    """What to do about it; empty where nothing is to be done."""


def diagnose() -> list[Finding]:
    """Everything about this machine that decides what can be trained on it, and how fast. Imports torch."""
    return [*_machine(), *_torch(), *_distribution(), *_helpers(), *_rendering(), *_packages(), *_launchers()]


def _machine() -> list[Finding]:
    from pretrainkit.dist.devices import cpu

    processor = cpu()
    memory = "" if processor.memory_bytes is None else f", {processor.memory_bytes / 2**30:.0f} GiB of memory"
    free = shutil.disk_usage(".").free / 2**30
    return [
        Finding("system", "good", f"{platform.platform()}, Python {sys.version.split()[0]}"),
        Finding("CPU", "good", f"{processor.name}, {os.cpu_count()} cores{memory}"),
        Finding(
            "disk",
            "good" if free > 10 else "limited",
            f"{free:.0f} GiB free in this folder",
            "" if free > 10 else "runs of base size keep some GB of checkpoints: use another disk with --out",
        ),
    ]


def _torch() -> list[Finding]:
    import torch

    from pretrainkit.dist.devices import attention_back_ends, devices
    from pretrainkit.training.precision import has_fast_bfloat16

    found = devices()
    kind = found[0].type
    memory = found[0].memory_bytes
    described = f"{len(found)} x {found[0].name}" + ("" if memory is None else f", {memory / 2**30:.0f} GiB each")
    findings = [Finding("torch", "good", torch.__version__)]
    if kind == "cpu":
        built = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPUs"
        mend = "with an NVIDIA GPU: install its driver and torch for CUDA (pytorch.org); small models train as they are"
        findings.append(Finding("accelerator", "missing", f"none: this torch is built for {built}", mend))
    else:
        findings.append(Finding("accelerator", "good", f"{kind}: {described}"))
    fast = has_fast_bfloat16(torch.device(kind))
    text = "in hardware" if fast else "not in hardware: precision.compute=auto chooses float32"
    findings.append(Finding("bfloat16", "good" if fast else "limited", text))
    compiler = next((name for name in ("gcc", "clang", "cc") if shutil.which(name)), None)
    needs_triton = kind == "cuda" and find_spec("triton") is None
    if compiler and not needs_triton:
        findings.append(Finding("torch.compile", "good", compiler))
    else:
        mend = "apt install gcc g++" if compiler is None else "pip install triton"
        findings.append(Finding("torch.compile", "limited", "models run uncompiled, which is slower on GPUs", mend))
    kernels = attention_back_ends(kind)
    state: Literal["good", "limited"] = "good" if kernels else "limited"
    findings.append(Finding("attention", state, ", ".join(kernels) or f"no fused kernels are known for {kind}"))
    return findings


def _distribution() -> list[Finding]:
    from pretrainkit.dist.devices import collective_back_ends, devices

    found, kind = collective_back_ends(), devices()[0].type
    if not found:
        return [Finding("collectives", "missing", "torch.distributed is not built in", "install torch from PyPI")]
    if kind == "cuda" and "nccl" not in found:
        return [Finding("collectives", "limited", ", ".join(found), "NCCL is missing: install torch for CUDA")]
    return [Finding("collectives", "good", ", ".join(found))]


def _helpers() -> list[Finding]:
    drawing = ("corpus._words", "recipes.t5._spans", "recipes.pixel._masks", "recipes.fourm._keep")
    names = (*drawing, "nn._attention", "nn._gated_swish", "nn._gelu", "nn._softmax")
    missing = [name for name in names if find_spec(f"pretrainkit.{name}") is None]
    if not missing:
        return [Finding("compiled helpers", "good", ", ".join(names))]
    mend = "install a C compiler, then pretrainkit again: pip install --force-reinstall --no-deps pretrainkit"
    return [Finding("compiled helpers", "limited", f"not built, slower in Python: {', '.join(missing)}", mend)]


def _rendering() -> list[Finding]:
    from pretrainkit.errors import MissingPackageError
    from pretrainkit.rendering.pango_library import pango_library

    try:
        pango_library()
    except MissingPackageError as error:
        what, _, mend = str(error).partition("\n")
        return [Finding("Pango", "missing", what, mend.strip())]
    return [Finding("Pango", "good", "draws text for recipe pixel as its reference does")]


def _packages() -> list[Finding]:
    findings = []
    for extra, packages in EXTRAS.items():
        there, missing = [], []
        for package in packages:
            try:
                there.append(f"{package} {version(package)}")
            except PackageNotFoundError:
                missing.append(package)
        text = ", ".join([*there, *(f"no {package}" for package in missing)])
        mend = f"pip install 'pretrainkit[{extra}]'" if missing else ""
        findings.append(Finding(f"[{extra}]", "missing" if missing else "good", text, mend))
    return findings


def _launchers() -> list[Finding]:
    has_slurm = shutil.which("sbatch") is not None
    text = "sbatch is here" if has_slurm else "no sbatch here: jobs are submitted from a login node of a cluster"
    return [Finding("SLURM", "good" if has_slurm else "missing", text)]
