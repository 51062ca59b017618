"""Rendering from Python: `pretrainkit.open_renderer` and `pretrainkit.render`."""

import json

import numpy as np
import pytest

import pretrainkit
from pretrainkit.errors import ConfigError, DataError
from pretrainkit.rendering.prerender import RenderSettings

parquet = pytest.importorskip("pyarrow.parquet")
pytest.importorskip("freetype")


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(json.dumps({"text": f"document {number} " * 20}) + "\n" for number in range(5)))
    return path


def texts(folder):
    return [row["text"] for path in sorted(folder.glob("*.parquet")) for row in parquet.read_table(path).to_pylist()]


def test_a_corpus_becomes_the_rows_of_the_renderer(corpus, latin_font, tmp_path):
    settings = RenderSettings(extras=("text",), held_out=0.4)
    manifests = pretrainkit.render(corpus, latin_font, tmp_path / "rows", settings, workers=1)
    assert list(manifests) == ["train", "valid"]
    found = [text for split in manifests for text in texts(tmp_path / "rows" / split)]
    assert sorted(" ".join(found).split()) == sorted(
        word for number in range(5) for word in f"document {number} ".split() * 20
    )
    drawn_by = pretrainkit.open_renderer(tmp_path / "rows" / "train" / "renderer")
    again = pretrainkit.render([corpus], drawn_by, tmp_path / "again", settings, workers=1)
    assert [one["fingerprint"] for one in again.values()] == [one["fingerprint"] for one in manifests.values()]


def test_a_font_is_drawn_with_the_published_settings_or_those_given(latin_font):
    assert pretrainkit.open_renderer(latin_font)("text").pixel_values.shape == (16, 8464)
    small = pretrainkit.open_renderer(latin_font, 30, pixels_per_patch=8, font_size=4)
    assert small("text").pixel_values.shape == (8, 240)
    assert np.array_equal(small.background, np.uint8(255))


def test_settings_that_do_not_exist_are_named(latin_font, tmp_path):
    with pytest.raises(ConfigError, match="front_size"):
        pretrainkit.open_renderer(latin_font, front_size=3)
    with pytest.raises(DataError, match="cannot be read"):
        pretrainkit.open_renderer(tmp_path / "nothing" / "here" / "at" / "all")
