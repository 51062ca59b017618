"""Whether a text runs from right to left."""

import string
import unicodedata

_NEUTRAL = str.maketrans("", "", string.whitespace + string.punctuation + string.digits)


def is_rtl(text: str) -> bool:
    """True where at least two of the first, the middle and the last character are of a right-to-left script; white
    space, punctuation and digits of ASCII do not count, and a text of nothing else is False."""
    letters = text.translate(_NEUTRAL)
    if not letters:
        return False
    chosen = letters[0], letters[len(letters) // 2], letters[-1]
    return sum(unicodedata.bidirectional(letter) in ("R", "AL") for letter in chosen) >= 2
