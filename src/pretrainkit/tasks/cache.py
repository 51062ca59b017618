"""The offline cache of a task: its examples at the cache marker, with random access.

CACHE/task_name/             a colon in the name makes a folder
  train/inputs/ …            token shards of every output feature, one document per example
  train/extras-00000-of-00004.jsonl, .ends    everything else: JSON lines and int64 offsets
  info.train.json            shards, shapes and dtypes, fingerprint of data and steps
  stats.train.json           examples, <feature>_tokens, <feature>_max_tokens, <feature>_chars
  COMPLETED                  empty, written last: without it the cache is incomplete
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
from pretrainkit.files.manifest import expected_form, path_inside, read_object
from pretrainkit.tasks.steps import Example, Examples
from pretrainkit.tasks.vocabulary import Vocabulary
from pretrainkit.tokenizers.shards import TokenShards
from pretrainkit.tokenizers.special import SpecialIds

COMPLETED = "COMPLETED"
_AGAIN = "create the cache again: pretrainkit tasks cache TASK --out DIR --overwrite"
MISSING = "\x00missing"
"""Key of an extras record that lists the features that an example lacks."""
_logger = logging.getLogger(__name__)


def task_folder(cache: str | Path, task_name: str) -> Path:
    """Return the folder of a task in a cache folder."""
    return Path(cache, *task_name.split(":"))


def special_ids(vocabulary: Vocabulary) -> SpecialIds:
    """Return the special ids of token shards of a vocabulary: T5 has one end mark, and no mask."""
    eos, pad = vocabulary.eos_id, vocabulary.pad_id
    return SpecialIds(unk=vocabulary.unk_id, cls=eos, sep=eos, mask=pad, pad=pad)


def extras_name(shard: int, num_shards: int, suffix: str) -> str:
    """Return the name of a file such as `extras-00000-of-00004.jsonl`."""
    return f"extras-{shard:05d}-of-{num_shards:05d}.{suffix}"


class TaskCache:
    """A complete cache. Raises DataError for unreadable files."""

    def __init__(self, folder: Path) -> None:
        """`folder` is the folder of the task; it contains `COMPLETED`."""
        self.folder = folder

    def has(self, split: str) -> bool:
        return (self.folder / f"info.{split}.json").is_file()

    def info(self, split: str) -> dict[str, Any]:
        """Return shards, features and fingerprint."""
        return read_object(self.folder / f"info.{split}.json", _AGAIN)

    def stats(self, split: str) -> dict[str, int]:
        return read_object(self.folder / f"stats.{split}.json", _AGAIN)

    def examples(self, split: str) -> "CachedExamples":
        return CachedExamples(self.folder, split, self.info(split))


def find_cache(task: Any, split: str, caches: Sequence[str | Path]) -> TaskCache | None:
    """Return the first of `caches` that has the split of this `Task`. An outdated cache is skipped with a warning."""
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
        if cache.info(split).get("fingerprint") == expected:
            return cache
        _logger.warning(
            "task %s: the cache in %s is outdated: its data, steps or vocabularies have changed. Examples of %s are "
            "computed while they are read\n  create the cache again: pretrainkit tasks cache %s --out %s --overwrite",
            task.name, path, split, task.name, folder,
        )  # fmt: skip
    if caches:
        _logger.warning("task %s: no cache of %s is used; examples are computed while they are read", task.name, split)
    return None


class CachedExamples(Examples):
    """The examples of a split, memory-mapped. Pickles are small."""

    def __init__(self, folder: Path, split: str, info: Mapping[str, Any]) -> None:
        self._folder, self._split, self._info = folder, split, dict(info)
        path = folder / f"info.{split}.json"
        with expected_form(path, _AGAIN):
            dtypes = {name: np.dtype(feature["dtype"]) for name, feature in info["features"].items()}
            counts, num_shards = [int(count) for count in info["shard_examples"]], len(info["shard_examples"])
            if num_shards != info["num_shards"] or not counts or min(counts) < 0:
                raise ValueError("num_shards and shard_examples do not fit together")
            folders = {name: path_inside(folder / split, name, path) for name in dtypes}
        self._extras, self._extra_ends = (
            [_map(folder / split / extras_name(shard, num_shards, suffix), dtype) for shard in range(num_shards)]
            for suffix, dtype in (("jsonl", np.uint8), ("ends", np.int64))
        )
        if [len(ends) for ends in self._extra_ends] != counts:
            raise _damaged(f"{path}: shard_examples does not fit the number of examples")
        self._dtypes = dtypes
        self.shards = {name: TokenShards.open(place) for name, place in folders.items()}
        """Token shards of each feature: one document per example, empty if the example lacks the feature."""
        self._ends: list[int] = np.cumsum(counts).tolist()

    def __len__(self) -> int:
        return self._ends[-1]

    @cached_property
    def _readers(self) -> list[tuple[str, np.dtype, list[tuple[NDArray, NDArray]]]]:
        """Name and dtype of each feature, and for each shard its tokens and, (examples + 1,), the start of each example
        and the end."""
        readers = []
        for name, shards in self.shards.items():
            parts = []
            for shard in range(shards.num_shards):
                # An example has one sentence or none, so documents end at ends of sentences.
                sentence_ends, document_ends = shards.boundaries(shard)
                begins = np.concatenate([[0], sentence_ends])[np.concatenate([[0], document_ends])]
                parts.append((shards.tokens(shard), begins))
            readers.append((name, self._dtypes[name], parts))
        return readers

    def example(self, index: int) -> Example:
        with expected_form(f"example {index} of {self._folder}, split {self._split},", _AGAIN):
            return self._example(index)

    def _example(self, index: int) -> Example:
        shard = bisect_right(self._ends, index)
        own = index - (self._ends[shard - 1] if shard else 0)
        example: Example = {}
        for name, dtype, parts in self._readers:
            tokens, begins = parts[shard]
            example[name] = tokens[begins[own] : begins[own + 1]].astype(dtype)
        ends = self._extra_ends[shard]
        begin = ends[own - 1] if own else 0
        if ends[own] - begin > 2:  # more than "{}"
            example.update(decoded_extras(self._extras[shard][begin : ends[own]].tobytes()))
            for name in example.pop(MISSING, ()):
                del example[name]
        return example

    def __reduce__(self) -> tuple[Any, ...]:
        return CachedExamples, (self._folder, self._split, self._info)


def encoded_extras(example: Mapping[str, Any]) -> bytes:
    """Return a line of JSON; arrays become objects with their bytes in base64. Raises TypeError for unsupported
    values."""
    if not example:
        return b"{}"
    return json.dumps(example, ensure_ascii=False, separators=(",", ":"), default=_encoded).encode()


def decoded_extras(line: bytes) -> Example:
    """Return the values of `encoded_extras`; tuples have become lists."""
    if b'"\\u0000array"' not in line:
        return json.loads(line)
    return json.loads(line, object_hook=_decoded)


def _encoded(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        data = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode()
        return {"\x00array": [value.dtype.str, list(value.shape), data]}
    raise TypeError(f"a value of type {type(value).__name__} cannot be stored in a cache")


def _decoded(content: dict[str, Any]) -> Any:
    packed = content.get("\x00array")
    if packed is None:
        return content
    dtype, shape, data = packed
    return np.frombuffer(base64.b64decode(data), dtype).reshape(shape)


def _map(path: Path, dtype: type) -> NDArray:
    if not path.is_file():
        raise _damaged(f"{path} is missing")
    if path.stat().st_size % np.dtype(dtype).itemsize:
        raise _damaged(f"{path} is truncated")
    return np.asarray(np.memmap(path, dtype, "r")) if path.stat().st_size else np.empty(0, dtype)


def _damaged(problem: str) -> DataError:
    return DataError(f"{problem}\n  {_AGAIN}")
