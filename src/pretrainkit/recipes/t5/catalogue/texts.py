"""Translation, question answering and summarization as text-to-text tasks; and unlabelled text, C4 and Wikipedia, with
objectives of the T5 paper or with that of the run.

Documents are tokenized before the cache marker, so create a cache of large data; otherwise every run tokenizes them at
its start. For millions of documents of your own, encode token shards (`data.train`) instead.

Source of names and formats: the released `t5`, https://arxiv.org/abs/1910.10683.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pretrainkit.errors import ConfigError, DataError
from pretrainkit.eval.metrics import bleu, rouge, span_squad, squad
from pretrainkit.recipes.t5.catalogue import layouts
from pretrainkit.recipes.t5.catalogue.labelled import FEATURES, all_answers, span, text_task
from pretrainkit.recipes.t5.catalogue.questions import Squad, squad_spans, trivia_qa, window_with_answer
from pretrainkit.recipes.t5.denoising import DenoisingConfig, ObjectiveName
from pretrainkit.recipes.t5.task_denoising import denoising_steps, whole_texts
from pretrainkit.tasks.named_data import Hub, NamedData
from pretrainkit.tasks.preprocessors import rekey, tokenize
from pretrainkit.tasks.steps import CacheMarker, Example, FlatMap, Step
from pretrainkit.tasks.supply import RunSteps
from pretrainkit.tasks.task import Task

Row = Mapping[str, Any]
_LANGUAGES = """
    ar Arabic, bg Bulgarian, cs Czech, da Danish, de German, el Greek, en English, es Spanish, et Estonian, fi Finnish,
    fr French, gu Gujarati, hi Hindi, hu Hungarian, it Italian, ja Japanese, kk Kazakh, ko Korean, lt Lithuanian, lv
    Latvian, nl Dutch, pl Polish, pt Portuguese, ro Romanian, ru Russian, sv Swedish, sw Swahili, th Thai, tr Turkish,
    uk Ukrainian, ur Urdu, vi Vietnamese, zh Chinese
"""
LANGUAGES = dict(language.split() for language in _LANGUAGES.split(","))
"""English names by ISO 639-1 code."""


@dataclass(frozen=True)
class Translate:
    """Make `translate English to German: S` and the translation from rows with a column for each language."""

    source: str
    target: str

    def __post_init__(self) -> None:
        if unknown := [code for code in (self.source, self.target) if code not in LANGUAGES]:
            raise ConfigError(f"unknown language {', '.join(unknown)}\n  use one of: {', '.join(LANGUAGES)}")

    def __call__(self, row: Row) -> Example:
        both = row.get("translation", row)
        if missing := [code for code in (self.source, self.target) if code not in both]:
            raise DataError(f"a row has no {', '.join(missing)}\n  its columns are: {', '.join(map(str, both))}")
        inputs = f"translate {LANGUAGES[self.source]} to {LANGUAGES[self.target]}: {both[self.source]}"
        return {"inputs": inputs, "targets": both[self.target]}


def summarize(row: Row) -> Example:
    """Make `summarize: ARTICLE` and its highlights."""
    return {"inputs": f"summarize: {row['article']}", "targets": row["highlights"]}


def _wmt(year: str, target: str, hub: str, pair: str) -> Task:
    name = f"{year}_en{target}"
    data = NamedData(
        f"wmt/{name}",
        folders=(name, f"{year}_translate/{pair}", f"{year}/{pair}", pair, "."),
        layout=layouts.translations("en", target),
        hub=Hub(hub, pair),
    )
    return text_task(f"{name}_v003", data, Translate("en", target), metrics=[bleu])


_SQUAD = NamedData("squad", splits=("train", "validation"), layout=layouts.SQUAD, hub=Hub("rajpurkar/squad"))

_SPLITS = ("train", "validation")
_OBJECTIVE = RunSteps("choose the objective with data.denoising of a T5 config")


def _text(name: str, folders: Sequence[str], files: Mapping[str, str], hub: Hub | None) -> NamedData:
    return NamedData(name, splits=_SPLITS, folders=folders, layout=layouts.text(files), hub=hub)


_C4_FILES = {"train": "c4-train.*.json.gz", "validation": "c4-validation.*.json.gz"}
_C4 = _text("c4/en", ("en", "."), _C4_FILES, Hub("allenai/c4", "en"))
_C4_PARTS = {
    "": _C4,
    "_noclean": _text("c4/noclean", ("en.noclean", "noclean"), _C4_FILES, Hub("allenai/c4", "en.noclean")),
    "_realnewslike": _text("c4/realnewslike", ("realnewslike",), _C4_FILES, Hub("allenai/c4", "realnewslike")),
    "_webtextlike": _text("c4/webtextlike", ("webtextlike",), _C4_FILES, None),
}
_WIKIPEDIA = NamedData("wikipedia", splits=("train",), layout=layouts.text({"train": "wiki*.jsonl"}))


def _task(name: str, source: NamedData, steps: Sequence[Step], *, has_inputs: bool = True) -> Task:
    features = FEATURES if has_inputs else {"targets": FEATURES["targets"]}
    return Task(name, source, features, (rekey({"targets": "text"}), tokenize(False), CacheMarker(), *steps))


def _named(objective: ObjectiveName, *, has_inputs: bool = True) -> Task:
    steps = denoising_steps(DenoisingConfig(name=objective))
    return _task(f"c4_v220_{objective}", _C4, steps, has_inputs=has_inputs)


_PACKED_PREFIX_LM = DenoisingConfig(name="packed_prefix_lm")
_PREFIX_LM = "c4_prefix_lm_objective_{}_architecture"

TASKS = (
    _named("span_corruption"),
    _named("iid_denoising"),
    _named("prefix_lm"),
    _named("full_lm", has_inputs=False),
    _task(_PREFIX_LM.format("encoder_decoder"), _C4, denoising_steps(_PACKED_PREFIX_LM)),
    _task(_PREFIX_LM.format("decoder"), _C4, denoising_steps(whole_texts(_PACKED_PREFIX_LM))),
    *(_task(f"c4{part}_v020_unsupervised", source, [_OBJECTIVE]) for part, source in _C4_PARTS.items()),
    _task("wikipedia_20190301.en_v003_unsupervised", _WIKIPEDIA, [_OBJECTIVE]),
    _wmt("wmt_t2t", "de", "wmt/wmt_t2t", "de-en"),
    _wmt("wmt14", "de", "wmt/wmt14", "de-en"),
    _wmt("wmt14", "fr", "wmt/wmt14", "fr-en"),
    _wmt("wmt15", "fr", "wmt/wmt15", "fr-en"),
    _wmt("wmt16", "ro", "wmt/wmt16", "ro-en"),
    _wmt("wmt19", "de", "wmt/wmt19", "de-en"),
    text_task("squad_v010_allanswers", _SQUAD, Squad(), postprocess=all_answers, metrics=[squad]),
    text_task("squad_v010", _SQUAD, Squad(), metrics=[squad]),
    text_task("squad_v010_context_free", _SQUAD, Squad(has_context=False), postprocess=all_answers, metrics=[squad]),
    text_task("squad_v010_allanswers_span", _SQUAD, FlatMap(squad_spans), postprocess=span, metrics=[span_squad]),
    text_task(
        "trivia_qa_v010",
        NamedData("trivia_qa", hub=Hub("mandarjoshi/trivia_qa", "rc")),
        FlatMap(trivia_qa),
        after=[window_with_answer],
    ),
    text_task(
        "cnn_dailymail_v002",
        NamedData("cnn_dailymail", folders=(".", "3.0.0"), hub=Hub("abisee/cnn_dailymail", "3.0.0")),
        summarize,
        metrics=[rouge],
    ),
)
