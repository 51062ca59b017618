"""`pretrainkit renderer`: folders of renderers, and pictures of texts."""

import errno
import json
import os
from pathlib import Path

import numpy as np
import pytest

from pretrainkit.api import open_renderer
from support.command_line import refused, succeed
from support.page_data import put_font
from support.remedies import followed

pillow = pytest.importorskip("PIL.Image", reason="Pillow is not installed")


@pytest.fixture
def font(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    put_font(tmp_path / "font.ttf")
    return "font.ttf"


def test_a_renderer_folder_draws_by_its_settings(font):
    assert succeed("renderer", "make", font, "font_size=10", "dpi=100", "--out", "mine") == "mine\n"
    config = open_renderer(Path("mine")).config
    assert (config.font_size, config.dpi) == (10, 100)
    message = refused("renderer", "make", font, "--out", "mine")
    followed(message, "cli/renderer.py: … exists")
    succeed("renderer", "make", font, "--out", "other")
    message = refused("renderer", "make", font, "font_size", "--out", "third")
    followed(message, "cli/renderer.py: cannot read … / write settings")
    succeed("renderer", "make", font, "font_size=8", "--out", "eight")
    assert "no_such" in refused("renderer", "make", font, "no_such=1", "--out", "third")
    assert not Path("third").exists()


def test_a_renderer_that_cannot_be_written_to_the_end_leaves_no_folder(font, tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        assert "free some" in refused("renderer", "make", font, "--out", "mine", code=1)
    assert [path.name for path in tmp_path.iterdir()] == ["font.ttf"]
    succeed("renderer", "make", font, "--out", "mine")


def test_a_preview_shows_the_pixels_that_a_model_reads_in_lines(font):
    text = "A sentence that needs more than one line of eight patches."
    answer = json.loads(
        succeed("renderer", "preview", font, "--text", text, "--per-line", "8", "--out", "p.png", "--json")
    )
    columns = open_renderer(font).columns(text)
    patch = columns.shape[1]
    assert answer == {"out": "p.png", "patches": len(columns) // patch - 1, "missing": {}}
    picture = np.asarray(pillow.open("p.png"))
    num_lines = -(-len(columns) // (8 * patch))
    assert picture.shape[:2] == (num_lines * patch, 8 * patch)
    first, second = picture[:patch], picture[patch : 2 * patch]
    assert np.array_equal(first, columns[: 8 * patch].swapaxes(0, 1))
    assert np.array_equal(second, columns[8 * patch : 16 * patch].swapaxes(0, 1))


def test_a_preview_counts_characters_that_no_font_has(font):
    Path("text.txt").write_text("plain \U00012000 words \U00012000\n\U00012001 end", encoding="utf-8")
    shown = succeed("renderer", "preview", font, "--file", "text.txt", "--patches", "4")
    assert "no font has 3 of them: \U00012000 (U+12000) x 2, \U00012001 (U+12001) x 1" in shown
    assert "add fonts that have them: fallback_fonts=[FILE]" in shown
    assert np.asarray(pillow.open("preview.png")).shape[0] > 0
    assert json.loads(succeed("renderer", "preview", font, "--text", "plain", "--json"))["missing"] == {}
    shown = succeed("renderer", "preview", font, "--text", "ko\u0308ln")
    assert "1 of them are combining marks, which the engine freetype draws beside their letters" in shown


def test_mistakes_have_one_message(font):
    for words in ((), ("--text", "a", "--file", "b")):
        followed(refused("renderer", "preview", font, *words), "cli/renderer.py: preview needs one text")
    message = refused("renderer", "preview", font, "--text", "a", "--out", "a.jpg")
    assert followed(message, "cli/renderer.py: --out …: the picture is a PNG file") == "  write --out a.png\n"
    succeed("renderer", "preview", font, "--text", "a", "--out", "a.png")
    assert "cannot read none.txt" in refused("renderer", "preview", font, "--file", "none.txt")
