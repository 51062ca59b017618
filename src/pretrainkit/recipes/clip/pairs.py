"""Sets of image-text pairs, whatever they are stored in: rows of captions in memory, images read when asked for.

A row is one pair: an image with five captions has five rows. Dimensions: N rows, R rows asked for.
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
"""Names of the part of a set for each split; the first that exists is used."""

_NO_TEXT = frozenset({"", "nan", "NaN"})
"""Texts that tools write for a missing caption."""


Reason = Literal["missing image", "broken image", "empty caption", "oversized image"]


class BadImage(Exception):
    """An image or caption that cannot be used; the text says which and why, and `reason` how such rows are counted."""

    def __init__(self, reason: Reason, text: str) -> None:
        super().__init__(text)
        self.reason: Reason = reason


REASONS = ("good", *get_args(Reason))
"""Meanings of the numbers in `bad` of a batch."""


class Pairs(ABC):
    """One split of one set."""

    has_names = True
    """Images have names that were given to them, so that equal names hint at equal images."""

    def __init__(self, source: ClipSourceConfig, table: pa.Table, skipped: Mapping[str, int] | None = None) -> None:
        """Raises DataError where there are no rows.

        Args:
            source: The set.
            table: (N rows) `image`, the name of each image's file; `caption_0`, `caption_1`, ..., texts; maybe
                `image_id` and `caption_id`, int64.
            skipped: Number of entries left out when the set was opened, by reason.
        """
        self.name, self.path, self.table, self.skipped = set_name(source), source.path, table, dict(skipped or {})
        self.torn: tuple[str, ...] = ()
        """Files of the set of which a part cannot be read, each with the reason; rows from there are not in `table`."""
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
        """Return the file as stored. From any thread. Raises BadImage where there is none."""

    def image_bytes(self, row: int) -> int:
        """Size of the file as stored, without reading it where that can be told. Raises BadImage."""
        return len(self.read_image(row))

    def lacks_image(self, row: int) -> bool:
        """True if the file of a row is known to be missing without opening it."""
        return False

    def __len__(self) -> int:
        return self.table.num_rows

    def caption(self, row: int, draw: float = 0.0) -> str:
        """Return the caption of a row, or "" where it has none. Of several columns that have one, which is a function
        of `draw` in [0, 1): 0 is the first."""
        if len(self.captions) == 1:
            return clean_caption(self.captions[0][row].as_py())
        texts = [clean_caption(column[row].as_py()) for column in self.captions]
        weights = self.weights * [bool(text) for text in texts]
        if not weights.any():
            return ""
        # Weights of texts that are not there are 0, so that their share of [0, 1) is empty.
        return texts[int(np.searchsorted(np.cumsum(weights), draw * weights.sum(), side="right"))]

    @property
    def lost_share(self) -> float:
        """Share of the rows that cannot be read, without looking at images and captions."""
        return self.num_lost / (len(self) + self.num_lost)

    def describe(self, row: int) -> str:
        return f"set {self.name}, row {row} ({self.image_names[row].as_py()})"

    def explain(self, row: int, error: BadImage) -> str:
        """Set, row, file and reason."""
        return f"{self.describe(row)}: {error.reason}: {error}"

    @cached_property
    def image_ids(self) -> NDArray[np.int64]:
        """(N,) equal where rows show the same image."""
        if "image_id" in self.table.column_names:
            return whole_numbers(self.table.column("image_id"))
        return self._image_numbers()

    @cached_property
    def caption_ids(self) -> NDArray[np.int64]:
        """(N,) the set's own, else row numbers."""
        if "caption_id" in self.table.column_names:
            return whole_numbers(self.table.column("caption_id"))
        return np.arange(len(self), dtype=np.int64)

    def _image_numbers(self) -> NDArray[np.int64]:
        """(N,) number of each row's image by its name; sets whose names are not unique say it otherwise."""
        return whole_numbers(pc.dictionary_encode(self.image_names.combine_chunks()).indices)

    @cached_property
    def fingerprint(self) -> str:
        """Hash of names, captions and ids; not of the images' contents, which would have to be read."""
        state = hashlib.blake2b(digest_size=16)
        state.update(repr((len(self), self.weights.tolist(), self.table.column_names)).encode())
        for column in self.table.columns:
            for batch in column.chunks:
                for start in range(0, len(batch), 65536):
                    piece = pa.concat_arrays([batch.slice(start, 65536)])  # without the bytes of its neighbours
                    for buffer in piece.buffers():
                        if buffer is not None:
                            state.update(buffer)
        return state.hexdigest()


def whole_numbers(column: pa.Array | pa.ChunkedArray) -> NDArray[np.int64]:
    """The values of a column of whole numbers without nulls. (Arrow's own conversion imports pandas: a second.)"""
    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return np.from_dlpack(whole).astype(np.int64)


def clean_caption(text: str | None) -> str:
    """Strip a caption of blanks around it; "" for None and for the words that tools write for a missing caption."""
    text = "" if text is None else text.strip()
    return "" if text in _NO_TEXT else text


def caption_columns(source: ClipSourceConfig, usual: Sequence[str]) -> list[str]:
    """The keys of `caption_key`, or those `usual` ones of which the first that exists is meant."""
    if source.caption_key is None:
        return list(usual)
    return [source.caption_key] if isinstance(source.caption_key, str) else list(source.caption_key)


def chosen_column(
    present: Sequence[str],
    wanted: str | None,
    usual: Sequence[str],
    what: str,
    where: str,
    field: str = "data.train",
) -> str:
    """Return the column to read: `wanted`, or the first of the `usual` ones that is `present`. Raises DataError where
    it is not there; the message lists the columns that are, and names `field` of the config."""
    for name in usual if wanted is None else [wanted]:
        if name in present:
            return name
    named = f"no column {wanted!r}" if wanted is not None else f"none of the columns {', '.join(usual)}"
    raise DataError(
        f"{where} has {named} for the {what}; it has {', '.join(present) or 'no columns'}\n"
        f"  name the column with {what}_key, as in {field}='[{{path: ..., {what}_key: NAME}}]'"
    )


def chosen_captions(present: Sequence[str], source: ClipSourceConfig, usual: Sequence[str], where: str) -> list[str]:
    """The columns of `caption_key`, or the first of the `usual` ones. Raises DataError where one is not there."""
    if source.caption_key is None:
        return [chosen_column(present, None, usual, "caption", where)]
    return [chosen_column(present, key, (), "caption", where) for key in caption_columns(source, ())]


def split_names(source: ClipSourceConfig, split: Split) -> tuple[str, ...]:
    """Return the possible names of the wanted part of the set."""
    return SPLIT_NAMES[split] if source.split is None else (source.split,)


_NUM_NAMED = 5
"""Rows of a set that are named in the log."""
_FEW_ROWS = 10_000
"""The budget of bad rows is at least that of this number of rows."""
_logger = logging.getLogger(__name__)


class BadRows:
    """Bad rows of one set that one process has met. Safe for threads.

    The budget is a share of the images (a broken one with five captions is one) and, for empty captions, of the rows:
    of those seen, of the first 10,000, or of the whole set where that has fewer. So three bad images of 300 pass with
    0.01, and a folder that was never mounted ends the run at once. Rows lost to truncated archives count from the
    start.
    """

    def __init__(self, pairs: Pairs, max_fraction: float) -> None:
        """`max_fraction`: share of the images and captions that may be bad."""
        self._pairs, self._max_fraction = pairs, max_fraction
        self._images: dict[int, str] = {}
        self._captions: set[int] = set()
        self._num_seen = 0
        self._lock = threading.Lock()

    def see(self, num_rows: int) -> None:
        with self._lock:
            self._num_seen += num_rows

    def add(self, row: int, error: BadImage) -> None:
        """Counts a bad image, or a row without a caption, once. Raises DataError where there are too many."""
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
            # The budget grows with the rows that were seen, from that of the first 10,000; images in proportion.
            num_images = max(round(self._num_all_images * num_rows / len(self._pairs)), 1)
        share = sum(counts.values()) / num_images + len(self._captions) / num_rows + self._pairs.lost_share
        if share > self._max_fraction:
            told = [f"{count} of {num_images:,} images ({name})" for name, count in counts.items()]
            told += [f"{len(self._captions)} of {num_rows:,} captions (empty)"] if self._captions else []
            told += [f"about {self._pairs.num_lost:,} pairs (torn file)"] if self._pairs.num_lost else []
            raise DataError(
                f"{self._pairs.explain(row, error)}\n"
                f"  with it these are bad: {', '.join(told)}; that is a share of {share:.2g}, more than "
                f"data.max_bad_fraction={self._max_fraction:g}\n"
                f"  list them with: pretrainkit data check {quote(self._pairs.path)}\n"
                f"  fix the set, or allow more: data.max_bad_fraction={rounded_up(share)}"
            )
        if num_bad <= _NUM_NAMED:
            more = "; further ones are only counted" if num_bad == _NUM_NAMED else ""
            _logger.warning("%s (another row of the set takes its place%s)", self._pairs.explain(row, error), more)

    @cached_property
    def _num_all_images(self) -> int:
        return len(np.unique(self._pairs.image_ids))


def rounded_up(share: float) -> str:
    """Twice the share, as a short number of at most 1: the next bad image shall not end the run again."""
    return f"{min(float(f'{2 * share:.1g}'), 1.0):g}"
