"""GLUE as text-to-text tasks: `glue_cola_v002` and so on.

Source: Wang et al. 2018, https://arxiv.org/abs/1804.07461; formats as in the released `t5`.
"""

from collections.abc import Sequence
from typing import Any

from pretrainkit.eval.metrics import accuracy, f1_invalid_wrong, matthews, pearson, spearman
from pretrainkit.recipes.t5.catalogue.labelled import Metrics, class_task, number, referent, similarity, text_task
from pretrainkit.recipes.t5.catalogue.questions import wnli
from pretrainkit.tasks.named_data import glue_data
from pretrainkit.tasks.task import Task

_ENTAILMENT = ("entailment", "neutral", "contradiction")
_PAIR = ("sentence1", "sentence2")


def _classes(
    name: str, fields: Sequence[str], classes: Sequence[str], metrics: Metrics = (accuracy,), **options: Any
) -> Task:
    return class_task(f"glue_{name}_v002", glue_data(name), name, fields, classes, metrics, **options)


def _mnli(name: str, metrics: Metrics = (accuracy,)) -> Task:
    """Return a task of rows with the columns and classes of MNLI."""
    fields, columns = ("hypothesis", "premise"), {"hypothesis": "sentence2", "premise": "sentence1"}
    return class_task(f"glue_{name}_v002", glue_data(name), "mnli", fields, _ENTAILMENT, metrics, columns)


TASKS = (
    _classes("cola", ["sentence"], ("unacceptable", "acceptable"), [matthews]),
    _classes("sst2", ["sentence"], ("negative", "positive")),
    _classes(
        "mrpc",
        _PAIR,
        ("not_equivalent", "equivalent"),
        [f1_invalid_wrong, accuracy],
        columns={"sentence1": "#1 String", "sentence2": "#2 String"},
    ),
    _classes("qqp", ("question1", "question2"), ("not_duplicate", "duplicate"), [f1_invalid_wrong, accuracy]),
    text_task("glue_stsb_v002", glue_data("stsb"), similarity, postprocess=number, metrics=[pearson, spearman]),
    *map(_mnli, ("mnli", "mnli_matched", "mnli_mismatched")),
    _classes("qnli", ("question", "sentence"), ("entailment", "not_entailment")),
    _classes("rte", _PAIR, ("entailment", "not_entailment")),
    _classes("wnli", _PAIR, ("not_entailment", "entailment")),
    _mnli("ax", []),
    text_task(
        "glue_wnli_v002_simple_eval",
        glue_data("wnli", ("validation", "test")),
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
"""Sizes of the official training sets; 0 for tasks that are only evaluated. WNLI is trained as WSC and DPR."""
