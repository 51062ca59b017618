"""Data sets known by name, such as `glue/cola`: in a folder in the layout they are distributed in, else on the hub.

In every folder also these are read, with the columns of the hub's data set: `SPLIT.jsonl` (`.gz`, `.zst`),
`SPLIT.parquet`, `SPLIT.tsv` with a header, the same as `SPLIT-*`, and what `save_to_disk` of `datasets` made.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pretrainkit.errors import DataError, MissingPackageError
from pretrainkit.tasks.sources import Example, Files, HuggingFaceDataset, JsonLines, Parquet, TaskSource, Tsv
from pretrainkit.tasks.supply import ALL, OpenSource, Supply

_ALIASES = {"validation": ("validation", "valid", "val", "dev")}
Reader = Callable[[Files], TaskSource]


@dataclass(frozen=True)
class LocalFiles:
    """Files of a split in the layout of a benchmark."""

    pattern: str
    """Within the folder of the data set; `*` stands for anything within a name."""
    read: Reader
    """Such as `Tsv`."""


@dataclass(frozen=True)
class Hub:
    """A data set of the Hugging Face hub."""

    path: str
    name: str | None = None
    """Of the configuration."""
    splits: Mapping[str, str] | None = None
    """Ours to theirs, where they are called otherwise."""


class BySplit(TaskSource):
    """Every split from a source of its own."""

    def __init__(self, sources: Mapping[str, TaskSource]) -> None:
        """`sources`: by split, each with that split."""
        self.sources = dict(sources)

    @property
    def splits(self) -> tuple[str, ...]:
        return tuple(self.sources)

    def _of(self, split: str) -> TaskSource:
        self.check_split(split)
        return self.sources[split]

    def file_sizes(self, split: str) -> tuple[int, ...]:
        return self._of(split).file_sizes(split)

    def example(self, split: str, index: int) -> Example:
        return self._of(split).example(split, index)

    def fingerprint(self, split: str) -> str:
        return self._of(split).fingerprint(split)


class NamedData(OpenSource):
    """A data set by its name; see the top of the file."""

    splits: tuple[str, ...] = ()

    def __init__(
        self,
        name: str,
        *,
        splits: Sequence[str] = ("train", "validation", "test"),
        folders: Sequence[str] = (),
        layout: Mapping[str, Sequence[LocalFiles]] | None = None,
        hub: Hub | None = None,
    ) -> None:
        """
        Args:
            name: `benchmark/set`, or `benchmark` where it is one set.
            splits: Those it has.
            folders: Names that the folder of the set may have within that of the benchmark; none: it is that folder.
            layout: Split to files, the first of which that are there count; then those named at the top of the file.
            hub: Where it is when no folder is given; None: nowhere.
        """
        self.name, self.splits, self.folders = name, tuple(splits), tuple(folders)
        self.layout, self.hub = {split: tuple(files) for split, files in (layout or {}).items()}, hub

    @property
    def benchmark(self) -> str:
        """The first part of the name."""
        return self.name.split("/")[0]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((self.benchmark, self.name)))

    def supplied(self, supply: Supply) -> TaskSource:
        if (places := self._places(supply.folders)) is not None:
            return self._local(places)
        if self.hub is None:
            raise DataError(f"the data of {self.name} has to be given as files\n  {self._mend}")
        splits = self.hub.splits or {split: split for split in self.splits}
        return _HubData(self.hub.path, self.hub.name, splits=splits, mend=self._mend)

    @property
    def _mend(self) -> str:
        return (
            f"give its folder: data.task_folders.{self.benchmark}=DIR, or --data {self.benchmark}=DIR where the data "
            "are named so, as in pretrainkit tasks"
        )

    def _places(self, folders: Mapping[str, str]) -> list[Path] | None:
        """Where the set may lie; None: nothing is said about it."""
        if self.name in folders and self.name != self.benchmark:
            return [_folder(folders[self.name], self.name)]
        if self.benchmark in folders:
            return self._within(_folder(folders[self.benchmark], self.benchmark))
        if ALL in folders:
            inside = _folder(folders[ALL], ALL) / self.benchmark
            return self._within(inside) if inside.is_dir() else None
        return None

    def _within(self, folder: Path) -> list[Path]:
        return [folder / name for name in self.folders] if self.folders else [folder]

    def _local(self, places: Sequence[Path]) -> TaskSource:
        for place in places:
            if (place / "dataset_dict.json").is_file():
                return HuggingFaceDataset(place, splits=[one for one in self.splits if (place / one).is_dir()])
            found = {split: one for split in self.splits if (one := self._split(place, split)) is not None}
            if found:
                return BySplit(found)
        own = dict.fromkeys(files.pattern for split in self.splits for files in self.layout.get(split, ()))
        looked = ", ".join([*own, *(f"{split}.jsonl" for split in self.splits)])
        raise DataError(
            f"no data of {self.name} in {' or '.join(map(str, places))}\n"
            f"  looked for {looked}, also .parquet and .tsv\n  {self._mend}"
        )

    def _split(self, place: Path, split: str) -> TaskSource | None:
        for files in self._files(split):
            if found := sorted(place.glob(files.pattern)):
                return files.read({split: found})
        return None

    def _files(self, split: str) -> Iterator[LocalFiles]:
        yield from self.layout.get(split, ())
        for name in _ALIASES.get(split, (split,)):
            for stem in (name, f"{name}-*", f"data/{name}-*"):
                yield from (LocalFiles(f"{stem}.jsonl{packed}", JsonLines) for packed in ("", ".gz", ".zst"))
                yield LocalFiles(f"{stem}.parquet", Parquet)
            yield LocalFiles(f"{name}.tsv", Tsv)


class _HubData(HuggingFaceDataset):
    """One of the hub, of which errors say how to do without."""

    def __init__(self, path: str, name: str | None, *, splits: Mapping[str, str], mend: str) -> None:
        super().__init__(path, name, splits=splits)
        self._mend = mend

    def _load(self, split: str) -> Any:
        try:
            return super()._load(split)
        except (DataError, MissingPackageError) as error:
            raise DataError(f"{error}\n  or {self._mend}") from error


def task_folders(words: Sequence[str]) -> dict[str, str]:
    """Folders by name from what people write: `glue=DIR`, or a folder alone for `all`."""
    found = {}
    for word in words:
        match = re.fullmatch(r"([A-Za-z0-9_/.-]+)=(.+)", word)
        found[match[1] if match else ALL] = match[2] if match else word
    return found


def _folder(given: str, name: str) -> Path:
    folder = Path(given).expanduser()
    if not folder.is_dir():
        raise DataError(f"there is no folder {given}, where the data of {name} are said to be\n  check the path")
    return folder
