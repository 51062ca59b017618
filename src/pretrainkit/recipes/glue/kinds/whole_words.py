"""Stretches of a text that end between words, for encoders whose slots do not. Torch-free."""

import re

_WORD = re.compile(r"[^\W_]+(?:[.,:][^\W_]+|['’](?!s\b)[^\W_]+)*")
"""Letters and digits, also with a mark between them, as in 1,000 and don't."""
_WITHOUT_SPACES = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]")
"""Thai, Lao, Burmese, Khmer, Japanese and Chinese do not put spaces between words."""
_LONGEST = 60
"""Characters of a word that are looked at on both sides."""


def whole_words(text: str, begin: int, end: int) -> tuple[int, int]:
    """From the first to the last word of which more than half lies between two characters, (begin, end); where there is
    none, the word of which most does. The stretch itself where it has no word, and in scripts without spaces."""
    if _WITHOUT_SPACES.search(text, begin, end):
        return begin, end
    found = [word.span() for word in _WORD.finditer(text, max(0, begin - _LONGEST), end + _LONGEST)]
    shared = [min(end, after) - max(begin, first) for first, after in found]
    kept = [span for span, num in zip(found, shared, strict=True) if 2 * num > span[1] - span[0]]
    if not kept and max(shared, default=0) > 0:
        kept = [found[shared.index(max(shared))]]
    return (kept[0][0], kept[-1][1]) if kept else (begin, end)
