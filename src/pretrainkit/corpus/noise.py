"""Words with errors, to see how much a model minds: letters swapped, left out, mistyped, or exchanged for lookalikes.

The attacks are those that PIXEL was compared with BERT under (Eger and Benz 2020, "From Hero to Zeroe",
https://arxiv.org/abs/2010.05648), by rules of our own where theirs are learned or looked up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, get_args

import numpy as np

from pretrainkit.errors import InputError
from pretrainkit.rng import fold_one, generator, stream_key

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
ATTACKS: tuple[Attack, ...] = get_args(Attack)
JOINS_WORDS: tuple[Attack, ...] = ("segmentation",)
"""These change the number of words, so that labels of words lose their places."""

Typos = Mapping[str, Sequence[str]]
"""A word in small letters to what people wrote instead."""

_KEYS = ("qwertyuiop", "asdfghjkl", "zxcvbnm")
_SIGNS = "-_.*~'+^"
_VOWELS = frozenset("aeiouAEIOU")
_SOUNDS = (
    ("tion", "shun"), ("ight", "ite"), ("ough", "uff"), ("ph", "f"), ("ck", "k"), ("qu", "kw"), ("wh", "w"),
    ("kn", "n"), ("wr", "r"), ("ee", "ea"), ("ea", "ee"), ("oo", "u"), ("ai", "ay"), ("ce", "se"), ("ci", "si"),
    ("ge", "je"), ("x", "ks"), ("c", "k"), ("s", "z"), ("y", "i"), ("i", "y"), ("v", "f"), ("d", "t"),
)  # fmt: skip
"""The first that occurs is exchanged."""
_LOOKALIKES = str.maketrans("aceijopsvxyABCEHIJKMNOPSTXYZ", "асеіјорѕνхуАВСЕНІЈКМΝОРЅТХΥΖ")
_ACCENTS = "\u0300\u0301\u0302\u0303\u0304\u0306\u0307\u0308\u030a\u030c\u0323\u0331"


def corrupt(
    words: Sequence[str], attack: Attack, severity: float, *, seed: int, index: int, typos: Typos | None = None
) -> list[str]:
    """The words of one example, some of them with errors.

    Args:
        words: Without spaces.
        attack: What kind.
        severity: Share of the words that are attacked, in [0, 1]: each by itself.
        seed: Of all examples.
        index: Of this one. Which words are attacked, and how, follows from both and the attack alone, so that neither
            the number of processes nor what comes before changes it.
        typos: For natural-typo.

    Returns:
        As many words; "segmentation" joins some, so that there are fewer.

    Raises:
        InputError: No such attack or severity, or natural-typo without a list.
    """
    if attack not in ATTACKS:
        raise InputError(f"there is no attack {attack!r}\n  choose one of: {', '.join(ATTACKS)}")
    if not 0 <= severity <= 1:
        raise InputError(f"the severity is {severity}\n  give a share of the words, from 0 to 1")
    if attack == "natural-typo" and not typos:
        raise InputError("natural-typo needs a list of what people wrote\n  name a file by --typos")
    rng = generator(fold_one(stream_key(seed, "noise", attack), index))
    is_hit = rng.random(len(words)) < severity
    if attack == "segmentation":
        return _joined(words, is_hit.tolist())
    change = _LETTERS.get(attack) or (lambda word, rng: _mistaken(word, rng, typos or {}))
    return [change(word, rng) if hit else word for word, hit in zip(words, is_hit.tolist(), strict=True)]


def _joined(words: Sequence[str], is_hit: Sequence[bool]) -> list[str]:
    found: list[str] = []
    is_open = False
    for word, hit in zip(words, is_hit, strict=True):
        if is_open:
            found[-1] += word
        else:
            found.append(word)
        is_open = hit
    return found


def _swapped(letters: str, rng: np.random.Generator) -> str:
    return "".join(letters[place] for place in rng.permutation(len(letters)))


def _inner_swapped(word: str, rng: np.random.Generator) -> str:
    return word if len(word) < 4 else word[0] + _swapped(word[1:-1], rng) + word[-1]


def _without_vowels(word: str, rng: np.random.Generator) -> str:
    return "".join(letter for letter in word if letter not in _VOWELS) or word


def _truncated(word: str, rng: np.random.Generator) -> str:
    return word[:-1] or word


def _mistyped(word: str, rng: np.random.Generator) -> str:
    places = [place for place, letter in enumerate(word) if letter.lower() in _NEIGHBOURS]
    if not places:
        return word
    place = int(rng.choice(places))
    letter = str(rng.choice(_NEIGHBOURS[word[place].lower()]))
    return word[:place] + (letter.upper() if word[place].isupper() else letter) + word[place + 1 :]


def _mistaken(word: str, rng: np.random.Generator, typos: Typos) -> str:
    known = typos.get(word.lower())
    if not known:
        return word
    found = str(rng.choice(list(known)))
    return found.capitalize() if word[:1].isupper() else found


def _intruded(word: str, rng: np.random.Generator) -> str:
    return str(rng.choice(list(_SIGNS))).join(word)


def _as_it_sounds(word: str, rng: np.random.Generator) -> str:
    for letters, sound in _SOUNDS:
        if letters in word.lower():
            place = word.lower().index(letters)
            return word[:place] + _cased(sound, word[place]) + word[place + len(letters) :]
    return word


def _cased(letters: str, like: str) -> str:
    return letters.capitalize() if like.isupper() else letters


def _confused(word: str, rng: np.random.Generator) -> str:
    return word.translate(_LOOKALIKES)


def _accented(word: str, rng: np.random.Generator) -> str:
    marks = rng.choice(list(_ACCENTS), len(word))
    return "".join(letter + str(mark) if letter.isalpha() else letter for letter, mark in zip(word, marks, strict=True))


def _neighbours() -> dict[str, list[str]]:
    """Letters beside each key, in its row and the rows above and below, which stand half a key apart."""
    place = {letter: (row, 2 * column + row) for row, keys in enumerate(_KEYS) for column, letter in enumerate(keys)}
    return {
        letter: [other for other, (r, c) in place.items() if other != letter and abs(r - row) <= 1 and abs(c - at) <= 2]
        for letter, (row, at) in place.items()
    }


_NEIGHBOURS = _neighbours()
_LETTERS: dict[str, Callable[[str, np.random.Generator], str]] = {
    "full-swap": _swapped,
    "inner-swap": _inner_swapped,
    "disemvowel": _without_vowels,
    "truncate": _truncated,
    "keyboard-typo": _mistyped,
    "intrude": _intruded,
    "phonetic": _as_it_sounds,
    "confusable": _confused,
    "visual": _accented,
}
