"""Documents to texts that fill a canvas.

`fill` cuts at words so that nothing is lost and as little room as possible is left. So does `fill_patches`, where words
or pairs of letters begin patches of their own: a text then takes up as many patches as its words do, so that each word
is measured once. `original_blocks` joins whole lines by the original's rule, which published data follow.

Dimensions: W words of a document, D distinct words, P pixels of a patch's side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from pretrainkit.rendering.bigrams import bigram_patches, space_patches
from pretrainkit.rendering.config import LEFT_MARGIN
from pretrainkit.rendering.renderer import Renderer


def fill(renderer: Renderer, text: str) -> Iterator[str]:
    """The text in pieces that each fill a canvas as far as whole words allow; a longer word is cut between characters.

    White space between words, line ends included, counts as one space. The pieces joined by spaces, or by nothing
    within a cut word, are the text again; a text without words gives none.
    """
    words = text.split()
    room = renderer.config.geometry.last - 2 * LEFT_MARGIN
    if not words:
        return
    space = renderer.width("n n") - 2 * renderer.width("n")
    # About how many pixels the words take up to and with each, and the space after it.
    reach_W = np.cumsum(_of_each(words, lambda distinct: _widths(renderer, distinct)) + space)
    begin, before = 0, 0
    while begin < len(words):
        # A guess from the widths of words apart, which shaping a line changes; then word by word, until it is exact.
        end = max(int(np.searchsorted(reach_W, before + room, side="right")), begin + 1)
        piece = " ".join(words[begin:end])
        fits = renderer.width(piece) <= room
        while fits and end < len(words) and renderer.width(longer := f"{piece} {words[end]}") <= room:
            piece, end = longer, end + 1
        while not fits and end > begin + 1:
            end -= 1
            piece = " ".join(words[begin:end])
            fits = renderer.width(piece) <= room
        if fits or len(piece) == 1:
            yield piece
        else:
            *whole, words[begin] = _cut(renderer.width, words[begin], room, 64)
            yield from whole
            # The rest of the word is wider or narrower than was thought of the whole; all behind it moves along.
            reach_W[begin:] += before + renderer.width(words[begin]) - reach_W[begin]
            end = begin
        begin, before = end, int(reach_W[end - 1]) if end else 0


def _of_each(words: Sequence[str], measure: Callable[[list[str]], NDArray[np.int64]]) -> NDArray[np.int64]:
    """(W,) what is measured of each word, of equal ones once."""
    distinct = list(dict.fromkeys(words))
    values = dict(zip(distinct, measure(distinct).tolist(), strict=True))
    return np.array([values[word] for word in words], np.int64)


def _widths(renderer: Renderer, words: Sequence[str], after: str = "") -> NDArray[np.int64]:
    """Pixels of each word alone, with what comes after it."""
    drawn = [renderer.prepared(word, is_word=True) + after for word in words]
    return renderer.engine.lines(drawn, is_words=True).widths_N


def _cut(measure: Callable[[str], int], word: str, room: int, guess: int) -> Iterator[str]:
    """A word larger than `room` in pieces that fit; the last one may have room left. See `longest_fitting`."""
    first = 0
    while first < len(word):
        num = guess = longest_fitting(measure, word, first, room, guess)
        yield word[first : first + num]
        first += num


_PROPORTIONAL = 4
"""Tries that expect a size in proportion to the number of characters; then the range is halved."""


def longest_fitting(measure: Callable[[str], int], word: str, first: int, room: int, guess: int) -> int:
    """Return how many characters of a word from the place `first` on fit into `room`, at least 1, which is tried with a
    `guess`. Looks at few more than these. `measure` gives the size of a text, in the unit of `room`, which grows with
    it."""
    left = len(word) - first
    fitting, too_long, size, tries = 0, left + 1, max(1, min(guess, left)), 0
    while too_long - fitting > 1:
        used, tried, tries = measure(word[first : first + size]), size, tries + 1
        fitting, too_long = (tried, too_long) if used <= room else (fitting, tried)
        expected = tried * room // max(used, 1) if tries <= _PROPORTIONAL else (fitting + too_long) // 2
        size = min(max(expected, fitting + 1), too_long - 1, 2 * tried)
    return max(fitting, 1)


def fill_patches(renderer: Renderer, text: str) -> Iterator[str]:
    """The text in pieces of whole words that leave less room on a canvas than the next word takes; a word that is
    longer than a canvas is cut between characters. White space between words counts as one space."""
    words = text.split()
    if not words:
        return
    room = renderer.config.max_seq_length - 1
    measure = _Bigrams(renderer, words) if renderer.config.strategy == "bigrams" else _Words(renderer, words)
    begin = 0
    while begin < len(words):
        before = measure.reach_W[begin - 1] if begin else 0
        end = max(int(np.searchsorted(measure.reach_W, before + room, side="right")), begin + 1)
        while end < len(words) and measure.num_patches(begin, end + 1) <= room:
            end += 1
        while end > begin and measure.num_patches(begin, end) > room:
            end -= 1
        if end > begin:
            yield " ".join(words[begin:end])
        else:
            yield from _cut(measure.num_patches_of, words[begin], room, room)
            end = begin + 1
        begin = end


class _Words:
    """Patches of words as `WordsPart` lays them out: a margin before the first and after the last, a space after all
    others."""

    def __init__(self, renderer: Renderer, words: Sequence[str]) -> None:
        self._renderer, self._words = renderer, words
        self._spaced_W = _of_each(words, lambda distinct: _widths(renderer, distinct, " "))
        self.reach_W = np.cumsum(-(-self._spaced_W // renderer.config.pixels_per_patch))
        """Patches up to and with each word and the space after it, were all on one line."""

    def num_patches(self, begin: int, end: int) -> int:
        """Patches of a text of the words from `begin` to before `end`."""
        if end == begin + 1:
            return self.num_patches_of(self._words[begin])
        # The first and the last word apart, as margins belong to them and no space follows the last.
        first = self._patches(LEFT_MARGIN + int(self._spaced_W[begin]))
        inner = int(self.reach_W[end - 2] - self.reach_W[begin])
        return first + inner + self._patches(self._width(self._words[end - 1]) + LEFT_MARGIN)

    def num_patches_of(self, word: str) -> int:
        """Patches of a text of one word."""
        return self._patches(LEFT_MARGIN + self._width(word) + LEFT_MARGIN)

    def _width(self, word: str) -> int:
        return int(_widths(self._renderer, [word])[0])

    def _patches(self, width: int) -> int:
        return -(-width // self._renderer.config.pixels_per_patch)


class _Bigrams:
    """As `_Words`, of pairs as `BigramsPart` lays them out: no margins, perhaps a patch for each space."""

    def __init__(self, renderer: Renderer, words: Sequence[str]) -> None:
        self._drawer = renderer
        self._space = space_patches(self._drawer)
        patches_W = _of_each(words, lambda distinct: bigram_patches(self._drawer, distinct))
        self.reach_W = np.cumsum(patches_W + self._space)

    def num_patches(self, begin: int, end: int) -> int:
        before = self.reach_W[begin - 1] if begin else 0
        return int(self.reach_W[end - 1] - before) - self._space

    def num_patches_of(self, word: str) -> int:
        return int(bigram_patches(self._drawer, [word])[0])


def original_blocks(renderer: Renderer, lines: Sequence[str]) -> Iterator[str]:
    """The lines of one document in blocks as the original packs them.

    Widths are those of each line alone, the spaces that join them do not count; a first line that is too wide gives an
    empty block before it, and what is too wide is cut when it is drawn.
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
    """The paragraphs of each article of a text with a paragraph per line and three blank lines between articles, by the
    original's rule: after them, a line of at most 100 characters is a title and dropped. The first article keeps
    its."""
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
