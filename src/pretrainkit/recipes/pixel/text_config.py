"""How a trained model reads texts under another head: settings of fine-tuning. Torch-free."""

import re
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from pretrainkit.config.base import Config

_POOLINGS = re.compile(r"mean|max|cls|pma:[1-9]\d*")


def _is_pooling(value: str) -> str:
    if not _POOLINGS.fullmatch(value):
        raise ValueError(f"{value!r} is no pooling; there are mean, max, cls and pma:K for K heads, such as pma:8")
    return value


Pooling = Annotated[str, AfterValidator(_is_pooling)]


class PixelTextConfig(Config):
    """The encoder without masks and without the decoder, as glue trains it further."""

    pooling: Pooling = "mean"
    """Patches to one vector. mean, max: over the patches of the text with its end patch. pma:K: attention of one
    learned query with K heads. cls: the tanh of a linear layer on the class token, as BERT's."""
    pooling_linear: bool = True
    """Before mean and max: a linear layer and GELU on each patch."""
    pooling_norm: bool = True
    """Before mean, max and pma: a layer norm of each patch, after that linear layer."""
    embedding_dropout: Annotated[float, Field(ge=0, lt=1)] | None = None
    """On patches with their positions; null: model.hidden_dropout. Pretraining has none there."""
    train_positions: bool = True
    """Whether the table of positions, fixed in pretraining, is trained."""
    clean_up: bool = False
    """Take out the spaces around punctuation, brackets, quotes and n't that tokenized texts have, as the original does
    with GLUE and XNLI. Words and questions with contexts stay as they are."""
    renderer: dict[str, Any] = Field(default_factory=dict)
    """Settings of the renderer to change when fine-tuning starts, such as {engine: pango, rgb: true, fallback_fonts:
    [FOLDER]}; the run keeps the renderer that results."""
