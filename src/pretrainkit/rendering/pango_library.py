"""Bindings of the functions of Pango, Cairo and Fontconfig that we use, by ctypes.

The libraries are in Debian's package libpangocairo-1.0-0 and its dependencies; neither a Python package nor a compiler
is needed. Structures are those of Pango 1.44 and later (pango-layout.h, pango-glyph.h, pango-item.h).
"""

from __future__ import annotations

import ctypes
import ctypes.util
from contextlib import suppress
from ctypes import POINTER, Structure, c_char_p, c_double, c_int, c_uint8, c_uint32, c_void_p
from functools import cache
from typing import Any

from pretrainkit.errors import MissingPackageError

SCALE = 1024
"""Pango units per pixel."""
EMPTY_GLYPH = 0x0FFFFFFF
UNKNOWN_FLAG = 0x10000000
"""Flag in the glyph number of a character that no font has. The other bits are the character's code point."""
FORMAT_RGB24, FORMAT_A8 = 1, 2
DIRECTION_LTR, DIRECTION_RTL = 0, 1
HINT_STYLES = {"none": 1, "slight": 2, "medium": 3, "full": 4}
ANTIALIASES = {"none": 1, "gray": 2}
HINT_METRICS = {False: 1, True: 2}


class ListNode(Structure):
    """GSList."""

    _fields_ = [("data", c_void_p), ("next", c_void_p)]


class LayoutLine(Structure):
    """First fields of PangoLayoutLine."""

    _fields_ = [("layout", c_void_p), ("start", c_int), ("length", c_int), ("runs", c_void_p)]


class Item(Structure):
    """First fields of PangoItem and its PangoAnalysis."""

    _fields_ = [
        ("offset", c_int),
        ("length", c_int),
        ("num_chars", c_int),
        ("shape_engine", c_void_p),
        ("lang_engine", c_void_p),
        ("font", c_void_p),
        ("level", c_uint8),
    ]


class GlyphString(Structure):
    """PangoGlyphString."""

    _fields_ = [("num_glyphs", c_int), ("glyphs", c_void_p), ("log_clusters", c_void_p), ("space", c_int)]


class GlyphItem(Structure):
    """First fields of PangoGlyphItem."""

    _fields_ = [("item", POINTER(Item)), ("glyphs", POINTER(GlyphString)), ("y_offset", c_int)]


class GlyphInfo(Structure):
    """PangoGlyphInfo."""

    _fields_ = [
        ("glyph", c_uint32),
        ("width", c_int),
        ("x_offset", c_int),
        ("y_offset", c_int),
        ("attributes", c_uint32),
    ]


_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "FcConfigCreate": (c_void_p,),
    "FcConfigDestroy": (None, c_void_p),
    "FcConfigAppFontAddFile": (c_int, c_void_p, c_char_p),
    "FcConfigParseAndLoadFromMemory": (c_int, c_void_p, c_char_p, c_int),
    "FcFreeTypeQuery": (c_void_p, c_char_p, c_int, c_void_p, POINTER(c_int)),
    "FcPatternGetString": (c_int, c_void_p, c_char_p, c_int, POINTER(c_char_p)),
    "FcPatternGetBool": (c_int, c_void_p, c_char_p, c_int, POINTER(c_int)),
    "FcPatternDestroy": (None, c_void_p),
    "FcGetVersion": (c_int,),
    "g_object_unref": (None, c_void_p),
    "g_object_ref": (c_void_p, c_void_p),
    "FT_Init_FreeType": (c_int, POINTER(c_void_p)),
    "FT_Done_FreeType": (c_int, c_void_p),
    "FT_Library_Version": (None, c_void_p, POINTER(c_int), POINTER(c_int), POINTER(c_int)),
    "hb_version_string": (c_char_p,),
    "pango_version_string": (c_char_p,),
    "pango_font_map_create_context": (c_void_p, c_void_p),
    "pango_context_set_round_glyph_positions": (None, c_void_p, c_int),
    "pango_context_set_base_dir": (None, c_void_p, c_int),
    "pango_context_set_language": (None, c_void_p, c_void_p),
    "pango_language_from_string": (c_void_p, c_char_p),
    "pango_font_description_new": (c_void_p,),
    "pango_font_description_free": (None, c_void_p),
    "pango_font_description_set_family": (None, c_void_p, c_char_p),
    "pango_font_description_set_absolute_size": (None, c_void_p, c_double),
    "pango_layout_new": (c_void_p, c_void_p),
    "pango_layout_context_changed": (None, c_void_p),
    "pango_layout_set_auto_dir": (None, c_void_p, c_int),
    "pango_layout_set_font_description": (None, c_void_p, c_void_p),
    "pango_layout_set_text": (None, c_void_p, c_char_p, c_int),
    "pango_layout_get_pixel_size": (None, c_void_p, POINTER(c_int), POINTER(c_int)),
    "pango_layout_get_baseline": (c_int, c_void_p),
    "pango_layout_get_line_readonly": (POINTER(LayoutLine), c_void_p, c_int),
    "pango_fc_font_map_set_config": (None, c_void_p, c_void_p),
    "pango_fc_font_get_pattern": (c_void_p, c_void_p),
    "pango_cairo_font_map_new": (c_void_p,),
    "pango_cairo_context_set_font_options": (None, c_void_p, c_void_p),
    "pango_cairo_show_layout": (None, c_void_p, c_void_p),
    "pango_cairo_show_glyph_string": (None, c_void_p, c_void_p, POINTER(GlyphString)),
    "cairo_version_string": (c_char_p,),
    "cairo_font_options_create": (c_void_p,),
    "cairo_font_options_destroy": (None, c_void_p),
    "cairo_font_options_set_antialias": (None, c_void_p, c_int),
    "cairo_font_options_set_hint_style": (None, c_void_p, c_int),
    "cairo_font_options_set_hint_metrics": (None, c_void_p, c_int),
    "cairo_image_surface_create_for_data": (c_void_p, c_void_p, c_int, c_int, c_int, c_int),
    "cairo_surface_flush": (None, c_void_p),
    "cairo_surface_destroy": (None, c_void_p),
    "cairo_create": (c_void_p, c_void_p),
    "cairo_destroy": (None, c_void_p),
    "cairo_move_to": (None, c_void_p, c_double, c_double),
    "cairo_set_source_rgb": (None, c_void_p, c_double, c_double, c_double),
}
"""Signature of each function: (result type, argument types ...)."""


class PangoLibrary:
    """The functions of `_SIGNATURES` as attributes."""

    def __init__(self) -> None:
        library = _open()
        for function, (result, *arguments) in _SIGNATURES.items():
            function_pointer = getattr(library, function)
            function_pointer.restype, function_pointer.argtypes = result, arguments
            self.__dict__[function] = function_pointer

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)

    def versions(self) -> dict[str, str]:
        """Return the versions of the libraries that determine the pixels, by name."""
        fontconfig = self.FcGetVersion()
        handle, numbers = c_void_p(), [c_int() for _ in range(3)]
        self.FT_Init_FreeType(ctypes.byref(handle))
        self.FT_Library_Version(handle, *map(ctypes.byref, numbers))
        self.FT_Done_FreeType(handle)
        return {
            "pango": self.pango_version_string().decode(),
            "cairo": self.cairo_version_string().decode(),
            "harfbuzz": self.hb_version_string().decode(),
            "freetype": ".".join(str(number.value) for number in numbers),
            "fontconfig": f"{fontconfig // 10000}.{fontconfig // 100 % 100}.{fontconfig % 100}",
        }


@cache
def pango_library() -> PangoLibrary:
    """Return the libraries, opened once. Raises MissingPackageError if they are not installed."""
    return PangoLibrary()


def _open() -> ctypes.CDLL:
    """Open the library that depends on all the others and therefore gives access to their functions."""
    for file in ("libpangocairo-1.0.so.0", ctypes.util.find_library("pangocairo-1.0")):
        with suppress(OSError):
            if file is not None:
                return ctypes.CDLL(file)
    raise MissingLibraryError


class MissingLibraryError(MissingPackageError):
    """A shared library of the system is not installed."""

    def __init__(self) -> None:
        super(MissingPackageError, self).__init__(
            "rendering with Pango needs the system library libpangocairo-1.0\n"
            "  install it: apt-get install libpangocairo-1.0-0   (or: brew install pango, dnf install pango)\n"
            "  or render without it: engine=freetype"
        )
