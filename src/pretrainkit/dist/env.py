"""The processes of a run: rank, device, and the few collectives that the trainer needs.

A launcher such as torchrun passes each process its place by environment variables (RANK, WORLD_SIZE, LOCAL_RANK,
MASTER_ADDR, MASTER_PORT). Without them the run is one process: there is no process group, and collectives do nothing.
"""

import atexit
import gc
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, Self, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from pretrainkit.errors import CheckpointError, ConfigError, DataError, InputError, PretrainKitError, RunError

T = TypeVar("T")
ReduceOp = Literal["sum", "max", "min"]
_LAUNCHER_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
_RAISABLE = {kind.__name__: kind for kind in (ConfigError, DataError, CheckpointError, InputError, RunError)}
_LEFT: list[Any] = []
"""Process groups that this process has left.

If DDP's reducer has the last reference to a group, its destructor joins the threads of gloo without releasing the GIL.
It hangs forever if one of them waits for the GIL to release a tensor (pytorch/pytorch#56297). Python references do
release the GIL, so these are kept until all reducers are destroyed, and released before Python ends."""


def _release_groups() -> None:
    """Destroy reducers that are garbage while Python still refers to their groups, and then the groups."""
    gc.collect()
    _LEFT.clear()


@dataclass(frozen=True)
class World:
    """All processes of a run. The default is one process on the CPU."""

    rank: int = 0
    """Index of this process among all processes."""
    world_size: int = 1
    """Number of processes."""
    local_rank: int = 0
    """Index of this process among the processes of its machine; it determines the device."""
    local_world_size: int = 1
    """Number of processes of this machine; of all processes if the launcher does not report machines."""
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    backend: str | None = None
    """Back end of the process group, such as "gloo"; None for one process."""

    @property
    def is_main(self) -> bool:
        """True if this is rank 0, which alone writes metrics, logs and manifests."""
        return self.rank == 0

    def all_reduce_(self, tensor: Tensor, op: ReduceOp = "sum") -> Tensor:
        """Replace `tensor` by its sum, maximum or minimum over all ranks, on its device."""
        if self.world_size > 1:
            dist.all_reduce(tensor, getattr(dist.ReduceOp, op.upper()))
        return tensor

    def max(self, *values: float) -> list[float]:
        """Return the maximum of each value over all ranks, by one small message over the CPU. It does not wait for a
        device."""
        if self.world_size == 1:
            return list(values)
        return self.all_reduce_(torch.tensor(values, dtype=torch.float64), "max").tolist()

    def broadcast_object(self, value: T) -> T:
        """Return rank 0's `value` on every rank.

        Values are sent as JSON, not as pickles: numbers, strings, booleans, None, lists, dicts with string keys.
        """
        return self.gather_objects(value)[0]

    def gather_objects(self, value: T, group: dist.ProcessGroup | None = None) -> list[T]:
        """Return the `value` of every rank, sorted by rank, on every rank. Values are sent as JSON.

        `group` is a process group of all ranks with a back end for the CPU; None: the group of `init_world`.
        """
        if self.world_size == 1:
            return [value]
        texts: list[Any] = [""] * self.world_size
        dist.all_gather_object(texts, json.dumps(value), group=group)
        return [json.loads(text) for text in texts]

    def on_main(self, work: Callable[[], T]) -> T:
        """Return rank 0's result of `work()` on every rank (as JSON). If it raises PretrainKitError, every rank raises
        it, so that no rank waits forever."""
        if self.world_size == 1:
            return work()
        outcome: dict[str, Any] = {}
        failure: PretrainKitError | None = None
        if self.is_main:
            try:
                outcome = {"value": work()}
            except PretrainKitError as error:
                failure = error
                outcome = {"error": str(error), "type": type(error).__name__}
        outcome = self.broadcast_object(outcome)  # rank 0's outcome replaces the empty ones
        if failure is not None:
            raise failure
        if "error" in outcome:
            raise _RAISABLE.get(outcome["type"], RunError)(outcome["error"])
        value: T = outcome["value"]
        return value

    def barrier(self) -> None:
        """Wait until every rank calls this."""
        if self.world_size > 1:
            dist.barrier(device_ids=[self.local_rank] if self.device.type == "cuda" else None)

    def close(self) -> None:
        """Leave the process group. Does nothing with one process."""
        if self.world_size > 1 and dist.is_initialized():
            if not _LEFT:
                atexit.register(_release_groups)  # runs before functions that other packages have registered so far
            _LEFT.append(dist.group.WORLD)
            dist.destroy_process_group()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def init_world(device: str | None = None) -> World:
    """Join the other processes of the run, as defined by the launcher's environment.

    `device` is "cpu" or the type of an accelerator, such as "cuda"; None: the accelerator if there is one. Raises
    InputError if the environment is incomplete or inconsistent, or there is no such device.
    """
    rank, world_size, local_rank, local_world_size = _place()
    chosen = _device(device, local_rank)
    if world_size == 1:
        return World(device=chosen)
    backend = "cpu:gloo"
    if chosen.type == "cpu":
        backend = "gloo"
    else:
        collectives = dist.Backend.default_device_backend_map.get(chosen.type)
        if collectives is None:
            raise InputError(
                f"{world_size} processes were started on devices of type {chosen.type!r}, whose back end has no "
                "collectives\n  start one process, or use --device cpu (in Python device='cpu')"
            )
        backend += f",{chosen.type}:{collectives}"
    if not dist.is_initialized():
        dist.init_process_group(backend, device_id=chosen if chosen.type == "cuda" else None)
    return World(rank, world_size, local_rank, local_world_size, chosen, backend)


def _place() -> tuple[int, int, int, int]:
    """Return (rank, world size, local rank, local world size) from the environment."""
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        return 0, 1, 0, 1
    missing = [name for name in _LAUNCHER_VARIABLES if name not in os.environ]
    if missing and os.environ["WORLD_SIZE"] != "1":
        raise InputError(
            f"RANK and WORLD_SIZE are set but not {', '.join(missing)}\n"
            "  start the processes with `pretrainkit train ... --launch local --nproc N` or torchrun, "
            "or unset RANK and WORLD_SIZE for one process"
        )
    try:
        rank, world_size, local_rank = (int(os.environ.get(name, "0")) for name in _LAUNCHER_VARIABLES[:3])
        local_world_size = int(os.environ.get("LOCAL_WORLD_SIZE", world_size))
    except ValueError as error:
        raise InputError(
            f"RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE must be integers: {error}\n"
            "  start the processes with `pretrainkit train ... --launch local --nproc N` or torchrun"
        ) from None
    if not 0 <= rank < world_size:
        raise InputError(
            f"RANK={rank} is not in 0..{world_size - 1} for WORLD_SIZE={world_size}\n"
            "  start all processes with torchrun, which sets both"
        )
    return rank, world_size, local_rank, local_world_size


def _device(requested: str | None, local_rank: int) -> torch.device:
    """Return the device of this process, after making it current."""
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if requested is None:
        requested = accelerator.type if accelerator is not None else "cpu"
    if requested == "cpu":
        return torch.device("cpu")
    if accelerator is None or accelerator.type != requested:
        available = f"the accelerator here is {accelerator.type}" if accelerator else "this machine has no accelerator"
        raise InputError(
            f"device {requested!r} was requested, but {available}\n"
            "  leave it out, or use --device cpu (in Python device='cpu')"
        )
    num_devices = torch.accelerator.device_count()
    if local_rank >= num_devices:
        raise InputError(
            f"this is process {local_rank + 1} on this machine, but it has {num_devices} {requested} device(s)\n"
            f"  start at most {num_devices} processes per machine, or use --device cpu (in Python device='cpu')"
        )
    torch.accelerator.set_device_index(local_rank)
    return torch.device(requested, local_rank)
