"""Divide documents into texts that fill a canvas.

`fill` divides at word boundaries, loses nothing and leaves as little space as possible. `fill_patches` does the same if
words or pairs of letters start new patches: the number of patches is then a sum over words, so that each word is
measured once. `original_blocks` joins whole lines by the original's rule, which published data follow.

Dimensions: W words of a document, D distinct words, P pixels per side of a patch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from pretrainkit.rendering.bigrams import bigram_patches, space_patches
from pretrainkit.rendering.config import LEFT_MARGIN
from pretrainkit.rendering.renderer import Renderer


def fill(renderer: Renderer, text: str) -> Iterator[str]:
    """Yield pieces of the text that each fill a canvas with as many whole words as possible. A word that is longer than
    a canvas is cut between characters.

    White space between words, including line ends, counts as one space. Joining the pieces with spaces, or with nothing
    inside a cut word, gives the text again. A text without words has no pieces.
    """
    words = text.split()
    available = renderer.config.geometry.last - 2 * LEFT_MARGIN
    if not words:
        return
    space = renderer.width("n n") - 2 * renderer.width("n")
    # Approximate width up to and including each word and the space after it.
    reach_W = np.cumsum(_measure_each(words, lambda distinct: _widths(renderer, distinct)) + space)
    begin, before = 0, 0
    while begin < len(words):
        # Start from the sum of separate widths, which differs from that of a shaped line; then adjust word by word.
        end = max(int(np.searchsorted(reach_W, before + available, side="right")), begin + 1)
        piece = " ".join(words[begin:end])
        fits = renderer.width(piece) <= available
        while fits and end < len(words) and renderer.width(longer := f"{piece} {words[end]}") <= available:
            piece, end = longer, end + 1
        while not fits and end > begin + 1:
            end -= 1
            piece = " ".join(words[begin:end])
            fits = renderer.width(piece) <= available
        if fits or len(piece) == 1:
            yield piece
        else:
            *whole, words[begin] = _cut(renderer.width, words[begin], available, 64)
            yield from whole
            # The word is now shorter: shift the cumulative widths from this word on.
            reach_W[begin:] += before + renderer.width(words[begin]) - reach_W[begin]
            end = begin
        begin, before = end, int(reach_W[end - 1]) if end else 0


def _measure_each(words: Sequence[str], measure: Callable[[list[str]], NDArray[np.int64]]) -> NDArray[np.int64]:
    """Measure each word, equal words only once, int64 (W,)."""
    distinct = list(dict.fromkeys(words))
    values = dict(zip(distinct, measure(distinct).tolist(), strict=True))
    return np.array([values[word] for word in words], np.int64)


def _widths(renderer: Renderer, words: Sequence[str], after: str = "") -> NDArray[np.int64]:
    """Return the width of each word, followed by `after`, in pixels, int64."""
    drawn = [renderer.prepared(word, is_word=True) + after for word in words]
    return renderer.engine.lines(drawn, is_words=True).widths_N


def _cut(measure: Callable[[str], int], word: str, available: int, guess: int) -> Iterator[str]:
    """Yield pieces of a word that fit into `available`. See `longest_fitting`."""
    first = 0
    while first < len(word):
        num = guess = longest_fitting(measure, word, first, available, guess)
        yield word[first : first + num]
        first += num


_PROPORTIONAL = 4
"""Number of tries that assume a size proportional to the number of characters. After these, the search bisects."""


def longest_fitting(measure: Callable[[str], int], word: str, first: int, available: int, guess: int) -> int:
    """Return how many characters of a word, starting at index `first`, fit into `available`; at least 1.

    Args:
        measure: Size of a text in the unit of `available`. It must grow with the text.
        guess: Number of characters to try first. A later try is at most twice as long as the one before, so that
            long words are not measured whole.
    """
    num_left = len(word) - first
    fitting, too_long, size, tries = 0, num_left + 1, max(1, min(guess, num_left)), 0
    while too_long - fitting > 1:
        used, tried, tries = measure(word[first : first + size]), size, tries + 1
        fitting, too_long = (tried, too_long) if used <= available else (fitting, tried)
        expected = tried * available // max(used, 1) if tries <= _PROPORTIONAL else (fitting + too_long) // 2
        size = min(max(expected, fitting + 1), too_long - 1, 2 * tried)
    return max(fitting, 1)


def fill_patches(renderer: Renderer, text: str) -> Iterator[str]:
    """Yield pieces of the text with as many whole words as fit on a canvas. A word that is longer than a canvas is cut
    between characters. White space between words counts as one space."""
    words = text.split()
    if not words:
        return
    available = renderer.config.max_seq_length - 1
    measure = _Bigrams(renderer, words) if renderer.config.strategy == "bigrams" else _Words(renderer, words)
    begin = 0
    while begin < len(words):
        before = measure.reach_W[begin - 1] if begin else 0
        end = max(int(np.searchsorted(measure.reach_W, before + available, side="right")), begin + 1)
        while end < len(words) and measure.num_patches(begin, end + 1) <= available:
            end += 1
        while end > begin and measure.num_patches(begin, end) > available:
            end -= 1
        if end > begin:
            yield " ".join(words[begin:end])
        else:
            yield from _cut(measure.num_patches_of, words[begin], available, available)
            end = begin + 1
        begin = end


class _Words:
    """Number of patches of words in the layout of `WordsPart`: with a margin before the first and after the last word,
    and a space after all other words."""

    def __init__(self, renderer: Renderer, words: Sequence[str]) -> None:
        self._renderer, self._words = renderer, words
        self._spaced_W = _measure_each(words, lambda distinct: _widths(renderer, distinct, " "))
        self.reach_W = np.cumsum(-(-self._spaced_W // renderer.config.pixels_per_patch))
        """Cumulative number of patches of the words and the spaces after them, as if all were on one line."""

    def num_patches(self, begin: int, end: int) -> int:
        """Return the number of patches of a text with the words from `begin` to before `end`."""
        if end == begin + 1:
            return self.num_patches_of(self._words[begin])
        # The first and the last word are computed separately: they have margins, and no space follows the last one.
        first = self._patches(LEFT_MARGIN + int(self._spaced_W[begin]))
        inner = int(self.reach_W[end - 2] - self.reach_W[begin])
        return first + inner + self._patches(self._width(self._words[end - 1]) + LEFT_MARGIN)

    def num_patches_of(self, word: str) -> int:
        """Return the number of patches of a text with a single word."""
        return self._patches(LEFT_MARGIN + self._width(word) + LEFT_MARGIN)

    def _width(self, word: str) -> int:
        return int(_widths(self._renderer, [word])[0])

    def _patches(self, width: int) -> int:
        return -(-width // self._renderer.config.pixels_per_patch)


class _Bigrams:
    """Number of patches of words in the layout of `BigramsPart`: no margins, and patches for spaces if configured."""

    def __init__(self, renderer: Renderer, words: Sequence[str]) -> None:
        self._drawer = renderer
        self._space = space_patches(self._drawer)
        patches_W = _measure_each(words, lambda distinct: bigram_patches(self._drawer, distinct))
        self.reach_W = np.cumsum(patches_W + self._space)

    def num_patches(self, begin: int, end: int) -> int:
        before = self.reach_W[begin - 1] if begin else 0
        return int(self.reach_W[end - 1] - before) - self._space

    def num_patches_of(self, word: str) -> int:
        return int(bigram_patches(self._drawer, [word])[0])


def original_blocks(renderer: Renderer, lines: Sequence[str]) -> Iterator[str]:
    """Yield blocks of a document's lines as the original packs them.

    The width of a block is the sum of its lines' widths, without the spaces that join them. If the first line is too
    wide, an empty block precedes it. A block that is too wide is cut off when it is drawn.
    """
    geometry = renderer.config.geometry
    target = geometry.width - 2 * geometry.patch
    filled, block = 0, list[str]()
    for line, width in zip(lines, renderer.widths(lines).tolist(), strict=True):
        if filled + width >= target:
            yield " ".join(block)
            filled, block = width, [line]
        else:
            filled += width
            block.append(line)
    yield " ".join(block)


def wikipedia_articles(lines: Sequence[str] | Iterator[str]) -> Iterator[list[str]]:
    """Yield the paragraphs of each article of a text with a paragraph per line and three blank lines between articles.

    By the original's rule, a line of at most 100 characters after three blank lines is a title and dropped. The first
    article keeps its title."""
    blanks, article = 0, list[str]()
    for line in lines:
        line = line.strip()
        if not line:
            blanks += 1
            continue
        if blanks >= 3:
            yield article
            article = [line] if len(line) > 100 else []
        else:
            article.append(line)
        blanks = 0
    yield article
