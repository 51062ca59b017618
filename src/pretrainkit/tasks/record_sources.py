"""TFRecord files of `tf.train.Example`, and the caches that SeqIO makes of tasks, without TensorFlow.

Every record has random access: where it lies is found in one pass through its file, which also looks at the checksums.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from pretrainkit.data.line_index import index_records
from pretrainkit.errors import DataError
from pretrainkit.files.manifest import fingerprint as json_fingerprint
from pretrainkit.formats.tf_messages import Feature as ExampleFeature
from pretrainkit.formats.tf_messages import parse_example
from pretrainkit.tasks.sources import BySplit, Example, Files, LineSource, once

_TEXT, _BYTES = "string", "bytes"
_DTYPES = {"str": _TEXT, "object": _TEXT}
"""What SeqIO calls some of them."""


@dataclass(frozen=True)
class RecordFeature:
    """What a feature of a record becomes."""

    dtype: str = "int32"
    """NumPy's name of its numbers; "string" for UTF-8 texts, "bytes" for what is none."""
    shape: tuple[int | None, ...] = (None,)
    """() for one value, (None,) for a row of any length, (None, 3) for rows of three."""

    def value(self, stored: ExampleFeature) -> Any:
        """An array, or of text and bytes a value or list. Raises ValueError where what is stored is of another kind or
        size."""
        is_text = self.dtype in (_TEXT, _BYTES)
        if len(stored) and isinstance(stored, list) != is_text:
            raise ValueError(f"it holds {'bytes' if isinstance(stored, list) else 'numbers'}, not {self.dtype}")
        if is_text:
            return self._texts(stored)
        numbers = np.asarray(stored, np.dtype(self.dtype))
        if not self.shape:
            if numbers.size != 1:
                raise ValueError(f"it holds {numbers.size} numbers, not one")
            return numbers.reshape(())[()]
        return numbers.reshape([-1 if size is None else size for size in self.shape])

    def _texts(self, stored: ExampleFeature) -> Any:
        found = [raw.decode() if self.dtype == _TEXT else raw for raw in stored]
        if self.shape:
            return found
        if len(found) != 1:
            raise ValueError(f"it holds {len(found)} texts, not one")
        return found[0]


class TfRecords(LineSource):
    """Every record of TFRecord files, also `.gz`, is a `tf.train.Example`."""

    def __init__(self, files: Files, features: Mapping[str, RecordFeature] | None = None) -> None:
        """`features`: what to make of each feature; those of a record that are not named are left out. None: all,
        integers as int64 and floats as float32 arrays, bytes as lists of bytes."""
        super().__init__(files)
        self.features = None if features is None else dict(features)

    _index = staticmethod(index_records)

    def example(self, split: str, index: int) -> Example:
        lines = self._lines(split)
        file, row = lines.locate(index)
        try:
            stored = parse_example(memoryview(lines.line(file, row)))
        except ValueError as error:
            raise DataError(
                f"record {row + 1} of {lines.indexes[file].path} is no tf.train.Example: {error}\n"
                "  other messages are not read"
            ) from error
        if self.features is None:
            return dict(stored)
        made: Example = {}
        for name, feature in self.features.items():
            if name not in stored:
                continue
            try:
                made[name] = feature.value(stored[name])
            except (ValueError, OverflowError) as error:
                raise DataError(
                    f"record {row + 1} of {lines.indexes[file].path}: feature {name!r} does not fit: {error}\n"
                    "  name the type and shape that it was written with"
                ) from error
        return made

    def fingerprint(self, split: str) -> str:
        described = (
            None
            if self.features is None
            else {name: [one.dtype, list(one.shape)] for name, one in sorted(self.features.items())}
        )
        return json_fingerprint(["tfrecord", described, [index.sha256 for index in self._lines(split).indexes]])


class SeqioCache(BySplit):
    """The cache of a task that `seqio_cache_tasks` wrote: examples as they are at its cache placeholder.

    Token ids are those of the task's own vocabulary; give the features of the new task the same one.
    """

    def __init__(self, folder: str | Path, *, splits: Sequence[str] | None = None) -> None:
        """`folder`: of the task, `CACHE/task_name`, with `COMPLETED` in it. `splits`: those to offer; None: all
        that the folder has."""
        self.folder = Path(folder)
        self._given = None if splits is None else tuple(splits)

    @cached_property
    def splits(self) -> tuple[str, ...]:  # type: ignore[override]  # found when it is first read
        if self._given is not None:
            return self._given
        return tuple(sorted(path.name[len("info.") : -len(".json")] for path in self.folder.glob("info.*.json")))

    @once
    def _of(self, split: str) -> TfRecords:
        self.check_split(split)
        if not (self.folder / "COMPLETED").is_file():
            raise DataError(
                f"{self.folder} is no cache of SeqIO that is whole: it has no file COMPLETED\n"
                "  give the folder of the task, CACHE/TASK_NAME, and copy all of it"
            )
        info = self._json(f"info.{split}.json")
        num_shards = int(info["num_shards"])
        names = [f"{split}.tfrecord-{shard:05d}-of-{num_shards:05d}" for shard in range(num_shards)]
        missing = [name for name in names if not (self.folder / name).is_file()]
        if missing:
            raise DataError(
                f"{self.folder} lacks {len(missing)} of {num_shards} files of {split!r}, such as {missing[0]}\n"
                "  copy all of it; caches in ArrayRecord files are not read"
            )
        features = {
            name: RecordFeature(_DTYPES.get(str(one["dtype"]), str(one["dtype"])), tuple(one["shape"]))
            for name, one in info["features"].items()
        }
        opened = TfRecords({split: [self.folder / name for name in names]}, features)
        told, found = self.stats(split).get("examples"), sum(opened.file_sizes(split))
        if told is not None and told != found:
            raise DataError(
                f"{self.folder} holds {found} examples of {split!r}, its stats.{split}.json says {told}\n"
                "  copy all of it again"
            )
        return opened

    def stats(self, split: str) -> dict[str, int]:
        """What `stats.SPLIT.json` counts, such as examples and targets_tokens; empty where there is no such file."""
        return self._json(f"stats.{split}.json") if (self.folder / f"stats.{split}.json").is_file() else {}

    def _json(self, name: str) -> dict[str, Any]:
        try:
            return json.loads((self.folder / name).read_bytes())
        except (OSError, ValueError) as error:
            raise DataError(f"{self.folder / name} cannot be read: {error}\n  copy the cache again") from error
