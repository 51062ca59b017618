"""Data sets known by name, such as `glue/cola`: in a folder in the layout they are distributed in, else on the hub.

In every folder also these are read, with the columns of the hub's data set: `SPLIT.jsonl` (`.gz`, `.zst`),
`SPLIT.parquet`, `SPLIT.tsv` with a header, the same as `SPLIT-*`, and what `save_to_disk` of `datasets` made.

At the end the data sets of GLUE: Wang et al. 2018, https://arxiv.org/abs/1804.07461.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretrainkit.data.line_index import LineIndex
from pretrainkit.errors import DataError, MissingPackageError
from pretrainkit.tasks.sources import BySplit, Files, HuggingFaceDataset, JsonLines, Parquet, TaskSource, Tsv
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


Layout = Mapping[str, Sequence[LocalFiles]]
"""Split to files."""


@dataclass(frozen=True)
class Hub:
    """A data set of the Hugging Face hub."""

    path: str
    name: str | None = None
    """Of the configuration."""
    splits: Mapping[str, str] | None = None
    """Ours to theirs, where they are called otherwise."""


class NamedData(OpenSource):
    """A data set by its name; see the top of the file."""

    def __init__(
        self,
        name: str,
        *,
        splits: Sequence[str] = ("train", "validation", "test"),
        folders: Sequence[str] = (),
        layout: Layout | None = None,
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
        self.benchmark = name.split("/")[0]
        self.names = tuple(dict.fromkeys((self.benchmark, name)))
        self.layout, self.hub = {split: tuple(files) for split, files in (layout or {}).items()}, hub

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
            if not inside.is_dir():
                raise DataError(
                    f"{folders[ALL]} has no folder {self.benchmark} with the data of {self.name}\n  {self._mend}"
                )
            return self._within(inside)
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


class WholeRows(Tsv):
    """As `Tsv`; rows that have not as many fields as the header are passed over."""

    def _rows(self, index: LineIndex) -> NDArray[np.int64] | None:
        rows = super()._rows(index)
        content = np.fromfile(index.path, np.uint8)
        tabs = np.flatnonzero(content == ord(self.delimiter))
        # Tabs before the end of each line, less those before its beginning.
        num_tabs = np.searchsorted(tabs, index.ends) - np.searchsorted(tabs, index.begins)
        is_whole = num_tabs == (num_tabs[0] if len(num_tabs) else 0)
        assert rows is not None  # there is a header
        return rows[is_whole[rows]]


_STEMS = {"train": "train", "validation": "dev", "test": "test"}


def _tables(*readers: Callable[[Files], TaskSource]) -> dict[str, list[LocalFiles]]:
    """train.tsv, dev.tsv and test.tsv with what reads each."""
    return {
        split: [LocalFiles(f"{stem}.tsv", read)] for (split, stem), read in zip(_STEMS.items(), readers, strict=True)
    }


GLUE = _tables(Tsv, Tsv, Tsv)
_COLA = partial(Tsv, columns=("source", "label", "mark", "sentence"))
COLA = _tables(_COLA, _COLA, Tsv)
"""No header, but that of the test set."""
MRPC = {
    split: [*files, *([LocalFiles(f"msr_paraphrase_{split}.txt", Tsv)] if split != "validation" else [])]
    for split, files in GLUE.items()
}
QQP = _tables(WholeRows, WholeRows, WholeRows)
"""Some of its rows lack columns."""
MNLI_PARTS = ("matched", "mismatched")
MNLI = {"train": [LocalFiles("train.tsv", Tsv)]} | {
    f"{split}_{part}": [LocalFiles(f"{file}_{part}.tsv", Tsv)]
    for split, file in (("validation", "dev"), ("test", "test"))
    for part in MNLI_PARTS
}
DIAGNOSTICS = {"test": [LocalFiles("diagnostic.tsv", Tsv), LocalFiles("AX.tsv", Tsv), LocalFiles("ax.tsv", Tsv)]}

_SETS: Mapping[str, tuple[Layout, tuple[str, ...]]] = {
    "cola": (COLA, ("CoLA",)),
    "sst2": (GLUE, ("SST-2",)),
    "mrpc": (MRPC, ("MRPC",)),
    "qqp": (QQP, ("QQP",)),
    "stsb": (GLUE, ("STS-B",)),
    "mnli": (MNLI, ("MNLI",)),
    **{
        f"mnli_{part}": ({split: MNLI[f"{split}_{part}"] for split in ("validation", "test")}, ("MNLI", "mnli"))
        for part in MNLI_PARTS
    },
    "qnli": (GLUE, ("QNLI",)),
    "rte": (GLUE, ("RTE",)),
    "wnli": (GLUE, ("WNLI",)),
    "ax": (DIAGNOSTICS, ("AX", "diagnostic")),
}


def glue_data(name: str, splits: Sequence[str] = ()) -> NamedData:
    """The data set `name` with these splits, or all of its own; those of MNLI are train and `validation_` or `test_`
    with `matched` or `mismatched`."""
    layout, folders = _SETS[name]
    hub = Hub("nyu-mll/glue", name)
    return NamedData(f"glue/{name}", splits=splits or tuple(layout), folders=(*folders, name), layout=layout, hub=hub)
