"""Add errors to words, to test the robustness of a model: letters are swapped, left out, mistyped or replaced by
lookalikes.

The attacks are those with which PIXEL was compared with BERT (Eger and Benz 2020, "From Hero to Zeroe",
https://arxiv.org/abs/2010.05648). Rules of our own replace those that are learned or looked up there. In files of
labelled examples, only words are changed.
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
"""Attacks that change the number of words, so that labels per word would no longer match."""

Typos = Mapping[str, Sequence[str]]
"""Maps a word in lower case to its misspellings."""
Change = Callable[[list[str]], list[str]]
"""Function that adds errors to the words of the next text."""
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
"""Replacements by sound. Only the first one that occurs in a word is applied."""
_LOOKALIKES = str.maketrans("aceijopsvxyABCEHIJKMNOPSTXYZ", "асеіјорѕνхуАВСЕНІЈКМΝОРЅТХΥΖ")
_ACCENTS = "\u0300\u0301\u0302\u0303\u0304\u0306\u0307\u0308\u030a\u030c\u0323\u0331"


def corrupt(
    words: Sequence[str], attack: Attack, severity: float, *, seed: int, index: int, typos: Typos | None = None
) -> list[str]:
    """Return the words of an example with errors in some of them. "segmentation" joins words, so that there are fewer;
    other attacks keep their number. Raises InputError if the attack or the severity is invalid, or if natural-typo has
    no list.

    Args:
        words: Words without spaces.
        attack: The kind of error.
        severity: Probability that a word is attacked, in [0, 1].
        seed: Seed of all examples.
        index: Index of the example. The errors depend only on seed, index and attack, and not on the number of
            processes or on other examples.
        typos: Misspellings for natural-typo.
    """
    if attack not in ATTACKS:
        raise InputError(f"there is no attack {attack!r}\n  choose one of: {', '.join(ATTACKS)}")
    if not 0 <= severity <= 1:
        raise InputError(f"the severity is {severity}\n  give a share of the words, from 0 to 1")
    if attack == "natural-typo" and not typos:
        raise InputError("natural-typo needs a list of misspellings\n  name a file with --typos")
    rng = generator(fold_one(stream_key(seed, "noise", attack), index))
    is_hit = rng.random(len(words)) < severity
    if attack == "segmentation":
        return _joined(words, is_hit.tolist())
    change = _CHANGES.get(attack) or (lambda word, rng: _mistaken(word, rng, typos or {}))
    return [change(word, rng) if hit else word for word, hit in zip(words, is_hit.tolist(), strict=True)]


def _joined(words: Sequence[str], is_hit: Sequence[bool]) -> list[str]:
    joined: list[str] = []
    is_open = False
    for word, hit in zip(words, is_hit, strict=True):
        if is_open:
            joined[-1] += word
        else:
            joined.append(word)
        is_open = hit
    return joined


def _swapped(letters: str, rng: np.random.Generator) -> str:
    return "".join(letters[index] for index in rng.permutation(len(letters)))


def _inner_swapped(word: str, rng: np.random.Generator) -> str:
    return word if len(word) < 4 else word[0] + _swapped(word[1:-1], rng) + word[-1]


def _mistyped(word: str, rng: np.random.Generator) -> str:
    indices = [index for index, letter in enumerate(word) if letter.lower() in _NEIGHBOURS]
    if not indices:
        return word
    index = int(rng.choice(indices))
    letter = str(rng.choice(_NEIGHBOURS[word[index].lower()]))
    return word[:index] + (letter.upper() if word[index].isupper() else letter) + word[index + 1 :]


def _mistaken(word: str, rng: np.random.Generator, typos: Typos) -> str:
    candidates = typos.get(word.lower())
    if not candidates:
        return word
    typo = str(rng.choice(list(candidates)))
    return typo.capitalize() if word[:1].isupper() else typo


def _as_it_sounds(word: str, rng: np.random.Generator) -> str:
    for letters, sound in _SOUNDS:
        if letters in word.lower():
            index = word.lower().index(letters)
            sound = sound.capitalize() if word[index].isupper() else sound
            return word[:index] + sound + word[index + len(letters) :]
    return word


def _accented(word: str, rng: np.random.Generator) -> str:
    marks = rng.choice(list(_ACCENTS), len(word))
    return "".join(letter + str(mark) if letter.isalpha() else letter for letter, mark in zip(word, marks, strict=True))


def _neighbours() -> dict[str, list[str]]:
    """Return the neighbours of each key, in its row and in the rows above and below, which are shifted by half a
    key."""
    position_of_key = {
        letter: (row, 2 * column + row) for row, keys in enumerate(_KEYS) for column, letter in enumerate(keys)
    }
    return {
        letter: [
            other
            for other, (r, c) in position_of_key.items()
            if other != letter and abs(r - row) <= 1 and abs(c - position) <= 2
        ]
        for letter, (row, position) in position_of_key.items()
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
    """Copy a file with errors in its words, and return the number of its texts or sentences. Raises DataError if a
    file cannot be read or has no such column; InputError as `corrupt` does.

    Args:
        source: A `.conllu` or `.conll` file, in which words are replaced and annotation is kept; or a `.jsonl` file, or
            a `.tsv` file with a header line.
        out: The new file, in the same format.
        attack: See `corrupt`.
        severity: See `corrupt`.
        columns: Columns of `.jsonl` and `.tsv` files with text. The texts of an example are changed separately.
        seed: See `corrupt`.
        typos: A file with a word and its misspellings on each line.
    """
    source, out = Path(source), Path(out)
    typos_by_word = None if typos is None else read_typos(typos)
    corrupt([], attack, severity, seed=seed, index=0, typos=typos_by_word)  # checks the arguments before reading
    numbers = itertools.count()

    def change(words: list[str]) -> list[str]:
        return corrupt(words, attack, severity, seed=seed, index=next(numbers), typos=typos_by_word)

    if source.suffix in (".conllu", ".conll"):
        if attack in JOINS_WORDS:
            raise DataError(f"{attack} joins words, but {source} annotates each word\n  choose another attack")
        runs = itertools.groupby(_lines(source), key=bool)  # sentences, and the empty lines between them
        sentences = (_sentence(list(run), change) if has_text else run for has_text, run in runs)
        lines: Iterator[str] = itertools.chain.from_iterable(sentences)
    elif source.suffix in (".jsonl", ".tsv"):
        if not columns:
            raise DataError(f"the column with the text of {source} is not given\n  name a column with --column")
        rows = _jsonl if source.suffix == ".jsonl" else _tsv
        lines = rows(_lines(source), columns, change, source)
    else:
        raise DataError(f"{source} is not a .conllu, .jsonl or .tsv file\n  convert it to one of these formats")
    with atomic_file(out) as file:
        for line in lines:
            file.write(f"{line}\n".encode())
    return next(numbers)  # the number of texts so far


def read_typos(path: str | Path) -> Typos:
    """Read a file with a word and its misspellings on each line, separated by blanks. Keys are in lower case."""
    typos: dict[str, list[str]] = {}
    for line in _lines(Path(path)):
        word, *misspellings = line.split() or [""]
        if misspellings:
            typos.setdefault(word.lower(), []).extend(misspellings)
    if not typos:
        raise DataError(f"{path} has no line with a word and its misspelling\n  write both on one line")
    return typos


def _sentence(lines: list[str], change: Change) -> Iterator[str]:
    """Yield a sentence with changed words. Only words with a plain number are changed. The comment `# text`, which has
    the original words, is left out."""
    rows = [line.split("\t") for line in lines]
    is_word = [len(row) > _FORM and row[0].isdigit() for row in rows]
    changed_words = iter(change([row[_FORM] for row, is_changed in zip(rows, is_word, strict=True) if is_changed]))
    for line, row, is_changed in zip(lines, rows, is_word, strict=True):
        if is_changed:
            yield "\t".join([*row[:_FORM], next(changed_words), *row[_FORM + 1 :]])
        elif not line.startswith("# text"):
            yield line


def _jsonl(lines: Iterable[str], columns: Sequence[str], change: Change, source: Path) -> Iterator[str]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise DataError(
                f"{source}: line {number} is not valid JSON: {error}\n  write one object per line"
            ) from error
        if not isinstance(row, dict) or not all(isinstance(row.get(name), str) for name in columns):
            raise DataError(
                f"{source}: line {number} does not have text in all of {', '.join(columns)}\n  check --column"
            )
        changed = {name: " ".join(change(row[name].split())) for name in columns}
        yield json.dumps(row | changed, ensure_ascii=False)


def _tsv(lines: Iterable[str], columns: Sequence[str], change: Change, source: Path) -> Iterator[str]:
    rows = iter(lines)
    header = next(rows, "")
    names = header.split("\t")
    unknown = [name for name in columns if name not in names]
    if unknown:
        raise DataError(f"{source} has no column {unknown[0]!r}\n  its columns: {', '.join(names)}")
    column_indices = [names.index(name) for name in columns]
    yield header
    for number, line in enumerate(rows, 2):
        cells = line.split("\t")
        if len(cells) != len(names):
            raise DataError(
                f"{source}: line {number} has {len(cells)} cells, but the header {len(names)}\n  fix this line"
            )
        for index in column_indices:
            cells[index] = " ".join(change(cells[index].split()))
        yield "\t".join(cells)


def _lines(path: Path) -> Iterator[str]:
    try:
        with open(path, encoding="utf-8", newline="") as file:
            for line in file:
                yield line.rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read: {error}\n  give a UTF-8 text file") from error
