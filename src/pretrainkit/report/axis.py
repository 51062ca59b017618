"""Axes and their ticks, and thinning and smoothing of curves."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pretrainkit.report.numbers import scientific

Floats = NDArray[np.float64]
_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True)
class Axis:
    """One axis, which maps values in [low, high] to pixels in [start, end]."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def pixel(self, value: float) -> float:
        """Return the pixel of `value`, which must be positive for a log axis."""
        return float(self.pixels(np.array([value]))[0])

    def pixels(self, values: Floats) -> Floats:
        """Return the pixels of `values`, clipped to the axis; NaN for values that are not positive on a log axis."""
        low, high = self.low, self.high
        if self.log:
            values = np.log(np.where(values > 0, values, np.nan))
            low, high = math.log(low), math.log(high)
        # Halved first: the difference of two very large numbers would overflow.
        share = np.clip((values / 2 - low / 2) / (high / 2 - low / 2), 0, 1)
        return self.start + share * (self.end - self.start)


def widened(low: float, high: float) -> tuple[float, float]:
    """Return `low` and `high`, moved apart if they are too close for distinct ticks in floating point."""
    low, high = max(low, -1e300), min(high, 1e300)
    size = max(abs(low), abs(high))
    if size > 1e-100 and high - low > 1e-9 * size:
        return low, high
    middle = low / 2 + high / 2
    margin = 0.05 * size if size > 1e-100 else 1.0
    return middle - margin, middle + margin


def ticks(low: float, high: float, target: int = 5, *, whole: bool = False) -> list[float]:
    """Return about `target` multiples of 1, 2, 2.5 or 5 times a power of ten within [low, high].

    Args:
        low: Finite, below `high`; far enough apart for floats (see `widened`).
        target: Approximate number of ticks; the result has between half and about twice as many.
        whole: True for whole numbers only; the result may then have fewer ticks.
    """
    rough = (high - low) / max(target, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = min((s * power for s in _STEPS), key=lambda step: abs(math.log(step / rough)))
    if whole:
        step = max(1.0, 10 * round(step / 10) if step == 25 else step)
        step = 5.0 if step == 2.5 else step
    slack = 1e-9 * (high - low)
    first, last = math.ceil((low - slack) / step), math.floor((high + slack) / step)
    values = [i * step for i in range(first, last + 1)]
    # Remove rounding errors: 0.30000000000000004 becomes 0.3.
    digits = max(0, 2 - math.floor(math.log10(step)))
    return [round(value, digits) + 0.0 for value in values] if 1e-300 < step < 1e15 else values


def log_ticks(low: float, high: float, target: int = 5) -> list[float]:
    """Return ticks of a log axis, 0 < low < high: powers of ten, fewer if there are many, with 2 and 5 if few."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    if last - first <= target:
        per_decade: tuple[float, ...] = (1, 2, 5) if last - first <= max(target // 2, 1) else (1,)
        candidates = [float(f"{m}e{e}") for e in range(first, last + 1) for m in per_decade]
        inside = [value for value in candidates if low * (1 - 1e-9) <= value <= high * (1 + 1e-9)]
        return inside if len(inside) >= 2 else ticks(low, high, target)
    every = -(-(last - first) // target)
    return [float(f"1e{e}") for e in range(first, last + 1) if e % every == 0 and low <= float(f"1e{e}") <= high]


def tick_labels(values: Sequence[float]) -> list[str]:
    """Return one label per tick, all in the same format: '0.25', '1,000', '20k', '1.5M', '2e-5'."""
    largest = max((abs(v) for v in values), default=0.0)
    from_ = ((1e12, 1e12, "T"), (1e9, 1e9, "B"), (1e6, 1e6, "M"), (1e4, 1e3, "k"))
    unit, suffix = next(((unit, suffix) for least, unit, suffix in from_ if least <= largest < 1e16), (0.0, ""))
    if unit:
        shown = [_plain(v / unit) for v in values]
        if max(map(len, shown)) <= 6:
            return [text + suffix if v else "0" for text, v in zip(shown, values, strict=True)]
    if largest >= 1e16 or 0 < largest < 1e-2:
        return ["0" if v == 0 else scientific(v, 6) for v in values]
    decimals = max((_decimals(v) for v in values), default=0)
    if decimals > 6:
        return ["0" if v == 0 else scientific(v, 12) for v in values]
    return [f"{v:,.{decimals}f}" for v in values]


def log_labels(values: Sequence[float]) -> list[str]:
    """Return one label per tick of a log axis, each in its own format: '0.01', '1', '100', '1e6'."""
    return [_plain(v) if 1e-3 <= v < 1e5 else scientific(v, 6) for v in values]


def thin(xs: Floats, ys: Floats, num_buckets: int) -> tuple[Floats, Floats]:
    """Return the points that a line over `num_buckets` columns needs: first, last, lowest and highest of each column.

    Points with a non-finite x or y are gaps; consecutive gaps become one point with y = NaN.
    (Jugel et al. 2014, "M4: a visualization-oriented time series data aggregation".)

    Args:
        xs: float64 (N,), not decreasing where finite.

    Returns:
        At most 4 points per bucket and gap, in order; all points if N is not greater.
    """
    is_real = np.isfinite(xs) & np.isfinite(ys)
    ys = np.where(is_real, ys, np.nan)
    keep = is_real.copy()
    keep[1:] |= ~is_real[1:] & is_real[:-1]  # the first point of each gap
    if keep.sum() > 4 * num_buckets and is_real.any():
        low, high = xs[is_real].min(), xs[is_real].max()
        width = (high / 2 - low / 2) or 1.0
        with np.errstate(invalid="ignore"):
            share = np.where(is_real, (xs / 2 - low / 2) / width, 0.0)
        bucket = np.minimum((share * num_buckets).astype(np.int64), num_buckets - 1)
        run = np.cumsum(np.diff(is_real, prepend=is_real[:1]))  # gaps end a column as its border does
        edges = np.flatnonzero(np.diff(bucket, prepend=-1) | np.diff(run, prepend=-1))
        chosen = np.zeros(len(xs), bool)
        for start, stop in zip(edges, [*edges[1:], len(xs)], strict=True):
            if is_real[start]:
                column = ys[start:stop]
                chosen[[start, stop - 1, start + int(column.argmin()), start + int(column.argmax())]] = True
            elif keep[start]:
                chosen[start] = True
        keep = chosen
    return xs[keep], ys[keep]


def smooth(xs: Floats, ys: Floats, num_points: int) -> Floats:
    """Fit a straight line to the `num_points` points around each point and return its values, without lag at the ends.

    Args:
        xs: float64 (N,), increasing.
        ys: float64 (N,); non-finite values are ignored and NaN in the result.
        num_points: Width of the window, which is shifted to one side at the ends.
    """
    is_real = np.isfinite(ys) & np.isfinite(xs)
    result = np.full(len(ys), np.nan)
    x, y = xs[is_real], ys[is_real]
    if not len(x):
        return result
    x = (x - x[0]) / max(x[-1] - x[0], 1.0)
    centre = y.mean()
    sums = np.cumsum([np.ones_like(x), x, x * x, y - centre, x * (y - centre)], axis=1)
    sums = np.concatenate([np.zeros((5, 1)), sums], axis=1)
    index = np.arange(len(x))
    num_points = min(max(num_points, 1), len(x))
    start = np.clip(index - num_points // 2, 0, len(x) - num_points)
    # Sums over each window, as differences of running sums: they are all that a least-squares fit of y = a + b x needs.
    n, sx, sxx, sy, sxy = sums[:, start + num_points] - sums[:, start]
    spread = sxx - sx * sx / n
    slope = np.where(spread > 1e-12 * n, (sxy - sx * sy / n) / np.maximum(spread, 1e-300), 0.0)
    result[is_real] = centre + sy / n + slope * (x - sx / n)
    return result


def _decimals(value: float) -> int:
    digits = f"{value:.12f}".rstrip("0")
    return len(digits) - digits.index(".") - 1


def _plain(value: float) -> str:
    return f"{value:,.{_decimals(value)}f}"
