"""Renderers that turn text into pixels, for models that read text as pictures. See docs/rendering.md."""

from pretrainkit.rendering.batch import PatchBatch, float_pixels, render_batch
from pretrainkit.rendering.config import FontOptions, RendererConfig
from pretrainkit.rendering.encoding import Encoding
from pretrainkit.rendering.folder import load_renderer, save_renderer
from pretrainkit.rendering.page import Text
from pretrainkit.rendering.parts import is_rtl
from pretrainkit.rendering.renderer import Renderer

__all__ = [
    "Encoding",
    "FontOptions",
    "PatchBatch",
    "Renderer",
    "RendererConfig",
    "Text",
    "float_pixels",
    "is_rtl",
    "load_renderer",
    "render_batch",
    "save_renderer",
]
