"""Sets of image-text pairs of any format. Captions are in memory, images are read on demand.

A row is a pair: an image with five captions has five rows.

Dimensions: N rows.
"""

import hashlib
import logging
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from shlex import quote
from typing import Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pretrainkit.errors import DataError
from pretrainkit.recipes.clip.config import ClipSourceConfig, set_name
from pretrainkit.recipes.recipe import Split

SPLIT_NAMES: Mapping[Split, tuple[str, ...]] = {"train": ("train",), "valid": ("valid", "validation", "val", "test")}
"""Possible names of each split in a set. The first that exists is used."""

_NO_TEXT = frozenset({"", "nan", "NaN"})
"""Texts that other tools write for a missing caption."""


Reason = Literal["missing image", "broken image", "empty caption", "oversized image"]


class BadImage(Exception):
    """An image or caption that cannot be used. The text names the problem; `reason` is the name for counts."""

    def __init__(self, reason: Reason, text: str) -> None:
        super().__init__(text)
        self.reason: Reason = reason


REASONS = ("good", *get_args(Reason))
"""Names of the numbers in `bad` of a batch."""


class Pairs(ABC):
    """A split of a set of pairs."""

    has_names = True
    """True if images have file names, so that equal names may mean equal images."""

    def __init__(self, source: ClipSourceConfig, table: pa.Table, skipped: Mapping[str, int] | None = None) -> None:
        """Create the set. Raises DataError if there are no rows.

        Args:
            source: The set.
            table: Table of N rows with the columns `image` (name of the image's file), `caption_0`, `caption_1`, ...
                (texts) and optionally `image_id` and `caption_id` (int64).
            skipped: Number of entries left out when the set was opened, by reason.
        """
        self.name, self.path, self.table, self.skipped = set_name(source), source.path, table, dict(skipped or {})
        self.torn: tuple[str, ...] = ()
        """Truncated files of the set, each with the reason. The rows in their unreadable parts are not in `table`."""
        self.num_lost = 0
        """Approximate number of these rows."""
        weights = list(source.caption_key.values()) if isinstance(source.caption_key, dict) else [1.0]
        self.weights = np.asarray(weights, np.float64) / sum(weights)
        """Probability of each caption column."""
        self.captions = [table.column(f"caption_{column}") for column in range(len(weights))]
        self.image_names = table.column("image")
        if not table.num_rows:
            left_out = "".join(f"\n  {count:,} left out: {reason}" for reason, count in self.skipped.items())
            raise DataError(f"{self.path} holds no image-text pairs{left_out}\n  leave the set out, or check its files")

    @abstractmethod
    def read_image(self, row: int) -> bytes:
        """Return the content of the image file. Thread-safe. Raises BadImage if it cannot be read."""

    def image_bytes(self, row: int) -> int:
        """Return the size of the image file, if possible without reading it. Raises BadImage if it cannot be read."""
        return len(self.read_image(row))

    def lacks_image(self, row: int) -> bool:
        """Return True if the image file of a row is known to be missing, without opening it."""
        return False

    def __len__(self) -> int:
        return self.table.num_rows

    def caption(self, row: int, draw: float = 0.0) -> str:
        """Return the caption of a row, or "" if it has none. If several columns have one, `draw` in [0, 1) selects the
        column by the weights; 0 is the first."""
        if len(self.captions) == 1:
            return clean_caption(self.captions[0][row].as_py())
        texts = [clean_caption(column[row].as_py()) for column in self.captions]
        weights = self.weights * [bool(text) for text in texts]
        if not weights.any():
            return ""
        # Columns without a text have the weight 0, so they are never drawn.
        return texts[int(np.searchsorted(np.cumsum(weights), draw * weights.sum(), side="right"))]

    @property
    def lost_share(self) -> float:
        """Share of the rows that are lost in truncated files. Other bad rows do not count."""
        return self.num_lost / (len(self) + self.num_lost)

    def describe(self, row: int) -> str:
        """Return the name of a row for messages."""
        return f"set {self.name}, row {row} ({self.image_names[row].as_py()})"

    def explain(self, row: int, error: BadImage) -> str:
        """Return a message with set, row, file and reason."""
        return f"{self.describe(row)}: {error.reason}: {error}"

    @cached_property
    def image_ids(self) -> NDArray[np.int64]:
        """(N,) ids that are equal if rows show the same image."""
        if "image_id" in self.table.column_names:
            return whole_numbers(self.table.column("image_id"))
        return self._image_numbers()

    @cached_property
    def caption_ids(self) -> NDArray[np.int64]:
        """(N,) ids of the set, or row numbers if it has none."""
        if "caption_id" in self.table.column_names:
            return whole_numbers(self.table.column("caption_id"))
        return np.arange(len(self), dtype=np.int64)

    def _image_numbers(self) -> NDArray[np.int64]:
        """Return (N,) numbers of images by file name. Sets without unique names override this."""
        return whole_numbers(pc.dictionary_encode(self.image_names.combine_chunks()).indices)

    @cached_property
    def fingerprint(self) -> str:
        """Hash of names, captions and ids, but not of the content of images, which are not read for it."""
        state = hashlib.blake2b(digest_size=16)
        state.update(repr((len(self), self.weights.tolist(), self.table.column_names)).encode())
        for column in self.table.columns:
            for batch in column.chunks:
                for start in range(0, len(batch), 65536):
                    piece = pa.concat_arrays(
                        [batch.slice(start, 65536)]
                    )  # a copy, without the bytes of neighbouring slices
                    for buffer in piece.buffers():
                        if buffer is not None:
                            state.update(buffer)
        return state.hexdigest()


def whole_numbers(column: pa.Array | pa.ChunkedArray) -> NDArray[np.int64]:
    """Return the values of a column of integers without nulls. Arrow's own conversion imports pandas, which takes a
    second."""
    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return np.from_dlpack(whole).astype(np.int64)


def clean_caption(text: str | None) -> str:
    """Return a caption without surrounding spaces; "" for None and for the texts that mean a missing caption."""
    text = "" if text is None else text.strip()
    return "" if text in _NO_TEXT else text


def caption_columns(source: ClipSourceConfig, usual: Sequence[str]) -> list[str]:
    """Return the keys of `caption_key`, or the `usual` keys, of which the first that exists will be used."""
    if source.caption_key is None:
        return list(usual)
    return [source.caption_key] if isinstance(source.caption_key, str) else list(source.caption_key)


def chosen_column(
    present: Sequence[str],
    wanted: str | None,
    usual: Sequence[str],
    kind: str,
    where: str,
    field: str = "data.train",
) -> str:
    """Return the column to read: `wanted`, or the first of the `usual` columns that is `present`. Raises DataError,
    which lists the existing columns, if there is none. `kind` is image, caption or label; the message names the set
    `where` and the config's `field`."""
    for name in usual if wanted is None else [wanted]:
        if name in present:
            return name
    named = f"no column {wanted!r}" if wanted is not None else f"none of the columns {', '.join(usual)}"
    raise DataError(
        f"{where} has {named} for the {kind}; it has {', '.join(present) or 'no columns'}\n"
        f"  name the column with {kind}_key, as in {field}='[{{path: ..., {kind}_key: NAME}}]'"
    )


def chosen_captions(present: Sequence[str], source: ClipSourceConfig, usual: Sequence[str], where: str) -> list[str]:
    """Return the columns of `caption_key`, or the first of the `usual` columns. Raises DataError if one is missing."""
    if source.caption_key is None:
        return [chosen_column(present, None, usual, "caption", where)]
    return [chosen_column(present, key, (), "caption", where) for key in caption_columns(source, ())]


def texts_of(column: pa.Array | pa.ChunkedArray, name: str, where: str) -> pa.Array | pa.ChunkedArray:
    """Return a column `name` of a table as texts. Raises DataError if its values are not texts."""
    try:
        return column.cast(pa.large_string())
    except pa.ArrowException as error:
        raise DataError(
            f"{where}: column {name!r} holds {column.type}, which cannot be read as texts: {error}\n"
            "  name the caption's column with caption_key, as in data.train='[{path: ..., caption_key: NAME}]'"
        ) from error


def split_names(source: ClipSourceConfig, split: Split) -> tuple[str, ...]:
    """Return the possible names of a split in the set."""
    return SPLIT_NAMES[split] if source.split is None else (source.split,)


_NUM_NAMED = 5
"""Number of bad rows of a set that the log lists."""
_FEW_ROWS = 10_000
"""The limit for bad rows is computed for at least this number of rows."""
_logger = logging.getLogger(__name__)


class BadRows:
    """Counts the bad rows of a set that a process has read. Thread-safe.

    The limit is a share of the images (a broken image with five captions counts once) and, for empty captions, of the
    rows. It is computed for the rows read so far, but at least for the first 10,000 rows or, if smaller, the whole set.
    So three bad images of 300 are allowed with 0.01, while a folder that is not mounted stops the run at once. The rows
    lost in truncated archives count from the start.
    """

    def __init__(self, pairs: Pairs, max_fraction: float) -> None:
        """Create the counter. `max_fraction` is the share of the images and captions that may be bad."""
        self._pairs, self._max_fraction = pairs, max_fraction
        self._images: dict[int, str] = {}
        self._captions: set[int] = set()
        self._num_seen = 0
        self._lock = threading.Lock()

    def see(self, num_rows: int) -> None:
        """Add to the number of rows read."""
        with self._lock:
            self._num_seen += num_rows

    def add(self, row: int, error: BadImage) -> None:
        """Count a bad image, or a row without a caption, once. Raises DataError if there are too many."""
        is_caption = error.reason == "empty caption"
        image = int(self._pairs.image_ids[row])
        with self._lock:
            if row in self._captions if is_caption else image in self._images:
                return
            if is_caption:
                self._captions.add(row)
            else:
                self._images[image] = error.reason
            num_bad = len(self._images) + len(self._captions)
            counts = Counter(self._images.values())
            num_rows = min(len(self._pairs), max(self._num_seen, _FEW_ROWS))
            # The limit is computed for the rows read, at least for 10,000, and for the same share of the images.
            num_images = max(round(self._num_all_images * num_rows / len(self._pairs)), 1)
        share = sum(counts.values()) / num_images + len(self._captions) / num_rows + self._pairs.lost_share
        if share > self._max_fraction:
            parts = [f"{count} of {num_images:,} images ({name})" for name, count in counts.items()]
            parts += [f"{len(self._captions)} of {num_rows:,} captions (empty)"] if self._captions else []
            parts += [f"about {self._pairs.num_lost:,} pairs (unreadable file)"] if self._pairs.num_lost else []
            raise DataError(
                f"{self._pairs.explain(row, error)}\n"
                f"  bad so far: {', '.join(parts)}; this is a share of {share:.2g}, which is more than "
                f"data.max_bad_fraction={self._max_fraction:g}\n"
                f"  list them with: pretrainkit data check {quote(self._pairs.path)}\n"
                f"  fix the set, or allow more: data.max_bad_fraction={rounded_up(share)}"
            )
        if num_bad <= _NUM_NAMED:
            more = "; further bad rows are only counted" if num_bad == _NUM_NAMED else ""
            _logger.warning("%s (another row of the set takes its place%s)", self._pairs.explain(row, error), more)

    @cached_property
    def _num_all_images(self) -> int:
        return len(np.unique(self._pairs.image_ids))


def rounded_up(share: float) -> str:
    """Return twice the share, as a short number of at most 1, so that the next bad image does not stop the run
    again."""
    return f"{min(float(f'{2 * share:.1g}'), 1.0):g}"
