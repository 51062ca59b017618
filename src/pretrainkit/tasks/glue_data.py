"""The data sets of GLUE: the files they are distributed in, and what reads them.

Source: Wang et al. 2018, https://arxiv.org/abs/1804.07461.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from pretrainkit.data.line_index import LineIndex
from pretrainkit.tasks.named_data import Hub, LocalFiles, NamedData
from pretrainkit.tasks.sources import Files, TaskSource, Tsv

Layout = Mapping[str, Sequence[LocalFiles]]


class WholeRows(Tsv):
    """As `Tsv`; rows that have not as many fields as the header are passed over."""

    def __init__(self, files: Files) -> None:
        super().__init__(files)

    def _rows(self, index: LineIndex) -> NDArray[np.int64] | None:
        rows = super()._rows(index)
        content = np.fromfile(index.path, np.uint8)
        tabs = np.flatnonzero(content == ord(self.delimiter))
        # Tabs before the end of each line, less those before its beginning.
        num_tabs = np.searchsorted(tabs, index.ends) - np.searchsorted(tabs, index.begins)
        is_whole = num_tabs == (num_tabs[0] if len(num_tabs) else 0)
        assert rows is not None  # there is a header
        return rows[is_whole[rows]]


HUB = "nyu-mll/glue"
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
    "qnli": (GLUE, ("QNLI",)),
    "rte": (GLUE, ("RTE",)),
    "wnli": (GLUE, ("WNLI",)),
    "ax": (DIAGNOSTICS, ("AX", "diagnostic")),
}


def glue_data(name: str) -> NamedData:
    """The data set `name` with its own splits; those of MNLI are train and `validation_` or `test_` with `matched` or
    `mismatched`."""
    layout, folders = _SETS[name]
    return NamedData(f"glue/{name}", splits=tuple(layout), folders=(*folders, name), layout=layout, hub=Hub(HUB, name))
