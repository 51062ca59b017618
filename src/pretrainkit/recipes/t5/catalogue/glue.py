"""GLUE as text-to-text tasks: `glue_cola_v002` and so on.

Source: Wang et al. 2018, https://arxiv.org/abs/1804.07461; formats as in the released `t5`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pretrainkit.eval.metrics import accuracy, f1_invalid_wrong, matthews, pearson, spearman
from pretrainkit.recipes.t5.catalogue.answers import ClassNumber, number, referent
from pretrainkit.recipes.t5.catalogue.building import text_task
from pretrainkit.recipes.t5.catalogue.labelled import labelled, similarity
from pretrainkit.recipes.t5.catalogue.referents import wnli
from pretrainkit.tasks.glue_data import GLUE, HUB, MNLI, MNLI_PARTS, glue_data
from pretrainkit.tasks.named_data import Hub, NamedData
from pretrainkit.tasks.task import Task

_ENTAILMENT = ("entailment", "neutral", "contradiction")
_PAIR = ("sentence1", "sentence2")


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
_WNLI = glue_data("wnli")


def _mnli(part: str) -> Task:
    files = {split: MNLI[f"{split}_{part}"] for split in ("validation", "test")}
    data = NamedData(
        f"glue/mnli_{part}",
        splits=tuple(files),
        folders=("MNLI", "mnli", f"mnli_{part}"),
        layout=files,
        hub=Hub(HUB, f"mnli_{part}"),
    )
    return _classes(f"mnli_{part}", data, _MNLI_FIELDS, _ENTAILMENT, benchmark="mnli", columns=_MNLI_COLUMNS)


TASKS = (
    _classes("cola", glue_data("cola"), ["sentence"], ("unacceptable", "acceptable"), [matthews]),
    _classes("sst2", glue_data("sst2"), ["sentence"], ("negative", "positive")),
    _classes(
        "mrpc",
        glue_data("mrpc"),
        _PAIR,
        ("not_equivalent", "equivalent"),
        [f1_invalid_wrong, accuracy],
        columns={"sentence1": "#1 String", "sentence2": "#2 String"},
    ),
    _classes(
        "qqp",
        glue_data("qqp"),
        ("question1", "question2"),
        ("not_duplicate", "duplicate"),
        [f1_invalid_wrong, accuracy],
    ),
    text_task(
        "glue_stsb_v002",
        glue_data("stsb"),
        similarity,
        postprocess=number,
        metrics=[pearson, spearman],
    ),
    _classes(
        "mnli",
        glue_data("mnli"),
        _MNLI_FIELDS,
        _ENTAILMENT,
        columns=_MNLI_COLUMNS,
    ),
    *map(_mnli, MNLI_PARTS),
    _classes("qnli", glue_data("qnli"), ("question", "sentence"), ("entailment", "not_entailment")),
    _classes("rte", glue_data("rte"), _PAIR, ("entailment", "not_entailment")),
    _classes("wnli", _WNLI, _PAIR, ("not_entailment", "entailment")),
    _classes(
        "ax",
        glue_data("ax"),
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
            layout=GLUE,
            hub=Hub(HUB, "wnli"),
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
