import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretrainkit.report.numbers import duration, label, metric, number, percent, short


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (number(110106428), "110,106,428"),
        (number(4.13372), "4.134"),
        (number(12345.6), "12,346"),
        (number(1e-4), "1e-4"),
        (number(0.0), "0"),
        (number(math.nan), "not a number"),
        (number(None), "–"),
        (short(110106428), "110M"),
        (short(999.9), "1k"),
        (short(36300), "36.3k"),
        (short(2.5e13), "25T"),
        (percent(0.7741), "77.4\u00a0%"),
        (percent(1.0), "100\u00a0%"),
        (duration(0.0123), "12.3 ms"),
        (duration(42.04), "42 s"),
        (duration(59.97), "1 min"),
        (duration(185), "3 min 5 s"),
        (duration(7500), "2 h 5 min"),
        (duration(273600), "3 d 4 h"),
        (label("masked_lm_loss"), "masked LM loss"),
        (label("grad_norm"), "gradient norm"),
        (label("i2t_accuracy"), "I2T accuracy"),
        (label("t2i_accuracy"), "T2I accuracy"),
        (label("glue_rte_v002/accuracy"), "glue_rte_v002/accuracy"),
        (metric("next_sentence_accuracy", 0.5), "50\u00a0%"),
        (metric("accuracy", 0.8, ["*accuracy"]), "0.8\u00a0%"),
        (metric("accuracy", math.nan, ["*accuracy"]), "not a number"),
        (metric("accuracy", math.nan), "not a number"),
        (metric("probe_mnli/mismatched_accuracy", 0.8), "0.8"),
        (metric("tokens_per_second", 36300.0), "36.3k/s"),
        (metric("parameters", 110106428.0), "110M"),
        (metric("masked_lm_loss", 4.0), "4"),
    ],
)
def test_numbers_for_people(made, expected):
    assert made == expected


@given(st.floats())
def test_every_float_has_a_text(value):
    for form in (number, short, percent, duration):
        assert 0 < len(form(value)) < 400
