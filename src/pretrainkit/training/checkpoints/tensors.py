"""Tensors of a checkpoint: their names, where they come from and go to, and their files.

Names are `model.NAME`, `optimizer.NAME.exp_avg` and so on, and the trainer's own, such as `ema.NAME`. Tied parameters
are stored once. The optimizer's hyperparameters are not stored: they come from the config and the schedule.
"""

import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from shlex import quote
from typing import Any

import torch
import torch.distributed as dist
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as serialize
from torch import Tensor, nn
from torch.optim import Optimizer

from pretrainkit.dist.env import World
from pretrainkit.dist.weights import is_dtensor, model_tensors
from pretrainkit.errors import CheckpointError
from pretrainkit.training.checkpoints.files import file_record
from pretrainkit.training.optimizers.per_tensor import Sgd

_FILE_BYTES = 32 << 20
"""Maximum file size. A file is serialized in memory, which blocks other Python threads for about 1 ms per 2 MB."""
_SHAPED_LIKE_PARAMETERS = {"exp_avg", "exp_avg_sq", "momentum_buffer"}
"""Names of optimizer state that has the shape of its parameter in every optimizer."""


def named_state(
    model: nn.Module, optimizer: Optimizer | None = None, extra: Mapping[str, Tensor] | None = None
) -> dict[str, Tensor]:
    """Return all tensors of a training state by their names in a checkpoint. They are not copied."""
    own = model_tensors(model)
    tensors = {f"model.{name}": tensor for name, tensor in own.items()}
    state: Mapping[Tensor, Mapping[str, Any]] = {} if optimizer is None else optimizer.state
    for name, parameter in own.items():
        for key, value in state.get(parameter, {}).items():
            if not isinstance(value, Tensor):
                raise TypeError(f"optimizer state {key!r} of {name} is a {type(value).__name__}; keep it as a tensor")
            tensors[f"optimizer.{name}.{key}"] = value
    clash = tensors.keys() & (extra or {}).keys()
    if clash:
        raise ValueError(f"extra tensors have names of tensors of the model or optimizer: {sorted(clash)}")
    return tensors | dict(extra or {})


Moments = dict[int, dict[str, tuple[str, Tensor]]]
"""Index of a parameter in the optimizer -> key of its state -> (name in the checkpoint, tensor)."""


def empty_moments(model: nn.Module, optimizer: Optimizer, stored: Mapping[str, Tensor], path: Path) -> Moments:
    """Allocate tensors to read the optimizer's state into, sharded like the parameters."""
    names = {id(parameter): name for name, parameter in model_tensors(model).items()}
    keys: dict[str, dict[str, str]] = {}
    for full_name in stored:
        if full_name.startswith("optimizer."):
            name, _, key = full_name.removeprefix("optimizer.").rpartition(".")
            keys.setdefault(name, {})[key] = full_name
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    is_stateless = isinstance(optimizer, Sgd) and not optimizer.defaults["momentum"]
    if not keys and not is_stateless:
        raise CheckpointError(
            f"checkpoint {path} has no optimizer state, so training cannot be resumed exactly\n"
            f"  start a new run from its weights: init_from={quote(str(path))} init.restore=weights"
        )
    unused = keys.keys() - {names[id(parameter)] for parameter in parameters}
    if unused:
        raise CheckpointError(
            f"checkpoint {path} has optimizer state of {', '.join(sorted(unused)[:4])}, which this run does not train\n"
            "  use the config that it was trained with"
        )
    moments: Moments = {}
    for index, parameter in enumerate(parameters):
        for key, full_name in keys.get(names[id(parameter)], {}).items():
            meta = stored[full_name]
            if meta.shape == parameter.shape:
                tensor = torch.empty_like(parameter, dtype=meta.dtype, requires_grad=False)
            elif key in _SHAPED_LIKE_PARAMETERS:
                raise CheckpointError(
                    f"checkpoint {path} cannot be used: {full_name} is {tuple(meta.shape)}, but its parameter "
                    f"{tuple(parameter.shape)}\n  delete its folder, and resume from the one before, or start a new run"
                )
            else:
                tensor = torch.empty(meta.shape, dtype=meta.dtype)
            moments.setdefault(index, {})[key] = (full_name, tensor)
    return moments


def set_moments(optimizer: Optimizer, moments: Moments) -> None:
    """Load the state by the optimizer's own method, which moves step counters to the device that it expects."""
    state = {index: {key: tensor for key, (_, tensor) in by_key.items()} for index, by_key in moments.items()}
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def stored_tensors(path: Path) -> dict[str, Tensor]:
    """Return shape and dtype of each tensor in a checkpoint, read from file headers, as tensors on the meta device."""
    stored: dict[str, Tensor] = {}
    for opened in _opened(path):
        for name in opened.keys():  # noqa: SIM118  # no mapping
            part = opened.get_slice(name)
            some = part[:0] if part.get_shape() else opened.get_tensor(name)
            stored[name] = torch.empty(part.get_shape(), dtype=some.dtype, device="meta")
    if stored:
        return stored
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    for name, meta in HuggingFaceStorageReader(str(path)).read_metadata().state_dict_metadata.items():
        assert isinstance(meta, TensorStorageMetadata)
        stored[name] = torch.empty(meta.size, dtype=meta.properties.dtype, device="meta")
    return stored


def write_into(
    folder: Path, tensors: Mapping[str, Tensor], world: World, group: dist.ProcessGroup | None
) -> dict[str, Any]:
    """Write this rank's files into `folder`: its shards, and its share of the tensors that all ranks have.

    Returns the size and SHA-256 of each file, once it is on the disk. Raises OSError on any rank: its own error, or the
    errors of others that DCP reports.

    Tensors are on the CPU, contiguous, whole or sharded; no two share memory. `group` contains all ranks and has a
    backend for the CPU; None for one process.
    """
    if world.world_size == 1:
        return _write_whole(folder, tensors)
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter

    writer = HuggingFaceStorageWriter(str(folder), _file_numbers(tensors, world.world_size), save_distributed=True)
    try:
        dcp.save(dict(tensors), storage_writer=writer, process_group=group)
    except CheckpointException as error:
        raise OSError("; ".join(reason(cause) for cause, _ in error.failures.values())) from error
    records = {}
    for part, path in enumerate(sorted(folder.glob(f"shard-{world.rank + 1:05d}-*.safetensors"))):
        name = _file_name(world.rank, world.world_size, part)
        records[name] = file_record(path.rename(folder / name))
    return records


def _write_whole(folder: Path, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Do the same as `write_into` in one process, without DCP, which takes half a second to load."""
    parts: dict[int, dict[str, Tensor]] = {}
    for name, number in _file_numbers(tensors, 1).items():
        parts.setdefault(number, {})[name] = tensors[name].detach()
    folder.mkdir(exist_ok=True)
    records = {}
    for part, number in enumerate(sorted(parts)):
        path = folder / _file_name(0, 1, part)
        path.write_bytes(serialize(parts[number], {"format": "pt"}))
        records[path.name] = file_record(path)
    return records


def _file_name(rank: int, world_size: int, part: int) -> str:
    return f"rank-{rank:05d}-of-{world_size:05d}-part-{part:03d}.safetensors"


def _opened(path: Path) -> Iterator[Any]:
    """Yield the open files of a checkpoint that one process wrote, whose tensors are whole; otherwise nothing."""
    for part in sorted(path.glob(_file_name(0, 1, 0).replace("part-000", "part-*"))):
        try:
            opened = safe_open(part, "pt")
        except (OSError, SafetensorError, ValueError) as error:
            raise CheckpointError(f"{part} cannot be read: {reason(error)}\n  use an earlier checkpoint") from error
        with opened as file:
            yield file


def read_into(path: Path, tensors: dict[str, Tensor], world: World) -> None:
    """Fill `tensors` (whole or sharded) from the checkpoint's files. Raises CheckpointError if one cannot be read."""
    if not any(map(is_dtensor, tensors.values())) and _read_whole(path, tensors):
        return
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

    # DCP warns that it assumes one process, even with no_dist=True.
    warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")
    try:
        dcp.load(tensors, storage_reader=HuggingFaceStorageReader(str(path)), no_dist=world.world_size == 1)
    except CheckpointException as error:
        reasons = "; ".join(reason(cause) for cause, _ in error.failures.values())
        raise CheckpointError(f"checkpoint {path} cannot be read: {reasons}\n  use an earlier one") from error


def _read_whole(path: Path, tensors: Mapping[str, Tensor]) -> bool:
    """Do the same as `read_into` if one process wrote the files. Returns True if all tensors were read."""
    left = dict(tensors)
    try:
        for opened in _opened(path):
            for name in left.keys() & set(opened.keys()):
                target, value = left.pop(name), opened.get_tensor(name)
                if value.shape != target.shape:  # otherwise the copy would broadcast
                    raise ValueError(f"{name} is {tuple(value.shape)}, not {tuple(target.shape)}")
                target.detach().copy_(value)
    except (OSError, SafetensorError, ValueError) as error:
        raise CheckpointError(f"checkpoint {path} cannot be read: {reason(error)}\n  use an earlier one") from error
    return not left


def _file_numbers(tensors: Mapping[str, Tensor], world_size: int) -> dict[str, int]:
    """Assign each tensor to a file, numbered from 1, so that a rank's files have about `_FILE_BYTES` each."""
    numbers, num_bytes = {}, 0
    for name, tensor in tensors.items():
        # A tensor's file follows from the bytes of all tensors before it, which are spread evenly over the ranks.
        numbers[name] = 1 + num_bytes // (_FILE_BYTES * world_size)
        num_bytes += tensor.numel() * tensor.element_size()
    return numbers


def reason(error: BaseException) -> str:
    """Return one line about a file error."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}{f' ({error.filename})' if error.filename else ''}"
    return str(error) or type(error).__name__
