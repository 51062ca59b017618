"""Number formats of the forward and backward pass. Master weights and optimizer state are always float32.

The CPU is checked because, without AVX512_BF16 or AMX, bfloat16 products are emulated and torch does not report it. A
training step is 23 times slower on such a machine. With AVX512_BF16, products are 2 to 4 times faster than in float32.
"""

import logging
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pretrainkit.dist.autocast import narrow_residual
from pretrainkit.errors import ConfigError
from pretrainkit.training.run import PrecisionConfig

_log = logging.getLogger(__name__)
_FAST_BFLOAT16_FLAGS = frozenset({"avx512_bf16", "amx_bf16"})


@dataclass(frozen=True)
class Precision:
    """Number formats of the computation on one device."""

    device: torch.device
    compute_dtype: torch.dtype
    """Format of matrix products: float32, bfloat16 or float16."""
    uses_tf32: bool
    """True if float32 matrix products round their inputs to TF32."""
    scaler: torch.amp.GradScaler | None
    """Scales the loss if `compute_dtype` is float16, whose small gradients would vanish; otherwise None."""
    has_narrow_residual: bool = False
    """True if blocks keep their residual stream in `compute_dtype` as well."""

    def autocast(self) -> AbstractContextManager[None]:
        """Return a context for one forward pass. Use a new one each time: it caches the weights that were cast
        within."""
        narrow_residual(self.has_narrow_residual)
        return torch.autocast(self.device.type, self.compute_dtype, enabled=self.compute_dtype is not torch.float32)

    def backward(self, loss: Tensor) -> None:
        """Backpropagate from `loss`, scaled if gradients would otherwise vanish."""
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        """Divide the gradients by the loss scale, so that they can be clipped. Call it once per step, before `step`."""
        if self.scaler is not None:
            self.scaler.unscale_(optimizer)

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Update the parameters. With scaling, a step with non-finite gradients changes only the scale."""
        if self.scaler is None:
            optimizer.step()
        else:
            self.scaler.step(optimizer)
            self.scaler.update()

    @property
    def can_scale_down(self) -> bool:
        """True if a non-finite gradient may come from a loss that was scaled too much."""
        return self.scaler is not None and self.scaler.get_scale() > 1

    def state_dict(self) -> dict[str, Any]:
        """Return the loss scale and its age as JSON values; empty without scaling."""
        return self.scaler.state_dict() if self.scaler is not None else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the scale of a checkpoint. One that was saved without scaling leaves the initial scale."""
        if self.scaler is not None and state:
            self.scaler.load_state_dict(dict(state))

    @property
    def name(self) -> str:
        """Name of the format: `bfloat16`, `float16`, `tf32` or `float32`."""
        is_tf32 = self.uses_tf32 and self.compute_dtype is torch.float32
        return "tf32" if is_tf32 else str(self.compute_dtype).removeprefix("torch.")


def resolve_precision(config: PrecisionConfig, device: torch.device) -> Precision:
    """Return the formats that `config` means on `device`. Raises ConfigError if the device does not support them."""
    on_cuda = device.type == "cuda"
    has_bfloat16 = has_fast_bfloat16(device)
    name = config.compute
    if name == "auto":
        name = "bfloat16" if has_bfloat16 else "float32"
    elif name == "float16" and not on_cuda:
        raise ConfigError(
            f"precision.compute=float16 cannot be used on the device {device.type!r}: it needs loss scaling and "
            "fast float16 products, which only CUDA has\n  use precision.compute=auto, bfloat16 or float32"
        )
    elif name == "bfloat16" and not has_bfloat16:
        if on_cuda:
            raise ConfigError(
                f"precision.compute=bfloat16: {torch.cuda.get_device_name(device)} does not support this format\n"
                "  use precision.compute=float16 or float32"
            )
        if device.type == "cpu":
            _log.warning(
                "precision.compute=bfloat16 on a CPU without AVX512_BF16 or AMX is about 20 times slower per step than "
                "float32\n  use precision.compute=auto"
            )
    return Precision(
        device=device,
        compute_dtype=getattr(torch, name),
        uses_tf32=on_cuda and config.matmul_tf32 and torch.cuda.get_device_capability(device) >= (8, 0),
        scaler=torch.amp.GradScaler(device.type) if name == "float16" else None,
        has_narrow_residual=config.residual == "compute"
        or (config.residual == "auto" and on_cuda and name == "bfloat16"),
    )


def set_matmul_precision(precision: Precision) -> None:
    """Enable or disable TF32 for float32 products on CUDA, process-wide. Other devices are not affected."""
    if precision.device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = precision.uses_tf32
        torch.backends.cudnn.allow_tf32 = precision.uses_tf32


def has_fast_bfloat16(device: torch.device) -> bool:
    """True if the device multiplies bfloat16 in hardware. CUDA and CPUs report this. For registered back
    ends it is True if they list bfloat16 for autocast; for all other devices it is False."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type == torch._C._get_privateuse1_backend_name():
        return torch.bfloat16 in torch.get_device_module(device.type).get_amp_supported_dtype()
    return device.type == "cpu" and cpu_has_fast_bfloat16()


def cpu_has_fast_bfloat16(cpuinfo: str | None = None) -> bool:
    """True if this CPU multiplies bfloat16 in hardware (AVX512_BF16 or AMX). `cpuinfo` is a text in the format of
    /proc/cpuinfo; None: read that file. False if it does not exist."""
    if cpuinfo is None:
        path = Path("/proc/cpuinfo")
        cpuinfo = path.read_text(errors="replace") if path.exists() else ""
    flags = next((line.partition(":")[2] for line in cpuinfo.splitlines() if line.startswith("flags")), "")
    return not _FAST_BFLOAT16_FLAGS.isdisjoint(flags.split())
