"""Fingerprints of renderers: settings, fonts, and the pixels of a test page."""

from __future__ import annotations

import hashlib
from typing import Any

from pretrainkit.files.manifest import fingerprint
from pretrainkit.rendering.config import RendererConfig
from pretrainkit.rendering.fonts import font_files, font_sha256
from pretrainkit.rendering.page import Text
from pretrainkit.rendering.renderer import Renderer

TEST_PAGE: tuple[Text, ...] = (
    "Hamburgefonstiv 0123456789 (AVATAR, Toy) fi ffl jjj",
    "Çà et là, Žluťoučký kůň; Быстрая лиса; Ελληνικά",
    "سلام دنیا 123 שלום עולם",
    "नमस्ते दुनिया কেমন สวัสดีครับ བཀྲ་ཤིས",
    "漢字かな交じり文 한국어 አማርኛ 😀",
    "e\u0301 a\u0302\u0303 \u200d x\u0323",
    ("What does my cat love?", "Oatmeal."),
    ["Each", "word", "begins", "a", "patch", "."],
)
"""Texts whose pixels differ between fonts, engines, versions and hinting."""
_NOT_PIXELS = {"font_file", "fallback_fonts", "on_missing", "max_seq_length"}
_LATER = {"font_index": 0, "show_controls": False, "cut_letters": True, "fit_fallbacks": False}
"""Fields that were added after renderers had been stored. They are omitted from `settings` at these values."""


def page_sha256(renderer: Renderer) -> str:
    """Return the SHA-256 of the pixels of the test page."""
    config = renderer.config.changed(on_missing="ignore", max_seq_length=529)
    quiet = Renderer(config)
    digest = hashlib.sha256()
    for text in TEST_PAGE:
        columns = quiet.columns(text)
        digest.update(repr(columns.shape).encode())
        digest.update(columns.tobytes())
    return digest.hexdigest()


def settings(config: RendererConfig) -> dict[str, Any]:
    """Return the fields that determine the pixels, without paths."""
    values = config.model_dump(mode="json", exclude=_NOT_PIXELS)
    return {name: value for name, value in values.items() if name not in _LATER or value != _LATER[name]}


def describe(renderer: Renderer) -> dict[str, Any]:
    """Return the description of a renderer that is stored with data and checkpoints.

    `fingerprint` covers the settings, the fonts and the pixels of the test page. `versions` only helps to explain a
    difference, because another version may draw the same pixels.
    """
    config = renderer.config
    fonts = [font_sha256(path) for path in font_files(config.font_file, config.fallback_fonts)]
    page = page_sha256(renderer)
    return {
        "fingerprint": fingerprint([settings(config), fonts, page]),
        "engine": config.engine,
        "versions": renderer.engine.versions(),
        "fonts_sha256": fonts,
        "page_sha256": page,
    }


def difference(stored: dict[str, Any], current: dict[str, Any]) -> str | None:
    """Describe the difference between two descriptions in words. None if the pixels are the same."""
    if stored.get("fingerprint") == current["fingerprint"]:
        return None
    if stored.get("engine") != current["engine"]:
        return f"the engine was {stored.get('engine')} and is now {current['engine']}"
    if stored.get("fonts_sha256") != current["fonts_sha256"]:
        return "the fonts or their order have changed"
    if stored.get("page_sha256") == current["page_sha256"]:
        return "the settings have changed"
    then = stored.get("versions", {})
    changed = [
        f"{name} {then.get(name)} -> {new}" for name, new in current["versions"].items() if then.get(name) != new
    ]
    return f"the test page is drawn differently ({', '.join(changed) or 'same versions, other settings'})"
