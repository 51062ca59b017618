"""The settings of a renderer. This module imports neither torch nor a package that draws."""

import math
from typing import Annotated, Any, Literal, Self, TypedDict

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from pretrainkit.config.base import Config
from pretrainkit.config.paths import IsPath

EngineName = Literal["freetype", "pango"]
Strategy = Literal["continuous", "words", "bigrams"]
LEFT_MARGIN = 2
"""Number of blank columns before a text at the start of a canvas or after a separator, and minimum number after it."""


class Geometry(Config):
    """The shape of a canvas: `num_patches` squares of `patch` x `patch` pixels side by side."""

    patch: int
    """Height and width of a patch in pixels."""
    num_patches: int
    """Number of patches of a canvas. The last one is either blank or the end patch."""

    @property
    def width(self) -> int:
        return self.patch * self.num_patches

    @property
    def last(self) -> int:
        """First column of the last patch."""
        return self.patch * (self.num_patches - 1)

    def next_patch(self, column: float) -> int:
        """Return the first column of the next patch at or after `column`, at most that of the last patch."""
        return min(math.ceil(column / self.patch) * self.patch, self.last)


class FontOptions(Config):
    """Rasterization options of Pango and Cairo. All are explicit, so that settings of the machine cannot change a
    pixel."""

    hint_style: Literal["none", "slight", "medium", "full"] = "slight"
    """Strength of hinting, which moves outlines to the pixel grid. slight moves them only vertically."""
    hint_metrics: bool = True
    """Round advances and line heights to whole pixels."""
    antialias: Literal["gray", "none"] = "gray"
    """gray: 256 levels of coverage. none: two levels."""
    keep_words: bool = True
    """Compose lines of Latin text from cached words, which is several times as fast. The pixels are the same unless a
    font has rules that cross a space."""


class RendererConfig(Config):
    """All settings that determine the pixels of a text. The defaults are those of the published models."""

    engine: EngineName = "freetype"
    """freetype: one glyph per character, no shaping, left to right; the same pixels as the original's PyGame renderer.
    pango: shaping, right-to-left scripts, fallback fonts, colour; the original's PangoCairo renderer."""
    font_file: Annotated[str, IsPath()]
    """Path of the main font, .ttf, .otf or .ttc."""
    font_index: NonNegativeInt = 0
    """Index of the face of the main font, if its file is a collection (.ttc). Fallback fonts use their first face."""
    fallback_fonts: Annotated[tuple[str, ...], IsPath()] = ()
    """Paths of the fonts that are tried, in this order, for characters that the main font lacks. A folder means all
    fonts in it, sorted by name. Fonts of the machine are never used."""
    font_size: PositiveFloat = 8
    """Font size in points. With the default `dpi`, 8 points are 13.3 pixels."""
    dpi: Annotated[PositiveInt, Field(le=10_000)] = 120
    """Resolution in pixels per inch."""
    pixels_per_patch: Annotated[int, Field(ge=4, le=64)] = 16
    """Height and width of a patch in pixels; also the height of a canvas."""
    max_seq_length: Annotated[int, Field(ge=2)] = 529
    """Number of patches of a canvas, including the end patch."""
    pad_size: NonNegativeInt = 3
    """Pixels from the middle of the canvas down to the baseline, which is row pad_size + pixels_per_patch / 2."""
    font_color: str = "black"
    """Colour of text and separator patches: a colour name of CSS, or #rrggbb."""
    background_color: str = "white"
    """Colour of the background: a colour name of CSS, or #rrggbb."""
    rgb: bool = False
    """Render three colour channels instead of grey."""
    strategy: Strategy = "continuous"
    """continuous: text runs across patches. words: each word starts a new patch. bigrams: each word and each pair of
    characters starts a new patch (Lotz et al. 2023, https://arxiv.org/abs/2311.00522). In a list of words, each word
    always starts a new patch."""
    space_patch: bool = False
    """bigrams only: draw a space between words as a patch of its own. Released data include this patch; the released
    renderer of PIXEL-M4 does not."""
    show_controls: bool = False
    """Draw control characters, including line ends and tabs, as symbols (U+2400 to U+2421, such as a small LF). By
    default, line ends and tabs are drawn as spaces and other control characters as boxes. A font must have the symbols.
    White space between words is not drawn."""
    cut_letters: bool = True
    """Draw a text that is too long up to the last column, which may cut through a letter, as in the original. False:
    draw only whole letters, and leave the rest blank."""
    fit_fallbacks: bool = False
    """Shrink fallback fonts whose lines are higher than those of the main font."""
    parity: bool = False
    """Reproduce the original also where it looks wrong, for published data and weights. Running text is then centred by
    its ink (FreeType) or by the height of its fonts (Pango) instead of having a fixed baseline. Newlines of words, and
    with FreeType of all texts, are drawn. A first text that is cut keeps its full width."""
    on_missing: Literal["warn", "error", "ignore"] = "warn"
    """Action for a character that no font has: warn once per character, raise an error, or ignore it. Unless it is an
    error, the character is drawn as an empty box."""
    font_options: FontOptions = FontOptions()
    """Rasterization options of the engine pango."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        P = self.pixels_per_patch
        if self.font_pixels > 2 * P:
            raise ValueError(
                f"font_size {self.font_size} at {self.dpi} dpi is {self.font_pixels:.1f} pixels, but the canvas is {P} "
                f"pixels high\n  use a font_size of about {P * 60 / self.dpi:.0f}"
            )
        if 2 * self.pad_size > P:
            raise ValueError(
                f"pad_size {self.pad_size} puts the baseline below the canvas of {P} pixels\n"
                f"  use at most {P // 2}; the published value is 3 for 16 pixels"
            )
        return self

    @property
    def font_pixels(self) -> float:
        """Size of the font in pixels."""
        return self.font_size * self.dpi / 72

    @property
    def geometry(self) -> Geometry:
        """Size and number of the patches of a canvas."""
        return Geometry(patch=self.pixels_per_patch, num_patches=self.max_seq_length)


class RendererOptions(TypedDict, total=False):
    """Fields of `RendererConfig` that a caller may override, without the font file and the number of patches."""

    engine: EngineName
    font_index: int
    fallback_fonts: tuple[str, ...]
    font_size: float
    dpi: int
    pixels_per_patch: int
    pad_size: int
    font_color: str
    background_color: str
    rgb: bool
    strategy: Strategy
    space_patch: bool
    show_controls: bool
    cut_letters: bool
    fit_fallbacks: bool
    parity: bool
    on_missing: Literal["warn", "error", "ignore"]
    font_options: FontOptions | dict[str, Any]
