"""Files of labelled examples with errors in their words: everything but the words stays as it is."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from pretrainkit.corpus.noise import JOINS_WORDS, Attack, Typos, corrupt
from pretrainkit.errors import DataError
from pretrainkit.files.manifest import atomic_file

_FORM = 1
"""Column of the word in CoNLL-U."""
Change = Callable[[list[str], int], list[str]]
"""Words and their number among all lists of words, to words with errors."""


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
    """Writes a file again with errors in its words.

    Args:
        source: `.conllu` (or `.conll`), whose words are changed one for one while all annotation stays; `.jsonl`; or
            `.tsv` with a line of names.
        out: In the same format.
        attack: See `noise.Attack`.
        severity: Share of the words.
        columns: Keys or names of the texts in `.jsonl` and `.tsv`; several texts of an example are changed apart.
        seed: Of everything random.
        typos: For natural-typo: a file with a word and what people wrote instead on each line.

    Returns:
        Texts or sentences written.

    Raises:
        DataError: A file cannot be read, or has no such column.
        InputError: As for `noise.corrupt`.
    """
    source, out = Path(source), Path(out)
    known = None if typos is None else read_typos(typos)

    def change(words: list[str], index: int) -> list[str]:
        return corrupt(words, attack, severity, seed=seed, index=index, typos=known)

    change([], 0)  # refuses what cannot be before a line is read
    number = _Number()
    if source.suffix in (".conllu", ".conll"):
        if attack in JOINS_WORDS:
            raise DataError(f"{attack} joins words, and {source} has annotation for each\n  choose another attack")
        lines: Iterator[str] = _conllu(_lines(source), change, number)
    elif source.suffix in (".jsonl", ".tsv"):
        if not columns:
            raise DataError(f"nothing says what in {source} is text\n  name a column by --column")
        rows = _jsonl if source.suffix == ".jsonl" else _tsv
        lines = rows(_lines(source), columns, change, number, source)
    else:
        raise DataError(f"{source} is neither .conllu nor .jsonl nor .tsv\n  convert it to one of them")
    with atomic_file(out) as file:
        for line in lines:
            file.write(f"{line}\n".encode())
    return number.count


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


class _Number:
    """Counts lists of words."""

    def __init__(self) -> None:
        self.count = 0

    def next(self) -> int:
        self.count += 1
        return self.count - 1


def _conllu(lines: Iterable[str], change: Change, number: _Number) -> Iterator[str]:
    sentence: list[str] = []
    for line in lines:
        if line:
            sentence.append(line)
            continue
        if sentence:
            yield from _sentence(sentence, change, number)
            sentence = []
        yield ""
    if sentence:
        yield from _sentence(sentence, change, number)


def _sentence(lines: list[str], change: Change, number: _Number) -> Iterator[str]:
    """Words with a plain number are changed; `# text`, which would give away the right ones, is left out."""
    rows = [line.split("\t") for line in lines]
    is_word = [len(row) > _FORM and row[0].isdigit() for row in rows]
    forms = change([row[_FORM] for row, is_one in zip(rows, is_word, strict=True) if is_one], number.next())
    rest = iter(forms)
    for line, row, is_one in zip(lines, rows, is_word, strict=True):
        if is_one:
            yield "\t".join([*row[:_FORM], next(rest), *row[_FORM + 1 :]])
        elif not line.startswith("# text"):
            yield line


def _jsonl(
    lines: Iterable[str], columns: Sequence[str], change: Change, number: _Number, source: Path
) -> Iterator[str]:
    for at, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise DataError(f"{source}: line {at} is not JSON: {error}\n  write one object on each line") from error
        if not isinstance(row, dict) or not all(isinstance(row.get(name), str) for name in columns):
            raise DataError(f"{source}: line {at} has no text under each of {', '.join(columns)}\n  check --column")
        changed = {name: " ".join(change(row[name].split(), number.next())) for name in columns}
        yield json.dumps(row | changed, ensure_ascii=False)


def _tsv(lines: Iterable[str], columns: Sequence[str], change: Change, number: _Number, source: Path) -> Iterator[str]:
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
            cells[place] = " ".join(change(cells[place].split(), number.next()))
        yield "\t".join(cells)


def _lines(path: Path) -> Iterator[str]:
    try:
        with open(path, encoding="utf-8", newline="") as file:
            for line in file:
                yield line.rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read: {error}\n  give a file of UTF-8 text") from error
