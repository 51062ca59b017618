"""A store of glyph bitmaps, which composes lines of glyphs column by column.

Dimensions: G glyphs of a line, X columns of a line, P rows of a canvas, H rows of the store.

A bitmap is stored as columns, each with `ROWS` rows around the baseline. A line is one gather of columns, without a
loop over glyphs. Columns in which glyphs overlap are composed in the order of the glyphs, with the rounding of PyGame
or Cairo.
"""

import numpy as np
from numpy.typing import NDArray

ROWS = 96
"""Number of stored rows of a glyph."""
BASELINE = 64
"""Number of stored rows above the baseline. Rows beyond are cut off; a canvas shows far fewer."""


class GlyphAtlas:
    """A store of glyph bitmaps that only grows. Only one thread may add at a time; reading needs no lock."""

    def __init__(self) -> None:
        self._num = 1
        self._num_columns = 1
        self.left = np.zeros(256, np.int32)
        """Columns from the pen to the bitmap, by slot."""
        self.width = np.zeros(256, np.int32)
        """Number of columns of the bitmap; 0 without ink."""
        self.top = np.zeros(256, np.int32)
        """Rows from the baseline up to the upper edge of the bitmap."""
        self.bottom = np.zeros(256, np.int32)
        """Rows from the baseline up to the lower edge of the bitmap; negative if it is below the baseline."""
        self._first = np.zeros(256, np.int32)
        self._columns_XH = np.zeros((1024, ROWS), np.uint8)
        self._windows: dict[tuple[int, int], tuple[int, NDArray[np.uint8]]] = {}

    def add(self, bitmap_RX: NDArray[np.uint8], left: int, top: int) -> int:
        """Store a bitmap of coverage, uint8 (rows, columns), and return its slot. Its upper left corner is `left`
        columns right of the pen and `top` rows above the baseline. Slot 0 is a glyph without ink."""
        height, width = bitmap_RX.shape
        if not width or not height:
            left = top = height = width = 0
        slot = self._num
        if slot == len(self.left):
            for name in ("left", "width", "top", "bottom", "_first"):
                setattr(self, name, np.concatenate([getattr(self, name), np.zeros(slot, np.int32)]))
        end = self._num_columns + width
        if end > len(self._columns_XH):
            more = max(end, 2 * len(self._columns_XH)) - len(self._columns_XH)
            self._columns_XH = np.concatenate([self._columns_XH, np.zeros((more, ROWS), np.uint8)])
        start = BASELINE - top
        lowest, highest = max(start, 0), min(start + height, ROWS)
        if highest > lowest:
            self._columns_XH[self._num_columns : end, lowest:highest] = bitmap_RX[lowest - start : highest - start].T
        self.left[slot], self.width[slot], self.top[slot], self.bottom[slot] = left, width, top, top - height
        self._first[slot] = self._num_columns
        self._num, self._num_columns = slot + 1, end
        return slot

    def paint(
        self,
        line_XP: NDArray[np.uint8],
        slots_G: NDArray[np.int32],
        columns_G: NDArray[np.int64],
        baseline: int,
        layers_G: NDArray[np.int32] | None = None,
    ) -> None:
        """Overwrite `line_XP`, uint8, with the coverage of glyphs. Pixels outside of the line are cut off.

        Args:
            slots_G: Slots of the glyphs in drawing order.
            columns_G: First column of each glyph's bitmap.
            baseline: Number of rows of the line above the baseline.
            layers_G: Layer of each glyph, in ascending order. Within a layer, coverage is added up to 255; then each
                layer is composed over the previous ones, as in Cairo. None: each glyph is composed over the previous
                ones, as in PyGame.
        """
        num_columns, P = line_XP.shape
        window_XP = self._window(BASELINE - baseline, P)
        source_X, target_X, width_G = self._columns(slots_G, columns_G, num_columns)
        # If several glyphs share a column, `last_X` has the last of them, and `first_X` below the first.
        last_X = np.zeros(num_columns, np.int64)
        last_X[target_X] = source_X
        window_XP.take(last_X, axis=0, out=line_XP, mode="clip")
        num_shared = len(target_X) - int(np.count_nonzero(last_X))  # column 0 of the store belongs to no glyph
        if not num_shared:
            return
        first_X = np.zeros(num_columns, np.int64)
        first_X[target_X[::-1]] = source_X[::-1]
        shared_U = np.flatnonzero(first_X != last_X)
        is_one_layer = layers_G is not None and not layers_G.any()
        if len(shared_U) == num_shared and (layers_G is None or is_one_layer):  # at most two glyphs per column
            below_UP = window_XP.take(first_X[shared_U], axis=0).astype(np.int32)
            above_UP = window_XP.take(last_X[shared_U], axis=0).astype(np.int32)
            both_UP = np.minimum(below_UP + above_UP, 255) if is_one_layer else _over(below_UP, above_UP)
            line_XP[shared_U] = both_UP.astype(np.uint8)
            return
        is_shared = np.bincount(target_X, minlength=num_columns).take(target_X) > 1
        layer_X = None if layers_G is None else layers_G.repeat(width_G)[is_shared]
        _compose_columns(line_XP, window_XP, source_X[is_shared], target_X[is_shared], layer_X)

    def _columns(
        self, slots_G: NDArray[np.int32], columns_G: NDArray[np.int64], num_columns: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.integer]]:
        """Return, for every glyph column that is on the line, its column in the store and on the line; and the number
        of such columns per glyph."""
        first_G, width_G = self._first[slots_G], self.width[slots_G]
        end_G = columns_G + width_G
        if columns_G.size and (columns_G.min() < 0 or end_G.max() > num_columns):
            start_G = np.clip(columns_G, 0, num_columns)
            first_G = first_G + (start_G - columns_G)  # skip columns left of the line
            columns_G, width_G = start_G, np.clip(end_G, 0, num_columns) - start_G
        ends_G = np.cumsum(width_G)
        # Column i of all glyphs' columns is column i - begin of its glyph.
        index_X = np.arange(ends_G[-1] if len(ends_G) else 0)
        begin_G = ends_G - width_G
        source_X = index_X + np.repeat(first_G - begin_G, width_G)
        target_X = index_X + np.repeat(columns_G - begin_G, width_G)
        return source_X, target_X, width_G

    def _window(self, first_row: int, num_rows: int) -> NDArray[np.uint8]:
        """Return rows from `first_row` of all columns as a contiguous array. It is cached: few windows are in use."""
        num_columns = self._num_columns
        num_known, window_XP = self._windows.get((first_row, num_rows), (0, np.zeros((0, num_rows), np.uint8)))
        if num_known < num_columns:
            if len(window_XP) < num_columns:
                grown_XP = np.zeros((len(self._columns_XH), num_rows), np.uint8)
                grown_XP[:num_known] = window_XP[:num_known]
                window_XP = grown_XP
            low, high = max(first_row, 0), min(first_row + num_rows, ROWS)
            if high > low:
                new = slice(num_known, num_columns)
                window_XP[new, low - first_row : high - first_row] = self._columns_XH[new, low:high]
            self._windows[first_row, num_rows] = num_columns, window_XP
        return window_XP


def _compose_columns(
    line_XP: NDArray[np.uint8],
    window_XP: NDArray[np.uint8],
    source_X: NDArray[np.int64],
    target_X: NDArray[np.int64],
    layer_X: NDArray[np.int32] | None,
) -> None:
    """Compose the columns that several glyphs share, in drawing order."""
    order_X = np.argsort(target_X, kind="stable")
    source_X, target_X = source_X[order_X], target_X[order_X]
    is_first_X = np.diff(target_X, prepend=-1) > 0
    places_U = np.flatnonzero(is_first_X)
    rank_X = np.arange(len(target_X)) - np.repeat(places_U, np.diff(places_U, append=len(target_X)))
    unique_X = np.cumsum(is_first_X) - 1
    over = _over if layer_X is None else _cairo_over
    layers_X: NDArray[np.integer] = rank_X if layer_X is None else layer_X[order_X]
    top_UP = window_XP[source_X[places_U]].astype(np.int32)
    below_UP, layer_U = np.zeros_like(top_UP), layers_X[places_U].copy()
    # Add all second glyphs of shared columns at once, then all third glyphs, and so on; few columns have more than two.
    for rank in range(1, int(rank_X.max()) + 1):
        current = np.flatnonzero(rank_X == rank)
        rows, is_new = unique_X[current], layers_X[current] != layer_U[unique_X[current]]
        added = window_XP[source_X[current]].astype(np.int32)
        done = rows[is_new]
        below_UP[done] = over(below_UP[done], top_UP[done])
        top_UP[done] = 0
        layer_U[done] = layers_X[current[is_new]]
        top_UP[rows] = np.minimum(top_UP[rows] + added, 255)
    line_XP[target_X[places_U]] = over(below_UP, top_UP).astype(np.uint8)


def _over(below: NDArray[np.int32], above: NDArray[np.int32]) -> NDArray[np.int32]:
    """Compose as PyGame does: c + a - floor(c a / 255)."""
    return below + above - below * above // 255


def _cairo_over(below: NDArray[np.int32], above: NDArray[np.int32]) -> NDArray[np.int32]:
    """Compose as Cairo's pixman does: a + round(c (255 - a) / 255)."""
    return above + (below * (255 - above) + 127) // 255
