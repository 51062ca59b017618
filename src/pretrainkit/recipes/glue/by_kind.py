"""The head and the loss of each kind of task."""

from collections.abc import Callable, Mapping

from pretrainkit.errors import ConfigError
from pretrainkit.nn.initialise import built
from pretrainkit.recipes.capabilities import EncodesText
from pretrainkit.recipes.glue.config import GlueRun, encoder_of
from pretrainkit.recipes.glue.model import GlueObjective, HeadedEncoder, LinearHead, SpanObjective, TextObjective
from pretrainkit.recipes.glue.source import task_of
from pretrainkit.recipes.glue.tasks import HEAD_READS, Kind
from pretrainkit.recipes.glue.tree_model import TreeHead, TreeObjective
from pretrainkit.recipes.registry import able

_OBJECTIVES: Mapping[Kind, Callable[[GlueRun], GlueObjective]] = {
    **dict.fromkeys(("classes", "numbers", "tags"), TextObjective),
    "spans": SpanObjective,
    "tree": TreeObjective,
}


def build_model(config: GlueRun) -> HeadedEncoder:
    """Return the model on torch's default device, initialized from its global generator; on "meta" without values."""
    recipe, encoder_config = encoder_of(config.model)
    encoder = able(recipe, EncodesText).build_text_encoder(encoder_config, recipe.build_model(encoder_config))
    assert config.model.classes is not None  # `bind` has set them
    task, pooling = task_of(config.data), config.model.pooling
    reads = HEAD_READS.get(task.kind)
    # Spans have two scores per slot: that an answer begins there, and that it ends there.
    num_outputs = 2 if reads == "spans" else max(1, len(config.model.classes))
    if pooling is not None and reads != "examples":
        raise ConfigError(f"model.pooling={pooling} has no effect on a task of kind {task.kind}\n  leave it out")
    own_rate = encoder.pooled_dropout_rate if reads == "examples" else encoder.dropout_rate
    rate = own_rate if config.model.dropout is None else config.model.dropout

    def make() -> HeadedEncoder:
        if reads is None:
            return TreeHead(encoder, num_outputs, rate)
        return LinearHead(encoder, num_outputs, rate, reads, pooling, is_pair=task.is_pair)

    return built(make, lambda model: model.initialise_head(config.model.initializer_range))


def build_objective(config: GlueRun) -> GlueObjective:
    """Return the loss for the kind of task in a bound config."""
    return _OBJECTIVES[task_of(config.data).kind](config)
