"""What the template `convert` says: a measure, and the same in other units.

Source: the pages Help:Convert and Template:Convert of the English Wikipedia, which say how it rounds. Frames, inline
tables, spelled-out numbers and rarer units are left out: a measure in a unit that is not known stays as it was given.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from pretrainkit.corpus.wikipedia.units import BELOW, Unit, find_unit
from pretrainkit.corpus.wikipedia.word_lists import words

_NUMBER = re.compile(r"([-−+±~]?)([\d,   ]*\.?\d+|\d[\d,   ]*\.)(?:e([-+−]?\d{1,3}))?", re.IGNORECASE)
_FRACTION = re.compile(r"([-−]?)(?:(\d{1,9})\s*[+ ]\s*)?(\d{1,9})[/⁄]{1,2}(\d{1,9})")
_BETWEEN = {
    "to": (" to ", " to "), "and": (" and ", " and "), "or": (" or ", " or "), "-": ("–", "–"), "–": ("–", "–"),
    "to(-)": (" to ", "–"), "and(-)": (" and ", "–"), "x": (" by ", " × "), "by": (" by ", " by "),
    "by(x)": (" by ", " × "), "+": (" + ", " + "), "×": (" by ", " × "), "xx": (" × ", " × "), "&": (" and ", " & "),
    "±": (" ± ", " ± "), "+/-": (" ± ", " ± "), "*": (" × ", " × "), "to about": (" to about ", " to about "),
}  # fmt: skip
"""Words between two numbers: before the unit's name, and before its sign."""
_SEPARATORS = {"or": " or ", "/": " / ", "slash": " / ", "comma": ", "}
"""By `disp=`."""
_AMERICAN = (("litre", "liter"), ("metre", "meter"), ("tonne", "metric ton"))
_MAX_DECIMALS = 12
_GROUPS = {"en": (",", "."), "": (",", "."), "fr": ("\u202f", ",")} | dict.fromkeys(
    words("de it nl pt tr id ca da el ro sr vi"), (".", ",")
)
"""Language to the signs between thousands and before decimals; a no-break space and a comma in all others."""
_TOO_LARGE = 1e18
_MAX_CHARACTERS = 40
"""Of a number: longer ones are none, and matching them would take long."""


@dataclass(frozen=True)
class Value:
    """A number as it was given."""

    shown: str
    number: float
    precision: float
    """Digits behind the point that count; negative: zeroes before it that do not."""
    is_fraction: bool


def group_digits(number: str, language: str) -> str:
    """`1234567.8` as the language writes it; what is no plain number stays as it is."""
    found = re.fullmatch(r"([-−+]?)(\d+)(?:\.(\d+))?", number.replace(",", ""))
    if not found:
        return number
    comma, point = _GROUPS.get(language, ("\u00a0", ","))
    # Python refuses to convert longer numbers.
    grouped = f"{int(found[2]):,}".replace(",", comma) if len(found[2]) < 4000 else found[2]
    return found[1] + grouped + (point + found[3] if found[3] else "")


@lru_cache(maxsize=4096)
def convert(places: tuple[str, ...], pairs: tuple[tuple[str, str], ...], *, is_short: bool) -> str:
    """The text of `{{convert|...}}`; "" where it has no measure. Equal measures, which come again and again, are worked
    out once. `is_short`: signs of units rather than names (`{{cvt}}`)."""
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
    given = _Measure([value.shown for value in values], betweens, unit, below, _is_one(values))
    try:
        results = [_converted(given, values, target, precision, named) for target in targets]
    except (ArithmeticError, ValueError):  # no finite number comes of it
        results = []
    return _Style(abbreviation, named).arrange(given, results)


def _converted(
    given: "_Measure", values: Sequence[Value], target: Unit, precision: int | None, named: Mapping[str, str]
) -> "_Measure":
    """The same in another unit."""
    lower = sum(unit.to_base(value.number) for value, unit in given.below)
    bases = [given.unit.to_base(value.number) + lower for value in values]
    shown = [_shown_result(base, value, given, target, precision, named) for base, value in zip(bases, values)]
    return _Measure(shown, given.betweens, target, (), len(shown) == 1 and shown[0] in ("1", "−1"))


def _values(places: Sequence[str]) -> tuple[list[Value], list[str], list[str]]:
    """Numbers, the words between them, and what follows."""
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
    if found := _FRACTION.fullmatch(text):
        whole, above, below = int(found[2] or 0), int(found[3]), int(found[4])
        if not below:
            return None
        number = (whole + above / below) * (-1 if found[1] else 1)
        sign = "−" if found[1] else ""
        shown = f"{sign}{whole} {above}⁄{below}" if found[2] else f"{sign}{above}⁄{below}"
        return Value(shown, number, max(math.log10(below), 1), True)
    found = _NUMBER.fullmatch(text)
    if not found:
        return None
    digits = re.sub(r"[^\d.]", "", found[2])
    exponent = int((found[3] or "0").replace("−", "-"))
    sign = "-" if found[1] in ("-", "−") else ""
    number = float(f"{sign}{digits}e{exponent}")
    if not math.isfinite(number):
        return None
    integer, point, decimals = digits.partition(".")
    precision = len(decimals) if point else len(integer.rstrip("0")) - len(integer)
    shown = group_digits(found[1].replace("-", "−") + digits, "en") + (f" × 10^{exponent}" if exponent else "")
    return Value(shown, number, precision - exponent, False)


Lower = tuple[tuple[Value, Unit], ...]


def _with_lower_units(values: list[Value], rest: list[str]) -> tuple[list[Value], Lower, list[str]]:
    """`6|ft|2|in`: the smaller units of one measure."""
    if len(values) != 1 or len(rest) < 3:
        return values, (), rest
    value, unit = _value(rest[1]), find_unit(rest[2])
    if value is None or unit is None or rest[2].casefold() not in BELOW.get(rest[0].casefold(), ()):
        return values, (), rest
    return values, ((value, unit),), [rest[0], *rest[3:]]


def _targets(rest: list[str], unit: Unit) -> tuple[list[Unit], int | None]:
    """Units to convert to, and how many decimals, where that is said."""
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
    """Units by their codes, all of one kind; none if one is not known."""
    whole = find_unit(codes)
    found = [whole] if whole else [find_unit(code) for code in re.split(r"[ +]+", codes) if code]
    known = [target for target in found if target is not None and target.kind == unit.kind]
    return known if len(known) == len(found) else []


def _is_one(values: Sequence[Value]) -> bool:
    if len(values) != 1:
        return False
    return abs(values[0].number) <= 1 if values[0].is_fraction else abs(values[0].number) == 1


def _shown_result(
    base: float, value: Value, given: "_Measure", target: Unit, precision: int | None, named: Mapping[str, str]
) -> str:
    result = target.from_base(base)
    if not abs(result) < _TOO_LARGE:
        raise ValueError(f"{result} is no number to write out")
    if precision is None:
        precision = _asked_precision(result, named)
    step = 1.0
    if precision is None and named.get("round", "").strip() in ("5", "10", "25", "50"):
        step, precision = float(named["round"]), 0
    if precision is None:
        precision = _default_precision(result, base, value, given, target)
    return _rounded(result, min(max(precision, -15), _MAX_DECIMALS), step)


def _asked_precision(result: float, named: Mapping[str, str]) -> int | None:
    digits = named.get("sigfig", "").strip()
    if not digits.isdecimal() or not 0 < int(digits) < 13 or not result:
        return None
    return int(digits) - 1 - math.floor(math.log10(abs(result)))


def _default_precision(result: float, base: float, value: Value, given: "_Measure", target: Unit) -> int:
    """As many digits as the input has, as far as the units are of one size, and at least two that count; of
    temperatures three, in kelvins."""
    unit, below = given.unit, given.below
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
    # Halves go away from zero; the last term is for halves that have no exact binary form.
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
    """Numbers with their unit."""

    numbers: list[str]
    betweens: list[str]
    unit: Unit
    below: Lower
    is_one: bool

    def signed(self) -> str:
        """With the signs of units."""
        space = "" if self.unit.symbol.startswith("/") else " "
        if any(between in ("x", "×") for between in self.betweens):
            return _joined([f"{number}{space}{self.unit.symbol}" for number in self.numbers], self.betweens, 1)
        text = _joined(self.numbers, self.betweens, 1) + space + self.unit.symbol
        return " ".join([text, *(f"{value.shown} {unit.symbol}" for value, unit in self.below)])

    def named(self, spell: "_Style") -> str:
        """With the names of units."""
        text = f"{_joined(self.numbers, self.betweens, 0)} {spell.spelled(self.unit.named(is_one=self.is_one))}"
        lower = (f"{value.shown} {spell.spelled(unit.named(is_one=_is_one([value])))}" for value, unit in self.below)
        return " ".join([text, *lower])

    def as_adjective(self, spell: "_Style") -> str:
        """`6-foot`, `6-foot-2-inch`, `10 °C`."""
        if self.unit.symbol == self.unit.name:
            return self.signed()
        parts = [f"{_joined(self.numbers, self.betweens, 0)}-{spell.spelled(self.unit.named(is_one=True))}"]
        parts += [f"{value.shown}-{spell.spelled(unit.name)}" for value, unit in self.below]
        return "-".join(parts).replace("- ", "-").replace(" square", "-square").replace("square ", "square-")


class _Style:
    """How measures are set beside each other."""

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
        """A name as it is written in this variety of English."""
        if self._is_american:
            for british, american in _AMERICAN:
                name = name.replace(british, american)
        return name

    def arrange(self, given: _Measure, results: Sequence[_Measure]) -> str:
        """All of it, as `disp=` says."""
        if not results:
            return self._first(given)
        if self._shown in ("number", "output number only", "num"):
            return _joined(results[0].numbers, results[0].betweens, 1)
        if self._shown in ("out", "output only", "only"):
            return "; ".join(map(self._second, results))
        first, others = given, list(results)
        if self._is_flipped:
            first, others = results[0], [given, *results[1:]]
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
