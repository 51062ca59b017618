"""Words with errors, to see how much a model minds: letters swapped, left out, mistyped, or exchanged for lookalikes.

The attacks are those that PIXEL was compared with BERT under (Eger and Benz 2020, "From Hero to Zeroe",
https://arxiv.org/abs/2010.05648), by rules of our own where theirs are learned or looked up. Of files of labelled
examples everything but the words stays as it is.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import get_args

import numpy as np

from pretrainkit.errors import DataError, InputError
from pretrainkit.files.manifest import atomic_file
from pretrainkit.recipes.attacks import Attack
from pretrainkit.rng import fold_one, generator, stream_key

ATTACKS: tuple[Attack, ...] = get_args(Attack)
JOINS_WORDS: tuple[Attack, ...] = ("segmentation",)
"""These change the number of words, so that labels of words lose their places."""

Typos = Mapping[str, Sequence[str]]
"""A word in small letters to what people wrote instead."""
Change = Callable[[list[str]], list[str]]
"""The next list of words to words with errors."""
_FORM = 1
"""Column of the word in CoNLL-U."""

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
    """Return the words of one example, some of them with errors. "segmentation" joins some, so that there are fewer;
    other attacks return as many. Raises InputError where there is no such attack or severity, or natural-typo has no
    list.

    Args:
        words: Without spaces.
        attack: The kind of error.
        severity: Share of the words that are attacked, in [0, 1]: each by itself.
        seed: Of all examples.
        index: Of this one. Which words are attacked, and how, follows from both and the attack alone, so that neither
            the number of processes nor what comes before changes it.
        typos: For natural-typo.
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
    change = _CHANGES.get(attack) or (lambda word, rng: _mistaken(word, rng, typos or {}))
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


def _as_it_sounds(word: str, rng: np.random.Generator) -> str:
    for letters, sound in _SOUNDS:
        if letters in word.lower():
            place = word.lower().index(letters)
            sound = sound.capitalize() if word[place].isupper() else sound
            return word[:place] + sound + word[place + len(letters) :]
    return word


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
_CHANGES: dict[str, Callable[[str, np.random.Generator], str]] = {
    "full-swap": _swapped,
    "inner-swap": _inner_swapped,
    "disemvowel": lambda word, rng: "".join(letter for letter in word if letter not in _VOWELS) or word,
    "truncate": lambda word, rng: word[:-1] or word,
    "keyboard-typo": _mistyped,
    "intrude": lambda word, rng: str(rng.choice(list(_SIGNS))).join(word),
    "phonetic": _as_it_sounds,
    "confusable": lambda word, rng: word.translate(_LOOKALIKES),
    "visual": _accented,
}


def write_noisy(
    source: str | Path,
    out: str | Path,
    attack: Attack,
    severity: float,
    *,
    columns: Sequence[str] = (),
    seed: int = 0,
    typos: str | Path | None = None,
) -> int:
    """Write a file again with errors in its words, and return the number of texts or sentences written. Raises
    DataError where a file cannot be read, or has no such column; InputError as `corrupt` does.

    Args not explained here are those of `corrupt`. In `.conllu` (or `.conll`) words are changed one for one while all
    annotation stays; `.jsonl`, and `.tsv` with a line of names, have texts under `columns`, and several texts of an
    example are changed apart. `out` has the same format. `typos`: a file with a word and what people wrote instead on
    each line.
    """
    source, out = Path(source), Path(out)
    known = None if typos is None else read_typos(typos)
    corrupt([], attack, severity, seed=seed, index=0, typos=known)  # refuses what cannot be before a line is read
    numbers = itertools.count()

    def change(words: list[str]) -> list[str]:
        return corrupt(words, attack, severity, seed=seed, index=next(numbers), typos=known)

    if source.suffix in (".conllu", ".conll"):
        if attack in JOINS_WORDS:
            raise DataError(f"{attack} joins words, and {source} has annotation for each\n  choose another attack")
        runs = itertools.groupby(_lines(source), key=bool)  # sentences, and the empty lines between them
        sentences = (_sentence(list(run), change) if has_text else run for has_text, run in runs)
        lines: Iterator[str] = itertools.chain.from_iterable(sentences)
    elif source.suffix in (".jsonl", ".tsv"):
        if not columns:
            raise DataError(f"nothing says what in {source} is text\n  name a column by --column")
        rows = _jsonl if source.suffix == ".jsonl" else _tsv
        lines = rows(_lines(source), columns, change, source)
    else:
        raise DataError(f"{source} is neither .conllu nor .jsonl nor .tsv\n  convert it to one of them")
    with atomic_file(out) as file:
        for line in lines:
            file.write(f"{line}\n".encode())
    return next(numbers)  # how many were taken


def read_typos(path: str | Path) -> Typos:
    """A word and what people wrote instead on each line, separated by blanks; by the word in small letters."""
    found: dict[str, list[str]] = {}
    for line in _lines(Path(path)):
        word, *wrong = line.split() or [""]
        if wrong:
            found.setdefault(word.lower(), []).extend(wrong)
    if not found:
        raise DataError(f"{path} has no line with a word and a misspelling of it\n  write them beside each other")
    return found


def _sentence(lines: list[str], change: Change) -> Iterator[str]:
    """Words with a plain number are changed; `# text`, which would give away the right ones, is left out."""
    rows = [line.split("\t") for line in lines]
    is_word = [len(row) > _FORM and row[0].isdigit() for row in rows]
    rest = iter(change([row[_FORM] for row, is_one in zip(rows, is_word, strict=True) if is_one]))
    for line, row, is_one in zip(lines, rows, is_word, strict=True):
        if is_one:
            yield "\t".join([*row[:_FORM], next(rest), *row[_FORM + 1 :]])
        elif not line.startswith("# text"):
            yield line


def _jsonl(lines: Iterable[str], columns: Sequence[str], change: Change, source: Path) -> Iterator[str]:
    for at, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise DataError(f"{source}: line {at} is not JSON: {error}\n  write one object on each line") from error
        if not isinstance(row, dict) or not all(isinstance(row.get(name), str) for name in columns):
            raise DataError(f"{source}: line {at} has no text under each of {', '.join(columns)}\n  check --column")
        changed = {name: " ".join(change(row[name].split())) for name in columns}
        yield json.dumps(row | changed, ensure_ascii=False)


def _tsv(lines: Iterable[str], columns: Sequence[str], change: Change, source: Path) -> Iterator[str]:
    rows = iter(lines)
    header = next(rows, "")
    names = header.split("\t")
    unknown = [name for name in columns if name not in names]
    if unknown:
        raise DataError(f"{source} has no column {unknown[0]!r}\n  it has: {', '.join(names)}")
    places = [names.index(name) for name in columns]
    yield header
    for at, line in enumerate(rows, 2):
        cells = line.split("\t")
        if len(cells) != len(names):
            raise DataError(f"{source}: line {at} has {len(cells)} cells, the first line {len(names)}\n  mend it")
        for place in places:
            cells[place] = " ".join(change(cells[place].split()))
        yield "\t".join(cells)


def _lines(path: Path) -> Iterator[str]:
    try:
        with open(path, encoding="utf-8", newline="") as file:
            for line in file:
                yield line.rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read: {error}\n  give a file of UTF-8 text") from error
