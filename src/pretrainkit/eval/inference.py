"""What a trained model says about many examples, as JSON lines: chunk by chunk, so that an interrupted work goes on.
Torch-free.

OUT.chunks/request.json               the request; chunks of other requests are not continued
OUT.chunks/chunk-00003-of-00010.jsonl whole or absent
OUT                                   all chunks in order, once all exist; the folder is then removed
OUT.manifest.json                     written last: what was asked, lines, SHA-256
"""

from __future__ import annotations

import json
import shutil
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from pretrainkit.errors import DataError, InputError
from pretrainkit.files.manifest import (
    HashingFile,
    atomic_file,
    fingerprint,
    made_by,
    manifest_path,
    read_manifest,
    write_manifest,
)
from pretrainkit.workers.processes import Progress, Quiet

if TYPE_CHECKING:
    from pretrainkit.tasks.sources import TaskSource

_SHOWN = 200
_quiet = Quiet()

Mode = Literal["predict", "score", "predict-with-scores"]
"""predict: what the model says. score: how likely the targets are to it. predict-with-scores: what it says, and how
likely that is."""


class RequestOptions(TypedDict, total=False):
    """The fields of `InferenceRequest` that users of `pretrainkit.infer` give."""

    mode: Mode
    inputs: str | None
    targets: str | None
    lengths: Mapping[str, int] | None
    fields: tuple[str, ...] | None
    has_ids: bool
    batch_size: int
    decoding: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class InferenceRequest:
    """A request for answers. Either `task` or `rows` is given."""

    mode: Mode = "predict"
    task: str | None = None
    """Name of a task."""
    split: str = "test"
    """Split of the task."""
    rows: TaskSource | None = None
    """Examples that belong to no task; their only split is `split`."""
    inputs: str | None = None
    """Input of rows: a pattern such as "summarize: {text}", or a column; None: the column inputs or text."""
    targets: str | None = None
    """Target of rows to score: a pattern or a column; None: the column targets."""
    lengths: Mapping[str, int] | None = None
    """Maximum number of tokens by feature; examples are cut to it. None: no limit."""
    fields: tuple[str, ...] | None = None
    """Fields of each example to write; None: the texts of its features; empty: everything."""
    has_ids: bool = False
    """True to also write the ids of predictions."""
    batch_size: int = 32
    """Examples per forward pass."""
    decoding: Mapping[str, Any] = field(default_factory=dict)
    """The recipe's settings for making answers."""


class Inference(ABC):
    """Examples, and what a model says about them."""

    @abstractmethod
    def __len__(self) -> int:
        """Examples."""

    @property
    @abstractmethod
    def settings(self) -> Mapping[str, Any]:
        """JSON values that change whenever a line could: of examples, vocabulary and settings, not of the weights."""

    @abstractmethod
    def lines(self, begin: int, end: int) -> list[dict[str, Any]]:
        """JSON objects for the examples `begin` … `end` - 1, in order; the same ones for the same range."""


def write_lines(
    inference: Inference,
    out: Path,
    *,
    asked: Mapping[str, Any],
    chunk_size: int,
    shard: tuple[int, int] = (0, 1),
    overwrite: bool = False,
    progress: Progress = _quiet,
) -> Path:
    """Write a line for each example; what an earlier call finished is kept. Returns the file. Raises InputError where
    there is such a file, or its chunks, of another question; DataError where it cannot be written.

    Args:
        out: A file. Of several shards its name gets `-00000-of-00004` before the suffix.
        asked: JSON values that belong to the request besides `inference.settings`, such as the weights.
        chunk_size: Number of examples per chunk.
        shard: (index, number of shards); shards are consecutive parts of the examples.
        overwrite: Replace a file or chunks of another request.
    """
    number, num_shards = shard
    if not 0 <= number < num_shards:
        raise InputError(f"shard {number} of {num_shards}: shards are counted from 0\n  give 0/{num_shards} to begin")
    target = out if num_shards == 1 else out.with_name(f"{out.stem}-{number:05d}-of-{num_shards:05d}{out.suffix}")
    begin, end = (len(inference) * part // num_shards for part in (number, number + 1))
    request = {**asked, **inference.settings, "examples": [begin, end], "chunk_size": chunk_size}
    request["fingerprint"] = fingerprint(request)
    chunks = target.with_name(f"{target.name}.chunks")
    if overwrite:
        manifest_path(target).unlink(missing_ok=True)  # before what it says is no longer so
        shutil.rmtree(chunks, ignore_errors=True)
        target.unlink(missing_ok=True)
    elif _is_finished(target, chunks, request):
        shutil.rmtree(chunks, ignore_errors=True)  # of a call that was cut when it had only them to remove
        progress.note(f"{target} is finished already")
        return target
    _prepare(chunks, request)

    starts = range(begin, end, chunk_size)
    paths = [chunks / f"chunk-{place:05d}-of-{len(starts):05d}.jsonl" for place in range(len(starts))]
    progress.stage("examples", end - begin, "example")
    for start, path in zip(starts, paths, strict=True):
        stop = min(start + chunk_size, end)
        if not path.is_file():
            lines = inference.lines(start, stop)
            with atomic_file(path) as file:
                file.writelines(_encoded(line) + b"\n" for line in lines)
        progress.advance(stop - start)
    with atomic_file(target) as file:
        hashing = HashingFile(file)
        for path in paths:
            hashing.write(path.read_bytes())
    manifest = {"made_by": made_by(), "request": request, "lines": end - begin, "sha256": hashing.sha256}
    write_manifest(target, manifest)
    shutil.rmtree(chunks)
    return target


def folder_of_mixture(out: Path, mixture: str) -> Path:
    """`out`, for a file of each task. Raises InputError where it is a file, or called like one."""
    if out.is_file() or out.suffix in (".json", ".jsonl"):
        raise InputError(
            f"{out} is a file, but {mixture} is a mixture: each of its tasks has answers of its own\n"
            f"  give a folder: --out {out.with_suffix('')}"
        )
    return out


def _is_finished(target: Path, chunks: Path, request: Mapping[str, Any]) -> bool:
    if not target.exists():
        return False
    earlier: Mapping[str, Any] = {}
    with suppress(DataError):
        earlier = read_manifest(target).get("request", {})
    if earlier == request:
        return True
    if (chunks / "request.json").is_file():  # stopped between the file and its manifest
        return False
    raise InputError(
        f"{target} exists{_differences(earlier, request)}\n  give another --out, or replace it with --overwrite"
    )


def _encoded(line: Mapping[str, Any]) -> bytes:
    try:
        return json.dumps(line, ensure_ascii=False).encode()
    except UnicodeEncodeError:  # half a surrogate pair, which JSON has an escape for and UTF-8 has not
        return json.dumps(line).encode()


def _prepare(chunks: Path, request: Mapping[str, Any]) -> None:
    path = chunks / "request.json"
    if path.is_file():
        earlier = json.loads(path.read_bytes())
        if earlier != request and any(chunks.glob("chunk-*.jsonl")):
            raise InputError(
                f"{chunks} has parts of other answers{_differences(earlier, request)}\n"
                "  repeat the same command to continue, choose another --out, or start again with --overwrite"
            )
        if earlier == request:
            return
    elif chunks.exists():  # parts of nobody knows what, where their removal was cut
        shutil.rmtree(chunks)
    with atomic_file(path) as file:
        file.write(json.dumps(request, indent=2, ensure_ascii=False).encode() + b"\n")


def _differences(earlier: Mapping[str, Any], request: Mapping[str, Any]) -> str:
    names = [name for name in request if name != "fingerprint" and earlier.get(name) != request[name]]
    if not earlier:
        return ", and it was not made here"
    lines = [
        f"\n  {name}: {str(earlier.get(name))[:_SHOWN]} there, {str(request[name])[:_SHOWN]} here" for name in names
    ]
    return ", made by another command" + "".join(lines)
