"""Propose a PIXEL project for raw text and fonts."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import NamedTuple

from pretrainkit.corpus.stats import script_of
from pretrainkit.errors import DataError, MissingPackageError
from pretrainkit.files.sources import files_below
from pretrainkit.recipes.proposal import Decision, ProjectRequest, Proposal, Stage
from pretrainkit.recipes.text_projects import CORPUS, prepare_text, size, training_decisions
from pretrainkit.rendering.config import EngineName, RendererConfig, Strategy
from pretrainkit.rendering.folder import save_renderer
from pretrainkit.rendering.fonts import SUFFIXES, installed_font
from pretrainkit.rendering.freetype_engine import is_mark
from pretrainkit.rendering.renderer import Renderer

ROWS, RENDERER = "data/rows", "renderer"
_LARGE_BYTES, _LARGE_HOURS = 50_000_000, 8.0
_DRAWN_CHARACTERS = 200
"""Number of characters of each text in the sample that are drawn."""
_NUM_DRAWN = 200
_MOST_MISSING = 0.5
"""Maximum share of characters without a glyph. With more, the project is refused."""
_FEW_MARKS = 1e-3
"""Share of combining marks that does not matter if they are drawn beside their letters."""
_WORD = 40
"""Number of letters that are enough to recognize their script."""
_WORD_CHARACTERS = 12
"""Maximum mean length of words. With longer words, the text counts as one without spaces between words."""
_UNSHAPED = frozenset(
    ("Latin", "Greek", "Cyrillic", "Armenian", "Georgian", "Han", "Kana", "Hangul", "Ethiopic", "Cherokee", "unknown")
)
"""Scripts that need no shaping."""


class Drawing(NamedTuple):
    """Settings of a renderer, with measurements on a sample of the text."""

    config: RendererConfig
    missing: Counter[str]
    """Characters without a glyph, with their counts."""
    num_characters: int
    patches_per_character: float


def propose(request: ProjectRequest) -> Proposal:
    """Return the proposal. Raises DataError if there is too little text, or no font for it."""
    fonts, aside = _fonts(request.data)
    paths = [path for path in request.data if path not in fonts]
    text = prepare_text(request, paths or request.data)
    num_bytes = text.survey.num_bytes
    resources = f"{request.hours:g} hours on {request.device} and {size(num_bytes)} of text"
    is_large = request.has_accelerator and num_bytes >= _LARGE_BYTES and request.hours >= _LARGE_HOURS
    preset, batch_size, max_patches, why = (
        ("pixel/small", 256, 529, f"{resources}: enough for 26 M parameters")
        if is_large
        else ("pixel/tiny", 16, 64, f"{resources}: this model learns letters within minutes")
    )
    sample = [beginning[:_DRAWN_CHARACTERS] for beginning in text.survey.sample[:_NUM_DRAWN]]
    engine, engine_reason = _engine(sample)
    strategy, strategy_reason = _strategy(sample, is_large)
    files, fonts_reason = _chosen(fonts or aside, sample)
    config = RendererConfig(
        engine=engine,
        font_file=files[0],
        fallback_fonts=tuple(files[1:]),
        max_seq_length=max_patches,
        strategy=strategy,
        on_missing="ignore",
    )
    drawing = _draw(config, sample)
    if drawing.missing.total() > _MOST_MISSING * drawing.num_characters:
        scripts = ", ".join(name for name, _ in Counter(map(script_of, sample)).most_common(3))
        raise DataError(
            f"{', '.join(Path(file).name for file in files)} lacks {drawing.missing.total():,} of "
            f"{drawing.num_characters:,} characters of a sample; its scripts are {scripts}\n"
            "  give fonts with them among the data: pretrainkit new pixel DATA FONT.ttf --out PROJECT"
        )
    left_out = [part for part in text.left_out if not part.kind.endswith(SUFFIXES)]
    facts = {**text.facts, "number of fonts": f"{len(files):,}"}
    if drawing.missing.total():
        facts["missing glyphs"] = _lacking(drawing, request)
    num_characters = (
        text.num_train_bytes * sum(map(len, sample)) / max(1, sum(len(beginning.encode()) for beginning in sample))
    )
    num_examples = max(1.0, num_characters * drawing.patches_per_character / (max_patches - 1))
    render = ("render", CORPUS, "--renderer", RENDERER, "--max-patches", str(max_patches), "--out", ROWS)
    return Proposal(
        preset=preset,
        facts=facts,
        left_out=tuple(left_out),
        decisions=(
            *text.decisions,
            Decision("fonts", ", ".join(Path(file).name for file in files[:3]), fonts_reason, is_setting=False),
            Decision("engine", engine, engine_reason, is_setting=False),
            Decision("strategy", strategy, strategy_reason, is_setting=False),
            Decision("preset", preset, why, is_setting=False),
            Decision("data.max_patches", max_patches, "as in the preset; the maximum for a row"),
            *training_decisions(request, ROWS, batch_size, num_examples),
        ),
        stages=(*text.stages, Stage("Draw the text", render)),
        # Rotary positions have no class in transformers.
        export_format="huggingface" if is_large else "safetensors",
        write_files=lambda folder: save_renderer(Renderer(config), folder / RENDERER),
    )


def _lacking(drawing: Drawing, request: ProjectRequest) -> str:
    """Return the share of the characters without a glyph, their scripts, and how to give fonts that have them."""
    share = drawing.missing.total() / drawing.num_characters
    scripts = Counter[str]()
    for character, count in drawing.missing.items():
        scripts[script_of(_WORD * character)] += count
    known = [name for name, _ in scripts.most_common() if name != "unknown"]
    names = ", ".join(known[:6]) + (f" and {len(known) - 6} more" if len(known) > 6 else "")
    data = " ".join(map(quote, request.data))
    return (
        f"{max(share, 0.0001):.2%} of the characters of a sample have no glyph and are drawn as empty boxes"
        + (f" ({names})" if known else f", such as U+{ord(next(iter(drawing.missing))):04X}")
        + f"; to draw them, name fonts that have them: pretrainkit new pixel {data} FONT.ttf --out FOLDER"
    )


def _fonts(paths: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the given fonts, and the fonts in given folders."""
    given = [path for path in paths if path.lower().endswith(SUFFIXES)]
    inside = [
        str(file)
        for path in paths
        if os.path.isdir(path)
        for file in files_below(Path(path))
        if file.name.lower().endswith(SUFFIXES)
    ]
    return given, inside


def _engine(sample: Sequence[str]) -> tuple[EngineName, str]:
    shaped = Counter(script for script in map(script_of, sample) if script not in _UNSHAPED)
    names = ", ".join(name for name, _ in shaped.most_common(3))
    if not names and sum(map(is_mark, "".join(sample))) > _FEW_MARKS * sum(map(len, sample)):
        names = "combining marks"
    if not names:
        return "freetype", "no script of the text needs shaping"
    try:
        from pretrainkit.rendering.pango_library import pango_library

        pango_library()
    except MissingPackageError:
        return "freetype", f"{names} would need the engine pango, whose libraries are not installed (docs/rendering.md)"
    return "pango", f"shaping is necessary for {names}"


def _strategy(sample: Sequence[str], is_large: bool) -> tuple[Strategy, str]:
    words = [word for text in sample for word in text.split()]
    mean_length = sum(map(len, words)) / max(1, len(words))
    if is_large:
        return "continuous", "as in the published models"
    if mean_length > _WORD_CHARACTERS:
        return "continuous", "the text has no spaces between words"
    return "words", "each word starts a new patch, which small models learn fastest"


def _chosen(fonts: Sequence[str], sample: Sequence[str]) -> tuple[list[str], str]:
    """Return the main font and the fallback fonts that add characters of the sample, and the reason."""
    if not fonts:
        installed = installed_font()
        if installed is None:
            raise DataError(
                "there is no font among the data, and DejaVu Sans Mono of the package matplotlib is not installed\n"
                "  pip install 'pretrainkit[demo]', or give a font: pretrainkit new pixel DATA FONT.ttf --out PROJECT"
            )
        return [str(installed)], "there is no font among the data, and DejaVu Sans Mono is installed with matplotlib"
    uncovered = set().union(*map(set, sample))
    chosen, candidates = list[str](), list(dict.fromkeys(fonts))
    while candidates and (uncovered or not chosen):
        missing = {font: _missing(font, uncovered) for font in candidates}
        best = min(candidates, key=lambda font: (len(missing[font]), candidates.index(font)))
        if chosen and missing[best] == uncovered:
            break
        chosen.append(best)
        candidates.remove(best)
        uncovered = missing[best]
    reason = "the font with the most characters of the text"
    return chosen, reason + (f", and {len(chosen) - 1} with further characters" if len(chosen) > 1 else "")


def _missing(font: str, characters: set[str]) -> set[str]:
    """Return the characters that a font lacks."""
    renderer = Renderer(RendererConfig(font_file=font, on_missing="ignore"))
    return set(renderer.missing(" ".join(sorted(characters)))) & characters


def _draw(config: RendererConfig, sample: Sequence[str]) -> Drawing:
    """Measure the renderer on the sample."""
    renderer = Renderer(config.changed(max_seq_length=529))
    missing: Counter[str] = Counter()
    num_patches = 0
    for text in sample:
        lacking = set(renderer.missing(text))
        missing.update(character for character in text if character in lacking)
        num_patches += renderer(text).num_text_patches if text.strip() else 0
    num_characters = sum(map(len, sample))
    return Drawing(config, missing, num_characters, num_patches / max(1, num_characters))
