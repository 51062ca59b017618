"""The mixtures of the T5 paper and of the released `t5`, with the same names.

Rates are numbers of official training examples, as constants, so that a part of the data keeps the proportions.
"""

from collections.abc import Iterable

from pretrainkit.recipes.t5.catalogue import glue, super_glue
from pretrainkit.recipes.t5.catalogue.sentinels import twin_name
from pretrainkit.tasks.rates import Rate, proportional
from pretrainkit.tasks.task import Mixture

C4 = "c4_v020_unsupervised"
UNSUPERVISED_RATE = 1e6
"""Rate of C4 beside supervised tasks, as a number of examples."""
_BY_SIZE = proportional()
_OTHERS = (
    "cnn_dailymail_v002",
    "squad_v010_allanswers",
    "wmt_t2t_ende_v003",
    "wmt15_enfr_v003",
    "wmt16_enro_v003",
)
_SUPERVISED = (*glue.RATES, *super_glue.RATES, *_OTHERS)
_GROUPS = {"glue_v002_proportional": glue.RATES, "super_glue_v102_proportional": super_glue.RATES}
_TRANSLATION = ("wmt_t2t_ende_v003", "wmt15_enfr_v003")
_LARGE = (*_TRANSLATION, "cnn_dailymail_v002")
_WSC_DPR = ("dpr_v001_simple", "super_glue_wsc_v102_simple_train", "super_glue_wsc_v102_simple_eval")
_RATES = glue.RATES | super_glue.RATES


def _rated(names: Iterable[str], *, shares_rte: bool) -> list[tuple[str, Rate | None]]:
    """Return tasks with official numbers of examples, or with the actual size. The rate of RTE, which is in both GLUE
    and SuperGLUE, is halved in each if `shares_rte`."""
    rated: list[tuple[str, Rate | None]] = []
    for name in names:
        rate: Rate = _RATES.get(name, _BY_SIZE)
        if shares_rte and isinstance(rate, float) and "_rte_" in name:
            rate *= 0.5
        rated.append((name, rate))
    return rated


def _leave_one_out(name: str) -> Mixture:
    removed = _GROUPS.get(name, (name,))
    remaining = [task for task in (*_SUPERVISED, C4) if task not in removed]
    return Mixture(f"leave_one_out_{name}", _rated(remaining, shares_rte=name not in _GROUPS))


MIXTURES = (
    *(Mixture(name, list(rates.items())) for name, rates in _GROUPS.items()),
    Mixture(
        "super_glue_v102_proportional_sentinel", [(twin_name(name), rate) for name, rate in super_glue.RATES.items()]
    ),
    Mixture("glue_mnli_and_dev_v002", [name for name in glue.RATES if "mnli" in name], default_rate=1.0),
    Mixture(
        "en_mix",
        [(C4, UNSUPERVISED_RATE), *glue.RATES, *super_glue.RATES, "squad_v010_allanswers"],
        default_rate=_BY_SIZE,
    ),
    Mixture("all_equal", (*_SUPERVISED, C4), default_rate=1.0),
    Mixture("all_proportional", _rated((*_SUPERVISED, C4), shares_rte=True)),
    Mixture("all_mix", [(C4, UNSUPERVISED_RATE), *_rated(_SUPERVISED, shares_rte=True)]),
    *map(_leave_one_out, (*_GROUPS, *_OTHERS)),
    Mixture("large_supervised_equal", _LARGE, default_rate=1.0),
    Mixture("large_supervised_proportional", _LARGE, default_rate=_BY_SIZE),
    Mixture("large_translation_equal", _TRANSLATION, default_rate=1.0),
    Mixture("squad_trivia_qa_equal", ("squad_v010_allanswers", "trivia_qa_v010"), default_rate=1.0),
    Mixture("wsc_dpr_simple_proportional", [(name, super_glue.RATES[name]) for name in _WSC_DPR]),
)
