"""Devices of this machine, for any back end of `torch.accelerator`: CUDA, MPS, XPU, and installed back ends that
register with torch."""

import os
import platform
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn


@dataclass(frozen=True)
class Device:
    """One device."""

    type: str
    """Type of device in torch: cpu, cuda, mps, xpu, ..."""
    name: str
    """Name of the model, such as NVIDIA H200."""
    memory_bytes: int | None
    """Total memory; None if the back end does not report it."""

    @property
    def is_accelerator(self) -> bool:
        """True if this is not a CPU."""
        return self.type != "cpu"


def devices() -> list[Device]:
    """Return the accelerators of this machine, or its CPU if there is none."""
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if accelerator is None:
        return [cpu()]
    return [described(torch.device(accelerator.type, index)) for index in range(torch.accelerator.device_count())]


def cpu() -> Device:
    """Describe this machine's CPU and memory."""
    lines = Path("/proc/cpuinfo").read_text(errors="replace") if Path("/proc/cpuinfo").exists() else ""
    model = next((line.partition(":")[2].strip() for line in lines.splitlines() if line.startswith("model name")), None)
    sizes = {"SC_PAGE_SIZE", "SC_PHYS_PAGES"} & set(os.sysconf_names)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if len(sizes) == 2 else None
    return Device("cpu", model or platform.processor() or platform.machine(), memory)


def described(device: torch.device) -> Device:
    """Describe a device, as far as its back end reports it."""
    kind = device.type
    if kind == "cpu":
        return cpu()
    if kind == "mps":
        return Device(kind, f"Apple {platform.machine()}", torch.mps.recommended_max_memory())
    try:
        properties = torch.get_device_module(kind).get_device_properties(device.index or 0)
    except (AttributeError, RuntimeError):  # a back end without this function
        return Device(kind, kind, None)
    return Device(kind, str(getattr(properties, "name", kind)), getattr(properties, "total_memory", None))


_planned_card: tuple[int, int] | None = None


@contextmanager
def planned_for(card: tuple[int, int] | None) -> Iterator[None]:
    """Within this context, operations on tensors of the CPU take the path of a GPU with this compute capability (None:
    that of the CPU). This is for fake tensors, which have shapes but no numbers: they show what a step allocates on
    hardware that this machine does not have."""
    global _planned_card
    before, _planned_card = _planned_card, card
    try:
        yield
    finally:
        _planned_card = before


def planned_card() -> tuple[int, int] | None:
    """Return the compute capability for which a step is planned; None outside of `planned_for`."""
    return _planned_card


def rank_memory(device: torch.device, local_ranks: int) -> int | None:
    """Return the bytes for one of `local_ranks` ranks of this machine: the memory of its device, or its share of
    RAM."""
    num_bytes = described(device).memory_bytes
    return None if num_bytes is None else num_bytes // (local_ranks if device.type == "cpu" else 1)


def memory_in_use(device: torch.device) -> tuple[int, int] | None:
    """Return the bytes that this process uses on its device now and at its peak; on a CPU those of its RAM. None if
    the system does not report them."""
    if device.type == "cuda":
        return torch.cuda.memory_reserved(device), torch.cuda.max_memory_reserved(device)
    if device.type != "cpu":
        return None
    try:
        import resource

        with open("/proc/self/statm", "rb") as file:
            now = int(file.read().split()[1]) * resource.getpagesize()
        return now, max(now, 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)  # the kernel updates the maximum with a delay
    except (ImportError, OSError):  # not Linux
        return None


class Utilization:
    """Utilization of a device: of a GPU as reported by its driver; of a CPU by this process only."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._began, self._process_began = time.perf_counter(), time.process_time()

    def read(self) -> float | None:
        """Return a share from 0 to 1: of the time of all cores since the last call; for a GPU, of its most recent
        sample period. None if the driver does not report it, or for other devices."""
        if self._device.type == "cuda":
            try:
                return torch.cuda.utilization(self._device) / 100
            except (ImportError, RuntimeError):  # without nvidia-ml-py, or without permission
                return None
        began, process_began = self._began, self._process_began
        self._began, self._process_began = time.perf_counter(), time.process_time()
        cores = (self._began - began) * (os.cpu_count() or 1)
        return min(1.0, (self._process_began - process_began) / max(cores, 1e-9)) if self._device.type == "cpu" else None


@cache
def has_pinned_memory(device: torch.device) -> bool:
    """True if copies from the host to a device of this machine can run asynchronously. Torch does not require this of
    registered back ends."""
    if device.type == "cpu":
        return False
    try:
        torch.empty(1).pin_memory()
    except RuntimeError:  # also raised if the back end has no such operator
        return False
    return True


def to_device(module: nn.Module, device: torch.device | str) -> nn.Module:
    """Move a module in place. Tensors on "meta" get memory without values (`nn.Module.to_empty` would lose the values
    of the others, such as tables of positions). Tied parameters stay tied, which torch does not do for "meta" and for
    registered back ends, whose tensors have another type than the CPU's."""
    places: dict[nn.Parameter, list[tuple[dict[str, Any], str]]] = {}
    for part in module.modules():
        for name, parameter in part._parameters.items():
            if parameter is not None:
                places.setdefault(parameter, []).append((part._parameters, name))

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_meta:
            return tensor.to(device)
        if type(tensor) in (torch.Tensor, nn.Parameter):
            # Like empty_like, but torch does not load its symbolic shape code, which takes a third of a second.
            return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
        return torch.empty_like(tensor, device=device)

    module._apply(moved)
    for (owner, name), *others in places.values():
        for other, other_name in others:
            other[other_name] = owner[name]
    return module


def from_host(values: Any, device: torch.device) -> torch.Tensor:
    """Return a tensor on `device` with the values of a NumPy array, tensor or list on the host. If the device has
    pinned memory, the copy uses it and the host does not wait."""
    tensor = torch.as_tensor(values, device="cpu")
    if not has_pinned_memory(device):
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def ensure_on(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return the tensor itself, unless it is on the host and `device` is not; then copy it by `from_host`."""
    return from_host(tensor, device) if tensor.device.type == "cpu" != device.type else tensor


def reads_at_once(device: torch.device) -> bool:
    """True if values can be read without waiting for running work, as on a CPU."""
    return device.type == "cpu"


def has_float64(device: torch.device) -> bool:
    """True if the device supports float64, which Metal does not."""
    return device.type != "mps"


def has_fused_optimizers(tensors: Iterable[torch.Tensor]) -> bool:
    """True if torch has fused kernels of optimizers for all these tensors."""
    return all(tensor.device.type in ("cpu", "cuda") for tensor in tensors)


def device_name(device: torch.device) -> str:
    """Return the model name of a CUDA GPU, as in datasheets; "CPU" for all other devices."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"


def seed_generators(key: int, device: torch.device) -> None:
    """Make the following draws of torch, on the host and on `device`, a function of `key`."""
    torch.default_generator.manual_seed(key)
    if device.type != "cpu":
        torch.get_device_module(device).manual_seed(key)


class RandomState:
    """State of torch's generators on the host and on one device, to draw the same numbers again."""

    def __init__(self, device: torch.device) -> None:
        self._host = torch.get_rng_state()
        self._module = None if device.type == "cpu" else torch.get_device_module(device)
        self._device = None if self._module is None else self._module.get_rng_state()

    def restore(self) -> None:
        torch.set_rng_state(self._host)
        if self._module is not None:
            self._module.set_rng_state(self._device)


def attention_back_ends(kind: str) -> list[str]:
    """Return the fused kernels of scaled_dot_product_attention that torch can use on a device of this type."""
    if kind == "cpu":
        return ["flash (CPU)"]
    if kind != "cuda":
        return []
    enabled = {
        "flash": torch.backends.cuda.is_flash_attention_available() and torch.backends.cuda.flash_sdp_enabled(),
        "memory-efficient": torch.backends.cuda.mem_efficient_sdp_enabled(),
        "cuDNN": torch.backends.cuda.cudnn_sdp_enabled(),
    }
    return [name for name, is_there in enabled.items() if is_there]


def collective_back_ends() -> list[str]:
    """Return the available back ends for communication between ranks."""
    if not dist.is_available():
        return []
    return [name for name in ("gloo", "nccl", "xccl", "mpi") if getattr(dist, f"is_{name}_available")()]
