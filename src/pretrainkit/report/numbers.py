"""Numbers and names formatted for people."""

import math
from collections.abc import Iterable
from fnmatch import fnmatchcase

DASH = "–"
_WORDS = {
    "lr": "learning rate",
    "lm": "LM",
    "mfu": "MFU",
    "flops": "FLOPs",
    "grad": "gradient",
    "num": "number of",
    "ema": "EMA",
    "valid": "held-out",
    "gib": "GiB",
    "i2t": "I2T",
    "t2i": "T2I",
}
_SHARES = frozenset({"padding", "data_wait", "mfu"})


def number(value: float | None) -> str:
    """Format whole numbers with thousands separators, other numbers with four significant digits."""
    if value is None:
        return DASH
    if isinstance(value, int):
        return f"{value:,}"
    if not math.isfinite(value):
        return "not a number" if math.isnan(value) else ("infinite" if value > 0 else "-infinite")
    size = abs(value)
    if value == 0:
        return "0"
    if size >= 1e15 or size < 1e-3:
        return scientific(value, 4)
    if size >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def scientific(value: float, digits: int) -> str:
    """Format a number like '1.5e-5', with at most `digits` significant digits and without trailing zeros."""
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
    mantissa = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
    return f"{mantissa}e{int(exponent)}"


def short(value: float) -> str:
    """Format a number with three significant digits and k, M, B or T, for cards and axes."""
    if not math.isfinite(value):
        return number(value)
    size = abs(value)
    for unit, suffix in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if size >= unit * 0.9995:
            return f"{value / unit:,.3g}{suffix}" if size < 1000 * unit else f"{value / unit:,.0f}{suffix}"
    if size < 1e-3 and value:
        return scientific(value, 3)
    return f"{value:.3g}"


def percent(share: float) -> str:
    """Format 0.4321 as '43.2 %', with a non-breaking space."""
    if not math.isfinite(share):
        return number(share)
    return f"{100 * share:.3g}\u00a0%" if abs(share) < 0.9995 else f"{100 * share:.0f}\u00a0%"


def duration(seconds: float) -> str:
    """Format a time as '850 ms', '12.3 s', '3 min 5 s', '2 h 5 min' or '3 d 4 h'."""
    if not math.isfinite(seconds):
        return number(seconds)
    if seconds < 1:
        return f"{1000 * seconds:.3g} ms"
    if seconds < 59.95:
        return f"{seconds:.3g} s"
    whole = round(seconds)
    for unit, name, smaller, smaller_name in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= unit:
            rest = whole % unit // smaller
            return f"{whole // unit} {name}" + (f" {rest} {smaller_name}" if rest else "")
    return f"{whole} s"


def label(key: str) -> str:
    """Convert 'masked_lm_loss' to 'masked LM loss'. Names with a slash contain a task's name and are not changed."""
    if "/" in key:
        return key
    return " ".join(_WORDS.get(word, word) for word in key.split("_") if word) or key


def is_share(key: str, percentages: Iterable[str] = ()) -> bool:
    """True if a metric of this name has values in [0, 1], which are shown in per cent. It does not match the patterns
    `percentages`, which are those of metrics with values in per cent. Metrics of tasks, which have a slash, have the
    units of the task."""
    is_named = key in _SHARES or key.endswith(("_accuracy", "_share", "_rate")) or key == "accuracy"
    return is_named and "/" not in key and not is_percentage(key, percentages)


def metric(key: str, value: float, percentages: Iterable[str] = ()) -> str:
    """Format a metric's value in the unit that its name implies; see `is_share`."""
    if is_percentage(key, percentages):
        return f"{number(value)}\u00a0%" if math.isfinite(value) else number(value)
    if is_share(key):
        return percent(value)
    if key.endswith("_per_second"):
        return f"{short(value)}/s"
    if key == "seconds" or key.endswith("_seconds") or key.startswith("seconds_"):
        return duration(value)
    if key in ("parameters", "tokens", "examples", "flops") or key.startswith("num_"):
        return short(value) if abs(value) >= 1e5 else number(value)
    return number(value)


def is_percentage(key: str, percentages: Iterable[str]) -> bool:
    """True if a metric of this name has values in per cent, which `percentages` match."""
    return any(fnmatchcase(key, pattern) for pattern in percentages)
