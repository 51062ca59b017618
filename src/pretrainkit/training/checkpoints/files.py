"""Checkpoint folders on disk: names, manifest, verification, deletion, the lock. This module does not import torch.

checkpoints/
  .lock                       held by the run that writes here
  step-00001000/              complete: it gets this name only after all files are on the disk
    PINNED                    optional, created by a user: this checkpoint is never deleted
    meta.json                 step, entries of the trainer, size and SHA-256 of every file, a checksum of itself
    rank-00000-of-00002-part-000.safetensors ...
  .incomplete-step-00002000/  being written, or left behind by a run that died
  .deleted-step-00000500/     being deleted: renamed first, so that half of it is never taken for a checkpoint
  set-aside-step-00003000/    of a later step, from before the run was resumed from an earlier checkpoint
"""

import errno
import hashlib
import json
import logging
import os
import re
import shutil
import time
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from weakref import WeakSet

from pretrainkit.errors import CheckpointError
from pretrainkit.files.manifest import file_sha256, sync

_log = logging.getLogger(__name__)

FORMAT_VERSION = 1
META_NAME = "meta.json"
_STEP_FOLDER = re.compile(r"step-(\d{8,})")
PINNED = "PINNED"
"""A file of this name in a checkpoint protects it from deletion."""
_INCOMPLETE, _DELETED, _SET_ASIDE = ".incomplete-", ".deleted-", "set-aside-"


@dataclass(frozen=True)
class Checkpoint:
    """Content of `meta.json`."""

    path: Path
    step: int
    """Number of updates made."""
    world_size: int
    """Number of ranks that wrote it; any number can read it."""
    meta: dict[str, Any]
    """The `meta` argument of `CheckpointStore.save`, and `num_tensors`."""


def folder_name(step: int) -> str:
    """Return the folder name of the checkpoint after `step` updates."""
    return f"step-{step:08d}"


def incomplete_path(folder: Path, step: int) -> Path:
    """Return the path where a checkpoint is written before it is renamed."""
    return folder / f"{_INCOMPLETE}{folder_name(step)}"


def step_folders(folder: Path) -> dict[int, Path]:
    """Map the step to the folder of each checkpoint, sorted by step. Empty if `folder` does not exist. Nothing is
    verified."""
    if not folder.is_dir():
        return {}
    folders = {int(m[1]): path for path in folder.iterdir() if (m := _STEP_FOLDER.fullmatch(path.name))}
    return dict(sorted(folders.items()))


def file_record(path: Path) -> dict[str, Any]:
    """Return size in bytes and SHA-256 of a file, after flushing it to the disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
    return {"bytes": path.stat().st_size, "sha256": file_sha256(path)}


def publish(folder: Path, step: int, world_size: int, files: Mapping[str, Any], meta: Mapping[str, Any]) -> Path:
    """Turn the incomplete folder of `step`, which `world_size` ranks wrote, into a checkpoint.

    `files` has the `file_record` of each file, already on the disk; `meta` are the trainer's own entries, JSON. Raises
    OSError if the disk is full or fails; then no checkpoint of this step appears.
    """
    incomplete, final = incomplete_path(folder, step), folder / folder_name(step)
    missing = [name for name in files if not (incomplete / name).is_file()]
    if missing:
        raise OSError(errno.ENOENT, "not visible to rank 0; all ranks must share one file system", missing[0])
    content: dict[str, Any] = {"format": FORMAT_VERSION, "step": step, "world_size": world_size}
    content |= {"files": dict(files), "meta": dict(meta)}
    content["checksum"] = _checksum(content)
    with (incomplete / META_NAME).open("w", encoding="utf-8") as file:
        json.dump(content, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    sync(incomplete)
    if final.exists():
        delete(final)
    incomplete.rename(final)
    sync(folder)
    return final


def read_checkpoint(path: Path) -> Checkpoint:
    """Return the content of `meta.json`. The other files are not checked; see `problem`. Raises CheckpointError if
    there is no checkpoint, or its `meta.json` is damaged or has a newer format."""
    content = _read_meta(path)
    return Checkpoint(path, content["step"], content["world_size"], content["meta"])


def problem(path: Path, check_content: bool = True) -> str | None:
    """Return a description of what is wrong with the checkpoint at `path`, or None. `check_content` also compares the
    SHA-256 of every file, which reads everything once, with one thread per file."""
    try:
        files = _read_meta(path)["files"]
    except CheckpointError as error:
        return str(error).splitlines()[0]
    for name, record in files.items():
        file = path / name
        if not os.path.isfile(file):  # False also for names that no file can have
            return f"{name} is missing"
        if (num_bytes := file.stat().st_size) != record["bytes"]:
            return f"{name} has {num_bytes} bytes instead of {record['bytes']}"
    if check_content and files:
        with ThreadPoolExecutor(min(len(files), os.cpu_count() or 1)) as pool:
            digests = pool.map(file_sha256, [path / name for name in files])
            for name, digest in zip(files, digests, strict=True):
                if digest != files[name]["sha256"]:
                    return f"{name} does not have the SHA-256 of {META_NAME}"
    return None


def newest_valid(folder: Path) -> Path | None:
    """Return the newest checkpoint whose files are all valid, or None. Others are skipped, each with a warning that
    describes the problem."""
    for path in reversed(step_folders(folder).values()):
        reason = problem(path)
        if reason is None:
            return path
        _log.warning("skipping checkpoint %s: %s", path, reason)
    return None


def prune(
    folder: Path, step: int, keep_last: int, keep_every_steps: int | None, keep_steps: Collection[int] = ()
) -> None:
    """Delete old checkpoints once the checkpoint of `step` is complete. The `keep_last` newest, multiples of
    `keep_every_steps`, and `keep_steps` are kept.

    Only complete checkpoints that are not pinned count towards `keep_last`. Checkpoints of later steps
    were written before this run was resumed from an earlier checkpoint. They are renamed (set aside), never deleted.
    """
    folders = step_folders(folder)
    for later in [s for s in folders if s > step]:
        path = folders.pop(later)
        aside = path.with_name(f"{_SET_ASIDE}{path.name}")
        if not aside.exists():
            path.rename(aside)
            _log.warning(
                "checkpoint %s is later than step %d, which was just saved: renamed to %s", path, step, aside.name
            )
    pinned = {s for s, path in folders.items() if (path / PINNED).exists()}
    complete = [s for s, path in folders.items() if problem(path, check_content=False) is None and s not in pinned]
    kept = {*complete[-keep_last:], *pinned, *keep_steps}
    if keep_every_steps is not None:
        kept |= {s for s in complete if s % keep_every_steps == 0}
    for old in folders.keys() - kept:
        delete(folders[old])


def delete(path: Path) -> None:
    """Delete a checkpoint folder. It is renamed first, so that half of it is never taken for a checkpoint."""
    doomed = path.with_name(f"{_DELETED}{path.name}")
    shutil.rmtree(doomed, ignore_errors=True)
    path.rename(doomed)
    shutil.rmtree(doomed, ignore_errors=True)  # the next run removes what could not be deleted


def clean(folder: Path) -> None:
    """Remove half-written and half-deleted folders of dead runs. The caller must hold the lock."""
    for path in folder.iterdir():
        if path.name.startswith((_INCOMPLETE, _DELETED)) and path.is_dir():
            shutil.rmtree(path, ignore_errors=True)


def lock(folder: Path) -> IO[str] | None:
    """Make this process the only one that writes checkpoints into `folder`.

    The lock is held until the returned file is closed or the process ends. Returns None if the file system has no
    locks; then nothing may be cleaned up. Raises CheckpointError if another process holds the lock or the folder cannot
    be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder.resolve() / ".lock").open("a+", encoding="utf-8")
    except OSError as error:
        raise CheckpointError(
            f"cannot write checkpoints into {folder}: {error.strerror}\n  choose another run folder, or fix this one"
        ) from None
    try:
        # A POSIX lock: the kernel releases it when the process dies, and forked workers do not inherit it.
        import fcntl

        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.1)  # `is_locked` in another process may hold the lock for a moment
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except ImportError:  # Windows
        file.close()
        return None
    except OSError as error:
        file.seek(0)
        holder = file.read().strip() or "unknown"
        file.close()
        if error.errno in (errno.EACCES, errno.EAGAIN):
            raise CheckpointError(
                f"another process is writing checkpoints into {folder} (process {holder})\n"
                "  wait until it ends, stop it, or choose another run folder"
            ) from None
        return None
    with suppress(OSError):  # on a full disk; the name of the holder is needed for messages only
        file.truncate(0)
        os.write(file.fileno(), f"{os.getpid()} on {os.uname().nodename}\n".encode())
    _held.add(file)
    return file


_held: WeakSet[IO[str]] = WeakSet()
"""Locked files of this process. When a process closes any file at such a path, the kernel drops its lock on it."""


def is_locked(folder: Path) -> bool:
    """True if a process writes checkpoints into `folder`, as far as this machine can see."""
    path = folder.resolve() / ".lock"
    if any(not file.closed and Path(file.name) == path for file in _held):
        return True
    try:
        import fcntl

        file = path.open(encoding="utf-8")
    except (OSError, ImportError):  # never locked, not ours to read, or Windows
        return False
    with file:
        try:
            fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            return error.errno in (errno.EACCES, errno.EAGAIN)
    return False


def _read_meta(path: Path) -> dict[str, Any]:
    """Return the verified content of `meta.json`."""
    try:
        content = json.loads((path / META_NAME).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise CheckpointError(
            f"{path} is not a checkpoint: it has no {META_NAME}\n"
            "  checkpoints are the step-... folders in RUN/checkpoints"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path / META_NAME} cannot be read: {error}\n  use an earlier checkpoint") from None
    if not isinstance(content, dict) or content.pop("checksum", None) != _checksum(content):
        raise CheckpointError(f"{path / META_NAME} is damaged: its checksum is wrong\n  use an earlier checkpoint")
    if content.get("format") != FORMAT_VERSION:
        raise CheckpointError(
            f"{path} has checkpoint format {content.get('format')}; this version reads {FORMAT_VERSION}\n"
            "  use the version of pretrainkit that wrote it"
        )
    kinds = {"step": int, "world_size": int, "files": dict, "meta": dict}
    is_whole = (
        all(type(content.get(name)) is kind for name, kind in kinds.items())
        and isinstance(content["meta"].get("architecture", {}), dict)
        and all(
            Path(name).name == name and isinstance(record, dict) and record.keys() >= {"bytes", "sha256"}
            for name, record in content["files"].items()
        )
    )
    if not is_whole:
        raise CheckpointError(f"{path / META_NAME} lacks entries of a checkpoint\n  use an earlier checkpoint")
    return content


def _checksum(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
