"""Answers of a trained model to many examples, as JSON lines. They are written in chunks, so that an interrupted
command can resume. Imports no torch.

OUT.chunks/request.json               the request; chunks of other requests are not continued
OUT.chunks/chunk-00003-of-00010.jsonl complete or absent
OUT                                   all chunks in order, once all exist; the folder is then removed
OUT.manifest.json                     written last: the request, number of lines, SHA-256
"""

from __future__ import annotations

import json
import shutil
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from pretrainkit.errors import DataError, InputError
from pretrainkit.files.manifest import (
    HashingFile,
    atomic_file,
    fingerprint,
    made_by,
    manifest_path,
    read_manifest,
    read_object,
    write_manifest,
    write_text,
)
from pretrainkit.workers.processes import Progress, Quiet

if TYPE_CHECKING:
    from pretrainkit.tasks.sources import TaskSource

_SHOWN = 200
_quiet = Quiet()

Mode = Literal["predict", "score", "predict-with-scores"]
"""predict: the answer of the model. score: the log-likelihood of the targets. predict-with-scores: the answer and its
log-likelihood."""


class RequestOptions(TypedDict, total=False):
    """The fields of `InferenceRequest` that users of `pretrainkit.infer` set."""

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
    """Settings of the recipe for generating answers."""


class Inference(ABC):
    """Examples, and a model's answers to them."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of examples."""

    @property
    @abstractmethod
    def settings(self) -> Mapping[str, Any]:
        """JSON values that describe everything that decides the lines, except the weights: examples, vocabulary and
        settings."""

    @abstractmethod
    def lines(self, begin: int, end: int) -> list[dict[str, Any]]:
        """Return JSON objects for the examples `begin` … `end` - 1, in order; the same ones for the same range."""


def write_lines(
    inference: Inference,
    out: Path,
    *,
    extra_settings: Mapping[str, Any],
    chunk_size: int,
    shard: tuple[int, int] = (0, 1),
    overwrite: bool = False,
    progress: Progress = _quiet,
) -> Path:
    """Write a line for each example, and return the file. Chunks that an earlier call finished are kept.

    Raises InputError if the file or its chunks belong to another request, and DataError if it cannot be written.

    Args:
        out: A file. With several shards, its name gets `-00000-of-00004` before the suffix.
        extra_settings: JSON values that belong to the request besides `inference.settings`, such as the weights.
        chunk_size: Number of examples per chunk.
        shard: (index, number of shards); shards are consecutive parts of the examples.
        overwrite: Replace a file or chunks of another request.
    """
    number, num_shards = shard
    if not 0 <= number < num_shards:
        raise InputError(f"shard {number} of {num_shards}: shards are counted from 0\n  the first is 0/{num_shards}")
    target = out if num_shards == 1 else out.with_name(f"{out.stem}-{number:05d}-of-{num_shards:05d}{out.suffix}")
    begin, end = (len(inference) * part // num_shards for part in (number, number + 1))
    request = {**extra_settings, **inference.settings, "examples": [begin, end], "chunk_size": chunk_size}
    request["fingerprint"] = fingerprint(request)
    chunks = target.with_name(f"{target.name}.chunks")
    if overwrite:
        manifest_path(target).unlink(missing_ok=True)  # first, because it describes the file
        shutil.rmtree(chunks, ignore_errors=True)
        target.unlink(missing_ok=True)
    elif _is_finished(target, chunks, request):
        shutil.rmtree(chunks, ignore_errors=True)  # an interrupted call may have left them
        progress.note(f"{target} is already complete")
        return target
    _prepare(chunks, request)

    starts = range(begin, end, chunk_size)
    paths = [chunks / f"chunk-{place:05d}-of-{len(starts):05d}.jsonl" for place in range(len(starts))]
    progress.stage("answering", end - begin, "example")
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
    """Return `out`, a folder for one file per task. Raises InputError if it is a file, or has the name of one."""
    if out.is_file() or out.suffix in (".json", ".jsonl"):
        raise InputError(
            f"{out} is a file, but {mixture} is a mixture: each of its tasks has a separate file of answers\n"
            f"  use a folder: --out {quote(str(out.with_suffix('')))}"
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
    if (chunks / "request.json").is_file():  # interrupted between the file and its manifest
        return False
    raise InputError(
        f"{target} exists{_differences(earlier, request)}\n  choose another --out, or replace it with --overwrite"
    )


def _encoded(line: Mapping[str, Any]) -> bytes:
    try:
        return json.dumps(line, ensure_ascii=False).encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON can escape but UTF-8 cannot encode
        return json.dumps(line).encode()


def _prepare(chunks: Path, request: Mapping[str, Any]) -> None:
    path = chunks / "request.json"
    if path.is_file():
        earlier = read_object(path, "start again with --overwrite")
        if earlier != request and any(chunks.glob("chunk-*.jsonl")):
            raise InputError(
                f"{chunks} contains parts of other answers{_differences(earlier, request)}\n"
                "  repeat the same command to continue, choose another --out, or start again with --overwrite"
            )
        if earlier == request:
            return
    elif chunks.exists():  # parts of an unknown request, whose removal was interrupted
        shutil.rmtree(chunks)
    write_text(path, json.dumps(request, indent=2, ensure_ascii=False) + "\n")


def _differences(earlier: Mapping[str, Any], request: Mapping[str, Any]) -> str:
    names = [name for name in request if name != "fingerprint" and earlier.get(name) != request[name]]
    if not earlier:
        return ", and it was not written by this command"
    lines = [
        f"\n  {name}: {str(earlier.get(name))[:_SHOWN]} before, {str(request[name])[:_SHOWN]} now" for name in names
    ]
    return ", written by another command" + "".join(lines)
