"""Names of errors in words, which the command line offers before any recipe is imported."""

from typing import Literal

Attack = Literal[
    "full-swap",
    "inner-swap",
    "disemvowel",
    "truncate",
    "keyboard-typo",
    "natural-typo",
    "intrude",
    "phonetic",
    "confusable",
    "visual",
    "segmentation",
]
"""full-swap: the letters in any order. inner-swap: all but the first and the last. disemvowel: without vowels.
truncate: without the last letter. keyboard-typo: one letter is its neighbour on a keyboard. natural-typo: as somebody
wrote it, from a list. intrude: a sign between all letters. phonetic: as it sounds. confusable: letters of other scripts
that look alike. visual: with accents. segmentation: without the space after the word."""
