"""Tokenized text as people write it: without the spaces around punctuation. Torch-free.

The original does the same with the texts of GLUE and XNLI before they are drawn. It is naive: where both sides of a
straight quotation mark have a space, it opens and closes by turns.
"""

import re

_BEFORE = re.compile(r"\s+([,.;:!?%)\]}”’…]|n't\b|'(?:s|m|d|re|ve|ll)\b)", re.IGNORECASE)
_AFTER = re.compile(r"([(\[{“‘$#])\s+")
_LATEX_QUOTES = re.compile(r"``\s*(.*?)\s*''")
_QUOTED = re.compile(r"(?<!\S)([\"'])\s+(.*?)\s+\1(?!\w)")


def clean_up(text: str) -> str:
    """`He said : " I do n't ( really ) know . "` to `He said: "I don't (really) know."`."""
    text = _LATEX_QUOTES.sub(r'"\1"', text)
    text = _BEFORE.sub(r"\1", text)
    text = _AFTER.sub(r"\1", text)
    return _QUOTED.sub(r"\1\2\1", text)
