"""Layouts of the files in which benchmarks are distributed: file patterns and readers by split."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from pretrainkit.errors import DataError
from pretrainkit.files.manifest import fingerprint as json_fingerprint
from pretrainkit.tasks.named_data import Layout, LocalFiles, Reader
from pretrainkit.tasks.row_files import SquadJson
from pretrainkit.tasks.sources import Example, Files, JsonLines, TaskSource, TextLines, Tsv


def _packed(names: Sequence[str], reader: Reader, suffix: str) -> list[LocalFiles]:
    """Return files of these names, plain or compressed."""
    return [LocalFiles(f"{name}{packed}", reader) for name in names for packed in ("", suffix)]


_FILES = {"train": "train", "validation": "val", "test": "test"}
SUPER_GLUE = {split: [LocalFiles(f"{stem}.jsonl", JsonLines)] for split, stem in _FILES.items()}
SUPER_GLUE_DIAGNOSTICS = {"test": [LocalFiles("AX-?.jsonl", JsonLines)]}

SQUAD = {
    "train": _packed(("train-v1.1.json", "train.json"), SquadJson, ".gz"),
    "validation": _packed(("dev-v1.1.json", "dev.json", "validation.json", "xquad.en.json"), SquadJson, ".gz"),
}
"""Names of the files of each split. XQuAD's English file is a part of the development set."""

_CORPUS = {"train": ("train/*.jsonl",), "validation": ("valid/*.jsonl", "validation/*.jsonl")}


def text(split_files: Mapping[str, str]) -> Layout:
    """Return JSON lines with `text`, or a pretrainkit corpus; `split_files`: the pattern of C4's files by split."""
    return {
        split: [LocalFiles(pattern, JsonLines), *_packed(_CORPUS[split], JsonLines, ".zst")]
        for split, pattern in split_files.items()
    }


def translations(source: str, target: str) -> Layout:
    """Return two files of lines, one for each language, or one table whose name contains the languages."""
    read = partial(aligned, languages=(source, target))
    names = {"train": ("train",), "validation": ("validation", "valid", "dev"), "test": ("test",)}
    files: dict[str, list[LocalFiles]] = {split: [] for split in names}
    for split, stems in names.items():
        for stem in stems:
            files[split] += [LocalFiles(f"{name}.{source}", read) for name in (stem, f"{stem}.*")]
            for pair in (f"{source}-{target}", f"{target}-{source}"):
                files[split].append(LocalFiles(f"*.{pair}.{stem}.tsv", Tsv))
    return files


class AlignedLines(TaskSource):
    """Parallel text in several files with the same number of lines, one per language: `{key: line n of its file,
    …}`."""

    def __init__(self, files: Mapping[str, Files]) -> None:
        """`files`: for each key, such as a language, the files by split. All keys have the same number of lines."""
        self.lines = {key: TextLines(key_files, key=key) for key, key_files in files.items()}
        self.splits = next(iter(self.lines.values())).splits

    def file_sizes(self, split: str) -> tuple[int, ...]:
        sizes = {key: lines.file_sizes(split) for key, lines in self.lines.items()}
        if len(set(sizes.values())) > 1:
            counts = ", ".join(f"{sum(size):,} of {key}" for key, size in sizes.items())
            raise DataError(
                f"the files of {split} have different numbers of lines: {counts}\n"
                "  line n of one must be the translation of line n of the other"
            )
        return next(iter(sizes.values()))

    def example(self, split: str, index: int) -> Example:
        return {key: lines.example(split, index)[key] for key, lines in self.lines.items()}

    def fingerprint(self, split: str) -> str:
        self.file_sizes(split)
        return json_fingerprint([[key, lines.fingerprint(split)] for key, lines in self.lines.items()])


def aligned(files: Files, *, languages: Sequence[str]) -> AlignedLines:
    """Return lines of the given files in the first language, and of files with another language's suffix beside
    them."""
    by_language: dict[str, dict[str, list[Path]]] = {language: {} for language in languages}
    for split, names in files.items():
        paths = [Path(name) for name in ((names,) if isinstance(names, (str, Path)) else names)]
        for language in languages:
            own = [path.with_name(path.name.removesuffix(f".{languages[0]}") + f".{language}") for path in paths]
            if missing := [str(path) for path in own if not path.is_file()]:
                raise DataError(f"{', '.join(missing)} is missing beside {paths[0]}\n  add the files of both languages")
            by_language[language][split] = own
    return AlignedLines(by_language)
