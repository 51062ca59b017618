"""Units of measure by the codes of the template `convert`."""

import re
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Unit:
    """One unit of measure."""

    kind: str
    """Physical quantity, such as "length". Only units of the same kind can be converted into each other."""
    scale: float
    """Size in base units of the kind."""
    name: str
    plural: str
    symbol: str
    default: str
    """Codes of the units to convert to by default, separated by spaces."""
    zero: float = 0.0
    """Zero point of a temperature scale in kelvins."""
    words: str = ""
    """Text between number and name, such as "million"."""

    def to_base(self, value: float) -> float:
        """Convert a value from this unit to the base unit."""
        return value * self.scale + self.zero

    def from_base(self, value: float) -> float:
        """Convert a value from the base unit to this unit."""
        return (value - self.zero) / self.scale

    def named(self, *, is_one: bool) -> str:
        """Return the name after a number, singular if `is_one`."""
        name = self.name if is_one else self.plural
        return f"{self.words} {name}" if self.words else name


_INCH, _FOOT, _MILE, _POUND = 0.0254, 0.3048, 1609.344, 0.45359237
_TABLE = f"""
length
  km | 1000 | kilometre | | km | mi
  m | 1 | metre | | m | ft
  cm | 0.01 | centimetre | | cm | in
  mm | 0.001 | millimetre | | mm | in
  um μm µm | 1e-6 | micrometre | | μm | in
  nm | 1e-9 | nanometre | | nm | in
  mi mile miles | {_MILE} | mile | | mi | km
  yd | 0.9144 | yard | | yd | m
  ft foot feet | {_FOOT} | foot | feet | ft | m
  in inch inches | {_INCH} | inch | inches | in | mm
  nmi | 1852 | nautical mile | | nmi | km mi
  furlong | 201.168 | furlong | | furlongs | m
  chain | 20.1168 | chain | | chains | m
  fathom | 1.8288 | fathom | | fathoms | m
  ly | 9.4607304725808e15 | light-year | | ly |
  pc | 3.0856775814914e16 | parsec | | pc |
  au | 149597870700 | astronomical unit | | au | km
area
  km2 sqkm | 1e6 | square kilometre | | km² | sqmi
  m2 sqm | 1 | square metre | | m² | sqft
  cm2 sqcm | 1e-4 | square centimetre | | cm² | sqin
  mm2 sqmm | 1e-6 | square millimetre | | mm² | sqin
  ha | 1e4 | hectare | | ha | acre
  acre acres | 4046.8564224 | acre | | acres | ha
  sqmi mi2 | {_MILE**2} | square mile | | sq mi | km2
  sqyd yd2 | {0.9144**2} | square yard | | sq yd | m2
  sqft ft2 | {_FOOT**2} | square foot | square feet | sq ft | m2
  sqin in2 | {_INCH**2} | square inch | square inches | sq in | cm2
volume
  km3 | 1e9 | cubic kilometre | | km³ | cumi
  m3 | 1 | cubic metre | | m³ | cuft
  cm3 cc | 1e-6 | cubic centimetre | | cm³ | cuin
  l litre liter | 1e-3 | litre | | L | impgal usgal
  ml | 1e-6 | millilitre | | mL | impfloz usfloz
  ml_ | 1000 | megalitre | | ML | impgal usgal
  hl | 0.1 | hectolitre | | hL | impgal usgal
  cumi mi3 | {_MILE**3} | cubic mile | | cu mi | km3
  cuyd yd3 | {0.9144**3} | cubic yard | | cu yd | m3
  cuft ft3 | {_FOOT**3} | cubic foot | cubic feet | cu ft | m3
  cuin in3 | {_INCH**3} | cubic inch | cubic inches | cu in | cm3
  usgal u.s.gal | 3.785411784e-3 | US gallon | | US gal | l impgal
  impgal | 4.54609e-3 | imperial gallon | | imp gal | l usgal
  usfloz | 29.5735295625e-6 | US fluid ounce | | US fl oz | ml
  impfloz | 28.4130625e-6 | imperial fluid ounce | | imp fl oz | ml
  oilbbl bbl | 0.158987294928 | barrel | | bbl | m3
  acre.ft acreft | {4046.8564224 * _FOOT} | acre-foot | acre-feet | acre⋅ft | m3
  gal | | gallon | | gal |
  pint | | pint | | pt |
mass
  kg | 1 | kilogram | | kg | lb
  g | 1e-3 | gram | | g | oz
  mg | 1e-6 | milligram | | mg | gr
  lb lbs | {_POUND} | pound | | lb | kg
  oz | {_POUND / 16} | ounce | | oz | g
  gr | 64.79891e-6 | grain | | gr | mg
  t tonne | 1000 | tonne | | t | lt st_
  st | {_POUND * 14} | stone | stone | st | lb kg
  lt lton | {_POUND * 2240} | long ton | | long tons | t st_
  st_ ston | {_POUND * 2000} | short ton | | short tons | t lt
  ton | | ton | | tons |
speed
  km/h kmh kph | {1 / 3.6!r} | kilometre per hour | kilometres per hour | km/h | mph
  mph mi/h | {_MILE / 3600!r} | mile per hour | miles per hour | mph | km/h
  m/s | 1 | metre per second | metres per second | m/s | ft/s
  km/s | 1000 | kilometre per second | kilometres per second | km/s | mi/s
  mi/s | {_MILE} | mile per second | miles per second | mi/s | km/s
  ft/s | {_FOOT} | foot per second | feet per second | ft/s | m/s
  kn knot knots | {1852 / 3600!r} | knot | | kn | km/h mph
temperature
  k | 1 | kelvin | | K | c f
  c °c degc | 1 | °C | °C | °C | f
  f °f degf | {5 / 9!r} | °F | °F | °F | c
temperature change
  c-change | 1 | °C | °C | °C | f-change
  f-change | {5 / 9!r} | °F | °F | °F | c-change
power
  w | 1 | watt | | W | hp
  kw | 1000 | kilowatt | | kW | hp
  mw | 1e6 | megawatt | | MW | hp
  hp bhp | 745.69987158227 | horsepower | horsepower | hp | kw
pressure
  pa | 1 | pascal | | Pa | psi
  kpa | 1000 | kilopascal | | kPa | psi
  mpa | 1e6 | megapascal | | MPa | psi
  hpa | 100 | hectopascal | | hPa | inhg
  inhg | 3386.388640341 | inch of mercury | inches of mercury | inHg | kpa
  psi | 6894.757293168 | pound per square inch | pounds per square inch | psi | kpa
  bar | 1e5 | bar | | bar | kpa
  atm | 101325 | standard atmosphere | | atm | kpa
energy
  j | 1 | joule | | J |
  kj | 1000 | kilojoule | | kJ | kcal
  kcal | 4184 | kilocalorie | | kcal | kj
torque
  n.m n·m n⋅m nm_ | 1 | newton-metre | | N⋅m | lb.ft
  lb.ft lbft lb·ft ft.lb ftlb | {_POUND * 9.80665 * _FOOT!r} | pound-foot | pound-feet | lb⋅ft | n.m
density
  g/cm3 | 1000 | gram per cubic centimetre | grams per cubic centimetre | g/cm³ | lb/cuin
  kg/m3 | 1 | kilogram per cubic metre | kilograms per cubic metre | kg/m³ | lb/cuyd
  lb/cuin | {_POUND / _INCH**3!r} | pound per cubic inch | pounds per cubic inch | lb/cu in | g/cm3
  lb/cuyd | {_POUND / 0.9144**3!r} | pound per cubic yard | pounds per cubic yard | lb/cu yd | kg/m3
density of people
  /km2 /sqkm | 1 | per square kilometre | per square kilometre | /km² | /sqmi
  pd/km2 pd/sqkm | 1 | inhabitant per square kilometre | inhabitants per square kilometre | /km² | /sqmi
  /sqmi | {1e6 / _MILE**2!r} | per square mile | per square mile | /sq mi | /km2
  pd/sqmi | {1e6 / _MILE**2!r} | inhabitant per square mile | inhabitants per square mile | /sq mi | /km2
flow
  m3/s | 1 | cubic metre per second | cubic metres per second | m³/s | cuft/s
  cuft/s ft3/s | {_FOOT**3!r} | cubic foot per second | cubic feet per second | cu ft/s | m3/s
  m3/d | {1 / 86400!r} | cubic metre per day | cubic metres per day | m³/d | oilbbl/d
  oilbbl/d bbl/d | {0.158987294928 / 86400!r} | barrel per day | barrels per day | bbl/d | m3/d
electricity
  v | | volt | | V |
  kv | | kilovolt | | kV |
"""
_ZEROES = {"°C": 273.15, "°F": 459.67 * 5 / 9}
"""Symbol of a temperature unit to its zero point in kelvins."""
_BY_CASE = {
    "ST": "st_", "Nm": "nm_", "mW": "", "Mm": "", "mPa": "", "Mg": "t", "ML": "ml_", "Ml": "ml_",
    "F-change": "f-change", "C-change": "c-change",
}  # fmt: skip
"""Codes that have another meaning in lower case, to their unambiguous code; "" is not supported."""
_POWERS = {
    "k": ("thousand", "e3", 1e3),
    "m": ("million", "e6", 1e6),
    "g": ("billion", "e9", 1e9),
    "t": ("trillion", "e12", 1e12),
}
_POWERED = re.compile(
    r"(?:(e3|e6|e9|e12)(.{1,20})|([KMGTkmgt])(oilbbl.*|cuft|acre.*|ha|USgal|impgal|km2|sqmi|m3|ton|lb|kg|t|L))"
)
BELOW = {"ft": ("in",), "lb": ("oz",), "st": ("lb",), "yd": ("ft",), "mi": ("ft", "yd", "chain")}
"""Unit to the smaller units that may follow it in one measure, as in 6 ft 2 in."""


def _units() -> dict[str, Unit]:
    units: dict[str, Unit] = {}
    kind = ""
    for line in _TABLE.strip().split("\n"):
        if not line.startswith(" "):
            kind = line
            continue
        codes, scale, name, plural, symbol, default = (field.strip() for field in line.split("|"))
        zero = _ZEROES.get(symbol, 0.0) if kind == "temperature" else 0.0
        unit = Unit(kind if scale else name, float(scale or 1), name, plural or name + "s", symbol, default, zero)
        units |= dict.fromkeys(codes.split(), unit)
    return units


UNITS = _units()


def find_unit(code: str) -> Unit | None:
    """Return the unit of a code such as `km2`, `e6acre` or `koilbbl/d`; None if the code is unknown."""
    code = code.strip()
    if unit := UNITS.get(_BY_CASE.get(code, code.casefold())):
        return unit
    match = _POWERED.fullmatch(code)
    base = UNITS.get((match[2] or match[4]).casefold()) if match else None
    if match is None or base is None:
        return None
    prefix = (match[1] or match[3]).casefold()
    word, power, factor = next(entry for key, entry in _POWERS.items() if prefix in (key, entry[1]))
    is_flow = base.kind == "flow"
    targets = (code if is_flow else f"{power}{code}" for code in base.default.split())
    symbol = f"{word} {base.symbol}"
    return replace(base, scale=base.scale * factor, symbol=symbol, default=" ".join(targets), words=word)
