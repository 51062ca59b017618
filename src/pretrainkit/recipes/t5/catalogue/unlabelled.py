"""Text without labels as tasks: C4 and Wikipedia, with objectives of the T5 paper or with that of the run.

Documents are tokenized before the cache marker, so make a cache of large data: without one all of them are tokenized at
the start of every run. Millions of documents of your own are better encoded once as token shards (`data.train`).

Source: the released `t5`, https://arxiv.org/abs/1910.10683.
"""

from collections.abc import Mapping, Sequence

from pretrainkit.recipes.t5.catalogue import layouts
from pretrainkit.recipes.t5.catalogue.building import FEATURES
from pretrainkit.recipes.t5.denoising import DenoisingConfig, ObjectiveName
from pretrainkit.recipes.t5.task_denoising import denoising_steps, whole_texts
from pretrainkit.tasks.named_data import Hub, NamedData
from pretrainkit.tasks.preprocessors import rekey, tokenize
from pretrainkit.tasks.steps import CacheMarker, Step
from pretrainkit.tasks.supply import RunSteps
from pretrainkit.tasks.task import Task

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
)
