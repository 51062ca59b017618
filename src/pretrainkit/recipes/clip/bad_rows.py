"""Rows that cannot be used: counted by reason, named in the log, and too many of them end the run."""

import logging
import threading
from collections import Counter

from pretrainkit.errors import DataError
from pretrainkit.recipes.clip.pairs import BadImage, BrokenImage, MissingImage, OversizedImage, Pairs

REASONS = ("good", "missing image", "broken image", "empty caption", "oversized image")
"""What the numbers of a batch's `bad` mean."""
_NUM_NAMED = 5
"""Rows of a set that are named in the log."""
_FEW_ROWS = 10_000
"""Before so many rows of a set were seen, the budget is that of so many."""
_logger = logging.getLogger(__name__)


class EmptyCaption(BadImage):
    """The row has no caption."""


def reason_of(error: BadImage) -> int:
    """Index into REASONS."""
    return {MissingImage: 1, BrokenImage: 2, EmptyCaption: 3, OversizedImage: 4}[type(error)]


def explain(pairs: Pairs, row: int, error: BadImage) -> str:
    """Set, row, file and reason."""
    return f"{pairs.describe(row)}: {REASONS[reason_of(error)]}: {error}"


class BadRows:
    """What one process has met of one set. Safe for threads.

    The budget is a share of the different rows: of those seen, of the first 10,000, or of the whole set where that has
    fewer. So three bad rows in a set of 300 pass with 1 %, and a folder that was never mounted ends the run at once.
    """

    def __init__(self, pairs: Pairs, max_fraction: float) -> None:
        """`max_fraction`: share of the rows that may be bad."""
        self._pairs, self._max_fraction = pairs, max_fraction
        self._rows: dict[int, int] = {}
        self._num_seen = 0
        self._lock = threading.Lock()

    def see(self, num_rows: int) -> None:
        """Counts rows that were looked at."""
        with self._lock:
            self._num_seen += num_rows

    def add(self, row: int, error: BadImage) -> None:
        """Counts a bad row once.

        Raises:
            DataError: There are too many.
        """
        with self._lock:
            if row in self._rows:
                return
            self._rows[row] = reason_of(error)
            num_bad = len(self._rows)
            num_rows = min(len(self._pairs), max(self._num_seen, _FEW_ROWS))
        if num_bad > self._max_fraction * num_rows:
            counts = Counter(REASONS[reason] for reason in self._rows.values())
            are = "row is" if num_bad == 1 else "rows are"
            raise DataError(
                f"{explain(self._pairs, row, error)}\n"
                f"  with it {num_bad} {are} bad ({', '.join(f'{n} {name}' for name, n in counts.items())}), more "
                f"than data.max_bad_fraction={self._max_fraction:g} of {num_rows:,}\n"
                "  list them with pretrainkit data check; mend the set, or allow more"
            )
        if num_bad <= _NUM_NAMED:
            more = "; further ones are only counted" if num_bad == _NUM_NAMED else ""
            _logger.warning("%s (another row of the set takes its place%s)", explain(self._pairs, row, error), more)
