"""Read labelled texts as patches, which are drawn when a batch is built. This module does not import torch.

Slot 0 of an example is its class token, and slot 1 + i is patch i; the end patch is the last. Arguments for lengths
count as in PIXEL: they include the end patch, but not the class token.

Dimensions: N examples, B examples of a batch, T slots of a batch, S slots of an example, P pixels per side of a patch,
F = P x P (x 3) values of a patch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretrainkit.data.line_index import cache_folder
from pretrainkit.data.subsets import slots
from pretrainkit.errors import ConfigError, DataError
from pretrainkit.recipes.pixel.config import PixelRun
from pretrainkit.recipes.text_reader import Ints, ReadExamples, ReadPassages, ReadWords, TextReader
from pretrainkit.rendering.drawer import Drawer
from pretrainkit.rendering.folder import load_renderer, open_renderer, save_renderer
from pretrainkit.rendering.identity import describe
from pretrainkit.rendering.page import NoRoomError, Page, Text, Window, windows
from pretrainkit.rendering.parts import Part, RunningPart, is_rtl
from pretrainkit.rendering.renderer import Renderer

_CONTROL_PATCHES = 2
"""Number of black patches of a pair."""
NO_ANSWER_SLOT = 0
"""Slot of the class token. The original puts it last; the order does not affect the result."""
_CLEANED = (
    *((f" {mark}", mark) for mark in (",", ".", "!", "?", "#", "/", '"')),
    ('" ', '"'),
    (" '", "'"),
    ("' ", "'"),
    (" n't", "n't"),
    ("( ", "("),
    (" )", ")"),
    ("[ ", "["),
    (" ]", "]"),
)
"""Replacements of `glue_strip_spaces` in the original, in its order."""


def clean_up(text: str) -> str:
    """Remove spaces of tokenized text, as the original does with texts of GLUE and XNLI before it draws them: "I do n't
    ( really ) know ." becomes "I don't (really) know."."""
    for before, after in _CLEANED:
        text = text.replace(before, after)
    return text


class PixelReader(TextReader):
    """Reads texts with a renderer, whose canvas has the requested length."""

    def __init__(self, renderer: Renderer, fingerprint: str, max_patches: int, *, cleans_up: bool) -> None:
        """Create a reader.

        Args:
            renderer: The renderer of the model.
            fingerprint: Fingerprint of the renderer's fonts, settings and pixels.
            max_patches: Maximum number of patches of a text for which the encoder has positions.
            cleans_up: Apply `clean_up` to texts.
        """
        self._renderer, self._cleans_up = renderer, cleans_up
        self.fingerprint = f"{fingerprint} {cleans_up}"
        self.max_positions = max_patches

    def read(self, texts: Sequence[Sequence[str]], max_length: int) -> DrawnExamples:
        columns = [[clean_up(text) for text in column] for column in texts] if self._cleans_up else texts
        if len(columns) == 2:
            return DrawnExamples(self._canvas(max_length), list(zip(*columns, strict=True)))
        return DrawnExamples(self._canvas(max_length), columns[0])

    def read_words(self, words: Sequence[Sequence[str]], max_length: int) -> DrawnWords:
        empty = next((number for number, words_of_example in enumerate(words) if not words_of_example), None)
        if empty is not None:
            raise DataError(f"example {empty} has no words\n  leave it out")
        return DrawnWords(self._canvas(max_length), [list(words_of_example) for words_of_example in words])

    def read_passages(
        self, pairs: Sequence[tuple[str, str]], max_length: int, stride: int, max_first: int
    ) -> DrawnPassages:
        return DrawnPassages(self._canvas(max_length), pairs, stride, max_first)

    def _canvas(self, max_length: int) -> Renderer:
        return Renderer(self._renderer.config.changed(max_seq_length=max_length))


class DrawnExamples(ReadExamples):
    """Single texts, pairs or lists of words. Only strings are in memory; threads and processes may share it."""

    def __init__(self, renderer: Renderer, texts: Sequence[Text]) -> None:
        self._renderer, self._texts = renderer, texts

    def page(self, index: int) -> Page:
        """Return the layout of an example."""
        text = self._texts[index]
        page = Page(self._renderer, text)
        if not isinstance(text, tuple):
            return page
        limit = _first_patches(page, self._renderer)
        if limit is None:
            return page
        first = Page(self._renderer, text, text_a_max_length=limit).parts[0]
        return Page(self._renderer, (_shown(first, text[0]), text[1]))

    def lengths(self) -> Ints:
        return self._lengths

    @cached_property
    def _lengths(self) -> Ints:
        P = self._renderer.config.pixels_per_patch
        ends = (self.page(index).end for index in range(len(self._texts)))
        # `end` counts the patches before the end patch; add the end patch and the class token.
        return np.fromiter((end // P + _CONTROL_PATCHES for end in ends), np.int64, len(self._texts))

    def build(self, index_B: Ints) -> dict[str, np.ndarray]:
        """Return `patches` (T, F) uint8, 0 for class tokens; `positions` (T,) int32, 0 for class tokens and 1 + i for
        patch i; and the arrays of `ReadExamples.build`."""
        pages, P = [self.page(index) for index in index_B.tolist()], self._renderer.config.pixels_per_patch
        batch = stream([page.paint() for page in pages], P, has_color=self._renderer.config.rgb)
        if not self._texts or not isinstance(self._texts[0], tuple):
            return batch
        # After the class token and the black patch that ends the first text.
        second_begins = np.array([page.parts[0].end // P + 2 for page in pages], np.int32)
        return batch | {"second_begins": second_begins}


def _first_patches(page: Page, renderer: Renderer) -> int | None:
    """Return the maximum number of patches of the first text of a pair that is too long, so that the longer text is cut
    first. None if the pair fits or only the second text is cut. Only the strategy continuous supports such a limit."""
    geometry, (first, second) = renderer.config.geometry, page.parts
    if first.end < geometry.last and second.rest(0) is None:
        return None
    num_available = geometry.num_patches - _CONTROL_PATCHES
    num_first = first.end // geometry.patch
    num_second = Page(renderer, page.text[1]).end // geometry.patch
    # Half of the available patches, or more if the second text is shorter than the other half.
    limit = max(num_available - num_available // 2, num_available - num_second)
    return limit if num_first > limit else None


def _shown(part: Part, text: str) -> str:
    """Return the part of a pair's first text that a canvas shows. The rest is removed before the pair is drawn, because
    with `parity` it would keep its width and push the second text away."""
    return part.text if isinstance(part, RunningPart) else text


class DrawnWords(DrawnExamples, ReadWords):
    """Lists of words, each of which starts a new patch. The last drawn word may be cut off."""

    def word_starts(self, index: int) -> Ints:
        starts = self.page(index).parts[0].word_starts
        assert starts is not None
        return np.array(starts, np.int64) + 1

    def num_cut(self) -> Ints:
        return self._num_cut

    @cached_property
    def _num_cut(self) -> Ints:
        read = (len(self.word_starts(index)) - 1 for index in range(len(self._texts)))
        return np.array([len(words) - num for words, num in zip(self._texts, read, strict=True)], np.int64)


class DrawnPassages(DrawnExamples, ReadPassages):
    """Windows of contexts, each after its question."""

    cuts_words = True

    def __init__(self, renderer: Renderer, pairs: Sequence[tuple[str, str]], stride: int, max_first: int) -> None:
        firsts = [Page(renderer, (question, ""), text_a_max_length=max_first).parts[0] for question, _ in pairs]
        questions = [_shown(first, question) for first, (question, _) in zip(firsts, pairs, strict=True)]
        is_cut = np.fromiter((first.rest(0) is not None for first in firsts), bool, len(pairs))
        shown = [
            (number, window.begin + len(context) - len(context.lstrip()), window.page.text, window.page.direction)
            for number, (question, (_, context)) in enumerate(zip(questions, pairs, strict=True))
            for window in self._windows(self._first(renderer, question, context.strip()), stride)
        ]
        self._example = np.array([number for number, _, _, _ in shown], np.int64)
        self._begin = np.array([begin for _, begin, _, _ in shown], np.int64)
        self._is_cut = is_cut[self._example]
        self._directions = [direction for _, _, _, direction in shown]
        super().__init__(renderer, [text for _, _, text, _ in shown])

    @staticmethod
    def _first(drawer: Drawer, question: str, context: str) -> Page:
        """Return the first canvas.

        With `parity`, a right-to-left context after a left-to-right question would be drawn as a whole, with its
        beginning beyond the right end of every canvas. Such a pair is therefore laid out from right to left."""
        return Page(drawer, (question, context), rtl=True if drawer.config.parity and is_rtl(context) else None)

    @staticmethod
    def _windows(page: Page, stride: int) -> Iterable[Window]:
        try:
            yield from windows(page, stride)
        except NoRoomError:
            raise ConfigError(
                f"a window of {page.geometry.num_patches} patches has no room for new context besides the {stride} "
                "patches that it repeats\n  choose a larger data.max_seq_length, or a smaller data.spans.stride "
                "or data.spans.max_question_length"
            ) from None

    def page(self, index: int) -> Page:
        return Page(self._renderer, self._texts[index], rtl=self._directions[index] == "rtl")

    def example_of(self) -> Ints:
        return self._example

    def has_cut_question(self) -> NDArray[np.bool_]:
        return self._is_cut

    def offsets(self, window: int) -> Ints:
        page = self.page(window)
        context, P = page.parts[1], self._renderer.config.pixels_per_patch
        offsets_S2 = np.full((2 + page.end // P, 2), -1, np.int64)
        first_slot = page.parts[0].end // P + 2  # after the class token and the black patch that ends the question
        for slot, (first, after) in enumerate(context.spans(), first_slot):
            if after > first:
                offsets_S2[slot] = first + self._begin[window], after + self._begin[window]
        return offsets_S2

    def no_answer_slot(self, window: int) -> int:
        return NO_ANSWER_SLOT


def stream(strips: Sequence[NDArray[np.uint8]], patch_size: int, *, has_color: bool) -> dict[str, np.ndarray]:
    """Return a batch of `DrawnExamples.build`. `strips`: columns of each text up to and including the end patch, uint8
    (X, P) or (X, P, 3)."""
    lengths = np.array([1 + len(strip) // patch_size for strip in strips], np.int64)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    colors = (3,) if has_color else ()
    patches = np.zeros((int(starts[-1]), patch_size, patch_size, *colors), np.uint8)
    for start, end, strip in zip(starts[:-1].tolist(), starts[1:].tolist(), strips, strict=True):
        # Divide the columns of a strip into patches, and transpose each to rows. Slot 0 remains for the class token.
        patches[start + 1 : end] = strip.reshape(-1, patch_size, *strip.shape[1:]).swapaxes(1, 2)
    return {
        "patches": patches.reshape(len(patches), patch_size**2 * (3 if has_color else 1)),
        "positions": slots(lengths).astype(np.int32),
        "cu_seqlens": starts.astype(np.int32),
        "lengths": lengths.astype(np.int32),
        "slot_numbers": np.arange(lengths.max(initial=0), dtype=np.int32),
    }


def open_reader(config: PixelRun, folder: Path) -> PixelReader:
    """Open the reader for a renderer's folder. Raises DataError if the folder is missing, if it no longer draws the
    same pixels, or if its patches have another size than the model's."""
    renderer, fingerprint = _opened(folder)
    side = renderer.config.pixels_per_patch
    if side != config.model.patch_size:
        raise DataError(
            f"{folder} draws patches of {side} pixels, but model.patch_size is {config.model.patch_size}\n"
            "  give the renderer that the model was trained with"
        )
    return PixelReader(renderer, fingerprint, config.model.max_patches, cleans_up=config.text.clean_up)


@lru_cache(maxsize=4)
def _opened(folder: Path) -> tuple[Renderer, str]:
    """Return renderer and fingerprint, opened once per process."""
    renderer = load_renderer(folder)
    return renderer, describe(renderer)["fingerprint"]


def changed_renderer(path: Path, changes: Mapping[str, Any]) -> Path:
    """Save the renderer or font at `path` with changed settings to the cache, and return its folder. Raises ConfigError
    or DataError if a setting is invalid or a font is missing."""
    renderer = open_renderer(path, **changes)
    fingerprint = describe(renderer)["fingerprint"]
    out = cache_folder() / "renderers" / fingerprint
    save_renderer(renderer, out)
    return out
