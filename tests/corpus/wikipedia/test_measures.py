"""Measures as the English Wikipedia shows them. The expected values were computed by hand from its rules of rounding:
as many digits as the input has, one more or less where the number gets ten times smaller or larger, and at least two;
or is in the template's own documentation, such as 7.1 miles (11.4 km)."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretrainkit.corpus.wikipedia.clean import Cleaner
from pretrainkit.corpus.wikipedia.measures import convert
from pretrainkit.corpus.wikipedia.options import Extraction
from pretrainkit.corpus.wikipedia.site import parse_site
from pretrainkit.corpus.wikipedia.units import UNITS, find_unit


def clean(wikitext):
    return Cleaner(parse_site('<mediawiki xml:lang="en">'), Extraction()).clean(wikitext, "Page")


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("convert|6|ft|m", "6 feet (1.8 m)"),
        ("convert|100|km|mi", "100 kilometres (62 mi)"),
        ("convert|100|mi|km|0", "100 miles (161 km)"),
        ("convert|1500|km", "1,500 kilometres (930 mi)"),
        ("convert|663,268|sqmi|km2|0", "663,268 square miles (1,717,856 km²)"),
        ("convert|52419|sqmi|km2|sp=us|abbr=off", "52,419 square miles (135,760 square kilometers)"),
        ("convert|60|to|170|kg|lb", "60 to 170 kilograms (130 to 370 lb)"),
        ("convert|8|-|12|km|mi", "8–12 kilometres (5.0–7.5 mi)"),
        ("convert|60|and(-)|80|kg", "60 and 80 kilograms (130–180 lb)"),
        ("convert|23|C|0", "23 °C (73 °F)"),
        ("convert|-40|°F", "−40 °F (−40 °C)"),
        ("convert|38.5|C", "38.5 °C (101.3 °F)"),
        ("convert|300|K|C", "300 kelvins (27 °C)"),
        ("convert|5|C-change|0|abbr=on", "5 °C (9 °F)"),
        ("convert|6|ft|2|in", "6 feet 2 inches (1.88 m)"),
        ("convert|6|ft|4|in|cm|0", "6 feet 4 inches (193 cm)"),
        ("convert|10|st|7|lb|kg", "10 stone 7 pounds (67 kg)"),
        ("convert|5+1/2|in|mm", "5 1⁄2 inches (140 mm)"),
        ("convert|1|mi", "1 mile (1.6 km)"),
        ("convert|200|acre", "200 acres (81 ha)"),
        ("convert|44|e6acre|e6ha|abbr=off", "44 million acres (18 million hectares)"),
        ("convert|11|MUSgal|Ml|abbr=off|sp=us", "11 million US gallons (42 megaliters)"),
        ("convert|860|nmi|km mi|-1", "860 nautical miles (1,590 km; 990 mi)"),
        ("convert|8900|lb|kg|order=flip", "4,000 kilograms (8,900 lb)"),
        ("convert|840|m|ft|0|abbr=on|disp=or", "840 m or 2,756 ft"),
        ("convert|100|mi|km|0|disp=or", "100 miles or 161 kilometres"),
        ("convert|10|ft|m|adj=mid|-long", "10-foot-long (3.0 m)"),
        ("convert|50|to|150|C|sigfig=2", "50 to 150 °C (120 to 300 °F)"),
        ("convert|55|mph", "55 miles per hour (89 km/h)"),
        ("convert|3|L", "3 litres (0.66 imp gal; 0.79 US gal)"),
        ("convert|5.8|PD/sqmi", "5.8 inhabitants per square mile (2.2/km²)"),
        ("convert|10|km|mi|disp=number", "6.2"),
        ("cvt|10|km", "10 km (6.2 mi)"),
        ("convert|3|parsnip|m", "3 parsnip"),
        ("convert|3|km|kg", "3 kilometres"),
        ("convert|1e300|km|mm", "1 × 10^300 kilometres"),
        ("convert|7.1|mi|km", "7.1 miles (11.4 km)"),
        ("convert|7.0|mi|km", "7.0 miles (11.3 km)"),
        ("convert|2|-|5|km|mi|2|abbr=on", "2–5 km (1.24–3.11 mi)"),
        ("convert|2|and|5|km|mi|sigfig=3|abbr=off", "2 and 5 kilometres (1.24 and 3.11 miles)"),
        ("convert|1|lb|kg|abbr=in", "1 lb (0.45 kilograms)"),
        ("convert|6|to|17|kg", "6 to 17 kilograms (13 to 37 lb)"),
        ("convert|6|x|12|m|ft|abbr=on", "6 m × 12 m (20 ft × 39 ft)"),
        ("convert|100|e6mi|e6km", "100 million miles (160 million km)"),
        ("convert|9|in|cm|adj=on|abbr=on", "9 in (23 cm)"),
        ("convert|many|km", ""),
        ("convert|3", ""),
        ("convert", ""),
    ],
)
def test_measures_are_given_and_converted_as_the_template_does(template, text):
    assert clean("{{" + template + "}}") == text


def test_converting_back_restores_the_value_and_defaults_are_of_the_same_kind():
    for code, unit in UNITS.items():
        assert math.isclose(unit.from_base(unit.to_base(12.5)), 12.5), code
        for default in unit.default.split():
            target = find_unit(default)
            assert target is not None, (code, default)
            assert target.kind == unit.kind, (code, default)


@given(
    number=st.floats(allow_nan=False, allow_infinity=False).map(repr) | st.text("0123456789.,-−+/ ex", max_size=60),
    unit=st.sampled_from([*sorted(UNITS), "e6acre", "kg", "?"]),
    rest=st.lists(st.sampled_from(["to", "5", "-1", "in", "km mi", "x", "²", "ft", "1/0", "9" * 50]), max_size=4),
    named=st.dictionaries(
        st.sampled_from(["abbr", "adj", "disp", "order", "sigfig", "round", "sp"]),
        st.sampled_from(["on", "off", "or", "flip", "number", "5", "0", "99", "us", "mid", "table", "²"]),
    ),
)
def test_no_arguments_make_it_fail(number, unit, rest, named):
    for places in ([number, unit, *rest], [number, *rest, unit]):
        assert "\n" not in convert(tuple(places), tuple(named.items()), is_short=False)


def test_a_number_of_a_million_digits_has_no_value():
    assert clean("a {{convert|" + "1" * 1_000_000 + "x|km}} b") == "a b"
