"""Named data sets, such as `glue/cola`: in a folder with the layout of their distribution, or else on the hub.

Every folder may also contain these files, with the columns of the hub's data set: `SPLIT.jsonl` (`.gz`, `.zst`),
`SPLIT.parquet`, `SPLIT.tsv` with a header, `SPLIT-*` with the same endings, and a `save_to_disk` folder of `datasets`.

`glue_data` has the data sets of GLUE: Wang et al. 2018, https://arxiv.org/abs/1804.07461.
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
from pretrainkit.files.sources import check_shards
from pretrainkit.tasks.sources import BySplit, Files, HuggingFaceDataset, JsonLines, Parquet, TaskSource, Tsv
from pretrainkit.tasks.supply import ALL, OpenSource, Supply

_ALIASES = {"validation": ("validation", "valid", "val", "dev")}
Reader = Callable[[Files], TaskSource]


@dataclass(frozen=True)
class LocalFiles:
    """Files of a split in the layout of a benchmark."""

    pattern: str
    """Pattern within the folder of the data set; `*` matches any part of a name."""
    read: Reader
    """Reader of the files, such as `Tsv`."""


Layout = Mapping[str, Sequence[LocalFiles]]
"""Files by split."""


@dataclass(frozen=True)
class Hub:
    """A data set of the Hugging Face hub."""

    path: str
    name: str | None = None
    """Name of the configuration."""
    splits: Mapping[str, str] | None = None
    """Names of the splits on the hub, by our names, if they differ."""


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
        """Define the data set.

        Args:
            name: `benchmark/set`, or `benchmark` if it is a single set.
            splits: The set's splits.
            folders: Possible names of the set's folder within the benchmark's; empty: the benchmark's folder itself.
            layout: Files by split; the first existing ones are used. If none exist, files with the name of the split
                are used; see the module docstring.
            hub: Data set of the hub, without a folder; None: a folder is required.
        """
        self.name, self.splits, self.folders = name, tuple(splits), tuple(folders)
        self.benchmark = name.split("/")[0]
        self.names = tuple(dict.fromkeys((self.benchmark, name)))
        self.layout, self.hub = {split: tuple(files) for split, files in (layout or {}).items()}, hub

    def supplied(self, supply: Supply) -> TaskSource:
        if (places := self._places(supply.folders)) is not None:
            return self._local(places)
        if self.hub is None:
            raise DataError(f"the data of {self.name} has to be passed as files\n  {self._fix}")
        splits = self.hub.splits or {split: split for split in self.splits}
        return _HubData(self.hub.path, self.hub.name, splits=splits, fix=self._fix)

    @property
    def _fix(self) -> str:
        return (
            f"pass its folder: data.task_folders.{self.benchmark}=DIR, or --data {self.benchmark}=DIR for commands "
            "with --data, such as pretrainkit tasks"
        )

    def _places(self, folders: Mapping[str, str]) -> list[Path] | None:
        """Return the possible folders of the set; None without a configured folder."""
        if self.name in folders and self.name != self.benchmark:
            return [_folder(folders[self.name], self.name)]
        if self.benchmark in folders:
            return self._within(_folder(folders[self.benchmark], self.benchmark))
        if ALL in folders:
            inside = _folder(folders[ALL], ALL) / self.benchmark
            if not inside.is_dir():
                raise DataError(
                    f"{folders[ALL]} has no folder {self.benchmark} with the data of {self.name}\n  {self._fix}"
                )
            return self._within(inside)
        return None

    def _within(self, folder: Path) -> list[Path]:
        return [folder / name for name in self.folders] if self.folders else [folder]

    def _local(self, places: Sequence[Path]) -> TaskSource:
        for place in places:
            if (place / "dataset_dict.json").is_file():
                return HuggingFaceDataset(place, splits=[split for split in self.splits if (place / split).is_dir()])
            sources = {split: source for split in self.splits if (source := self._split(place, split)) is not None}
            if sources:
                return BySplit(sources)
        own = dict.fromkeys(files.pattern for split in self.splits for files in self.layout.get(split, ()))
        expected = ", ".join([*own, *(f"{split}.jsonl" for split in self.splits)])
        raise DataError(
            f"no data of {self.name} in {' or '.join(map(str, places))}\n"
            f"  expected {expected}, or .parquet or .tsv\n  {self._fix}"
        )

    def _split(self, place: Path, split: str) -> TaskSource | None:
        for files in self._files(split):
            if paths := sorted(place.glob(files.pattern)):
                check_shards(map(str, paths))
                return files.read({split: paths})
        return None

    def _files(self, split: str) -> Iterator[LocalFiles]:
        yield from self.layout.get(split, ())
        for name in _ALIASES.get(split, (split,)):
            for stem in (name, f"{name}-*", f"data/{name}-*"):
                yield from (LocalFiles(f"{stem}.jsonl{packed}", JsonLines) for packed in ("", ".gz", ".zst"))
                yield LocalFiles(f"{stem}.parquet", Parquet)
            yield LocalFiles(f"{name}.tsv", Tsv)


class _HubData(HuggingFaceDataset):
    """A data set of the hub whose errors also recommend local files."""

    def __init__(self, path: str, name: str | None, *, splits: Mapping[str, str], fix: str) -> None:
        super().__init__(path, name, splits=splits)
        self._fix = fix

    def _load(self, split: str) -> Any:
        try:
            return super()._load(split)
        except (DataError, MissingPackageError) as error:
            raise DataError(f"{error}\n  or {self._fix}") from error


def task_folders(arguments: Sequence[str]) -> dict[str, str]:
    """Return folders by name from command-line arguments: `glue=DIR`, or a folder alone for `all`."""
    folders = {}
    for argument in arguments:
        match = re.fullmatch(r"([A-Za-z0-9_/.-]+)=(.+)", argument)
        folders[match[1] if match else ALL] = match[2] if match else argument
    return folders


def _folder(path: str, name: str) -> Path:
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise DataError(f"{path}, configured for the data of {name}, is not a folder\n  check the path")
    return folder


class WholeRows(Tsv):
    """A `Tsv` that skips rows whose number of fields differs from that of the header."""

    def _rows(self, index: LineIndex) -> NDArray[np.int64] | None:
        rows = super()._rows(index)
        content = np.fromfile(index.path, np.uint8)
        tabs = np.flatnonzero(content == ord(self.delimiter))
        # Tabs before the end of each line, minus those before its beginning.
        num_tabs = np.searchsorted(tabs, index.ends) - np.searchsorted(tabs, index.begins)
        is_whole = num_tabs == (num_tabs[0] if len(num_tabs) else 0)
        assert rows is not None  # there is a header
        return rows[is_whole[rows]]


_STEMS = {"train": "train", "validation": "dev", "test": "test"}


def _tables(*readers: Callable[[Files], TaskSource]) -> dict[str, list[LocalFiles]]:
    """Return the layout train.tsv, dev.tsv and test.tsv with a reader for each."""
    return {
        split: [LocalFiles(f"{stem}.tsv", read)] for (split, stem), read in zip(_STEMS.items(), readers, strict=True)
    }


GLUE = _tables(Tsv, Tsv, Tsv)
_COLA = partial(Tsv, columns=("source", "label", "mark", "sentence"))
COLA = _tables(_COLA, _COLA, Tsv)
"""Layout of CoLA: only the test set has a header."""
MRPC = {
    split: [*files, *([LocalFiles(f"msr_paraphrase_{split}.txt", Tsv)] if split != "validation" else [])]
    for split, files in GLUE.items()
}
QQP = _tables(WholeRows, WholeRows, WholeRows)
"""Layout of QQP, of which some rows lack columns."""
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
    """Return the data set `name` with these splits or all; those of MNLI are train and `validation_` or `test_` with
    `matched` or `mismatched`."""
    layout, folders = _SETS[name]
    hub = Hub("nyu-mll/glue", name)
    return NamedData(f"glue/{name}", splits=splits or tuple(layout), folders=(*folders, name), layout=layout, hub=hub)
