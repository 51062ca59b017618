"""Documents to texts that fill a canvas.

`fill` cuts at words so that nothing is lost and as little room as possible is left. `original_blocks` joins whole lines
by the original's rule, which published data follow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from pretrainkit.rendering.geometry import LEFT_MARGIN
from pretrainkit.rendering.renderer import Renderer


def fill(renderer: Renderer, text: str) -> Iterator[str]:
    """The text in pieces that each fill a canvas as far as whole words allow; a longer word is cut between characters.

    White space between words, line ends included, counts as one space. The pieces joined by spaces, or by nothing
    within a cut word, are the text again; a text without words gives none.
    """
    words = text.split()
    room = renderer.config.geometry.last - 2 * LEFT_MARGIN
    reach_W = _reach(renderer, words)
    begin, before = 0, 0
    while begin < len(words):
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
            *whole, words[begin] = _cut(renderer, words[begin], room)
            yield from whole
            reach_W[begin:] += before + renderer.width(words[begin]) - reach_W[begin]
            end = begin
        begin, before = end, int(reach_W[end - 1]) if end else 0


def _reach(renderer: Renderer, words: Sequence[str]) -> NDArray[np.int64]:
    """(W,): about how many pixels the words take up to and with each, and the space after it."""
    if not words:
        return np.zeros(0, np.int64)
    distinct = list(dict.fromkeys(words))
    drawn = [renderer.drawer.prepared(word, is_word=True) for word in distinct]
    widths = dict(zip(distinct, renderer.engine.lines(drawn, is_words=True).widths_N.tolist(), strict=True))
    space = renderer.width("n n") - 2 * renderer.width("n")
    return np.cumsum([widths[word] + space for word in words])


def _cut(renderer: Renderer, word: str, room: int) -> Iterator[str]:
    """A word wider than `room` pixels in pieces that fit; the last one may have room left."""
    guess, first = 64, 0
    while first < len(word):
        num = guess = longest_fitting(renderer.width, word, first, room, guess)
        yield word[first : first + num]
        first += num


_PROPORTIONAL = 4
"""Tries that expect a size in proportion to the number of characters; then the range is halved."""


def longest_fitting(measure: Callable[[str], int], word: str, first: int, room: int, guess: int) -> int:
    """How many characters from the place `first` on fit into `room`, at least 1. Looks at few more than these.

    Args:
        measure: Size of a text, which grows with it.
        word: With the characters.
        first: Before the end of the word.
        room: In the unit of `measure`.
        guess: Of the answer.
    """
    left = len(word) - first
    fitting, too_long, size, tries = 0, left + 1, max(1, min(guess, left)), 0
    while too_long - fitting > 1:
        used, tried, tries = measure(word[first : first + size]), size, tries + 1
        fitting, too_long = (tried, too_long) if used <= room else (fitting, tried)
        expected = tried * room // max(used, 1) if tries <= _PROPORTIONAL else (fitting + too_long) // 2
        size = min(max(expected, fitting + 1), too_long - 1, 2 * tried)
    return max(fitting, 1)


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
