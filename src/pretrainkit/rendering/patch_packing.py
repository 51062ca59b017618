"""Documents to texts that fill a canvas, where words or pairs of letters begin patches of their own.

How long a text becomes is then no sum of widths, so that it is found by trying; `packing.fill` is for running text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from pretrainkit.rendering.renderer import Renderer


def fill_patches(renderer: Renderer, text: str) -> Iterator[str]:
    """The text in pieces of whole words that leave less room on a canvas than the next word takes; a word that is
    longer than a canvas is cut between characters. White space between words counts as one space."""
    words = text.split()
    begin, guess = 0, 64
    while begin < len(words):
        num = _largest(partial(_fits_words, renderer, words, begin), len(words) - begin, guess)
        if num:
            yield " ".join(words[begin : begin + num])
            begin, guess = begin + num, num
            continue
        word = words[begin]
        num = max(1, _largest(partial(_fits_letters, renderer, word), len(word), guess))
        yield word[:num]
        words[begin] = word[num:]
        begin += not words[begin]


def _fits_words(renderer: Renderer, words: list[str], begin: int, num: int) -> bool:
    return _fits(renderer, " ".join(words[begin : begin + num]))


def _fits_letters(renderer: Renderer, word: str, num: int) -> bool:
    return _fits(renderer, word[:num])


def _fits(renderer: Renderer, text: str) -> bool:
    """Whether an end patch follows before the last, which also ends what was cut."""
    return renderer.num_text_patches(text) < renderer.config.max_seq_length - 1


def _largest(fits: Callable[[int], bool], most: int, guess: int) -> int:
    """The largest number up to `most` that fits, as all smaller ones do; 0 where not even 1 does."""
    low, high = 0, min(guess, most)
    while fits(high):
        low = high
        if high == most:
            return most
        high = min(2 * high, most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
