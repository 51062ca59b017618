"""The head and the loss of each kind of task."""

from collections.abc import Callable, Mapping

from pretrainkit.errors import ConfigError
from pretrainkit.nn.initialise import built
from pretrainkit.recipes.capabilities import EncodesText
from pretrainkit.recipes.glue.config import GlueRun
from pretrainkit.recipes.glue.heads.linear import (
    SpanHead,
    SpanObjective,
    TagHead,
    TagObjective,
    TextHead,
    TextObjective,
)
from pretrainkit.recipes.glue.heads.trees import TreeHead, TreeObjective
from pretrainkit.recipes.glue.model import GlueObjective, HeadedEncoder, encoder_of
from pretrainkit.recipes.glue.source import task_of
from pretrainkit.recipes.glue.tasks import Kind
from pretrainkit.recipes.registry import able
from pretrainkit.recipes.text_encoder import TextEncoder

_POOLED: tuple[Kind, ...] = ("classes", "numbers")
"""Kinds whose head stands on one vector of an example."""
_HEADS: Mapping[Kind, Callable[[TextEncoder, int, float], HeadedEncoder]] = {
    "tags": TagHead,
    "spans": SpanHead,
    "tree": TreeHead,
}
_OBJECTIVES: Mapping[Kind, Callable[[GlueRun], GlueObjective]] = {
    **dict.fromkeys(_POOLED, TextObjective),
    "tags": TagObjective,
    "spans": SpanObjective,
    "tree": TreeObjective,
}


def build_model(config: GlueRun) -> HeadedEncoder:
    """The model on torch's default device, initialised from its global generator; on "meta" without values."""
    recipe, encoder_config = encoder_of(config.model)
    encoder = able(recipe, EncodesText).build_text_encoder(encoder_config, recipe.build_model(encoder_config))
    assert config.model.classes is not None  # bound
    task, pooling = task_of(config.data), config.model.pooling
    kind = task.kind
    # Of spans two scores: that an answer begins at a slot, and that it ends there.
    num_outputs = 2 if kind == "spans" else max(1, len(config.model.classes))
    if pooling is not None and kind not in _POOLED:
        raise ConfigError(f"model.pooling={pooling} has no effect on a task of kind {kind}\n  leave it out")
    own_rate = encoder.pooled_dropout_rate if kind in _POOLED else encoder.dropout_rate
    rate = own_rate if config.model.dropout is None else config.model.dropout

    def make() -> HeadedEncoder:
        if kind in _POOLED:
            return TextHead(encoder, num_outputs, rate, pooling, is_pair=task.is_pair)
        return _HEADS[kind](encoder, num_outputs, rate)

    return built(make, lambda model: model.initialise_head(config.model.initializer_range))


def build_objective(config: GlueRun) -> GlueObjective:
    """The loss of the kind of task that a bound config names."""
    return _OBJECTIVES[task_of(config.data).kind](config)
