"""The files in which benchmarks are distributed, by split, and their readers."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from pretrainkit.errors import DataError
from pretrainkit.files.manifest import fingerprint as json_fingerprint
from pretrainkit.tasks.named_data import Layout, LocalFiles, Reader
from pretrainkit.tasks.row_files import SquadJson
from pretrainkit.tasks.sources import Example, Files, JsonLines, TaskSource, TextLines, Tsv


def _packed(names: Sequence[str], reader: Reader, suffix: str) -> list[LocalFiles]:
    """Files of these names, plain or packed."""
    return [LocalFiles(f"{name}{packed}", reader) for name in names for packed in ("", suffix)]


_FILES = {"train": "train", "validation": "val", "test": "test"}
SUPER_GLUE = {split: [LocalFiles(f"{stem}.jsonl", JsonLines)] for split, stem in _FILES.items()}
SUPER_GLUE_DIAGNOSTICS = {"test": [LocalFiles("AX-?.jsonl", JsonLines)]}

SQUAD = {
    "train": _packed(("train-v1.1.json", "train.json"), SquadJson, ".gz"),
    "validation": _packed(("dev-v1.1.json", "dev.json", "validation.json", "xquad.en.json"), SquadJson, ".gz"),
}
"""XQuAD's English file is a part of the development set."""

_CORPUS = {"train": ("train/*.jsonl",), "validation": ("valid/*.jsonl", "validation/*.jsonl")}


def text(split_files: Mapping[str, str]) -> Layout:
    """JSON lines with `text`, or a corpus folder of ours; `split_files`: split to the pattern of C4's own files."""
    return {
        split: [LocalFiles(pattern, JsonLines), *_packed(_CORPUS[split], JsonLines, ".zst")]
        for split, pattern in split_files.items()
    }


def translations(source: str, target: str) -> Layout:
    """Two files of lines, one for each language, or one table whose name tells the languages."""
    read = partial(aligned, languages=(source, target))
    names = {"train": ("train",), "validation": ("validation", "valid", "dev"), "test": ("test",)}
    found: dict[str, list[LocalFiles]] = {split: [] for split in names}
    for split, stems in names.items():
        for stem in stems:
            found[split] += [LocalFiles(f"{name}.{source}", read) for name in (stem, f"{stem}.*")]
            for pair in (f"{source}-{target}", f"{target}-{source}"):
                found[split].append(LocalFiles(f"*.{pair}.{stem}.tsv", Tsv))
    return found


class AlignedLines(TaskSource):
    """Text whose lines lie side by side in several files, one for each language: `{key: line n of its file, …}`."""

    def __init__(self, files: Mapping[str, Files]) -> None:
        """`files`: key, such as a language, to its files by split; as many lines for every key."""
        self.lines = {key: TextLines(of_key, key=key) for key, of_key in files.items()}
        self.splits = next(iter(self.lines.values())).splits

    def file_sizes(self, split: str) -> tuple[int, ...]:
        sizes = {key: lines.file_sizes(split) for key, lines in self.lines.items()}
        if len(set(sizes.values())) > 1:
            told = ", ".join(f"{sum(size):,} of {key}" for key, size in sizes.items())
            raise DataError(
                f"the files of {split} do not have equally many lines: {told}\n"
                "  line n of one must be the translation of line n of the other"
            )
        return next(iter(sizes.values()))

    def example(self, split: str, index: int) -> Example:
        return {key: lines.example(split, index)[key] for key, lines in self.lines.items()}

    def fingerprint(self, split: str) -> str:
        self.file_sizes(split)
        return json_fingerprint([[key, lines.fingerprint(split)] for key, lines in self.lines.items()])


def aligned(files: Files, *, languages: Sequence[str]) -> AlignedLines:
    """The files of the first language, and beside each the same name with that of another at its end."""
    found: dict[str, dict[str, list[Path]]] = {language: {} for language in languages}
    for split, given in files.items():
        paths = [Path(one) for one in ((given,) if isinstance(given, (str, Path)) else given)]
        for language in languages:
            own = [path.with_name(path.name.removesuffix(f".{languages[0]}") + f".{language}") for path in paths]
            if missing := [str(path) for path in own if not path.is_file()]:
                raise DataError(f"{', '.join(missing)} is missing beside {paths[0]}\n  give both languages")
            found[language][split] = own
    return AlignedLines(found)
