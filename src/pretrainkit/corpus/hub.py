"""Stream data sets of the Hugging Face hub, or local folders that `datasets` loads, to disk for `corpus hub`.

Each file of a data set becomes a folder of *parts*: JSONL files of about 64 MB, each complete or absent. The cuts
depend only on the content. The state of the stream after the last part is stored with them, so that the same command
resumes there after an interruption.
"""

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import date, time
from functools import lru_cache
from pathlib import Path
from typing import Any

from pretrainkit.corpus.build_settings import HubRequest
from pretrainkit.corpus.shard_writer import encode_record
from pretrainkit.errors import DataError, PretrainKitError, import_optional
from pretrainkit.files.manifest import (
    MANIFEST_NAME,
    HashingFile,
    atomic_file,
    fingerprint,
    matches_entry,
    read_manifest,
)
from pretrainkit.files.sources import SourceFile
from pretrainkit.files.spans import SPAN_BYTES
from pretrainkit.files.work import finished_task, record_finished, work_folder
from pretrainkit.workers.engine import LOCAL, Engine, Resources, StageRunner
from pretrainkit.workers.processes import DEFAULT_MEMORY, Progress, Quiet

FETCHED = ".fetched"
"""Subfolder of the output folder with the parts that were already streamed."""
_PROCESS_BYTES = 400_000_000
"""Memory of a process that streams: the library, and a row group of parquet."""
_SHOWN_COLUMNS = 12


@dataclass(frozen=True)
class FetchTask:
    """Task that streams one file of a data set into `folder`."""

    request: HubRequest
    commit: str | None
    """Commit of `request.revision`; None for a local folder."""
    index: int
    """Index of the data file."""
    num_files: int
    folder: Path
    part_bytes: int
    limit: int | None
    """Maximum number of documents."""

    @property
    def key(self) -> str:
        """Fingerprint of everything that decides the parts."""
        fields = replace(self.request, revision=None).as_dict()
        return fingerprint([fields, self.commit, self.index, self.num_files, self.part_bytes])


@contextmanager
def fetched(
    request: HubRequest,
    out: str | Path,
    *,
    workers: int | None = None,
    memory_bytes: int = DEFAULT_MEMORY,
    engine: Engine = LOCAL,
    progress: Progress | None = None,
    part_bytes: int = SPAN_BYTES,
) -> Iterator[list[SourceFile]]:
    """Stream the documents of a data set to JSONL files in `OUT/.fetched`, and yield these files. They are removed when
    the block ends, and kept for the next attempt if it raises.

    With `max_documents` the data files are streamed one after another, else several at once.

    Args:
        out: Output folder of the corpus. If it already has a corpus from the same request, nothing is streamed.
        memory_bytes: Memory of all processes of this machine (400 MB per streaming process), or of each task on a
            cluster.

    Raises:
        MissingPackageError: `datasets` is not installed.
        DataError: There is no such data set, configuration, split or column, the stream stopped, or `out` has
            another corpus.
    """
    out = Path(out)
    runner = StageRunner(engine, workers, memory_bytes, progress or Quiet())
    finished = _finished_sources(request, out)
    if finished is not None:
        yield finished
        return
    commit = _commit_begun(request, out) or _commit(request)
    num_files = _check(request, commit)
    # The stamp changes when a file of a local data set changes.
    stamp = fingerprint(_local_files(Path(request.name))) if commit is None else None
    plan = {"request": request.as_dict(), "commit": commit, "stamp": stamp}
    with work_folder(out / FETCHED, plan, out) as work:
        tasks = [
            FetchTask(request, commit, index, num_files, work / f"file-{index:05d}", part_bytes, request.max_documents)
            for index in range(num_files)
        ]
        sources = _fetch_all(tasks, stamp, work, runner)
        if not sources:
            shutil.rmtree(work, ignore_errors=True)  # so that the same folder can be used for another split
            raise DataError(f"{request.name}, split {request.split}, has no rows\n  name another split with --split")
        yield sources


def _fetch_all(tasks: list[FetchTask], stamp: str | None, work: Path, runner: StageRunner) -> list[SourceFile]:
    request, progress = tasks[0].request, runner.progress
    progress.stage("streaming", len(tasks), "file")
    if num_kept := sum(_num_documents(_noted(task)) for task in tasks):
        progress.note(f"kept: {num_kept:,} documents were already streamed")
    if request.max_documents is not None:
        fetching = _one_by_one(tasks, request.max_documents)
    else:
        fetching = runner.engine.run(fetch_file, tasks, _crew(request, len(tasks), runner), work, progress)
    results: dict[int, dict[str, Any]] = {}
    for index, noted in fetching:
        results[index] = noted
        progress.advance(1)
    return [
        _source(tasks[index], noted, number, stamp)
        for index, noted in sorted(results.items())
        for number in range(len(noted["parts"]))
    ]


def _one_by_one(tasks: Sequence[FetchTask], left: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """Stream the files one by one until `left` documents are complete."""
    for task in tasks:
        if left > 0:
            yield (result := fetch_file(replace(task, limit=left)))
            left -= _num_documents(result[1])


def _crew(request: HubRequest, num_files: int, runner: StageRunner) -> Resources:
    folder = Path(request.name)
    num_bytes = sum(size for _, size, _ in _local_files(folder)) if folder.exists() else num_files * SPAN_BYTES
    resources = runner.resources(num_files, num_bytes)
    if not runner.engine.is_local:
        return resources
    return Resources(max(1, min(resources.num_workers, runner.memory_bytes // _PROCESS_BYTES)), resources.memory_bytes)


def fetch_file(task: FetchTask) -> tuple[int, dict[str, Any]]:
    """Stream one data file into parts; resume an earlier attempt. Return the file's index and its record. Raises
    DataError if the stream breaks off."""
    noted = _noted(task)
    left = None if task.limit is None else task.limit - _num_documents(noted)
    if noted["is_done"] or left == 0:
        return task.index, noted
    request = task.request
    with _explained(request, "the stream stopped", "run the same command again; it continues after the last part"):
        rows = _open(request, task.commit).shard(num_shards=task.num_files, index=task.index)
        if rows.features is not None:  # other columns are then not read
            rows = rows.select_columns(list(dict.fromkeys([request.column, *request.meta_columns])))
        if noted["state"] is not None:
            rows.load_state_dict(noted["state"])
        stream = _counted(rows, request.column, left)
        while not noted["is_done"]:
            number = len(noted["parts"])
            with atomic_file(task.folder / _part_name(number)) as raw:
                file = HashingFile(raw)
                num = 0
                for row in stream:
                    file.write(_record(row, request))
                    num += type(row[request.column]) is str
                    if file.num_bytes >= task.part_bytes:
                        break
                else:
                    noted["is_done"] = True
            if file.num_bytes:
                noted["parts"].append({"num_documents": num, "num_bytes": file.num_bytes, "sha256": file.sha256})
            else:
                (task.folder / _part_name(number)).unlink()
            noted["state"] = None if noted["is_done"] else rows.state_dict()
            record_finished(task.folder, noted)
    return task.index, noted


def _counted(rows: Any, column: str, left: int | None) -> Iterator[Mapping[str, Any]]:
    """Yield rows up to the row with the last of `left` texts."""
    for row in rows:
        yield row
        if left is not None and type(row[column]) is str:
            left -= 1
            if not left:
                return


def _num_documents(noted: dict[str, Any]) -> int:
    return sum(part["num_documents"] for part in noted["parts"])


def _part_name(number: int) -> str:
    return f"part-{number:05d}.jsonl"


def _noted(task: FetchTask) -> dict[str, Any]:
    """Return the record of an earlier attempt at the same data file if its parts are intact, else an empty record."""
    empty: dict[str, Any] = {"key": task.key, "parts": [], "state": None, "is_done": False}
    noted = finished_task(task.folder, task.key) or empty
    parts = enumerate(noted["parts"])
    is_whole = all(matches_entry(task.folder / _part_name(number), part) for number, part in parts)
    return noted if is_whole else empty


def _record(row: Mapping[str, Any], request: HubRequest) -> bytes:
    """Return a line of JSONL. A row without a text gives a null text, which is later counted as skipped."""
    text = row[request.column]
    if type(text) is not str:
        return b'{"text":null}\n'
    kept = {column: row.get(column) for column in request.meta_columns}
    kept = {name: value.isoformat() if isinstance(value, date | time) else value for name, value in kept.items()}
    return encode_record(text, {"dataset": request.dataset, **kept})


def _source(task: FetchTask, noted: dict[str, Any], number: int, stamp: str | None) -> SourceFile:
    part = noted["parts"][number]
    origin = task.request.as_dict() | {"file": task.index, "part": number, "sha256": part["sha256"]}
    origin |= {"commit": task.commit} if task.commit else {"stamp": stamp}
    path = task.folder / _part_name(number)
    return SourceFile(str(path), "jsonl", part["num_bytes"], origin=origin)


def _finished_sources(request: HubRequest, out: Path) -> list[SourceFile] | None:
    """Return the sources of a finished corpus of the same request, from its manifest; None if there is no corpus.
    Raises DataError if the corpus was made from something else."""
    folder = next((place for place in (out / "train", out) if (place / MANIFEST_NAME).is_file()), None)
    if folder is None or (out / FETCHED).exists():
        return None
    sources = read_manifest(folder).get("sources", [])
    fields = request.as_dict()
    if not sources or any(source.get(key) != fields.get(key) for source in sources for key in asdict(request)):
        raise DataError(
            f"{out} already has a corpus that was made from other input or with other settings\n"
            "  name another folder with --out, or remove that one"
        )
    own = ("address", "format", "num_bytes")  # keys that `describe` adds to the origin
    origins = [{key: value for key, value in source.items() if key not in own} for source in sources]
    return [
        SourceFile(source["address"], "jsonl", source["num_bytes"], origin=origin)
        for source, origin in zip(sources, origins)
    ]


def _check(request: HubRequest, commit: str | None) -> int:
    """Check that the split has the columns, and return its number of data files. Raises DataError if there is no such
    data set, configuration, split or column."""
    rows = _open(request, commit)
    where = f"{request.name}{', ' + request.config if request.config else ''}, split {request.split}"
    features = rows.features
    with _explained(request, "cannot be read", "check the data set"):
        names = list(features) if features else list(next(iter(rows), {}))
    shown = ", ".join(names[:_SHOWN_COLUMNS]) + (", ..." if len(names) > _SHOWN_COLUMNS else "")
    for column, option in [(request.column, "--column"), *((name, "--meta") for name in request.meta_columns)]:
        if names and column not in names:
            raise DataError(
                f"{where}: there is no column {column!r}\n  its columns are: {shown}; name one of them with {option}"
            )
    kind = getattr(features[request.column], "dtype", None) if features else "string"
    if kind not in ("string", "large_string"):
        raise DataError(
            f"{where}: column {request.column!r} contains {features[request.column]}, not text\n"
            f"  its columns are: {shown}; name the column with the text with --column"
        )
    for column in request.meta_columns:
        kind = str(getattr(features[column], "dtype", "list")) if features else "string"
        if kind.startswith(("binary", "large_binary", "dict", "fixed", "PIL", "duration", "decimal")):
            raise DataError(
                f"{where}: column {column!r} contains {features[column]}, which JSON cannot represent\n"
                f"  leave out --meta {column}"
            )
    return int(rows.num_shards)


@lru_cache(maxsize=4)
def _open(request: HubRequest, commit: str | None) -> Any:
    """Open the split for streaming. The result is cached: finding the files of a large data set takes seconds."""
    datasets = _datasets(request)
    with _explained(request, "cannot be opened", "check the name, and your access to it (hf auth login)"):
        return datasets.load_dataset(request.name, request.config, split=request.split, revision=commit, streaming=True)


def _datasets(request: HubRequest) -> Any:
    return import_optional("datasets", "hub", f"streaming {request.name}")


@contextmanager
def _explained(request: HubRequest, problem: str, advice: str) -> Iterator[None]:
    """Turn the many kinds of exceptions of the libraries into a DataError with advice."""
    try:
        yield
    except PretrainKitError:
        raise
    except Exception as error:  # connections, hub, Arrow and decoders each have their own types
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        if "BuilderConfig" in reason and "not found" in reason:
            problem, advice = "has no such configuration", "name one of them with --config"
        elif reason.startswith("Config name is missing"):
            problem, advice = "has several configurations", "name one of them with --config"
        elif reason.startswith("Bad split"):
            problem, advice = "has no such split", "name one of them with --split"
        elif isinstance(error, StopIteration) or reason.startswith("BatchSize must be greater"):
            problem, advice = "has a data file without rows", "remove that file"
        elif isinstance(error, FileNotFoundError) and "://" not in reason:
            advice = "give the name of a data set on the hub, such as allenai/c4, or a folder with data files"
        elif isinstance(error, UnicodeError):
            advice = "the data set is damaged there: stream another revision, or stop before it with --max-documents"
        elif isinstance(error, ConnectionError | TimeoutError):
            advice = "check the network, then run the same command again"
        raise DataError(f"{request.name} {problem}: {reason}\n  {advice}") from error


def _commit_begun(request: HubRequest, out: Path) -> str | None:
    """Return the commit of an earlier attempt at the same request; None if there is none, or for a local folder."""
    try:
        plan = json.loads((out / FETCHED / "plan.json").read_bytes())
        return plan["commit"] if plan["request"] == request.as_dict() else None
    except (OSError, ValueError, KeyError, TypeError):  # there was no attempt, or it wrote no complete plan
        return None


def _commit(request: HubRequest) -> str | None:
    """Return the current commit of the revision; None for a local folder. Raises DataError if there is no such data set
    or revision, or the hub cannot be reached."""
    _datasets(request)
    if Path(request.name).exists():
        if request.revision is not None:
            raise DataError(f"{request.name} is a folder, which has no revisions\n  leave out --revision")
        return None
    if request.name.startswith(("/", ".", "~")) or request.name.count("/") > 1:
        raise DataError(
            f"{request.name} is neither a folder nor a file\n"
            "  give the name of a data set on the hub, such as allenai/c4, or a folder with data files"
        )
    import huggingface_hub

    with _explained(
        request, "cannot be opened", "check the name and --revision, and your access to it (hf auth login)"
    ):
        return str(huggingface_hub.HfApi().dataset_info(request.name, revision=request.revision).sha)


def _local_files(folder: Path) -> list[tuple[str, int, int]]:
    if folder.is_file():
        return [(folder.name, folder.stat().st_size, folder.stat().st_mtime_ns)]
    files = ((path, path.stat()) for path in sorted(folder.rglob("*")) if path.is_file())
    return [(path.relative_to(folder).as_posix(), status.st_size, status.st_mtime_ns) for path, status in files]
