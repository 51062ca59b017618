"""Documents to texts that fill a canvas.

`fill` cuts at words so that nothing is lost and as little room as possible is left. `original_blocks` joins whole lines
by the original's rule, which published data follow.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from pretrainkit.rendering.geometry import LEFT_MARGIN
from pretrainkit.rendering.renderer import Renderer

_SPACE = re.compile(r"\s+")
_WORD_END = re.compile(r"(?= |$)")


def fill(renderer: Renderer, text: str) -> Iterator[str]:
    """The text in pieces that each fill a canvas as far as whole words allow; a longer word is cut between characters.

    White space between words, line ends included, counts as one space. The pieces joined by spaces, or by nothing
    within a cut word, are the text again; a text without words gives none.
    """
    text = _SPACE.sub(" ", text).strip()
    geometry = renderer.config.geometry
    room = geometry.last - 2 * LEFT_MARGIN
    guess = 4 * room // renderer.config.pixels_per_patch + 64
    begin = 0
    while begin < len(text):
        end = _end(renderer, text, begin, room, guess)
        yield text[begin:end]
        guess = max((end - begin) * 5 // 4, 64)
        begin = end + (text[end : end + 1] == " ")


def _end(renderer: Renderer, text: str, begin: int, room: int, guess: int) -> int:
    """Where the piece that starts at `begin` ends: at most `room` pixels further, after a word if any fits."""
    while True:
        piece = text[begin : begin + guess]
        right_T = _reach(renderer.engine.lines([piece]).edges(0))
        is_rest = begin + len(piece) == len(text)
        if is_rest or right_T.max() > room:
            break
        guess *= 2
    fitting = len(piece) if right_T.max() <= room else int(np.argmax(right_T > room))
    ends = [match.start() for match in _WORD_END.finditer(piece) if match.start() > 0]
    if not is_rest and ends and ends[-1] == len(piece):
        ends.pop()  # the word may go on
    at_words = [end for end in ends if end <= fitting]
    for candidates in (at_words, range(1, fitting + 1)):
        for end in reversed(candidates[-8:]):
            if renderer.width(piece[:end]) <= room:
                return begin + end
        if candidates is at_words and at_words:  # measured apart, a shaped beginning was wider than within its line
            found = [end for end in at_words if renderer.width(piece[:end]) <= room]
            if found:
                return begin + found[-1]
    return begin + 1


def _reach(edges_T2: NDArray[np.float64]) -> NDArray[np.float64]:
    """(T,): pixels of the text up to and with each character, in whichever direction it is read."""
    is_new_T = np.ones(len(edges_T2), bool)
    is_new_T[1:] = (edges_T2[1:] != edges_T2[:-1]).any(axis=1)
    return np.cumsum(np.abs(edges_T2[:, 1] - edges_T2[:, 0]) * is_new_T)


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
