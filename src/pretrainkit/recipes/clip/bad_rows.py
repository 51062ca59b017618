"""Rows that cannot be used: counted by reason, named in the log, and too many of them end the run."""

import logging
import threading
from collections import Counter
from functools import cached_property
from shlex import quote

import numpy as np

from pretrainkit.errors import DataError
from pretrainkit.recipes.clip.pairs import BadImage, EmptyCaption, Pairs

_NUM_NAMED = 5
"""Rows of a set that are named in the log."""
_FEW_ROWS = 10_000
"""Before so many rows of a set were seen, the budget is that of so many."""
_logger = logging.getLogger(__name__)


def explain(pairs: Pairs, row: int, error: BadImage) -> str:
    return f"{pairs.describe(row)}: {error.reason}: {error}"


class BadRows:
    """What one process has met of one set. Safe for threads.

    The budget is a share of the images (a broken one with five captions is one) and, for empty captions, of the rows:
    of those seen, of the first 10,000, or of the whole set where that has fewer. So three bad images of 300 pass with
    1 %, and a folder that was never mounted ends the run at once. What archives that break off lack counts from the
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
        is_caption = isinstance(error, EmptyCaption)
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
                f"{explain(self._pairs, row, error)}\n"
                f"  with it these are bad: {', '.join(told)}; that is a share of {share:.2g}, more than "
                f"data.max_bad_fraction={self._max_fraction:g}\n"
                f"  list them with: pretrainkit data check {quote(self._pairs.path)}\n"
                f"  mend the set, or allow more: data.max_bad_fraction={rounded_up(share)}"
            )
        if num_bad <= _NUM_NAMED:
            more = "; further ones are only counted" if num_bad == _NUM_NAMED else ""
            _logger.warning("%s (another row of the set takes its place%s)", explain(self._pairs, row, error), more)

    @cached_property
    def _num_all_images(self) -> int:
        return len(np.unique(self._pairs.image_ids))


def rounded_up(share: float) -> str:
    """Twice the share, as a short number of at most 1: the next bad image shall not end the run again."""
    return f"{min(float(f'{2 * share:.1g}'), 1.0):g}"
