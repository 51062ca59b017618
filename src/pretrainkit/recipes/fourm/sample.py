"""Held-out samples for the report: what the model makes of the others, beside the truth."""

from typing import Any

from torch import nn

from pretrainkit.data.source import BatchSource
from pretrainkit.eval.evaluator import evaluation_mode
from pretrainkit.images.thumbnail import thumbnail
from pretrainkit.recipes.fourm.config import FourMRun
from pretrainkit.recipes.fourm.generation.chain import Chain, Link
from pretrainkit.recipes.fourm.generation.figures import spread
from pretrainkit.recipes.fourm.generation.given import data_examples
from pretrainkit.recipes.fourm.generation.plan import GenerationPlan, TargetConfig
from pretrainkit.recipes.fourm.generation.result import Result
from pretrainkit.recipes.fourm.generation.sheet import Cell
from pretrainkit.recipes.fourm.modality import Modality
from pretrainkit.recipes.fourm.model import FourM
from pretrainkit.recipes.fourm.source import FourMSource

_HEIGHT = 96
"""Pixels of a picture."""
_MAX_TOKENS = 64
"""Of a sequence: samples are looked at, not used."""


def sample(config: FourMRun, model: nn.Module, source: BatchSource, num: int) -> list[dict[str, Any]]:
    """`num` samples spread over all held-out data.

    Of each, what is given, and every target that it has: the likeliest tokens in one step, or the likeliest text, and
    the truth. Given are the pixels that the model reads, or without any the first image that it reads; targets are
    made from that alone, not from each other. Nothing where there is no image to begin with.
    """
    assert isinstance(source, FourMSource)
    assert isinstance(model, FourM)
    given = _given(config.model.modalities)
    if given is None:
        return []
    link = Link(config, model, source.vocabulary)
    rows = []
    for number, index in spread(source.sizes, num):
        one = source.sets[number]
        present = [source.modalities[place] for place in one.present]
        if given not in present:
            continue
        example = data_examples(source, [(number, index)], [given.name])[0]
        row: dict[str, Any] = {}
        for target in (modality for modality in present if modality.is_target and modality.name != given.name):
            row |= _shown(link, example, target)
        rows.append(row)
    return rows


def _given(modalities: tuple[Modality, ...]) -> Modality | None:
    for kind in ("pixels", "image"):
        for modality in modalities:
            if modality.kind == kind and modality.is_input:
                return modality
    return None


def _shown(link: Link, example: Any, target: Modality) -> dict[str, Any]:
    is_image = target.kind == "image"
    settings: dict[str, Any] = {"num_steps": 1} if is_image else {"max_tokens": min(_MAX_TOKENS, target.max_tokens)}
    plan = GenerationPlan(targets=(TargetConfig(modality=target.name, temperature=0.0, **settings),))
    chain = Chain([link], plan, example.values)
    with evaluation_mode(link.model):
        known = chain.run([example], [0])
    cells = Result(chain, example, 0, known, {}).cells()
    return {name: [_item(cell)] for name, cell in cells.items() if cell is not None}


def _item(cell: Cell) -> dict[str, str]:
    return {"text": cell} if isinstance(cell, str) else {"image": thumbnail(cell.transpose(2, 0, 1), _HEIGHT)}  # type: ignore[union-attr]
