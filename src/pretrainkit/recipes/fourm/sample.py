"""Held-out samples for the report: what the model makes of one modality of them, beside the truth."""

from collections.abc import Sequence
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
from pretrainkit.recipes.fourm.modality import Modality
from pretrainkit.recipes.fourm.model import FourM
from pretrainkit.recipes.fourm.source import FourMSource

_HEIGHT = 96
"""Pixels of a picture."""
_MAX_TOKENS = 64
"""Of a sequence: samples are looked at, not used."""
_ORDER = ("pixels", "sequence", "image")
"""Kinds of modalities that something is made of, in turn."""


def sample(config: FourMRun, model: nn.Module, source: BatchSource, num: int) -> list[dict[str, Any]]:
    """`num` samples spread over all held-out data.

    Of each one modality is given, and every other target that it has is made of that alone, not of each other: the
    likeliest tokens in one step, or the likeliest text; beside it is the truth. Every second sample gives its pixels,
    where it has any, the others a text or an image, in turn.
    """
    assert isinstance(source, FourMSource)
    assert isinstance(model, FourM)
    link = Link(config, model, source.vocabulary)
    chosen = spread(source.sizes, num)
    rows: dict[int, dict[str, Any]] = {}
    groups: dict[tuple[int, Modality], list[int]] = {}
    for place, (number, _) in enumerate(chosen):
        present = [source.modalities[own] for own in source.sets[number].present]
        inputs = [one for kind in _ORDER for one in present if one.kind == kind and one.is_input]
        if inputs:
            # The first one of all for even places, the others one after another for odd ones.
            first, *others = inputs
            given = others[place // 2 % len(others)] if others and place % 2 else first
            groups.setdefault((number, given), []).append(place)
    with evaluation_mode(model):
        for (_, given), places in groups.items():
            found = _shown(link, source, [chosen[place] for place in places], given)
            rows |= dict(zip(places, found, strict=True))
    return [rows[place] for place in sorted(rows)]


def _shown(
    link: Link, source: FourMSource, indices: Sequence[tuple[int, int]], given: Modality
) -> list[dict[str, Any]]:
    examples = data_examples(source, indices, [given.name])
    present = [source.modalities[place] for place in source.sets[indices[0][0]].present]
    rows: list[dict[str, Any]] = [{} for _ in examples]
    for target in present:
        if not target.is_target or target.name == given.name:
            continue
        is_image = target.kind == "image"
        settings: dict[str, Any] = {"num_steps": 1} if is_image else {"max_tokens": min(_MAX_TOKENS, target.max_tokens)}
        plan = GenerationPlan(targets=(TargetConfig(modality=target.name, temperature=0.0, **settings),))
        chain = Chain([link], plan, [given.name])
        known = chain.run(examples, range(len(examples)))
        for place, example in enumerate(examples):
            result = Result(chain, example, 0, [one.take([place]) for one in known], {})
            for name, cell in result.cells().items():
                heading = "given" if name.startswith("from ") else name
                if isinstance(cell, str):
                    rows[place][heading] = [{"text": cell}]
                elif cell is not None:
                    rows[place][heading] = [{"image": thumbnail(cell.transpose(2, 0, 1), _HEIGHT)}]
    return rows
