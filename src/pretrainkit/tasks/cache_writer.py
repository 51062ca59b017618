"""Writing of a task's cache (the format is in `cache.py`): shard by shard, by any number of processes.

Every shard contains the examples of a range of the source. Memory is therefore bounded by a thousand examples per
process, and an interrupted run continues with the missing shards.
"""

import json
import pickle
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from pretrainkit.errors import ConfigError, DataError
from pretrainkit.files.manifest import atomic_file, made_by, write_text
from pretrainkit.files.work import work_folder
from pretrainkit.tasks.cache import COMPLETED, MISSING, TaskCache, encoded_extras, extras_name, special_ids, task_folder
from pretrainkit.tasks.steps import Example
from pretrainkit.tasks.task import REGISTRY, Task
from pretrainkit.tasks.user_modules import import_modules
from pretrainkit.tokenizers.shard_writer import ShardWriter, finish_shards
from pretrainkit.workers.processes import DEFAULT_MEMORY, Progress, Quiet, num_processes, run_tasks

EXAMPLES_PER_SHARD = 50_000
"""Source examples of a shard, unless the number of shards is configured."""
_BATCH = 1000
_WORK = ".work"


@dataclass(frozen=True)
class Shard:
    """One shard to write, as sent to worker processes."""

    task: bytes
    """Pickled `Task`, or the task's name."""
    modules: tuple[str, ...]
    split: str
    number: int
    num_shards: int
    begin: int
    """Index of the first source example."""
    end: int
    """Index after the last source example."""
    folder: Path
    """Folder of the task in the cache."""

    @property
    def done(self) -> Path:
        """The file that marks the shard as complete."""
        return self.folder / _WORK / f"{self.split}-{self.number:05d}" / "task.json"


def cache_task(
    task: Task,
    out: str | Path,
    *,
    splits: Sequence[str] | None = None,
    num_shards: int | None = None,
    workers: int | None = 1,
    modules: Sequence[str] = (),
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Write the cache of a task below `out` and return its folder; a matching cache is left unchanged.

    Args:
        task: A task with a cache marker; otherwise a ConfigError is raised.
        out: Folder of caches.
        splits: Splits to cache; None: all.
        num_shards: Shards of each split; None: one for every 50,000 examples of the source.
        workers: Number of processes; None: the number of cores.
        modules: Modules of the user that worker processes import.
        overwrite: Remove an outdated cache instead of raising DataError.
    """
    progress = progress or Quiet()
    if task.cache_marker is None:
        raise ConfigError(
            f"task {task.name!r} cannot be cached\n  put a CacheMarker() after the steps whose result should be cached"
        )
    chosen = tuple(splits or task.splits)
    folder = task_folder(out, task.name)
    for split in chosen:
        task.source.check_split(split)
    fingerprints = {split: task.fingerprint(split) for split in chosen}
    if _is_cached(folder, fingerprints, task.name, overwrite):
        progress.note(f"{folder}: exists already")
        shutil.rmtree(folder / _WORK, ignore_errors=True)  # a killed command may have left it
        return folder
    counts = {split: task.source.num_examples(split) for split in chosen}
    plan = {"fingerprints": fingerprints, "num_shards": num_shards}
    with work_folder(folder / _WORK, plan, folder):
        modules = tuple(modules)
        payload = _payload(task, modules)
        shards = [
            shard for split in chosen for shard in _shards(payload, modules, split, counts[split], num_shards, folder)
        ]
        missing = [shard for shard in shards if not shard.done.is_file()]
        progress.stage(f"caching {task.name}", sum(shard.end - shard.begin for shard in missing), "example")
        can_spawn = bool(payload)
        # The cost of reading and tokenizing is unknown, so pretend that the data is large enough for several processes.
        processes = num_processes(workers, len(missing), 1 << 40, DEFAULT_MEMORY) if can_spawn and missing else 1
        if not can_spawn and workers != 1:
            progress.note(
                f"task {task.name} cannot be sent to other processes: define it in a module and pass the module"
            )
        write = write_shard if can_spawn else partial(_write, task)
        for num_written in run_tasks(write, missing, processes):
            progress.advance(num_written)
        for split in chosen:
            _finish(task, folder, [shard for shard in shards if shard.split == split], fingerprints[split])
        with atomic_file(folder / COMPLETED):
            pass
    return folder


def write_shard(shard: Shard) -> int:
    """Write one shard in any process, and return the number of its source examples."""
    return _write(_loaded(shard.task, shard.modules), shard)


def _write(task: Task, shard: Shard) -> int:
    examples = task.uncached(shard.split)
    place = shard.folder / shard.split
    names = _stored_features(task)
    counts: dict[str, int] = {"examples": 0}
    with ExitStack() as stack:
        writers = {
            name: stack.enter_context(
                ShardWriter(place / name, shard.number, shard.num_shards, task.features[name].vocabulary.size)
            )
            for name in names
        }
        extras = stack.enter_context(atomic_file(place / extras_name(shard.number, shard.num_shards, "jsonl")))
        ends = stack.enter_context(atomic_file(place / extras_name(shard.number, shard.num_shards, "ends")))
        position = 0
        own = (example for index in range(shard.begin, shard.end) for example in examples.of_source(index))
        while batch := list(islice(own, _BATCH)):
            records = [_record(example, names, task.name) for example in batch]
            _count(counts, batch, names)
            for name, writer in writers.items():
                _add_documents(writer, name, [example.get(name) for example in batch], task)
            lengths = np.array([len(record) for record in records], np.int64)
            extras.write(b"".join(records))
            ends.write((position + np.cumsum(lengths)).astype("<i8").tobytes())
            position += int(lengths.sum())
    entries = {name: writer.entry for name, writer in writers.items()}
    write_text(shard.done, json.dumps({"counts": counts, "entries": entries}))
    return shard.end - shard.begin


def _record(example: Example, names: Sequence[str], task_name: str) -> bytes:
    rest = {key: value for key, value in example.items() if key not in names}
    if missing := [name for name in names if name not in example]:
        rest[MISSING] = missing
    try:
        return encoded_extras(rest) + b"\n"
    except (TypeError, ValueError) as error:
        raise DataError(
            f"task {task_name!r}: {error}\n  add a step before the cache marker that removes this value: rekey(...)"
        ) from error


def _add_documents(writer: ShardWriter, name: str, values: Sequence[Any], task: Task) -> None:
    arrays = [np.empty(0, np.int64) if value is None else np.asarray(value) for value in values]
    vocabulary = task.features[name].vocabulary
    for array in arrays:
        if array.ndim != 1 or (
            array.size and (array.dtype.kind not in "iu" or array.min() < 0 or array.max() >= vocabulary.size)
        ):
            raise DataError(
                f"task {task.name!r}: feature {name!r} must be a row of ids below {vocabulary.size} at its marker\n"
                "  tokenize it before the cache marker"
            )
    sizes = np.array([array.size for array in arrays], np.int64)
    tokens = np.concatenate([np.empty(0, np.int64), *arrays]).astype(np.int64)
    hashes = np.zeros(len(arrays), np.uint64)  # the text is unknown
    writer.add(tokens, sizes[sizes > 0], (sizes > 0).astype(np.int64), hashes, may_be_empty=True)


def _count(counts: dict[str, int], batch: Sequence[Example], names: Sequence[str]) -> None:
    counts["examples"] += len(batch)
    for name in names:
        sizes = [len(example[name]) for example in batch if name in example]
        counts[f"{name}_tokens"] = counts.get(f"{name}_tokens", 0) + sum(sizes)
        counts[f"{name}_max_tokens"] = max(counts.get(f"{name}_max_tokens", 0), *sizes, 0)
        texts = [text for example in batch if isinstance(text := example.get(f"{name}_pretokenized"), str)]
        if texts:
            counts[f"{name}_chars"] = counts.get(f"{name}_chars", 0) + sum(map(len, texts))


def _finish(task: Task, folder: Path, shards: Sequence[Shard], fingerprint: str) -> None:
    """Write manifests, `info` and `stats` of a split."""
    split = shards[0].split
    results = [json.loads(shard.done.read_bytes()) for shard in shards]
    stats: dict[str, int] = {}
    for result in results:
        for key, value in result["counts"].items():
            stats[key] = max(stats.get(key, 0), value) if key.endswith("_max_tokens") else stats.get(key, 0) + value
    names = _stored_features(task)
    for name in names:
        vocabulary = task.features[name].vocabulary
        finish_shards(
            folder / split / name,
            [result["entries"][name] for result in results],
            vocab_size=vocabulary.size,
            special=special_ids(vocabulary),
            tokenizer=vocabulary.fingerprint,
            corpus=fingerprint,
        )
    info = {
        "num_shards": len(shards),
        "shard_examples": [result["counts"]["examples"] for result in results],
        "features": {name: {"shape": [None], "dtype": task.features[name].dtype} for name in names},
        "fingerprint": fingerprint,
        "made_by": made_by(),
    }
    for kind, content in (("info", info), ("stats", stats)):
        write_text(folder / f"{kind}.{split}.json", json.dumps(content, indent=2) + "\n")


def _stored_features(task: Task) -> list[str]:
    """Return the features that are stored as token shards: rows of ids. The others are stored in the extras."""
    return [name for name, feature in task.features.items() if feature.rank == 1 and feature.numpy_dtype.kind in "iu"]


def _shards(
    payload: bytes, modules: tuple[str, ...], split: str, num_examples: int, num_shards: int | None, folder: Path
) -> Iterator[Shard]:
    number = max(1, min(num_shards or -(-num_examples // EXAMPLES_PER_SHARD), num_examples))
    edges = [num_examples * edge // number for edge in range(number + 1)]
    for shard, (begin, end) in enumerate(pairwise(edges)):
        yield Shard(payload, modules, split, shard, number, begin, end, folder)


def _payload(task: Task, modules: tuple[str, ...]) -> bytes:
    """Return the bytes from which a worker gets the task; empty if it cannot."""
    try:
        return pickle.dumps(task)
    except (pickle.PicklingError, AttributeError, TypeError):  # a lambda, or a function within a function
        is_known = modules and task.name in REGISTRY.names() and REGISTRY.get_task(task.name) is task
        return task.name.encode() if is_known else b""


@lru_cache(maxsize=1)
def _loaded(payload: bytes, modules: tuple[str, ...]) -> Task:
    import_modules(modules)
    if payload.startswith(b"\x80"):  # true for every pickle and no name
        return pickle.loads(payload)  # noqa: S301 - from the process that started this one
    return REGISTRY.get_task(payload.decode())


def _is_cached(folder: Path, fingerprints: dict[str, str], task_name: str, overwrite: bool) -> bool:
    """True if there is a complete matching cache. With `overwrite`, another cache is removed."""
    if not (folder / COMPLETED).is_file():
        return False
    cache = TaskCache(folder)
    try:
        differing = [
            split
            for split, expected in fingerprints.items()
            if not cache.has(split) or cache.info(split).get("fingerprint") != expected
        ]
    except DataError:  # the cache is damaged
        if not overwrite:
            raise
        differing = list(fingerprints)
    if not differing:
        return True
    if not overwrite:
        raise DataError(
            f"{folder} is a cache of task {task_name!r} from other data, splits or steps: "
            f"{', '.join(differing)} {'do' if len(differing) > 1 else 'does'} not match\n"
            "  create it again with --overwrite, or choose another --out"
        )
    (folder / COMPLETED).unlink()
    shutil.rmtree(folder)
    return False
