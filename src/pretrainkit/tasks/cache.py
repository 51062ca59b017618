"""The offline cache of a task: its examples as they are at the cache marker, with random access.

CACHE/task_name/             a colon in the name makes a folder
  train/inputs/ …            token shards of every output feature, one document per example
  train/extras-00000-of-00004.jsonl, .ends    everything else: JSON lines and int64 offsets
  info.train.json            shards, shapes and dtypes, fingerprint of what made it
  stats.train.json           examples, <feature>_tokens, <feature>_max_tokens, <feature>_chars
  COMPLETED                  empty, written last: only then is there a cache
"""

import base64
import json
import logging
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretrainkit.errors import DataError
from pretrainkit.tasks.steps import Example, Examples
from pretrainkit.tasks.vocabulary import Vocabulary
from pretrainkit.tokenizers.shards import TokenShards
from pretrainkit.tokenizers.special import SpecialIds

COMPLETED = "COMPLETED"
MISSING = "\x00missing"
"""Key of an extras record that lists the features an example does not have."""
_logger = logging.getLogger(__name__)


def task_folder(cache: str | Path, task_name: str) -> Path:
    """Where a cache folder has a task."""
    return Path(cache, *task_name.split(":"))


def special_ids(vocabulary: Vocabulary) -> SpecialIds:
    """Of token shards that a vocabulary made: T5 has one end mark, and no mask."""
    eos, pad = vocabulary.eos_id, vocabulary.pad_id
    return SpecialIds(unk=vocabulary.unk_id, cls=eos, sep=eos, mask=pad, pad=pad)


def extras_name(shard: int, num_shards: int, suffix: str) -> str:
    """Name of a file such as `extras-00000-of-00004.jsonl`."""
    return f"extras-{shard:05d}-of-{num_shards:05d}.{suffix}"


class TaskCache:
    """A cache that is whole. What cannot be read is a DataError."""

    def __init__(self, folder: Path) -> None:
        """`folder` is that of the task, with `COMPLETED` in it."""
        self.folder = folder

    def has(self, split: str) -> bool:
        return (self.folder / f"info.{split}.json").is_file()

    def info(self, split: str) -> dict[str, Any]:
        """Shards, features, fingerprint."""
        return _json(self.folder / f"info.{split}.json")

    def stats(self, split: str) -> dict[str, int]:
        return _json(self.folder / f"stats.{split}.json")

    def examples(self, split: str) -> "CachedExamples":
        return CachedExamples(self.folder, split, self.info(split))


def find_cache(task: Any, split: str, caches: Sequence[str | Path]) -> TaskCache | None:
    """The first of `caches` that holds a split of the `Task` as it is now; others are passed over with a note."""
    for folder in caches:
        path = task_folder(folder, task.name)
        cache = TaskCache(path)
        if not (path / COMPLETED).is_file() or not cache.has(split):
            continue
        try:
            expected = task.fingerprint(split)
        except DataError as error:
            _logger.warning(
                "task %s: its source cannot be read, so the cache in %s is not checked: %s", task.name, path, error
            )
            return cache
        if cache.info(split)["fingerprint"] == expected:
            return cache
        _logger.warning(
            "task %s: the cache in %s is stale, its data, steps or vocabularies have changed; examples of %s are made "
            "anew\n  make the cache again: pretrainkit tasks cache %s --out %s --overwrite",
            task.name, path, split, task.name, folder,
        )  # fmt: skip
    if caches:
        _logger.warning("task %s: no cache of %s is used; examples are made on the fly", task.name, split)
    return None


class CachedExamples(Examples):
    """The examples of a split, memory-mapped. Pickles are small."""

    def __init__(self, folder: Path, split: str, info: Mapping[str, Any]) -> None:
        self._folder, self._split, self._info = folder, split, dict(info)
        self.shards = {name: TokenShards.open(folder / split / name) for name in info["features"]}
        """Token shards of each feature: one document per example, empty where the feature is."""
        self._ends: list[int] = np.cumsum(info["shard_examples"]).tolist()
        num_shards = info["num_shards"]
        names = [extras_name(shard, num_shards, "jsonl") for shard in range(num_shards)]
        self._extras = [_map(folder / split / name, np.uint8) for name in names]
        self._extra_ends = [
            _map(folder / split / extras_name(shard, num_shards, "ends"), np.int64) for shard in range(num_shards)
        ]

    def __len__(self) -> int:
        return self._ends[-1]

    @cached_property
    def _readers(self) -> list[tuple[str, np.dtype, list[tuple[NDArray, NDArray]]]]:
        """Of each feature: name, dtype, and per shard its tokens and (examples + 1,) where each example begins."""
        found = []
        for name, shards in self.shards.items():
            parts = []
            for shard in range(shards.num_shards):
                # An example is one sentence or none, so documents end at ends of sentences.
                ends = np.concatenate([[0], shards.sentence_ends(shard)])
                begins = ends[np.concatenate([[0], shards.document_ends(shard)])]
                parts.append((shards.tokens(shard), begins))
            found.append((name, np.dtype(self._info["features"][name]["dtype"]), parts))
        return found

    def example(self, index: int) -> Example:
        shard = bisect_right(self._ends, index)
        own = index - (self._ends[shard - 1] if shard else 0)
        made: Example = {}
        for name, dtype, parts in self._readers:
            tokens, begins = parts[shard]
            made[name] = tokens[begins[own] : begins[own + 1]].astype(dtype)
        ends = self._extra_ends[shard]
        begin = ends[own - 1] if own else 0
        if ends[own] - begin > 2:  # more than "{}"
            made.update(decoded_extras(self._extras[shard][begin : ends[own]].tobytes()))
            for name in made.pop(MISSING, ()):
                del made[name]
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return CachedExamples, (self._folder, self._split, self._info)


def encoded_extras(example: Mapping[str, Any]) -> bytes:
    """A line of JSON; arrays become objects with their bytes in base64. Raises TypeError for other kinds of values."""
    if not example:
        return b"{}"
    return json.dumps(example, ensure_ascii=False, separators=(",", ":"), default=_encoded).encode()


def decoded_extras(line: bytes) -> Example:
    """The values of `encoded_extras`; tuples have become lists."""
    if b'"\\u0000array"' not in line:
        return json.loads(line)
    return json.loads(line, object_hook=_decoded)


def _encoded(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        data = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode()
        return {"\x00array": [value.dtype.str, list(value.shape), data]}
    raise TypeError(f"a value of type {type(value).__name__} cannot be kept in a cache")


def _decoded(content: dict[str, Any]) -> Any:
    packed = content.get("\x00array")
    if packed is None:
        return content
    dtype, shape, data = packed
    return np.frombuffer(base64.b64decode(data), dtype).reshape(shape)


def _map(path: Path, dtype: type) -> NDArray:
    if not path.is_file():
        raise _torn(f"{path} is missing")
    return np.asarray(np.memmap(path, dtype, "r")) if path.stat().st_size else np.empty(0, dtype)


def _json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise _torn(f"{path} cannot be read: {error}") from error


def _torn(what: str) -> DataError:
    return DataError(f"{what}\n  make the cache again: pretrainkit tasks cache TASK --out DIR --overwrite")
