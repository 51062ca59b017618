"""The data sets of GLUE: the files they are distributed in, and what reads them.

Source: Wang et al. 2018, https://arxiv.org/abs/1804.07461.
"""

from collections.abc import Mapping, Sequence
from functools import partial

from pretrainkit.tasks.named_data import Hub, LocalFiles, NamedData
from pretrainkit.tasks.sources import Tsv
from pretrainkit.tasks.whole_rows import WholeRows

Layout = Mapping[str, Sequence[LocalFiles]]

HUB = "nyu-mll/glue"
GLUE = {
    "train": [LocalFiles("train.tsv", Tsv)],
    "validation": [LocalFiles("dev.tsv", Tsv)],
    "test": [LocalFiles("test.tsv", Tsv)],
}
_COLA = partial(Tsv, columns=("source", "label", "mark", "sentence"))
COLA = {
    "train": [LocalFiles("train.tsv", _COLA)],
    "validation": [LocalFiles("dev.tsv", _COLA)],
    "test": [LocalFiles("test.tsv", Tsv)],
}
"""No header, but that of the test set."""
MRPC = {
    split: [*files, *([LocalFiles(f"msr_paraphrase_{split}.txt", Tsv)] if split != "validation" else [])]
    for split, files in GLUE.items()
}
QQP = {
    "train": [LocalFiles("train.tsv", WholeRows)],
    "validation": [LocalFiles("dev.tsv", WholeRows)],
    "test": [LocalFiles("test.tsv", WholeRows)],
}
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
