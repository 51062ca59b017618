"""GLUE as text-to-text tasks: `glue_cola_v002` and so on.

Source: Wang et al. 2018, https://arxiv.org/abs/1804.07461; formats as in the released `t5`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pretrainkit.data.named_data import Hub, NamedData
from pretrainkit.data.task import Task
from pretrainkit.eval.metrics import accuracy, f1_invalid_wrong, matthews, pearson, spearman
from pretrainkit.recipes.t5.catalogue import layouts
from pretrainkit.recipes.t5.catalogue.answers import ClassNumber, number, referent
from pretrainkit.recipes.t5.catalogue.building import text_task
from pretrainkit.recipes.t5.catalogue.labelled import labelled, similarity
from pretrainkit.recipes.t5.catalogue.layouts import Layout
from pretrainkit.recipes.t5.catalogue.referents import wnli

_ENTAILMENT = ("entailment", "neutral", "contradiction")
_PAIR = ("sentence1", "sentence2")
_HUB = "nyu-mll/glue"


def _data(name: str, layout: Layout, folders: Sequence[str], splits: Sequence[str] | None = None) -> NamedData:
    return NamedData(
        f"glue/{name}",
        splits=splits or ("train", "validation", "test"),
        folders=(*folders, name),
        layout=layout,
        hub=Hub(_HUB, name),
    )


def _classes(
    name: str,
    data: NamedData,
    fields: Sequence[str],
    classes: Sequence[str],
    metrics: Sequence[Callable[..., Any]] = (accuracy,),
    *,
    benchmark: str | None = None,
    columns: Mapping[str, str] | None = None,
) -> Task:
    step = labelled(benchmark or name, fields, classes, columns)
    return text_task(f"glue_{name}_v002", data, step, postprocess=ClassNumber(tuple(classes)), metrics=metrics)


_MNLI_COLUMNS = {"hypothesis": "sentence2", "premise": "sentence1"}
_MNLI_FIELDS = ("hypothesis", "premise")
_WNLI = _data("wnli", layouts.GLUE, ["WNLI"])


def _mnli(part: str) -> Task:
    files = {split: layouts.MNLI[f"{split}_{part}"] for split in ("validation", "test")}
    data = _data(f"mnli_{part}", files, ["MNLI", "mnli"], ("validation", "test"))
    return _classes(f"mnli_{part}", data, _MNLI_FIELDS, _ENTAILMENT, benchmark="mnli", columns=_MNLI_COLUMNS)


TASKS = (
    _classes("cola", _data("cola", layouts.COLA, ["CoLA"]), ["sentence"], ("unacceptable", "acceptable"), [matthews]),
    _classes("sst2", _data("sst2", layouts.GLUE, ["SST-2"]), ["sentence"], ("negative", "positive")),
    _classes(
        "mrpc",
        _data("mrpc", layouts.MRPC, ["MRPC"]),
        _PAIR,
        ("not_equivalent", "equivalent"),
        [f1_invalid_wrong, accuracy],
        columns={"sentence1": "#1 String", "sentence2": "#2 String"},
    ),
    _classes(
        "qqp",
        _data("qqp", layouts.QQP, ["QQP"]),
        ("question1", "question2"),
        ("not_duplicate", "duplicate"),
        [f1_invalid_wrong, accuracy],
    ),
    text_task(
        "glue_stsb_v002",
        _data("stsb", layouts.GLUE, ["STS-B"]),
        similarity,
        postprocess=number,
        metrics=[pearson, spearman],
    ),
    _classes(
        "mnli",
        _data("mnli", layouts.MNLI, ["MNLI"], tuple(layouts.MNLI)),
        _MNLI_FIELDS,
        _ENTAILMENT,
        columns=_MNLI_COLUMNS,
    ),
    *map(_mnli, layouts.MNLI_PARTS),
    _classes("qnli", _data("qnli", layouts.GLUE, ["QNLI"]), ("question", "sentence"), ("entailment", "not_entailment")),
    _classes("rte", _data("rte", layouts.GLUE, ["RTE"]), _PAIR, ("entailment", "not_entailment")),
    _classes("wnli", _WNLI, _PAIR, ("not_entailment", "entailment")),
    _classes(
        "ax",
        _data("ax", layouts.DIAGNOSTICS, ["AX", "diagnostic"], ("test",)),
        _MNLI_FIELDS,
        _ENTAILMENT,
        [],
        benchmark="mnli",
        columns=_MNLI_COLUMNS,
    ),
    text_task(
        "glue_wnli_v002_simple_eval",
        NamedData(
            "glue/wnli",
            splits=("validation", "test"),
            folders=("WNLI", "wnli"),
            layout=layouts.GLUE,
            hub=Hub(_HUB, "wnli"),
        ),
        wnli,
        postprocess=referent,
        metrics=[accuracy],
    ),
)

RATES = {
    "glue_cola_v002": 8_551.0,
    "glue_sst2_v002": 67_349.0,
    "glue_mrpc_v002": 3_668.0,
    "glue_qqp_v002": 363_849.0,
    "glue_stsb_v002": 5_749.0,
    "glue_mnli_v002": 392_702.0,
    "glue_qnli_v002": 104_743.0,
    "glue_rte_v002": 2_490.0,
    "glue_mnli_mismatched_v002": 0.0,
    "glue_mnli_matched_v002": 0.0,
    "glue_ax_v002": 0.0,
}
"""Examples of the official training sets; 0 for what is only evaluated. WNLI is trained on as WSC and DPR are."""
