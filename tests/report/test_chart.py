import math
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretrainkit.report.chart import Level, Mark, Series, line_chart

SVG = "{http://www.w3.org/2000/svg}"
numbers = st.floats() | st.floats(-10, 10)
names = st.text(max_size=12)
series = st.builds(
    lambda name, points, color, kind: Series(name, [x for x, _ in points], [y for _, y in points], color, kind),
    names,
    st.lists(st.tuples(numbers, numbers), max_size=30),
    st.integers(0, 9),
    st.sampled_from(["line", "faint", "points"]),
)


@settings(max_examples=60, deadline=None)
@given(
    curves=st.lists(series, max_size=4),
    title=names,
    marks=st.lists(st.builds(Mark, numbers, names, st.booleans()), max_size=4),
    levels=st.lists(st.builds(Level, numbers, names), max_size=2),
    log_y=st.booleans(),
    from_zero=st.booleans(),
    standalone=st.booleans(),
)
def test_any_chart_is_well_formed_and_inside_its_frame(curves, title, marks, levels, log_y, from_zero, standalone):
    drawn = line_chart(
        curves,
        title=title,
        marks=marks,
        reference_lines=levels,
        log_y=log_y,
        from_zero=from_zero,
        standalone=standalone,
    )
    root = ElementTree.fromstring(drawn)
    assert root.tag == f"{SVG}svg"
    for circle in root.iter(f"{SVG}circle"):
        assert -1 <= float(circle.get("cx")) <= 721
        assert -1 <= float(circle.get("cy")) <= 301
    for line in root.iter(f"{SVG}line"):
        assert all(-1 <= float(line.get(key)) <= 721 for key in ("x1", "x2", "y1", "y2"))
    assert "nan" not in "".join(path.get("d") for path in root.iter(f"{SVG}path"))


def test_a_gap_breaks_the_line_and_a_lonely_point_is_a_dot():
    drawn = line_chart([Series("a", range(7), [1, 2, math.nan, 3, math.inf, 4, 5])], title="t")
    root = ElementTree.fromstring(drawn)
    (path,) = root.iter(f"{SVG}path")
    assert path.get("d").count("M") == 2
    assert len([c for c in root.iter(f"{SVG}circle") if "shown" not in c.get("class")]) == 1


@pytest.mark.parametrize("ys", [[], [math.nan, math.nan]])
def test_no_values_say_no_data(ys):
    assert "no data" in line_chart([Series("a", range(len(ys)), ys)], title="t")


def test_one_point_is_drawn():
    root = ElementTree.fromstring(line_chart([Series("a", [10], [4.2])], title="t"))
    assert [c for c in root.iter(f"{SVG}circle") if "shown" not in c.get("class")]
    assert "step 10" in "".join(root.itertext())


def test_marks_levels_and_legend_are_named_and_escaped():
    drawn = line_chart(
        [Series("<i>", [0, 100], [1, 2]), Series("b & c", [0, 100], [2, 1], 1, "points")],
        title='"quoted" <title>',
        marks=[Mark(50, "stopped"), Mark(50, "resumed"), Mark(500, "outside")],
        reference_lines=[Level(3.5, "plateau")],
    )
    shown = "".join(ElementTree.fromstring(drawn).itertext())
    assert "stopped, resumed" in shown
    assert "outside" not in shown
    assert "plateau" in shown
    assert "<i>" in shown
    assert "b & c" in shown
    assert "<i>" not in drawn


def test_values_that_are_not_positive_are_gaps_on_a_log_axis():
    drawn = line_chart([Series("a", range(5), [1, 10, 0, -5, 1000])], title="t", log_y=True)
    (path,) = ElementTree.fromstring(drawn).iter(f"{SVG}path")
    assert path.get("d").count("L") == 1


def test_a_long_run_stays_small():
    xs = np.arange(200_000)
    assert len(line_chart([Series("a", xs, np.sin(xs) + 2)], title="t")) < 80_000


def test_lengths_must_agree():
    with pytest.raises(ValueError, match="'a' has xs of shape"):
        line_chart([Series("a", [1, 2], [1])], title="t")
