"""Units of measure as the template `convert` writes them out."""

_NAMES = {
    "km": "kilometre", "m": "metre", "cm": "centimetre", "mm": "millimetre", "um": "micrometre", "nm": "nanometre",
    "mi": "mile", "yd": "yard", "nmi": "nautical mile", "ly": "light-year", "pc": "parsec", "au": "astronomical unit",
    "furlong": "furlong", "fathom": "fathom", "kg": "kilogram", "g": "gram", "mg": "milligram", "lb": "pound",
    "lbs": "pound", "oz": "ounce", "t": "tonne", "mt": "tonne", "ton": "ton", "st": "stone", "lt": "long ton",
    "lton": "long ton", "ston": "short ton", "ha": "hectare", "acre": "acre", "acres": "acre", "l": "litre",
    "ml": "millilitre", "usgal": "US gallon", "impgal": "imperial gallon", "gal": "gallon", "pint": "pint",
    "km2": "square kilometre", "sqkm": "square kilometre", "m2": "square metre", "sqm": "square metre",
    "cm2": "square centimetre", "sqmi": "square mile", "mi2": "square mile", "sqft": "square foot",
    "ft2": "square foot", "sqin": "square inch", "sqyd": "square yard", "km3": "cubic kilometre", "m3": "cubic metre",
    "cumi": "cubic mile", "cuft": "cubic foot", "cuyd": "cubic yard", "cuin": "cubic inch", "cc": "cubic centimetre",
    "ft": "foot", "in": "inch", "mph": "mile per hour", "kn": "knot", "hp": "horsepower", "bhp": "brake horsepower",
    "w": "watt", "kw": "kilowatt", "mw": "megawatt", "v": "volt", "kv": "kilovolt", "j": "joule", "kj": "kilojoule",
    "kcal": "kilocalorie", "pa": "pascal", "kpa": "kilopascal", "bar": "bar", "atm": "atmosphere", "bbl": "barrel",
}  # fmt: skip
_SIGNS = {
    "c": "°C", "f": "°F", "k": "K", "km/h": "km/h", "kmh": "km/h", "km/s": "km/s", "m/s": "m/s", "ft/s": "ft/s",
    "psi": "psi", "/km2": "per square kilometre", "/sqkm": "per square kilometre", "/sqmi": "per square mile",
    "pd/sqkm": "per square kilometre", "pd/sqmi": "per square mile", "g/cm3": "g/cm³", "kg/m3": "kg/m³",
    "°c": "°C", "°f": "°F", "nm": "nm", "lbft": "lb⋅ft",
}  # fmt: skip
_PLURALS = {"foot": "feet", "inch": "inches", "horsepower": "horsepower", "stone": "stone"}
BELOW = {"ft": ("in",), "lb": ("oz",), "st": ("lb",), "yd": ("ft",), "mi": ("ft", "yd", "chain"), "ston": ("lb",)}
"""Units that may follow another in one measure: 6 ft 2 in."""


def is_known(unit: str) -> bool:
    """True where `unit_name` has words for a unit."""
    return unit.casefold() in _NAMES or unit.casefold() in _SIGNS


def unit_name(unit: str, number: str, *, adjective: bool = False) -> str:
    """The words for a unit behind a number: "mile", "miles", "km/h"; an unknown unit as it is."""
    unit = unit.strip()
    key = unit.casefold()
    if unit == "Nm":
        return "N⋅m"
    if key in _SIGNS and (key not in _NAMES or unit in ("K", "C", "F")):
        return _SIGNS[key]
    name = _NAMES.get(key)
    if name is None:
        return unit
    if adjective or number in ("1", "-1", "−1"):
        return name
    head, per, rest = name.partition(" per ")
    stem, _, last = head.rpartition(" ")
    plural = _PLURALS.get(last, last + "s")
    return f"{stem} {plural}".strip() + per + rest
