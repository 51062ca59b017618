"""Saving and restoring everything that a run needs to resume exactly.

Tensors are written by PyTorch's distributed checkpoint (DCP) in the background. Each rank writes its own parts, and
equal copies are written once. Files have the safetensors format, which holds numbers only. DCP's default format
contains a pickle, and loading a pickle from somebody else would run their code. DCP reads the parts back on any number
of ranks, so a checkpoint of FSDP2 on 2 ranks can be loaded with DDP or in one process. A single process writes and
reads the same files without DCP. Everything that is not a tensor is in `meta.json`. See `files` for the folder, and
`tensors` for the content of the files.
"""

import json
import logging
import shutil
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from shlex import quote
from typing import IO, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from pretrainkit.dist.devices import has_pinned_memory
from pretrainkit.dist.env import World
from pretrainkit.dist.weights import as_part_of, is_dtensor, model_tensors, require_same_tensors
from pretrainkit.errors import CheckpointError, RunError
from pretrainkit.training.background import Background
from pretrainkit.training.checkpoints import files
from pretrainkit.training.checkpoints.files import Checkpoint
from pretrainkit.training.checkpoints.tensors import (
    empty_moments,
    named_state,
    read_into,
    reason,
    set_moments,
    stored_tensors,
    write_into,
)
from pretrainkit.training.optimizers.parameters import local_tensors
from pretrainkit.training.run import CheckpointConfig

_log = logging.getLogger(__name__)


class CheckpointStore:
    """The checkpoints of one run, in `RUN/checkpoints` on a file system that all ranks share.

    The folder is created if it is missing. All ranks create a store, call its methods together, and close it. Raises
    CheckpointError if the folder cannot be written or another process is writing checkpoints there.
    """

    def __init__(self, folder: Path, config: CheckpointConfig, world: World) -> None:
        self.folder = folder
        self.config = config
        self.world = world
        self._lock: IO[str] | None = None
        self._background = Background[Path]("checkpoint")
        self._group: dist.ProcessGroup | None = None
        self._cpu_mesh: Any = None
        self._buffers: dict[str, Tensor] = {}
        self._newest: Path | None = None
        world.on_main(self._take_folder)

    def check_space(self, model: nn.Module, num_copies: int = 3) -> None:
        """Raise CheckpointError if the disk has too little space for one checkpoint. `num_copies` is the number of
        stored tensors per parameter: 1, plus 2 for Adam's moments, plus 1 for averaged weights."""
        num_bytes = num_copies * sum(tensor.numel() * tensor.element_size() for tensor in model_tensors(model).values())

        def check() -> None:
            free = shutil.disk_usage(self.folder).free
            if free < num_bytes:
                raise CheckpointError(
                    f"a checkpoint needs about {num_bytes / 1e9:.3g} GB, but {self.folder} has only "
                    f"{free / 1e9:.3g} GB\n"
                    "  free some space, or choose a run folder on another disk"
                )

        self.world.on_main(check)

    def save(
        self,
        step: int,
        model: nn.Module,
        optimizer: Optimizer | None = None,
        *,
        extra: Mapping[str, Tensor] | None = None,
        meta: Mapping[str, Any] | None = None,
        keep_steps: Collection[int] = (),
        blocking: bool = False,
    ) -> None:
        """Save the state after `step` updates. Returns once the state is copied; the copy is written in the background.

        Waits for the previous save first, so at most one is in progress. Does nothing if this store has already saved
        `step`. Raises RunError if this save (when blocking) or the previous one failed on any rank, such as on a full
        disk. The message names the folder and the checkpoint to resume from.

        Args:
            step: Number of updates made.
            optimizer: Its state tensors are saved under the names of the parameters.
            extra: More tensors by full name, such as "ema.NAME"; their sharding is kept.
            meta: Other values needed to resume (data state, config hash, code version); JSON, equal on all ranks.
            keep_steps: Steps of checkpoints that are not deleted when this one is complete, however old.
            blocking: Return only when the checkpoint is complete, as always if `config.asynchronous` is False.
        """
        self.wait()
        if self._newest is not None and self._newest.name == files.folder_name(step):
            return
        meta = json.loads(json.dumps(meta or {}))  # a copy; values that are not JSON raise here, on every rank
        if self.world.world_size > 1 and self._group is None:
            # A separate group: messages of a background thread must not mix with those of the training step.
            self._group = dist.new_group(backend="gloo")
        tensors = named_state(model, optimizer, extra)
        meta = {**meta, "num_tensors": len(tensors)}
        staged = self._staged(tensors)
        if blocking or not self.config.asynchronous:
            self._newest = self._write(step, staged, meta, keep_steps)
            return
        self._background.start(lambda: self._write(step, staged, meta, keep_steps))

    def wait(self) -> None:
        """Wait for the save in progress, if any. Raises RunError if it failed."""
        self._newest = self._background.wait() or self._newest

    @property
    def has_failed(self) -> bool:
        """True if the save in progress is known to have failed on this rank; then `wait` and `save` raise."""
        return self._background.has_failed

    def newest_valid(self) -> Path | None:
        """Return the newest valid checkpoint, the same on all ranks. Damaged ones are skipped with a warning."""
        self.wait()
        path = self.world.on_main(lambda: str(files.newest_valid(self.folder) or ""))
        return Path(path) if path else None

    def close(self) -> None:
        """Wait for the save in progress and release the folder. Call it before `World.close`, because the save needs
        the other ranks. Raises RunError if the save failed."""
        try:
            self.wait()
        finally:
            self._background.close()
            self._buffers.clear()
            if self._lock is not None:
                self._lock.close()
                self._lock = None

    def _take_folder(self) -> None:
        self._lock = files.lock(self.folder)
        if self._lock is not None:
            files.clean(self.folder)

    def _staged(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Copy tensors to the CPU, into buffers that the next save reuses. For a GPU they are pinned, so copies
        overlap."""
        staged: dict[str, Tensor] = {}
        on_device = False
        for name, tensor in tensors.items():
            (local,) = local_tensors([tensor.detach()])
            is_pinned = has_pinned_memory(local.device)
            buffer = self._buffers.get(name)
            if buffer is None or buffer.shape != local.shape or buffer.dtype != local.dtype:
                buffer = torch.empty(local.shape, dtype=local.dtype, pin_memory=is_pinned)
                self._buffers[name] = buffer
            buffer.copy_(local, non_blocking=is_pinned)
            on_device = on_device or is_pinned
            staged[name] = as_part_of(buffer, tensor, self._mesh_of_copies(tensor))
        if on_device:
            torch.accelerator.synchronize()
        return staged

    def _mesh_of_copies(self, tensor: Any) -> Any:
        """Return a mesh of CPUs with the shape of the mesh of a sharded tensor."""
        if self._cpu_mesh is None and is_dtensor(tensor):
            from torch.distributed.device_mesh import init_device_mesh

            self._cpu_mesh = init_device_mesh("cpu", tuple(tensor.device_mesh.shape))
        return self._cpu_mesh

    def _write(
        self, step: int, tensors: dict[str, Tensor], meta: Mapping[str, Any], keep_steps: Collection[int]
    ) -> Path:
        """Write, verify and publish on all ranks, possibly in the background thread. Fails on all ranks or on none."""
        started = time.perf_counter()
        incomplete = files.incomplete_path(self.folder, step)
        report: dict[str, Any] = {"files": {}, "failure": ""}
        try:
            report["files"] = write_into(incomplete, tensors, self.world, self._group)
        except OSError as error:
            report["failure"] = reason(error)
        reports = self.world.gather_objects(report, self._group)
        failure = next((each["failure"] for each in reports if each["failure"]), "")
        if not failure and self.world.is_main:
            try:
                all_files = {name: record for each in reports for name, record in each["files"].items()}
                files.publish(self.folder, step, self.world.world_size, all_files, meta)
            except OSError as error:
                failure = reason(error)
        failure = self.world.gather_objects(failure, self._group)[0]
        path = self.folder / files.folder_name(step)
        if failure:
            if self.world.is_main:
                shutil.rmtree(incomplete, ignore_errors=True)
            left = "checkpoints of earlier steps are intact" if self._newest is None else f"{self._newest} is intact"
            raise RunError(
                f"cannot save checkpoint {path}: {failure}\n"
                f"  {left}; free space or fix the folder, then: `pretrainkit resume {quote(str(self.folder.parent))}`"
            )
        if self.world.is_main:
            _log.info("saved %s in %.1f s", path, time.perf_counter() - started)
            try:
                files.prune(self.folder, step, self.config.keep_last, self.config.keep_every_steps, keep_steps)
            except OSError as error:
                _log.warning("cannot delete old checkpoints in %s: %s", self.folder, reason(error))
        return path


def load(
    path: Path,
    world: World,
    model: nn.Module,
    optimizer: Optimizer | None = None,
    *,
    extra: Mapping[str, Tensor] | None = None,
    verify: bool = True,
) -> Checkpoint:
    """Restore in place exactly the state that was passed to `CheckpointStore.save`.

    All ranks must call it, in any number, with DDP or FSDP2. Without `optimizer` its state is not loaded. `extra` are
    tensors to restore by full name, such as "ema.NAME". `verify` checks sizes and SHA-256 of the files first; this is
    not needed right after `newest_valid`. Raises CheckpointError if the checkpoint is missing, damaged, or of another
    model; then nothing was changed.
    """
    problem = world.on_main(lambda: files.problem(path, check_content=verify) or "")
    if problem:
        raise CheckpointError(f"checkpoint {path} cannot be used: {problem}\n  use an earlier one or start a new run")
    checkpoint = files.read_checkpoint(path)
    stored = stored_tensors(path)
    wanted = {f"model.{name}": tensor.detach() for name, tensor in model_tensors(model).items()}
    require_same_tensors(
        {name: tuple(tensor.shape) for name, tensor in wanted.items()},
        {name: tuple(tensor.shape) for name, tensor in stored.items() if name.startswith("model.")},
        f"checkpoint {path}",
    )
    if (num_saved := checkpoint.meta.get("num_tensors", len(stored))) != len(stored):  # older ones have no number
        raise CheckpointError(
            f"checkpoint {path} cannot be used: it contains {len(stored)} of the {num_saved} tensors that were saved\n"
            "  delete its folder, and resume from the one before, or start a new run"
        )
    wanted |= {name: tensor.detach() for name, tensor in (extra or {}).items()}
    absent = [name for name in extra or {} if name not in stored or stored[name].shape != wanted[name].shape]
    if absent:
        raise CheckpointError(
            f"checkpoint {path} does not contain {', '.join(absent[:4])}{' ...' if len(absent) > 4 else ''}\n"
            "  it comes from a run without them (such as ema_decay=null) or from another model: use that run's config"
        )
    moments = {} if optimizer is None else empty_moments(model, optimizer, stored, path)
    wanted |= {name: tensor for by_key in moments.values() for name, tensor in by_key.values()}
    for name, tensor in wanted.items():
        if tensor.dtype != stored[name].dtype:
            raise CheckpointError(
                f"checkpoint {path} stores {name} as {stored[name].dtype}, but this run uses {tensor.dtype}\n"
                "  resume with the precision that it was trained with"
            )
    unread = [name for name in stored if name not in wanted and not name.startswith("optimizer.")]
    if unread and world.is_main:
        _log.warning(
            "checkpoint %s contains %d tensors that this run does not use, such as %s", path, len(unread), unread[0]
        )
    read_into(path, wanted, world)
    spoiled = next((name for name, tensor in wanted.items() if local_tensors([tensor])[0].isnan().any()), "")
    if spoiled := max(world.gather_objects(spoiled)):
        raise CheckpointError(
            f"checkpoint {path} cannot be used: {spoiled} contains values that are not numbers (NaN)\n"
            "  delete its folder, and resume from the one before, or start a new run"
        )
    if optimizer is not None:
        set_moments(optimizer, moments)
    return checkpoint


def read_weights(path: Path, prefix: str = "model.") -> dict[str, Tensor]:
    """Return the whole tensors whose names start with `prefix`, on the CPU and without the prefix; by default the
    model's weights. Tied parameters are stored under one name, which `load_full_state_dict` accepts. Raises
    CheckpointError if `path` is not a complete checkpoint or has no such tensors."""
    problem = files.problem(path)
    if problem is not None:
        raise CheckpointError(f"checkpoint {path} cannot be used: {problem}\n  use another one")
    weights = {
        name: torch.empty(meta.shape, dtype=meta.dtype)
        for name, meta in stored_tensors(path).items()
        if name.startswith(prefix)
    }
    if not weights:
        advice = "only a run with ema_decay keeps averaged weights" if prefix == "ema." else "use another one"
        raise CheckpointError(f"checkpoint {path} contains no tensors named {prefix}...\n  {advice}")
    read_into(path, weights, World())
    return {name.removeprefix(prefix): tensor for name, tensor in weights.items()}
