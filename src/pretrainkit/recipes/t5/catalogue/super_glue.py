"""SuperGLUE and definite pronouns as text-to-text tasks: `super_glue_boolq_v102` and so on.

Source: Wang et al. 2019, https://arxiv.org/abs/1905.00537; formats as in the released `t5`.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pretrainkit.eval.metrics import (
    accuracy,
    deduplicated_squad,
    mean_multiclass_f1,
    multirc_f1_and_exact_match,
    wsc_accuracy,
)
from pretrainkit.recipes.t5.catalogue import layouts
from pretrainkit.recipes.t5.catalogue.labelled import (
    UNKNOWN,
    Metrics,
    class_task,
    entity,
    judged_answer,
    multirc,
    multirc_answers,
    referent,
    text_task,
)
from pretrainkit.recipes.t5.catalogue.questions import definite_pronoun, is_right_referent, wsc, wsc_row
from pretrainkit.tasks.named_data import Hub, NamedData
from pretrainkit.tasks.preprocessors import keep_if
from pretrainkit.tasks.steps import Example, FlatMap
from pretrainkit.tasks.task import Task

Row = Mapping[str, Any]
_HUB = "aps/super_glue"
_ALL = ("train", "validation", "test")
_YES_NO = ("False", "True")
_ENTAILMENT = ("entailment", "not_entailment")
_AFTER_MARK = re.compile(r"""([.?!"'])\n@highlight\n""")
_HIGHLIGHT = "\n@highlight\n"


def record_queries(row: Row) -> Iterator[Example]:
    """Yield a row for every query of ReCoRD, from a passage with all of its queries (the distributed form) or from one
    query (the form of the hub)."""
    if not isinstance(row["passage"], Mapping):
        yield dict(row)
        return
    text = row["passage"]["text"]
    entities = sorted({text[place["start"] : place["end"] + 1] for place in row["passage"]["entities"]})
    for query in row["qas"]:
        yield {
            "passage": text,
            "query": query["query"],
            "entities": entities,
            "answers": sorted({answer["text"] for answer in query.get("answers", ())}),
            "idx": {"passage": row["idx"], "query": query["idx"]},
        }


def record(row: Row) -> Iterator[Example]:
    """Yield an example for every right answer to a query of ReCoRD; each also has the list of all right answers. A
    query without answers becomes one example with the target `<unk>`."""
    passage = _AFTER_MARK.sub(r"\1 ", row["passage"]).replace(_HIGHLIGHT, ". ")
    answers = list(row["answers"])
    for answer in answers or [UNKNOWN]:
        yield {
            "inputs": f"record query: {row['query']} entities: {', '.join(row['entities'])} passage: {passage}",
            "targets": answer,
            "idx/passage": row["idx"]["passage"],
            "idx/query": row["idx"]["query"],
            "answers": answers,
        }


def _data(name: str, folder: str, splits: Sequence[str] = _ALL, hub: str | None = None) -> NamedData:
    layout = layouts.SUPER_GLUE_DIAGNOSTICS if tuple(splits) == ("test",) else layouts.SUPER_GLUE
    source = Hub(_HUB, hub or name)
    return NamedData(f"super_glue/{name}", splits=splits, folders=(folder, name), layout=layout, hub=source)


def _classes(
    name: str, folder: str, fields: Sequence[str], classes: Sequence[str], metrics: Metrics = (accuracy,)
) -> Task:
    return class_task(f"super_glue_{name}_v102", _data(name, folder), name, fields, classes, metrics)


def _diagnostics(name: str, folder: str, columns: Mapping[str, str] | None = None) -> Task:
    """Return the task of a test set without metrics, in the format of RTE."""
    data = _data(name, folder, ("test",))
    return class_task(f"super_glue_{name}_v102", data, "rte", _NLI, _ENTAILMENT, [], columns)


_NLI = ("hypothesis", "premise")

TASKS = (
    _classes("boolq", "BoolQ", ("passage", "question"), _YES_NO),
    _classes("cb", "CB", _NLI, ("entailment", "contradiction", "neutral"), [mean_multiclass_f1(3), accuracy]),
    _classes("copa", "COPA", ("choice1", "choice2", "premise", "question"), ("choice1", "choice2")),
    text_task(
        "super_glue_multirc_v102",
        _data("multirc", "MultiRC"),
        FlatMap(multirc_answers),
        multirc,
        postprocess=judged_answer,
        metrics=[multirc_f1_and_exact_match],
    ),
    text_task(
        "super_glue_record_v102",
        _data("record", "ReCoRD"),
        FlatMap(record_queries),
        FlatMap(record),
        postprocess=entity,
        metrics=[deduplicated_squad],
    ),
    _classes("rte", "RTE", _NLI, _ENTAILMENT),
    _classes("wic", "WiC", ("sentence1", "sentence2", "word"), _YES_NO),
    _diagnostics("axb", "AX-b", {"premise": "sentence1", "hypothesis": "sentence2"}),
    _diagnostics("axg", "AX-g"),
    text_task(
        "super_glue_wsc_v102_simple_train",
        _data("wsc", "WSC", ("train",), "wsc.fixed"),
        wsc_row,
        keep_if(is_right_referent),
        wsc,
    ),
    text_task(
        "super_glue_wsc_v102_simple_eval",
        _data("wsc", "WSC", ("validation", "test"), "wsc.fixed"),
        wsc_row,
        wsc,
        postprocess=referent,
        metrics=[wsc_accuracy],
    ),
    text_task(
        "dpr_v001_simple",
        NamedData(
            "definite_pronoun_resolution",
            splits=("train", "test"),
            hub=Hub("community-datasets/definite_pronoun_resolution"),
        ),
        definite_pronoun,
        metrics=[accuracy],
    ),
)

RATES = {
    "dpr_v001_simple": 1_322.0,
    "super_glue_wsc_v102_simple_train": 259.0,
    "super_glue_wsc_v102_simple_eval": 0.0,
    "super_glue_boolq_v102": 9_427.0,
    "super_glue_cb_v102": 250.0,
    "super_glue_copa_v102": 400.0,
    "super_glue_multirc_v102": 27_243.0,
    "super_glue_record_v102": 138_854.0,
    "super_glue_rte_v102": 2_490.0,
    "super_glue_wic_v102": 5_428.0,
    "super_glue_axb_v102": 0.0,
    "super_glue_axg_v102": 0.0,
}
"""Sizes of the official training sets (for WSC the number of examples with the right noun); 0 for tasks that are only
evaluated."""
