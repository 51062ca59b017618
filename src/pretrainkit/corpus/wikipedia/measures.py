"""Text of the template `convert`: a measure, and the same measure in other units.

Source: the pages Help:Convert and Template:Convert of the English Wikipedia, which describe the rounding. Frames,
inline tables, spelled-out numbers and rarer units are not supported: a measure in an unknown unit is not converted.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from pretrainkit.corpus.wikipedia.units import BELOW, Unit, find_unit

_NUMBER = re.compile(r"([-−+±~]?)([\d,   ]*\.?\d+|\d[\d,   ]*\.)(?:e([-+−]?\d{1,3}))?", re.IGNORECASE)
_FRACTION = re.compile(r"([-−]?)(?:(\d{1,9})\s*[+ ]\s*)?(\d{1,9})[/⁄]{1,2}(\d{1,9})")
_BETWEEN = {
    "to": (" to ", " to "), "and": (" and ", " and "), "or": (" or ", " or "), "-": ("–", "–"), "–": ("–", "–"),
    "to(-)": (" to ", "–"), "and(-)": (" and ", "–"), "x": (" by ", " × "), "by": (" by ", " by "),
    "by(x)": (" by ", " × "), "+": (" + ", " + "), "×": (" by ", " × "), "xx": (" × ", " × "), "&": (" and ", " & "),
    "±": (" ± ", " ± "), "+/-": (" ± ", " ± "), "*": (" × ", " × "), "to about": (" to about ", " to about "),
}  # fmt: skip
"""Separator in the template to (text before a unit's name, text before a unit's symbol)."""
_SEPARATORS = {"or": " or ", "/": " / ", "slash": " / ", "comma": ", "}
"""Value of `disp=` to the separator between measures."""
_AMERICAN = (("litre", "liter"), ("metre", "meter"), ("tonne", "metric ton"))
_MAX_DECIMALS = 12
_GROUPS = {"en": (",", "."), "": (",", "."), "fr": ("\u202f", ",")} | dict.fromkeys(
    "de it nl pt tr id ca da el ro sr vi".split(), (".", ",")
)
"""Language to (thousands separator, decimal point). All other languages have a no-break space and a comma."""
_TOO_LARGE = 1e18
_MAX_CHARACTERS = 40
"""Maximum length of a number. Matching longer texts would take long."""


@dataclass(frozen=True)
class Value:
    """A number in the template."""

    shown: str
    number: float
    precision: float
    """Number of significant digits after the decimal point; negative: number of insignificant zeroes before it."""
    is_fraction: bool


def group_digits(number: str, language: str) -> str:
    """Write `1234567.8` with the separators of the language. Texts that are not plain numbers are not changed."""
    match = re.fullmatch(r"([-−+]?)(\d+)(?:\.(\d+))?", number.replace(",", ""))
    if not match:
        return number
    comma, point = _GROUPS.get(language, ("\u00a0", ","))
    # Python refuses to convert longer numbers.
    grouped = f"{int(match[2]):,}".replace(",", comma) if len(match[2]) < 4000 else match[2]
    return match[1] + grouped + (point + match[3] if match[3] else "")


@lru_cache(maxsize=4096)
def convert(places: tuple[str, ...], pairs: tuple[tuple[str, str], ...], *, is_short: bool) -> str:
    """Return the text of `{{convert|...}}`, or "" if it has no measure. The cache serves frequently repeated measures.

    `is_short` selects unit symbols instead of names (`{{cvt}}`)."""
    named = dict(pairs)
    values, betweens, rest = _values(places)
    if not values or not rest:
        return ""
    unit = find_unit(rest[0])
    abbreviation = named.get("abbr", "").strip() or ("on" if is_short else "")
    if unit is None:
        return f"{_joined([value.shown for value in values], betweens, 0)} {rest[0]}".strip()
    values, below, rest = _with_lower_units(values, rest)
    targets, precision = _targets(rest[1:], unit)
    original = _Measure([value.shown for value in values], betweens, unit, below, _is_one(values))
    try:
        results = [_converted(original, values, target, precision, named) for target in targets]
    except (ArithmeticError, ValueError):  # the result is not finite
        results = []
    return _Style(abbreviation, named).arrange(original, results)


def _converted(
    original: "_Measure", values: Sequence[Value], target: Unit, precision: int | None, named: Mapping[str, str]
) -> "_Measure":
    """Convert a measure to the unit `target`."""
    lower = sum(unit.to_base(value.number) for value, unit in original.below)
    bases = [original.unit.to_base(value.number) + lower for value in values]
    shown = [_shown_result(base, value, original, target, precision, named) for base, value in zip(bases, values)]
    return _Measure(shown, original.betweens, target, (), len(shown) == 1 and shown[0] in ("1", "−1"))


def _values(places: Sequence[str]) -> tuple[list[Value], list[str], list[str]]:
    """Return the numbers, the separators between them, and the remaining arguments."""
    values: list[Value] = []
    betweens: list[str] = []
    index = 0
    while index < len(places) and (value := _value(places[index])):
        values.append(value)
        index += 1
        word = places[index].strip().casefold() if index + 1 < len(places) else ""
        if word not in _BETWEEN or not _value(places[index + 1]):
            break
        betweens.append(word)
        index += 1
    return values, betweens, [place.strip() for place in places[index:]]


def _value(text: str) -> Value | None:
    text = text.strip()
    if len(text) > _MAX_CHARACTERS:
        return None
    if match := _FRACTION.fullmatch(text):
        whole, above, below = int(match[2] or 0), int(match[3]), int(match[4])
        if not below:
            return None
        number = (whole + above / below) * (-1 if match[1] else 1)
        sign = "−" if match[1] else ""
        shown = f"{sign}{whole} {above}⁄{below}" if match[2] else f"{sign}{above}⁄{below}"
        return Value(shown, number, max(math.log10(below), 1), True)
    match = _NUMBER.fullmatch(text)
    if not match:
        return None
    digits = re.sub(r"[^\d.]", "", match[2])
    exponent = int((match[3] or "0").replace("−", "-"))
    sign = "-" if match[1] in ("-", "−") else ""
    number = float(f"{sign}{digits}e{exponent}")
    if not math.isfinite(number):
        return None
    integer, point, decimals = digits.partition(".")
    precision = len(decimals) if point else len(integer.rstrip("0")) - len(integer)
    shown = group_digits(match[1].replace("-", "−") + digits, "en") + (f" × 10^{exponent}" if exponent else "")
    return Value(shown, number, precision - exponent, False)


Lower = tuple[tuple[Value, Unit], ...]


def _with_lower_units(values: list[Value], rest: list[str]) -> tuple[list[Value], Lower, list[str]]:
    """Parse the smaller units of one measure, as in `6|ft|2|in`."""
    if len(values) != 1 or len(rest) < 3:
        return values, (), rest
    value, unit = _value(rest[1]), find_unit(rest[2])
    if value is None or unit is None or rest[2].casefold() not in BELOW.get(rest[0].casefold(), ()):
        return values, (), rest
    return values, ((value, unit),), [rest[0], *rest[3:]]


def _targets(rest: list[str], unit: Unit) -> tuple[list[Unit], int | None]:
    """Return the units to convert to, and the number of decimals if it is specified."""
    precision = None
    targets: list[Unit] = []
    for place in rest[:2]:
        if re.fullmatch(r"[-−]?\d{1,2}", place):
            precision = int(place.replace("−", "-"))
        elif place and not targets:
            targets = _units_of(place, unit)
            if not targets:
                return [], None
    return targets or _units_of(unit.default, unit), precision


def _units_of(codes: str, unit: Unit) -> list[Unit]:
    """Return the units with these codes; empty if a code is unknown or of another kind than `unit`."""
    whole = find_unit(codes)
    units = [whole] if whole else [find_unit(code) for code in re.split(r"[ +]+", codes) if code]
    compatible = [target for target in units if target is not None and target.kind == unit.kind]
    return compatible if len(compatible) == len(units) else []


def _is_one(values: Sequence[Value]) -> bool:
    if len(values) != 1:
        return False
    return abs(values[0].number) <= 1 if values[0].is_fraction else abs(values[0].number) == 1


def _shown_result(
    base: float, value: Value, original: "_Measure", target: Unit, precision: int | None, named: Mapping[str, str]
) -> str:
    result = target.from_base(base)
    if not abs(result) < _TOO_LARGE:
        raise ValueError(f"{result} is too large to be written out")
    if precision is None:
        precision = _requested_precision(result, named)
    step = 1.0
    if precision is None and named.get("round", "").strip() in ("5", "10", "25", "50"):
        step, precision = float(named["round"]), 0
    if precision is None:
        precision = _default_precision(result, base, value, original, target)
    return _rounded(result, min(max(precision, -15), _MAX_DECIMALS), step)


def _requested_precision(result: float, named: Mapping[str, str]) -> int | None:
    digits = named.get("sigfig", "").strip()
    if not digits.isdecimal() or not 0 < int(digits) < 13 or not result:
        return None
    return int(digits) - 1 - math.floor(math.log10(abs(result)))


def _default_precision(result: float, base: float, value: Value, original: "_Measure", target: Unit) -> int:
    """Return the decimals that keep the precision of the input, but at least two significant digits.

    Temperatures have at least three significant digits in kelvins."""
    unit, below = original.unit, original.below
    digits = value.precision if not below else max(0.0, *(lower.precision for lower, _ in below))
    if unit.kind == "temperature":
        least = 2 if abs(base) < 1e-8 else 2 - math.floor(math.log10(abs(base)) + 1e-14)
        return max(math.floor(digits + math.log10(2)), least)
    if not result or not value.number:
        return 0
    least = 1 - math.floor(math.log10(abs(result)) + 1e-14)
    if below and below[-1][1].name == "inch":
        shift = math.log10(target.scale) + 2
    else:
        shift = math.log10(abs((base / unit.scale if below else value.number) / result))
    return max(math.floor(digits + shift + math.log10(2)), least)


def _rounded(number: float, decimals: int, step: float) -> str:
    factor = 10.0**decimals / step
    # Halves are rounded away from zero; the last term is for halves without an exact binary representation.
    whole = math.floor(abs(number) * factor + 0.5 + 1e-9)
    size = whole / factor
    shown = group_digits(f"{size:.{max(decimals, 0)}f}", "en")
    return f"−{shown}" if number < 0 and whole else shown


def _joined(numbers: Sequence[str], betweens: Sequence[str], form: int) -> str:
    text = numbers[0]
    for between, number in zip(betweens, numbers[1:], strict=True):
        text += _BETWEEN[between][form] + number
    return text


@dataclass(frozen=True)
class _Measure:
    """One or more numbers with their unit."""

    numbers: list[str]
    betweens: list[str]
    unit: Unit
    below: Lower
    is_one: bool

    def signed(self) -> str:
        """Return the text with unit symbols."""
        space = "" if self.unit.symbol.startswith("/") else " "
        if any(between in ("x", "×") for between in self.betweens):
            return _joined([f"{number}{space}{self.unit.symbol}" for number in self.numbers], self.betweens, 1)
        text = _joined(self.numbers, self.betweens, 1) + space + self.unit.symbol
        return " ".join([text, *(f"{value.shown} {unit.symbol}" for value, unit in self.below)])

    def named(self, spell: "_Style") -> str:
        """Return the text with unit names."""
        text = f"{_joined(self.numbers, self.betweens, 0)} {spell.spelled(self.unit.named(is_one=self.is_one))}"
        lower = (f"{value.shown} {spell.spelled(unit.named(is_one=_is_one([value])))}" for value, unit in self.below)
        return " ".join([text, *lower])

    def as_adjective(self, spell: "_Style") -> str:
        """Return the adjective form: `6-foot`, `6-foot-2-inch`, `10 °C`."""
        if self.unit.symbol == self.unit.name:
            return self.signed()
        parts = [f"{_joined(self.numbers, self.betweens, 0)}-{spell.spelled(self.unit.named(is_one=True))}"]
        parts += [f"{value.shown}-{spell.spelled(unit.name)}" for value, unit in self.below]
        return "-".join(parts).replace("- ", "-").replace(" square", "-square").replace("square ", "square-")


class _Style:
    """Format of the measures that a template displays."""

    def __init__(self, abbreviation: str, named: Mapping[str, str]) -> None:
        self._shown = named.get("disp", "").strip()
        by_name = self._shown in ("or", "slash", "/", "comma") and not abbreviation
        self._is_first_short = abbreviation in ("on", "in", "values")
        self._is_second_short = abbreviation not in ("off", "in", "none") and not by_name
        self._is_adjective = named.get("adj", "").strip() in ("on", "mid", "1")
        self._middle = named.get("_middle", "")
        self._is_american = named.get("sp", "").strip() == "us"
        self._is_flipped = named.get("order", "").strip() == "flip" or self._shown == "flip"

    def spelled(self, name: str) -> str:
        """Return the name of a unit in British or American spelling."""
        if self._is_american:
            for british, american in _AMERICAN:
                name = name.replace(british, american)
        return name

    def arrange(self, original: _Measure, results: Sequence[_Measure]) -> str:
        """Return the complete text, in the form that `disp=` selects."""
        if not results:
            return self._first(original)
        if self._shown in ("number", "output number only", "num"):
            return _joined(results[0].numbers, results[0].betweens, 1)
        if self._shown in ("out", "output only", "only"):
            return "; ".join(map(self._second, results))
        first, others = original, list(results)
        if self._is_flipped:
            first, others = results[0], [original, *results[1:]]
        head = self._first(first)
        tail = [self._second(other) for other in others]
        if self._shown in _SEPARATORS:
            return _SEPARATORS[self._shown].join([head, *tail])
        if self._shown in ("table", "tablecen", "unit"):
            return head
        return f"{head} [{'; '.join(tail)}]" if self._shown == "sqbr" else f"{head} ({'; '.join(tail)})"

    def _first(self, measure: _Measure) -> str:
        if self._is_first_short:
            return measure.signed() + self._middle
        return (measure.as_adjective(self) if self._is_adjective else measure.named(self)) + self._middle

    def _second(self, measure: _Measure) -> str:
        return measure.signed() if self._is_second_short else measure.named(self)
