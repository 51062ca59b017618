"""A renderer saved and loaded, and noticed when it would draw otherwise."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from pretrainkit.errors import ConfigError, DataError
from pretrainkit.rendering import RendererConfig, load_renderer, save_renderer
from pretrainkit.rendering.folder import open_renderer
from pretrainkit.rendering.identity import describe, difference
from support.remedies import followed

PUBLISHED_KEYS = {
    "background_color",
    "dpi",
    "font_color",
    "font_file",
    "font_size",
    "max_seq_length",
    "pad_size",
    "pixels_per_patch",
    "text_renderer_type",
}
PUBLISHED = {
    "background_color": "white",
    "dpi": 120,
    "font_color": "black",
    "font_file": "latin.ttf",
    "font_size": 8,
    "max_seq_length": 529,
    "pad_size": 3,
    "pixels_per_patch": 16,
    "text_renderer_type": "TextRenderer",
}
TEXT = "Some text, drawn again."


def published(folder, font, **keys):
    folder.mkdir()
    (folder / "latin.ttf").write_bytes(Path(font).read_bytes())
    (folder / "text_renderer_config.json").write_text(json.dumps(PUBLISHED | keys))
    return folder


def test_a_folder_gives_back_the_renderer(renderer, change, tmp_path):
    saved = change(renderer, max_seq_length=200, rgb=True, strategy="words", parity=True)
    save_renderer(saved, tmp_path / "one")
    loaded = load_renderer(tmp_path / "one")
    assert loaded.config.model_dump(exclude={"font_file"}) == saved.config.model_dump(exclude={"font_file"})
    assert np.array_equal(loaded.columns(TEXT), saved.columns(TEXT))
    save_renderer(loaded, tmp_path / "one")
    save_renderer(loaded, tmp_path / "two")
    for name in ("text_renderer_config.json", "rendering.json", "latin.ttf"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_the_file_is_in_the_originals_format(renderer, tmp_path):
    save_renderer(renderer, tmp_path)
    text = (tmp_path / "text_renderer_config.json").read_text()
    found = json.loads(text)
    is_pango = renderer.config.engine == "pango"
    assert found.keys() == PUBLISHED_KEYS | ({"rgb", "fonts_list"} if is_pango else set())
    assert text == json.dumps(found, indent=2, sort_keys=True) + "\n"
    assert found["font_file"] == "latin.ttf"
    assert found["text_renderer_type"] == ("PangoCairoTextRenderer" if is_pango else "PyGameTextRenderer")
    assert {name: found[name] for name in PUBLISHED_KEYS - {"text_renderer_type"}} == {
        name: PUBLISHED[name] for name in PUBLISHED_KEYS - {"text_renderer_type"}
    }


def test_the_originals_folder_is_loaded_as_the_original_renders(latin_font, tmp_path):
    pytest.importorskip("freetype")
    loaded = load_renderer(published(tmp_path / "r", latin_font, max_seq_length=100))
    assert (loaded.config.engine, loaded.config.parity, loaded.config.max_seq_length) == ("freetype", True, 100)
    by_file = load_renderer(tmp_path / "r" / "text_renderer_config.json", max_seq_length=30, font_size=9)
    assert (by_file.config.max_seq_length, by_file.config.font_size) == (30, 9)
    assert by_file.width("Some text") > loaded.width("Some text")


def test_the_originals_pango_folder_is_loaded_with_pango(latin_font, tmp_path, has_pango):
    folder = published(
        tmp_path / "r", latin_font, text_renderer_type="PangoCairoTextRenderer", rgb=True, fonts_list=["Noto Sans"]
    )
    loaded = load_renderer(folder)
    assert (loaded.config.engine, loaded.config.rgb) == ("pango", True)


def test_fallback_fonts_come_along_in_their_order(renderer, change, latin_font, tmp_path):
    for name in ("z.ttf", "a.ttf"):
        (tmp_path / name).write_bytes(Path(latin_font).read_bytes() + name.encode())
    saved = change(renderer, fallback_fonts=(str(tmp_path / "z.ttf"), str(tmp_path / "a.ttf")))
    save_renderer(saved, tmp_path / "r")
    loaded = load_renderer(tmp_path / "r")
    names = [path.rsplit("-", 1)[1] for path in loaded.config.fallback_fonts]
    assert names == ["z.ttf", "a.ttf"]
    assert describe(loaded) == describe(saved)
    save_renderer(loaded, tmp_path / "again")
    assert sorted(path.name for path in (tmp_path / "again" / "fallback_fonts").iterdir()) == ["000-z.ttf", "001-a.ttf"]


def test_a_folder_whose_font_was_exchanged_is_refused(renderer, tmp_path):
    save_renderer(renderer, tmp_path)
    with open(tmp_path / "latin.ttf", "ab") as font:
        font.write(b"more")
    with pytest.raises(DataError, match="the fonts or their order have changed") as error:
        load_renderer(tmp_path)
    (advised,) = re.findall(
        "save_renderer.*", followed(error.value, "rendering/folder.py: the renderer … no longer draws")
    )
    with pytest.warns(UserWarning, match="the fonts or their order have changed"):
        exec(advised.replace("NEW", str(tmp_path / "new")))
    load_renderer(tmp_path / "new")
    load_renderer(tmp_path, on_change="ignore")


def test_a_folder_that_would_be_drawn_otherwise_is_refused(renderer, tmp_path):
    save_renderer(renderer, tmp_path)
    stored = json.loads((tmp_path / "rendering.json").read_text())
    stored["rendering"] |= {"page_sha256": "0", "fingerprint": "0", "versions": {"freetype": "1.0"}}
    (tmp_path / "rendering.json").write_text(json.dumps(stored))
    with pytest.raises(DataError, match=r"drawn differently \(.*freetype 1\.0 -> "):
        load_renderer(tmp_path)


def test_the_fingerprint_depends_on_settings_of_pixels_alone(renderer, change):
    first = describe(renderer)
    assert difference(first, describe(change(renderer, max_seq_length=30, on_missing="warn"))) is None
    for fields in ({"font_size": 9}, {"rgb": True}, {"parity": True}, {"strategy": "words"}):
        assert difference(first, describe(change(renderer, **fields))) is not None


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        ('{"font_file": "latin.ttf", "fontsize": 8}', ConfigError, "fontsize"),
        ('{"font_file": "latin.ttf", "dpi": "many"}', ConfigError, "dpi"),
        ('{"dpi": 120}', DataError, "names no font"),
        ("[1]", DataError, "not a JSON object"),
        ("{", DataError, "not valid JSON"),
    ],
)
def test_a_broken_file_is_named(tmp_path, content, error, message):
    (tmp_path / "text_renderer_config.json").write_text(content)
    with pytest.raises(error, match=message):
        load_renderer(tmp_path)
    with pytest.raises(DataError, match="cannot be read"):
        load_renderer(tmp_path / "absent")


def test_a_missing_font_is_reported_when_the_folder_is_opened(renderer, latin_font, tmp_path):
    save_renderer(renderer, tmp_path / "ours")
    published(tmp_path / "theirs", latin_font)
    for folder in ("ours", "theirs"):
        (tmp_path / folder / "latin.ttf").unlink()
        with pytest.raises(DataError, match=rf"{folder}/latin\.ttf\n  put the file there"):
            load_renderer(tmp_path / folder, on_change="ignore")


def test_a_missing_further_font_is_reported_when_the_folder_is_opened(renderer, change, latin_font, tmp_path):
    (tmp_path / "a.ttf").write_bytes(Path(latin_font).read_bytes())
    save_renderer(change(renderer, fallback_fonts=(str(tmp_path / "a.ttf"),)), tmp_path / "r")
    (tmp_path / "r" / "fallback_fonts" / "000-a.ttf").unlink()
    with pytest.raises(DataError, match=r"fallback_fonts/000-a\.ttf\n  put the file there"):
        load_renderer(tmp_path / "r")


def test_a_file_that_is_not_a_font_is_refused_when_it_is_opened(renderer, latin_font, tmp_path):
    kind = {"freetype": "PyGameTextRenderer", "pango": "PangoCairoTextRenderer"}[renderer.config.engine]
    folder = published(tmp_path / "theirs", latin_font, text_renderer_type=kind)
    (folder / "latin.ttf").write_bytes(b"version https://git-lfs.github.com/spec/v1")
    with pytest.raises(DataError, match=r"latin\.ttf cannot be used"):
        load_renderer(folder)
    with pytest.raises(DataError, match=r"latin\.ttf cannot be used"):
        open_renderer(folder / "latin.ttf", engine=renderer.config.engine)


@pytest.mark.parametrize("content", ["{}", '{"config": []}', '{"config": {"rgb": true}}'])
def test_damaged_settings_are_reported_with_their_path(renderer, tmp_path, content):
    save_renderer(renderer, tmp_path)
    (tmp_path / "rendering.json").write_text(content)
    with pytest.raises(DataError, match=r"rendering\.json lacks the entry"):
        load_renderer(tmp_path)


def test_paths_of_fonts_become_absolute(latin_font, tmp_path, monkeypatch):
    from pretrainkit.config.paths import absolute_paths

    monkeypatch.chdir(tmp_path)
    (tmp_path / "here.ttf").write_bytes(b"")
    config = absolute_paths(RendererConfig(font_file="here.ttf", fallback_fonts=("here.ttf",)))
    assert config.font_file == config.fallback_fonts[0] == str(tmp_path / "here.ttf")
