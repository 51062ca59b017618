"""Saving and restoring everything a run needs to go on, exactly.

Tensors are written by PyTorch's distributed checkpoint (DCP): each rank writes its own parts, equal copies are
written once, in the background, while training goes on. They lie in safetensors files through DCP's Hugging Face
storage, not in its default format: that keeps its index in a pickle, and loading someone else's pickle runs their code.
Safetensors files hold numbers only, and DCP reads their parts back on any number of ranks, so a checkpoint of FSDP2 on
2 ranks continues as DDP or in one process. Everything that is not a tensor is in `meta.json`. See `checkpoint_files`
for the folder and for why a checkpoint is complete or absent.

Tensor names: `model.NAME`, `optimizer.NAME.exp_avg` and so on, and the trainer's own such as `ema.NAME`. Tied
parameters are stored once. The optimizer's hyperparameters are not state: they come from the config and the schedule.
"""

import logging
import shutil
import time
import warnings
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, Self

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from pretrainkit.dist.env import World
from pretrainkit.dist.weights import is_dtensor, model_tensors, require_same_tensors
from pretrainkit.errors import CheckpointError, RunError
from pretrainkit.train import checkpoint_files as files
from pretrainkit.train.checkpoint_files import Checkpoint
from pretrainkit.train.run import CheckpointConfig

_log = logging.getLogger(__name__)


class CheckpointStore:
    """The checkpoints of one run. All ranks make one and call its methods together; close it, or use `with`.

    Args:
        folder: `RUN/checkpoints`; created when missing.
        config: How many to keep, and whether to write in the background.
        world: The processes of the run; they share the file system of `folder`.

    Raises:
        CheckpointError: The folder cannot be written, or another process is writing checkpoints there.
    """

    def __init__(self, folder: Path, config: CheckpointConfig, world: World) -> None:
        self.folder = folder
        self.config = config
        self.world = world
        self._lock: IO[str] | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._pending: Future[Path] | None = None
        self._group: dist.ProcessGroup | None = None
        self._cpu_mesh: Any = None
        self._buffers: dict[str, Tensor] = {}
        self._newest: Path | None = None
        world.on_main(self._take_folder)

    def save(
        self,
        step: int,
        model: nn.Module,
        optimizer: Optimizer | None = None,
        *,
        extra: Mapping[str, Tensor] | None = None,
        meta: Mapping[str, Any] | None = None,
        blocking: bool = False,
    ) -> None:
        """Save the state after `step` updates. Returns once the state is copied; the copy is written in the background.

        Waits for the previous save first: at most one is under way. Does nothing when this store saved `step` already.

        Args:
            step: Updates made.
            model: What `parallelize` returned.
            optimizer: Its state tensors are saved under the names of the parameters.
            extra: More tensors by full name, such as "ema.NAME"; sharded as they are.
            meta: What else is needed to go on (data state, config hash, code version); JSON, equal on all ranks.
            blocking: Return only when the checkpoint is complete. Always so with `config.asynchronous` False.

        Raises:
            RunError: This save (when blocking) or the previous one failed, on any rank: disk full, folder gone. The
                message names the folder and the checkpoint to resume from.
        """
        self.wait()
        if self._newest is not None and self._newest.name == files.folder_name(step):
            return
        if self.world.world_size > 1 and self._group is None:
            # Its own group: a background thread must not mix its messages with those of the training step.
            self._group = dist.new_group(backend="gloo")
        tensors = named_state(model, optimizer, extra)
        staged = self._staged(tensors)
        if blocking or not self.config.asynchronous:
            self._newest = self._write(step, staged, meta or {})
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending = self._pool.submit(self._write, step, staged, meta or {})

    def wait(self) -> None:
        """Wait for the save under way, if any.

        Raises:
            RunError: It failed.
        """
        pending, self._pending = self._pending, None
        if pending is not None:
            self._newest = pending.result()

    def newest_valid(self) -> Path | None:
        """The newest checkpoint that is whole, for all ranks; torn ones are named in warnings and skipped."""
        self.wait()
        found = self.world.on_main(lambda: str(files.newest_valid(self.folder) or ""))
        return Path(found) if found else None

    def close(self) -> None:
        """Wait for the save under way and let go of the folder.

        Raises:
            RunError: The save under way failed.
        """
        try:
            self.wait()
        finally:
            if self._pool is not None:
                self._pool.shutdown()
                self._pool = None
            self._buffers.clear()
            if self._lock is not None:
                self._lock.close()
                self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _take_folder(self) -> None:
        self._lock = files.lock(self.folder)
        if self._lock is not None:
            files.clean(self.folder)

    def _staged(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Copies on the CPU, in buffers that the next save uses again; for a GPU pinned, so that copies overlap."""
        staged: dict[str, Tensor] = {}
        on_device = False
        for name, tensor in tensors.items():
            local = _local(tensor)
            buffer = self._buffers.get(name)
            if buffer is None or buffer.shape != local.shape or buffer.dtype != local.dtype:
                buffer = torch.empty(local.shape, dtype=local.dtype, pin_memory=local.is_cuda)
                self._buffers[name] = buffer
            buffer.copy_(local, non_blocking=local.is_cuda)
            on_device = on_device or local.is_cuda
            staged[name] = self._as_part_of(buffer, tensor)
        if on_device:
            torch.accelerator.synchronize()
        return staged

    def _as_part_of(self, buffer: Tensor, tensor: Tensor) -> Tensor:
        """`buffer` as the part of a larger tensor that `tensor` is."""
        if not is_dtensor(tensor):
            return buffer
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import DTensor

        assert isinstance(tensor, DTensor)
        if self._cpu_mesh is None:
            self._cpu_mesh = init_device_mesh("cpu", tuple(tensor.device_mesh.shape))
        return DTensor.from_local(
            buffer, self._cpu_mesh, tensor.placements, run_check=False, shape=tensor.shape, stride=tensor.stride()
        )

    def _write(self, step: int, tensors: dict[str, Tensor], meta: Mapping[str, Any]) -> Path:
        """Write, check and publish; on all ranks, maybe in the background thread. Fails on all ranks or on none."""
        started = time.perf_counter()
        records: dict[str, Any] = {}
        failure = ""
        try:
            records = self._write_tensors(step, tensors)
        except OSError as error:
            failure = _reason(error)
        reports = self.world.gather_objects({"files": records, "failure": failure}, self._group)
        failure = next((report["failure"] for report in reports if report["failure"]), "")
        if not failure and self.world.is_main:
            try:
                all_files = {name: record for report in reports for name, record in report["files"].items()}
                files.publish(self.folder, step, self.world.world_size, all_files, meta)
                files.prune(self.folder, step, self.config.keep_last, self.config.keep_every_steps)
            except OSError as error:
                failure = _reason(error)
        failure = self.world.gather_objects(failure, self._group)[0]
        path = self.folder / files.folder_name(step)
        if failure:
            if self.world.is_main:
                shutil.rmtree(files.incomplete_path(self.folder, step), ignore_errors=True)
            left = (
                f"{self._newest} is intact" if self._newest is not None else "checkpoints of earlier steps are intact"
            )
            raise RunError(
                f"cannot save checkpoint {path}: {failure}\n"
                f"  {left}; make room or fix the folder, then go on with `pretrainkit resume {self.folder.parent}`"
            )
        _log.info("saved %s in %.1f s", path, time.perf_counter() - started)
        return path

    def _write_tensors(self, step: int, tensors: dict[str, Tensor]) -> dict[str, Any]:
        """Write this rank's files into the incomplete folder; file name to size and SHA-256.

        Raises:
            OSError: On any rank.
        """
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.api import CheckpointException
        from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter

        _accept_one_process()
        incomplete = files.incomplete_path(self.folder, step)
        try:
            dcp.save(
                dict(tensors),
                storage_writer=HuggingFaceStorageWriter(str(incomplete), save_distributed=True),
                process_group=self._group,
                no_dist=self.world.world_size == 1,
            )
        except CheckpointException as error:
            raise OSError("; ".join(_reason(cause) for cause, _ in error.failures.values())) from error
        records = {}
        for path in sorted(incomplete.glob(f"shard-{self.world.rank + 1:05d}-*.safetensors")):
            name = f"rank-{self.world.rank:05d}-of-{self.world.world_size:05d}.safetensors"
            records[name] = files.file_record(path.rename(incomplete / name))
        return records


def load(
    path: Path,
    world: World,
    model: nn.Module,
    optimizer: Optimizer | None = None,
    *,
    extra: Mapping[str, Tensor] | None = None,
    verify: bool = True,
) -> Checkpoint:
    """Restore exactly what `CheckpointStore.save` was given, in place. All ranks call it; any number, DDP or FSDP2.

    Args:
        path: A checkpoint folder.
        world: The processes of the run.
        model: What `parallelize` returned.
        optimizer: Of this model; None: leave its state in the checkpoint.
        extra: Tensors to restore by full name, such as "ema.NAME".
        verify: Check sizes and SHA-256 of the files first; not needed right after `newest_valid`.

    Raises:
        CheckpointError: The checkpoint is missing or damaged, or is of another model. Nothing was changed.
    """
    found = world.on_main(lambda: files.problem(path, check_content=verify) or "")
    if found:
        raise CheckpointError(f"checkpoint {path} cannot be used: {found}\n  use an earlier one or start a new run")
    checkpoint = files.read_checkpoint(path)
    stored = _stored_tensors(path)
    wanted = {f"model.{name}": tensor.detach() for name, tensor in model_tensors(model).items()}
    require_same_tensors(
        {name: tuple(tensor.shape) for name, tensor in wanted.items()},
        {name: tuple(tensor.shape) for name, tensor in stored.items() if name.startswith("model.")},
        f"checkpoint {path}",
    )
    wanted |= {name: tensor.detach() for name, tensor in (extra or {}).items()}
    absent = [name for name in extra or {} if name not in stored or stored[name].shape != wanted[name].shape]
    if absent:
        raise CheckpointError(
            f"checkpoint {path} does not hold {', '.join(absent[:4])}{' ...' if len(absent) > 4 else ''}\n"
            "  it was saved by a run without it (such as ema_decay=null), or of another model: use that run's config"
        )
    moments = {} if optimizer is None else _empty_moments(model, optimizer, stored, path)
    wanted |= {name: tensor for by_key in moments.values() for name, tensor in by_key.values()}
    for name, tensor in wanted.items():
        if tensor.dtype != stored[name].dtype:
            raise CheckpointError(
                f"checkpoint {path} has {name} as {stored[name].dtype}, this run as {tensor.dtype}\n"
                "  resume with the precision it was trained with"
            )
    _read_into(path, wanted, world)
    if optimizer is not None:
        _set_moments(optimizer, moments)
    return checkpoint


def read_weights(path: Path, prefix: str = "model.") -> dict[str, Tensor]:
    """The whole tensors whose names start with `prefix`, without it, on the CPU; by default the model's weights.

    Needs neither a process group nor the number of ranks that wrote them. Tied parameters come under one name, which
    `load_full_state_dict` accepts.

    Raises:
        CheckpointError: There is no whole checkpoint at `path`, or it has no such tensors.
    """
    trouble = files.problem(path)
    if trouble is not None:
        raise CheckpointError(f"checkpoint {path} cannot be used: {trouble}\n  use another one")
    weights = {
        name: torch.empty(meta.shape, dtype=meta.dtype)
        for name, meta in _stored_tensors(path).items()
        if name.startswith(prefix)
    }
    if not weights:
        raise CheckpointError(f"checkpoint {path} holds no tensors named {prefix}...")
    _read_into(path, weights, World())
    return {name.removeprefix(prefix): tensor for name, tensor in weights.items()}


def named_state(
    model: nn.Module, optimizer: Optimizer | None = None, extra: Mapping[str, Tensor] | None = None
) -> dict[str, Tensor]:
    """All tensors of a training state by the names they have in a checkpoint; the tensors themselves, not copies."""
    own = model_tensors(model)
    tensors = {f"model.{name}": tensor for name, tensor in own.items()}
    for name, parameter in own.items() if optimizer is not None else ():
        for key, value in optimizer.state.get(parameter, {}).items() if optimizer is not None else ():
            if not isinstance(value, Tensor):
                raise TypeError(f"optimizer state {key!r} of {name} is a {type(value).__name__}; keep it as a tensor")
            tensors[f"optimizer.{name}.{key}"] = value
    clash = tensors.keys() & (extra or {}).keys()
    if clash:
        raise ValueError(f"extra tensors named as those of model or optimizer: {sorted(clash)}")
    return tensors | dict(extra or {})


Moments = dict[int, dict[str, tuple[str, Tensor]]]
"""Index of a parameter in the optimizer -> key of its state -> (name in the checkpoint, tensor)."""


def _empty_moments(model: nn.Module, optimizer: Optimizer, stored: Mapping[str, Tensor], path: Path) -> Moments:
    """Tensors to read the optimizer's state into, sharded as the parameters are."""
    names = {id(parameter): name for name, parameter in model_tensors(model).items()}
    keys: dict[str, dict[str, str]] = {}
    for full_name in stored:
        if full_name.startswith("optimizer."):
            name, _, key = full_name.removeprefix("optimizer.").rpartition(".")
            keys.setdefault(name, {})[key] = full_name
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if not keys:
        raise CheckpointError(
            f"checkpoint {path} has no optimizer state, so training cannot go on exactly\n"
            f"  start a new run from its weights: init_from={path}"
        )
    unused = keys.keys() - {names[id(parameter)] for parameter in parameters}
    if unused:
        raise CheckpointError(
            f"checkpoint {path} has optimizer state of {', '.join(sorted(unused)[:4])}, which this run does not train\n"
            "  use the config it was trained with"
        )
    moments: Moments = {}
    for index, parameter in enumerate(parameters):
        for key, full_name in keys.get(names[id(parameter)], {}).items():
            meta = stored[full_name]
            if meta.shape == parameter.shape:
                tensor = torch.empty_like(parameter, dtype=meta.dtype, requires_grad=False)
            else:
                tensor = torch.empty(meta.shape, dtype=meta.dtype)
            moments.setdefault(index, {})[key] = (full_name, tensor)
    return moments


def _set_moments(optimizer: Optimizer, moments: Moments) -> None:
    """Through the optimizer's own method, which moves step counters where this kind of optimizer wants them."""
    state = {index: {key: tensor for key, (_, tensor) in by_key.items()} for index, by_key in moments.items()}
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def _stored_tensors(path: Path) -> dict[str, Tensor]:
    """Name to shape and dtype (tensors on the meta device) of everything in a checkpoint, from the files' headers."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    stored = {}
    for name, meta in HuggingFaceStorageReader(str(path)).read_metadata().state_dict_metadata.items():
        assert isinstance(meta, TensorStorageMetadata)
        stored[name] = torch.empty(meta.size, dtype=meta.properties.dtype, device="meta")
    return stored


def _read_into(path: Path, tensors: dict[str, Tensor], world: World) -> None:
    """Fill `tensors` (whole or sharded) from the checkpoint's files.

    Raises:
        CheckpointError: A file cannot be read.
    """
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

    _accept_one_process()
    try:
        dcp.load(tensors, storage_reader=HuggingFaceStorageReader(str(path)), no_dist=world.world_size == 1)
    except CheckpointException as error:
        reasons = "; ".join(_reason(cause) for cause, _ in error.failures.values())
        raise CheckpointError(f"checkpoint {path} cannot be read: {reasons}\n  use an earlier one") from error


def _accept_one_process() -> None:
    """DCP warns that it assumes one process even where it was told so."""
    warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")


def _local(tensor: Tensor) -> Tensor:
    """This rank's part of a tensor, detached."""
    if is_dtensor(tensor):
        from torch.distributed.tensor import DTensor

        assert isinstance(tensor, DTensor)
        tensor = tensor.to_local()
    return tensor.detach()


def _reason(error: BaseException) -> str:
    """One line about what went wrong with a file."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}{f' ({error.filename})' if error.filename else ''}"
    return str(error) or type(error).__name__
