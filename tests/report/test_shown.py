"""Pictures in samples: drawn from data URIs of raster images alone, marked right or wrong, never markup."""

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_page import EVIL, Page, make_run

from pretrainkit.report.charts import scripts
from pretrainkit.report.page import render
from pretrainkit.report.run_folder import read_run
from pretrainkit.report.shown import Shown, read_shown, shown_cell

PICTURE = "data:image/jpeg;base64," + base64.b64encode(b"\xff\xd8 a picture").decode()


def page_of(folder, samples):
    make_run(folder)
    (folder / "samples.json").write_text(json.dumps(samples))
    return render(read_run(folder))


def test_pictures_and_texts_are_shown_with_their_marks(tmp_path):
    found = [
        {"image": PICTURE, "text": "a dog", "is_right": True},
        {"image": PICTURE, "is_right": False},
        {"text": "no picture"},
    ]
    source = page_of(tmp_path / "demo", [{"query": "a dog runs", "found": found}])
    page = Page(source)
    assert [attrs["src"] for name, attrs in page.elements if name == "img"] == [PICTURE, PICTURE]
    assert [attrs.get("class") for name, attrs in page.elements if name == "figure"] == [
        "picture hit",
        "picture miss",
        None,
    ]
    for shown in ("a dog runs", "✓", "a dog", "✗", "no picture"):
        assert shown in page.text
    assert "img-src data:" in source


def test_parts_of_a_text_are_marked(tmp_path):
    marks = [[0, 3, None], [4, 7, True], [8, 12, False], [10, 14, True], [13, 99, True], [1], "x", [True, 15, None]]
    source = page_of(tmp_path / "demo", [{"predicted": [{"text": "one two <3> & x", "marks": marks}]}])
    shown = '<mark>one</mark> <mark class="hit">two</mark> <mark class="miss">&lt;3&gt; </mark>&amp; x'
    assert f'<td data-name="predicted">{shown}</td>' in source


def test_a_picture_without_words_is_as_large_as_its_cell_allows(tmp_path):
    """Lines of drawn text are like this; smaller letters could not be read."""
    source = page_of(tmp_path / "demo", [{"original": [{"image": PICTURE}], "masked": [{"image": PICTURE}]}])
    assert [attrs.get("class") for name, attrs in Page(source).elements if name == "figure"] == ["picture alone"] * 2
    assert "figure.alone img { height: auto; max-width: 100%; }" in source


@pytest.mark.parametrize(
    "source",
    [
        "https://example.org/x.png",
        "file:///etc/passwd",
        "data:image/svg+xml;base64,PHN2Zz48L3N2Zz4=",
        "data:text/html;base64,PHA+",
        'data:image/png;base64,AAAA" onerror="alert(1)',
        "javascript:alert(1)",
        "data:image/png;base64," + "A" * 300_000,
        7,
        ["x"],
    ],
)
def test_only_small_raster_pictures_are_shown_and_others_are_reported(tmp_path, source):
    text = page_of(tmp_path / "demo", [{"found": [{"image": source, "text": "words"}] * 2}])
    page = Page(text)
    assert "img" not in {name for name, _ in page.elements}
    assert "words" in page.text
    assert page.text.count("left out a picture") == 1


def test_nothing_in_a_cell_can_become_markup(tmp_path):
    evil = {"image": PICTURE, "text": EVIL, "is_right": EVIL, EVIL: EVIL}
    page = Page(page_of(tmp_path / "demo", [{EVIL: [evil, EVIL, None, 3], "more": [evil]}]))
    assert tuple(page.scripts[-2:]) == scripts()
    assert "<" not in "".join(page.scripts[:-2])
    assert not [key for _, attrs in page.elements for key in attrs if key.startswith("on")]
    assert {attrs["src"] for name, attrs in page.elements if name == "img"} == {PICTURE}


@given(
    items=st.lists(
        st.dictionaries(
            st.sampled_from(["text", "image", "is_right", "x"]), st.none() | st.booleans() | st.text() | st.integers()
        )
        | st.text()
        | st.none()
    )
)
def test_any_list_is_read(items):
    notes: list[str] = []
    found = read_shown(items, notes)
    assert len(found) == min(len(items), 30)
    assert all(isinstance(one, Shown) and one.is_right in (None, True, False) for one in found)
    Page(f"<html><body>{shown_cell(found)}</body></html>")
