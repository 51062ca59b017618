"""The settings of a renderer. Torch-free, and free of every package that draws."""

import math
from typing import Annotated, Any, Literal, Self, TypedDict

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from pretrainkit.config.base import Config
from pretrainkit.config.paths import IsPath

EngineName = Literal["freetype", "pango"]
Strategy = Literal["continuous", "words", "bigrams"]
LEFT_MARGIN = 2
"""White columns before a text that begins a canvas or follows a separator, and the least number after it."""


class Geometry(Config):
    """The canvas: `num_patches` squares of `patch` pixels beside each other."""

    patch: int
    """Pixels of a patch's side."""
    num_patches: int
    """Patches of a canvas; the last one can only be blank or the end patch."""

    @property
    def width(self) -> int:
        return self.patch * self.num_patches

    @property
    def last(self) -> int:
        """First column of the last patch."""
        return self.patch * (self.num_patches - 1)

    def next_patch(self, column: float) -> int:
        """First column of the first patch that begins at `column` or after it; the last patch's where there is none."""
        return min(math.ceil(column / self.patch) * self.patch, self.last)


class FontOptions(Config):
    """How Pango and Cairo rasterize. All explicit, so that no setting of the host can change a pixel."""

    hint_style: Literal["none", "slight", "medium", "full"] = "slight"
    """How far outlines are moved to the pixel grid; slight moves them vertically only."""
    hint_metrics: bool = True
    """Round advances and line heights to whole pixels."""
    antialias: Literal["gray", "none"] = "gray"
    """256 levels of coverage, or two."""
    keep_words: bool = True
    """Put lines of Latin text together from words shaped before, which is several times as fast. The pixels are the
    same unless a font has rules that reach across a space."""


class RendererConfig(Config):
    """Everything that decides which pixels a text becomes. The defaults are the published ones."""

    engine: EngineName = "freetype"
    """freetype: one glyph per character, no shaping, left to right; the pixels of the original's PyGame renderer.
    pango: shaping, right-to-left scripts, fallback fonts, colour; the original's PangoCairo renderer."""
    font_file: Annotated[str, IsPath()]
    """Path of the main font, .ttf, .otf or .ttc."""
    font_index: NonNegativeInt = 0
    """Which face of the main font is drawn, if its file is a collection (.ttc) of several. Of fallback fonts, the first
    is."""
    fallback_fonts: Annotated[tuple[str, ...], IsPath()] = ()
    """Paths of the fonts that are tried, in this order, for what the main font lacks. A folder stands for the fonts
    in it, by name. The host's own fonts are never used."""
    font_size: PositiveFloat = 8
    """Points; with `dpi`, 13.3 pixels."""
    dpi: PositiveInt = 120
    """Pixels of an inch."""
    pixels_per_patch: Annotated[int, Field(ge=4, le=64)] = 16
    """Side of a patch and height of a canvas."""
    max_seq_length: Annotated[int, Field(ge=2)] = 529
    """Patches of a canvas, the end patch included."""
    pad_size: NonNegativeInt = 3
    """Pixels by which words stand lower than the middle: the baseline is row pad_size + pixels_per_patch / 2."""
    font_color: str = "black"
    """Of text and of separator patches: a name of CSS, or #rrggbb."""
    background_color: str = "white"
    """Name of CSS, or #rrggbb."""
    rgb: bool = False
    """Three colours for each pixel instead of grey."""
    strategy: Strategy = "continuous"
    """continuous: texts run on. words: each word begins a patch. bigrams: each pair of characters does, drawn each on
    its own, and each word (Lotz et al. 2023, https://arxiv.org/abs/2311.00522). A list of words begins a patch with
    each of them in any case."""
    space_patch: bool = False
    """With bigrams: a space takes a patch of its own. Released data count it, the released renderer of PIXEL-M4 does
    not."""
    show_controls: bool = False
    """Draw control characters as their pictures (U+2400 to U+2421, such as a small LF), line ends and tabs among them,
    instead of a space for these and a box for the others. A font must have the pictures. White space at which text is
    cut into words is not drawn."""
    cut_letters: bool = True
    """A text that is too long is drawn up to the last column, so that a letter may be cut in two, as the original does.
    False: only whole letters are drawn, and what they leave is blank."""
    fit_fallbacks: bool = False
    """Make fallback fonts smaller whose lines are higher than those of the main font, until they are not."""
    parity: bool = False
    """Render as the original does where that looks like a mistake, so that published data and weights keep their
    meaning: running text is centred by its ink (FreeType) or by the height of the fonts in it (Pango) instead of
    standing on one baseline; newlines of words, and with FreeType of all texts, are drawn; a first text that is cut
    keeps its room."""
    on_missing: Literal["warn", "error", "ignore"] = "warn"
    """What happens for a character that no font has; it is drawn as an empty box. Warnings come once for a
    character."""
    font_options: FontOptions = FontOptions()
    """Of the engine pango."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        P = self.pixels_per_patch
        if self.font_pixels > 2 * P:
            raise ValueError(
                f"font_size {self.font_size} at {self.dpi} dpi is {self.font_pixels:.1f} pixels, but the canvas is {P} "
                f"high\n  use a font_size of about {P * 60 / self.dpi:.0f}"
            )
        if 2 * self.pad_size > P:
            raise ValueError(
                f"pad_size {self.pad_size} puts the baseline below the canvas of {P} pixels\n"
                f"  use at most {P // 2}; published is 3 of 16"
            )
        return self

    @property
    def font_pixels(self) -> float:
        """Size of the font in pixels."""
        return self.font_size * self.dpi / 72

    @property
    def geometry(self) -> Geometry:
        """Side and number of the patches of a canvas."""
        return Geometry(patch=self.pixels_per_patch, num_patches=self.max_seq_length)


class RendererOptions(TypedDict, total=False):
    """Fields of `RendererConfig` for functions that change some of them; the font is what is opened."""

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
