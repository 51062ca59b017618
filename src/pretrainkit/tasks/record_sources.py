"""TFRecord files of `tf.train.Example`, and SeqIO's caches of tasks, without TensorFlow.

Every record has random access: one pass through its file finds the positions and verifies the checksums.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from pretrainkit.data.line_index import index_records
from pretrainkit.errors import DataError
from pretrainkit.files.manifest import expected_form, read_object
from pretrainkit.files.manifest import fingerprint as json_fingerprint
from pretrainkit.formats.tf_messages import Feature as ExampleFeature
from pretrainkit.formats.tf_messages import parse_example
from pretrainkit.tasks.sources import BySplit, Example, Files, LineSource, once

_AGAIN = "copy the cache again"
_TEXT, _BYTES = "string", "bytes"
_DTYPES = {"str": _TEXT, "object": _TEXT}
"""SeqIO's other names of dtypes."""


@dataclass(frozen=True)
class RecordFeature:
    """Type and shape of a feature of a record."""

    dtype: str = "int32"
    """NumPy's name for numbers; "string" for UTF-8 text, "bytes" for other bytes."""
    shape: tuple[int | None, ...] = (None,)
    """() for one value, (None,) for a row of any length, (None, 3) for rows of three."""

    def value(self, stored: ExampleFeature) -> Any:
        """Return an array, or for text and bytes a value or list. Raises ValueError if the stored kind or size
        differs."""
        is_text = self.dtype in (_TEXT, _BYTES)
        if len(stored) and isinstance(stored, list) != is_text:
            raise ValueError(f"it contains {'bytes' if isinstance(stored, list) else 'numbers'}, not {self.dtype}")
        if is_text:
            return self._texts(stored)
        numbers = np.asarray(stored, np.dtype(self.dtype))
        if not self.shape:
            if numbers.size != 1:
                raise ValueError(f"it contains {numbers.size} numbers, not one")
            return numbers.reshape(())[()]
        return numbers.reshape([-1 if size is None else size for size in self.shape])

    def _texts(self, stored: ExampleFeature) -> Any:
        texts = [raw.decode() if self.dtype == _TEXT else raw for raw in stored]
        if self.shape:
            return texts
        if len(texts) != 1:
            raise ValueError(f"it contains {len(texts)} texts, not one")
        return texts[0]


def _feature(entry: Mapping[str, Any]) -> RecordFeature:
    """Return a feature of SeqIO. Raises TypeError or ValueError for an unknown dtype or an invalid shape."""
    dtype = _DTYPES.get(str(entry["dtype"]), str(entry["dtype"]))
    if dtype not in (_TEXT, _BYTES) and np.dtype(dtype).kind not in "biuf":
        raise ValueError(f"the dtype {dtype} is unknown")
    shape = tuple(entry["shape"])
    if not all(size is None or (type(size) is int and size >= 0) for size in shape):
        raise ValueError(f"{shape} is not a shape")
    return RecordFeature(dtype, shape)


class TfRecords(LineSource):
    """Every record of TFRecord files, also `.gz`, is a `tf.train.Example`."""

    def __init__(self, files: Files, features: Mapping[str, RecordFeature] | None = None) -> None:
        """`features`: types and shapes by name; other features of a record are left out. None: all features, integers
        as int64 and floats as float32 arrays, bytes as lists of bytes."""
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
                f"record {row + 1} of {lines.indexes[file].path} is not a tf.train.Example: {error}\n"
                "  other messages are not supported"
            ) from error
        if self.features is None:
            return dict(stored)
        example: Example = {}
        for name, feature in self.features.items():
            if name not in stored:
                continue
            try:
                example[name] = feature.value(stored[name])
            except (ValueError, OverflowError) as error:
                raise DataError(
                    f"record {row + 1} of {lines.indexes[file].path}: feature {name!r} does not fit: {error}\n"
                    "  use the type and shape that it was written with"
                ) from error
        return example

    def fingerprint(self, split: str) -> str:
        described = (
            None
            if self.features is None
            else {name: [feature.dtype, list(feature.shape)] for name, feature in sorted(self.features.items())}
        )
        return json_fingerprint(["tfrecord", described, [index.sha256 for index in self._lines(split).indexes]])


class TextRecords(TfRecords):
    """Records whose bytes are UTF-8 texts: one text is a value, several are a list. Other bytes stay bytes."""

    def example(self, split: str, index: int) -> Example:
        return {name: _as_text(value) for name, value in super().example(split, index).items()}


def _as_text(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    try:
        texts = [raw.decode() for raw in value]
    except UnicodeDecodeError:
        return value
    return texts[0] if len(texts) == 1 else texts


class SeqioCache(BySplit):
    """The cache of a task from `seqio_cache_tasks`: examples at its cache placeholder.

    Token ids are those of the task's own vocabulary; use the same one for the features of the new task.
    """

    def __init__(self, folder: str | Path, *, splits: Sequence[str] | None = None) -> None:
        """`folder` is the folder of the task, `CACHE/task_name`, with `COMPLETED` in it. `splits` are the splits to
        use; None: all in the folder."""
        self.folder = Path(folder)
        self._requested = None if splits is None else tuple(splits)

    @cached_property
    def splits(self) -> tuple[str, ...]:  # type: ignore[override]  # computed at its first use
        if self._requested is not None:
            return self._requested
        return tuple(sorted(path.name[len("info.") : -len(".json")] for path in self.folder.glob("info.*.json")))

    @once
    def _of(self, split: str) -> TfRecords:
        self.check_split(split)
        if not (self.folder / "COMPLETED").is_file():
            raise DataError(
                f"{self.folder} is not a complete cache of SeqIO: it has no file COMPLETED\n"
                "  use the folder of the task, CACHE/TASK_NAME, and copy all of it"
            )
        with expected_form(self.folder / f"info.{split}.json", _AGAIN):
            info = read_object(self.folder / f"info.{split}.json", _AGAIN)
            num_shards = int(info["num_shards"])
            features = {name: _feature(entry) for name, entry in info["features"].items()}
            if not 0 <= num_shards < 100_000:
                raise ValueError(f"{num_shards} is not a number of files")
        names = [f"{split}.tfrecord-{shard:05d}-of-{num_shards:05d}" for shard in range(num_shards)]
        missing = [name for name in names if not (self.folder / name).is_file()]
        if missing:
            raise DataError(
                f"{self.folder} lacks {len(missing)} of {num_shards} files of {split!r}, such as {missing[0]}\n"
                "  copy all of it; caches in ArrayRecord files are not supported"
            )
        opened = TfRecords({split: [self.folder / name for name in names]}, features)
        with expected_form(self.folder / f"stats.{split}.json", _AGAIN):
            expected = self.stats(split).get("examples")
        num_examples = sum(opened.file_sizes(split))
        if expected is not None and expected != num_examples:
            raise DataError(
                f"{self.folder} has {num_examples} examples of {split!r}, but {expected} in its stats.{split}.json\n"
                "  copy all of it again"
            )
        return opened

    def stats(self, split: str) -> dict[str, int]:
        """Return the counts of `stats.SPLIT.json`, such as examples and targets_tokens; empty without such a file."""
        path = self.folder / f"stats.{split}.json"
        return read_object(path, _AGAIN) if path.is_file() else {}
