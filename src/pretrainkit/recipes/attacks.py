"""Names of word errors for the command line, without an import of the recipes."""

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
"""full-swap: shuffle all letters. inner-swap: shuffle all letters except the first and the last. disemvowel: remove
the vowels. truncate: remove the last letter. keyboard-typo: replace a letter by its neighbour on a keyboard.
natural-typo: use a typo from a list. intrude: insert a sign between all letters. phonetic: spell it as it sounds.
confusable: use similar letters of other scripts. visual: add accents. segmentation: remove the space after the word."""
