"""Engine that shapes text with Pango, using only the given fonts, and paints it glyph by glyph with Cairo's result.

Pango shapes, reorders and chooses fonts; Cairo rasterizes each glyph once. Glyphs are at whole pixels, so that a line
composed from their bitmaps equals the output of `pango_cairo_show_layout`. Lines with colour glyphs are drawn by that
function itself.

A private Fontconfig configuration contains only the files of the config and our rules, so that neither fonts nor
hinting rules of the machine can change a pixel.

Dimensions: N texts, G glyphs, T characters of one text, X columns, P rows of a canvas, C = 3 colours.
"""

from __future__ import annotations

import ctypes
import math
import re
import threading
import weakref
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import NamedTuple
from xml.sax.saxutils import escape

import numpy as np
from numpy.typing import NDArray

from pretrainkit.errors import DataError
from pretrainkit.rendering.config import RendererConfig
from pretrainkit.rendering.fonts import Face, drawn_faces, num_faces
from pretrainkit.rendering.glyph_atlas import BASELINE, ROWS, GlyphAtlas
from pretrainkit.rendering.painting import Ink, Shades
from pretrainkit.rendering.pango_library import (
    ANTIALIASES,
    DIRECTION_LTR,
    DIRECTION_RTL,
    EMPTY_GLYPH,
    FORMAT_A8,
    FORMAT_RGB24,
    HINT_METRICS,
    HINT_STYLES,
    SCALE,
    UNKNOWN_FLAG,
    GlyphInfo,
    GlyphItem,
    GlyphString,
    ListNode,
    PangoLibrary,
    pango_library,
)
from pretrainkit.rendering.pango_words import Word, WordLines

_KEPT_WORDS = 1 << 16
"""Maximum number of cached words."""
_LONGEST_KEPT = 64
"""Maximum number of characters of a cached word. Longer ones, as in scripts without spaces, rarely repeat."""
_GLYPH_COLUMNS, _GLYPH_ORIGIN = 1024, 256
"""Width of the surface on which a glyph is rasterized, and the column of its pen. The width is a multiple of 4."""
_SCALE_BITMAPS = b"""<?xml version="1.0"?>
<fontconfig>
  <match target="font">
    <test name="outline" compare="eq"><bool>false</bool></test>
    <edit name="pixelsizefixupfactor" mode="assign">
      <divide><name target="pattern">pixelsize</name><name target="font">pixelsize</name></divide>
    </edit>
    <edit name="matrix" mode="assign">
      <times>
        <name>matrix</name>
        <matrix>
          <name>pixelsizefixupfactor</name><double>0</double><double>0</double><name>pixelsizefixupfactor</name>
        </matrix>
      </times>
    </edit>
    <edit name="size" mode="assign"><divide><name>size</name><name>pixelsizefixupfactor</name></divide></edit>
  </match>
</fontconfig>
"""
"""Rule for bitmap fonts: pictures of colour fonts, which have one size, are scaled to the size of the text."""
_STAND_IN = "\ufdd0"
"""Passed to Pango instead of characters that UTF-8 cannot encode or Pango rejects: a noncharacter that no font has."""
_NOT_GIVEN = re.compile("[\0\ud800-\udfff]")
_GLYPH_DTYPE = np.dtype(GlyphInfo)


@dataclass(frozen=True, eq=False)
class Run:
    """Glyphs of one font and one direction, from left to right."""

    font: int
    is_rtl: bool
    first_byte: int
    """Index of the first byte in the UTF-8 text."""
    num_bytes: int
    glyphs_G: NDArray[np.void]
    """PangoGlyphInfo."""
    clusters_G: NDArray[np.int32]
    """Byte at which the cluster of each glyph begins, counted from `first_byte`."""
    rise: int
    """Height of the run above the baseline in Pango units."""


@dataclass(frozen=True, eq=False)
class Shaped:
    """A text after shaping."""

    text: str
    direction: str | None
    width: int
    """Logical width in whole pixels."""
    base: float
    """Row of the baseline. Glyphs are placed on the nearest whole row."""
    slots_G: NDArray[np.int32]
    """Slots of the glyphs with ink, in drawing order."""
    columns_G: NDArray[np.int64]
    """First column of each glyph's bitmap."""
    runs_G: NDArray[np.int32]
    """Index of each glyph's run. The glyphs of a run are drawn together."""
    missing: tuple[str, ...] = ()
    is_color: bool = False
    """True if there is a colour glyph."""
    runs: tuple[Run, ...] | None = None
    """Runs of the text. None: the line was composed from cached words."""


class PangoEngine:
    """Pango with the fonts of one config. Threads may share it; a lock serializes shaping."""

    def __init__(self, config: RendererConfig) -> None:
        self.config = config
        self.atlas = GlyphAtlas()
        self._pango = pango = pango_library()
        self._lock = threading.RLock()
        self._kept: OrderedDict[tuple[str, str | None], Shaped] = OrderedDict()
        self._slots: dict[int, FontSlots] = {}
        self._objects: list[int] = []
        self.shades = Shades(config)
        faces = drawn_faces(config)
        self._fontconfig = pango.FcConfigCreate()
        names = [f"{number:05d}" for number in range(len(faces))]
        pango.FcConfigParseAndLoadFromMemory(self._fontconfig, _SCALE_BITMAPS, 1)
        pango.FcConfigParseAndLoadFromMemory(self._fontconfig, _rules(faces, names), 1)
        for path, number, _ in faces:
            pattern = pango.FcFreeTypeQuery(str(path).encode(), number, None, ctypes.byref(ctypes.c_int()))
            if not pattern or not pango.FcConfigAppFontAddFile(self._fontconfig, str(path).encode()):
                raise DataError(f"font {path} cannot be used by Pango\n  give a .ttf, .otf or .ttc file")
            pango.FcPatternDestroy(pattern)
        self._font_map = pango.pango_cairo_font_map_new()
        pango.pango_fc_font_map_set_config(self._font_map, self._fontconfig)
        self._context = pango.pango_font_map_create_context(self._font_map)
        self._objects += [self._font_map, self._context]
        weakref.finalize(self, _release, pango, self._objects, self._fontconfig).atexit = False
        pango.pango_context_set_round_glyph_positions(self._context, 1)
        pango.pango_context_set_language(self._context, pango.pango_language_from_string(b"en"))
        options, font_options = pango.cairo_font_options_create(), config.font_options
        pango.cairo_font_options_set_antialias(options, ANTIALIASES[font_options.antialias])
        pango.cairo_font_options_set_hint_style(options, HINT_STYLES[font_options.hint_style])
        pango.cairo_font_options_set_hint_metrics(options, HINT_METRICS[font_options.hint_metrics])
        pango.pango_cairo_context_set_font_options(self._context, options)
        pango.cairo_font_options_destroy(options)
        self._layout = pango.pango_layout_new(self._context)
        self._objects.append(self._layout)
        description = pango.pango_font_description_new()
        pango.pango_font_description_set_family(description, ",".join(names).encode())
        pango.pango_font_description_set_absolute_size(description, round(config.font_pixels * SCALE))
        pango.pango_layout_set_font_description(self._layout, description)
        pango.pango_font_description_free(description)
        self._direction: str | None = None
        self._set_text("x", None)
        self._main_base, self._main_font = self._base(), self._runs()[0].font
        self._words = WordLines(self._word)

    def lines(self, texts: Sequence[str], *, is_words: bool = False, direction: str | None = None) -> PangoLines:
        if is_words:
            return PangoLines(self, [self._kept_word(text, direction) for text in texts])
        with self._lock:
            return PangoLines(self, [self._line(text, direction) for text in texts])

    def versions(self) -> dict[str, str]:
        return self._pango.versions()

    def _kept_word(self, text: str, direction: str | None) -> Shaped:
        shaped = self._kept.get((text, direction))
        if shaped is None:
            with self._lock:
                shaped = self._shape(text, direction)
                if len(text) <= _LONGEST_KEPT:
                    self._kept[text, direction] = shaped
                if len(self._kept) > _KEPT_WORDS:
                    self._kept.popitem(last=False)
        return shaped

    def _set_text(self, text: str, direction: str | None) -> bytes:
        pango = self._pango
        if direction != self._direction:
            pango.pango_context_set_base_dir(self._context, DIRECTION_RTL if direction == "rtl" else DIRECTION_LTR)
            pango.pango_layout_set_auto_dir(self._layout, direction is None)
            pango.pango_layout_context_changed(self._layout)
            self._direction = direction
        content = _utf8(text)
        pango.pango_layout_set_text(self._layout, content, len(content))
        return content

    def _size(self) -> tuple[int, int]:
        width, height = ctypes.c_int(), ctypes.c_int()
        self._pango.pango_layout_get_pixel_size(self._layout, ctypes.byref(width), ctypes.byref(height))
        return width.value, height.value

    def _base(self) -> float:
        """Return the baseline row of the current layout. The layout is centred P / 8 rows above the middle of the
        canvas, which is 2 of 16 rows as in the original. With `parity` it is always 2, also as in the original."""
        P = self.config.pixels_per_patch
        top = P / 2 - self._size()[1] / 2 - (2 if self.config.parity else P / 8)
        return top + self._pango.pango_layout_get_baseline(self._layout) / SCALE

    def _line(self, text: str, direction: str | None) -> Shaped:
        """Compose a line from cached words if the result is the same; otherwise shape it."""
        line = self._words.line(text) if direction is None and self.config.font_options.keep_words else None
        if line is None:
            return self._shape(text, direction)
        slots_G, columns_G, width = line
        one_run_G = np.broadcast_to(np.int32(0), len(slots_G))
        return Shaped(text, direction, width, self._main_base, slots_G, columns_G, one_run_G)

    def _word(self, word: str, has_before: bool, has_after: bool) -> Word | None:
        """Shape a word between spaces. None if it is not completely in the main font."""
        before, after = "a " if has_before else "", " a" if has_after else ""
        shaped = self._shape(before + word + after, None)
        assert shaped.runs is not None
        if len(shaped.runs) != 1 or shaped.runs[0].font != self._main_font or shaped.missing:
            return None
        run = shaped.runs[0]
        first, stop = len(before), len(before) + len(word.encode())
        widths_G = run.glyphs_G["width"].astype(np.int64)
        if (widths_G % SCALE).any():
            return None
        pens_G = (np.cumsum(widths_G) - widths_G) // SCALE
        # The surrounding letters and spaces have bytes before `first` and from `stop` on.
        is_in_word_G = (run.clusters_G >= first) & (run.clusters_G < stop)
        pen = int(pens_G[is_in_word_G][0])
        slots_G = self._slots_of(run, self._main_base)[is_in_word_G]
        columns_G = (pens_G - pen + (run.glyphs_G["x_offset"] + SCALE // 2) // SCALE)[is_in_word_G]
        has_ink_G = self.atlas.width.take(slots_G) > 0
        slots_G = slots_G[has_ink_G]
        return Word(
            slots_G=slots_G,
            columns_G=columns_G[has_ink_G] + self.atlas.left.take(slots_G),
            space=int(widths_G[run.clusters_G == 1].sum()) // SCALE if has_before else 0,
            width=int(widths_G[is_in_word_G].sum()) // SCALE,
        )

    def runs_of(self, shaped: Shaped) -> tuple[Run, ...]:
        """Return the runs of a text. Shape it now if its line was composed from cached words."""
        with self._lock:
            runs = shaped.runs if shaped.runs is not None else self._shape(shaped.text, shaped.direction).runs
        assert runs is not None
        return runs

    def _shape(self, text: str, direction: str | None) -> Shaped:
        self._set_text(text, direction)
        width, _ = self._size()
        base = self._base() if self.config.parity else self._main_base
        runs = [_named(run, text) for run in self._runs()] if _NOT_GIVEN.search(text) else self._runs()
        slots, columns = [np.zeros(0, np.int32)], [np.zeros(0, np.int64)]
        missing: list[str] = []
        pen = 0
        for run in runs:
            slot_G = self._slots_of(run, base)
            width_G = run.glyphs_G["width"].astype(np.int64)
            ends_G = pen + np.cumsum(width_G)
            columns.append((ends_G - width_G + run.glyphs_G["x_offset"] + SCALE // 2) // SCALE)
            slots.append(slot_G)
            missing += _unknown(run.glyphs_G["glyph"])
            pen = int(ends_G[-1])
        slots_G = np.concatenate(slots)
        has_ink_G = self.atlas.width.take(slots_G) > 0
        slots_G = slots_G[has_ink_G]
        lengths = np.array([len(run.glyphs_G) for run in runs], np.int64)
        return Shaped(
            text=text,
            direction=direction,
            width=width,
            base=base,
            slots_G=slots_G,
            columns_G=np.concatenate(columns)[has_ink_G] + self.atlas.left.take(slots_G),
            runs_G=np.repeat(np.arange(len(runs), dtype=np.int32), lengths)[has_ink_G],
            missing=tuple(missing),
            is_color=any(self._slots[run.font].is_color for run in runs),
            runs=tuple(runs),
        )

    def _runs(self) -> list[Run]:
        """Return the runs of the layout's first line. Further lines, possible only in words with newlines under
        `parity`, are not drawn."""
        line = self._pango.pango_layout_get_line_readonly(self._layout, 0)
        runs, address = [], line.contents.runs
        while address:
            node = ListNode.from_address(address)
            glyph_item, address = GlyphItem.from_address(node.data), node.next
            item, string = glyph_item.item.contents, glyph_item.glyphs.contents
            num = string.num_glyphs
            if num:
                content = ctypes.string_at(string.glyphs, num * _GLYPH_DTYPE.itemsize)
                clusters = ctypes.string_at(string.log_clusters, num * 4)
                runs.append(
                    Run(
                        font=item.font,
                        is_rtl=bool(item.level & 1),
                        first_byte=item.offset,
                        num_bytes=item.length,
                        glyphs_G=np.frombuffer(content, _GLYPH_DTYPE),
                        clusters_G=np.frombuffer(clusters, np.int32),
                        rise=glyph_item.y_offset,
                    )
                )
        return runs

    def _slots_of(self, run: Run, base: float) -> NDArray[np.int32]:
        """Return the slot of each glyph. A glyph that is moved up or down has a slot of its own."""
        slots = self._slots.get(run.font)
        if slots is None:
            pango, is_color = self._pango, ctypes.c_int(0)
            self._objects.append(pango.g_object_ref(run.font))
            pattern = pango.pango_fc_font_get_pattern(run.font)
            pango.FcPatternGetBool(pattern, b"color", 0, ctypes.byref(is_color))
            slots = self._slots[run.font] = FontSlots(bool(is_color.value), np.zeros(1 << 16, np.int32), {})
        numbers_G = run.glyphs_G["glyph"]
        rise_G = run.rise - run.glyphs_G["y_offset"]
        # Slot 0 means "not loaded yet". Empty glyphs, such as joiners, keep slot 0 and have no ink.
        is_plain_G = (numbers_G < len(slots.plain)) & (rise_G == 0)
        slots_G = np.where(is_plain_G, slots.plain.take(numbers_G, mode="clip"), 0)
        new_G = np.flatnonzero((slots_G == 0) & (numbers_G != EMPTY_GLYPH))
        for index in new_G.tolist():
            number, rise = int(numbers_G[index]), int(rise_G[index])
            # Cairo rounds the position of each glyph, so the shift of a raised glyph in rows depends on the baseline.
            rows = _nearest(base) - _nearest(base - rise / SCALE)
            fraction = base - _nearest(base) if number & UNKNOWN_FLAG else 0.0
            slot = slots.moved.get((number, rows, fraction))
            if slot is None:
                slot = self._rasterize(run.font, run.glyphs_G[index], rows, fraction)
                slots.moved[number, rows, fraction] = slot
            slots_G[index] = slot
            if is_plain_G[index]:
                slots.plain[number] = slot
        return slots_G

    def _rasterize(self, font: int, glyph: np.void, rise: int, fraction: float) -> int:
        """Store Cairo's bitmap of a glyph, and return its slot. `fraction` is the offset of the baseline in rows. It
        matters only for boxes of unknown characters, which are drawn as shapes."""
        info = GlyphInfo(int(glyph["glyph"]), int(glyph["width"]), 0, 0, 0)
        cluster = ctypes.c_int(0)
        string = GlyphString(1, ctypes.addressof(info), ctypes.addressof(cluster), 1)
        surface_RX = np.zeros((ROWS, _GLYPH_COLUMNS), np.uint8)
        with self._drawing(surface_RX, FORMAT_A8, _GLYPH_COLUMNS, _GLYPH_ORIGIN, BASELINE + fraction) as drawing:
            self._pango.pango_cairo_show_glyph_string(drawing, font, ctypes.byref(string))
        rows, columns = np.flatnonzero(surface_RX.any(axis=1)), np.flatnonzero(surface_RX.any(axis=0))
        if not len(rows):
            return self.atlas.add(np.zeros((0, 0), np.uint8), 0, 0)
        bitmap = surface_RX[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
        return self.atlas.add(bitmap, int(columns[0]) - _GLYPH_ORIGIN, BASELINE - int(rows[0]) + rise)

    @contextmanager
    def _drawing(
        self, pixels: NDArray[np.uint8], form: int, num_columns: int, column: float, row: float
    ) -> Iterator[int]:
        """Yield a Cairo context that draws into contiguous `pixels`, (rows, columns) or (rows, columns, 4), with the
        current point at (column, row)."""
        pango = self._pango
        surface = pango.cairo_image_surface_create_for_data(
            pixels.ctypes.data, form, num_columns, len(pixels), pixels.strides[0]
        )
        drawing = pango.cairo_create(surface)
        pango.cairo_move_to(drawing, column, row)
        try:
            yield drawing
            pango.cairo_surface_flush(surface)
        finally:
            pango.cairo_destroy(drawing)
            pango.cairo_surface_destroy(surface)

    def draw_whole(self, shaped: Shaped, canvas_XPC: NDArray[np.uint8], column: int) -> None:
        """Overwrite `canvas_XPC`, uint8 (X, P, C), with a text drawn by `pango_cairo_show_layout` in the font's
        colours."""
        with self._lock:
            num_columns, P = canvas_XPC.shape[:2]
            pixels_PX4 = np.empty((P, num_columns, 4), np.uint8)
            pixels_PX4[..., :3] = self.shades.ramp[0][::-1]
            self._set_text(shaped.text, shaped.direction)
            above = self._pango.pango_layout_get_baseline(self._layout) / SCALE
            with self._drawing(pixels_PX4, FORMAT_RGB24, num_columns, column, shaped.base - above) as drawing:
                self._pango.cairo_set_source_rgb(drawing, *(self.shades.ramp[255] / 255).tolist())
                self._pango.pango_cairo_show_layout(drawing, self._layout)
            canvas_XPC[:] = pixels_PX4[:, :, 2::-1].swapaxes(0, 1)


class FontSlots(NamedTuple):
    """Slots of one font's glyphs in the store."""

    is_color: bool
    """True if the font has colour glyphs."""
    plain: NDArray[np.int32]
    """Slots of glyphs on the baseline by glyph number; 0: not loaded."""
    moved: dict[tuple[int, int, float], int]
    """Slots by glyph number, rows above the baseline and, for boxes, the fraction of a row below it."""


class PangoLines:
    """Measured texts."""

    def __init__(self, engine: PangoEngine, shaped: list[Shaped]) -> None:
        self._engine, self._shaped = engine, shaped
        self.widths_N = np.array([text.width for text in shaped], np.int64)
        self.is_color = any(text.is_color for text in shaped)
        self.missing = [character for text in shaped for character in text.missing]

    def paint(self, canvas_XP: NDArray[np.uint8], columns_N: Sequence[int] | NDArray[np.int64]) -> None:
        shaped = self._shaped
        ink = Ink(
            slots_G=np.concatenate([text.slots_G for text in shaped]),
            columns_G=np.concatenate([text.columns_G for text in shaped]),
            layers_G=np.concatenate([text.runs_G for text in shaped]),
            lengths_N=np.array([len(text.slots_G) for text in shaped]),
            baselines_N=np.array([_nearest(text.base) for text in shaped]),
        )
        coverage_XP = ink.coverage(self._engine.atlas, canvas_XP.shape[:2], columns_N)
        self._engine.shades.apply(coverage_XP, canvas_XP)
        colored = [index for index, text in enumerate(shaped) if text.is_color] if canvas_XP.ndim == 3 else []
        for index in colored:
            column = int(columns_N[index])
            begin, stop = max(column, 0), min(column + shaped[index].width, len(canvas_XP))
            if begin < stop:
                self._engine.draw_whole(shaped[index], canvas_XP[begin:stop], column - begin)

    def edges(self, index: int) -> NDArray[np.float64]:
        shaped = self._shaped[index]
        return _character_edges(shaped.text, self._engine.runs_of(shaped))


def _character_edges(text: str, runs: Sequence[Run]) -> NDArray[np.float64]:
    """Return the edges of the cluster to which each character belongs, float64 (T, 2)."""
    starts: list[NDArray[np.int64]] = [np.zeros(0, np.int64)]
    edges: list[NDArray[np.float64]] = [np.zeros((0, 2))]
    pen = 0.0
    for run in runs:
        ends_G = pen + np.cumsum(run.glyphs_G["width"], dtype=np.int64) / SCALE
        begins_G = np.concatenate([[pen], ends_G[:-1]])
        # The glyphs of a cluster are adjacent. From left to right, clusters ascend, or descend in RTL runs.
        clusters_K, first_K = np.unique(run.clusters_G, return_index=True)
        last_K = len(run.clusters_G) - 1 - np.unique(run.clusters_G[::-1], return_index=True)[1]
        left_K, right_K = begins_G[np.minimum(first_K, last_K)], ends_G[np.maximum(first_K, last_K)]
        edges.append(np.stack([right_K, left_K] if run.is_rtl else [left_K, right_K], axis=1))
        starts.append(clusters_K.astype(np.int64) + run.first_byte)
        pen = float(ends_G[-1])
    starts_K, edges_K2 = np.concatenate(starts), np.concatenate(edges)
    if not len(starts_K):
        return np.zeros((len(text), 2))
    order_K = np.argsort(starts_K, kind="stable")
    cluster_T = np.maximum(np.searchsorted(starts_K[order_K], _byte_starts(text), side="right") - 1, 0)
    return edges_K2[order_K][cluster_T]


def _rules(faces: Sequence[Face], names: Sequence[str]) -> bytes:
    """Return Fontconfig rules that give each font a family name of its own, so that fonts are tried in the given order.
    With their original names, a regular font would come before a bold one. Other rules map the family "emoji", which
    Pango requests for emoji, to all fonts, and scale fallback fonts down."""
    index_tests = (
        f"<test name='index'><int>{face.number}</int></test>" if num_faces(face.path) > 1 else "" for face in faces
    )
    renamed = (
        f"<match target='scan'><test name='file'><string>{escape(str(face.path))}</string></test>{test}"
        f"<edit name='family' mode='assign_replace'><string>{name}</string></edit></match>"
        for face, test, name in zip(faces, index_tests, names, strict=True)
    )
    families = "".join(f"<string>{name}</string>" for name in names)
    emoji = (
        "<match target='pattern'><test name='family'><string>emoji</string></test><edit name='family' mode='assign' "
        f"binding='same'>{families}</edit></match>"
    )
    smaller = (
        f"<match target='font'><test name='file'><string>{escape(str(path))}</string></test><edit name='pixelsize' "
        f"mode='assign'><times><name>pixelsize</name><double>{scale:.6f}</double></times></edit></match>"
        for path, _, scale in faces
        if scale < 1
    )
    return f"<?xml version='1.0'?><fontconfig>{''.join(renamed)}{emoji}{''.join(smaller)}</fontconfig>".encode()


def _release(pango: PangoLibrary, objects: list[int], fontconfig: int) -> None:
    while objects:
        pango.g_object_unref(objects.pop())
    pango.FcConfigDestroy(fontconfig)


def _utf8(text: str) -> bytes:
    """Encode a text for Pango, which accepts neither zero characters nor halves of surrogate pairs."""
    return _NOT_GIVEN.sub(_STAND_IN, text).encode()


def _named(run: Run, text: str) -> Run:
    """Return the run with boxes of the actual characters instead of boxes of the stand-in."""
    codes_T, starts_T = np.array(list(map(ord, text))), _byte_starts(text)
    codes_G = codes_T[np.searchsorted(starts_T, run.first_byte + run.clusters_G)]
    is_named_G = (run.glyphs_G["glyph"] == UNKNOWN_FLAG | ord(_STAND_IN)) & (codes_G != ord(_STAND_IN))
    glyphs_G = run.glyphs_G.copy()
    glyphs_G["glyph"][is_named_G] = UNKNOWN_FLAG | codes_G[is_named_G]
    return replace(run, glyphs_G=glyphs_G)


def _byte_starts(text: str) -> NDArray[np.int64]:
    """Return the index of the first byte of each character in the bytes that Pango gets, int64 (T,)."""
    lengths_T = np.array([len(_utf8(character)) for character in text], np.int64)
    return np.cumsum(lengths_T) - lengths_T


def _nearest(row: float) -> int:
    """Round like Cairo rounds the positions of glyphs."""
    return math.floor(row + 0.5)


def _unknown(numbers_G: NDArray[np.uint32]) -> list[str]:
    """Return the characters for which no font has a glyph."""
    codes_U = numbers_G[(numbers_G & UNKNOWN_FLAG) != 0] & ~np.uint32(UNKNOWN_FLAG)
    return [chr(code) for code in codes_U.tolist() if code < 0x110000]
