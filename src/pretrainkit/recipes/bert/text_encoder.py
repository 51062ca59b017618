"""A trained BERT without its heads, but with its pooler, to be trained further.

Dimensions: B examples, T tokens, D width.
"""

from torch import Tensor, nn

from pretrainkit.nn.blocks import Pooler
from pretrainkit.nn.initialise import SkipInitialisation, initialise_layer
from pretrainkit.recipes.bert.config import BertModelConfig
from pretrainkit.recipes.bert.inputs import read_texts
from pretrainkit.recipes.bert.model import BertForPretraining, last_states
from pretrainkit.recipes.text_encoder import TextEncoder
from pretrainkit.training.objective import Batch


class BertTextEncoder(TextEncoder):
    """Embeddings, blocks and pooler."""

    def __init__(self, model: BertForPretraining, pooler: Pooler) -> None:
        super().__init__()
        self.config = model.config
        self.width, self.dropout_rate = model.config.hidden_size, model.config.hidden_dropout
        self.embeddings, self.layers, self.final_norm = model.embeddings, model.layers, model.final_norm
        self.pooler = pooler

    def blocks(self) -> list[nn.Module]:
        return list(self.layers)

    def forward(self, batch: Batch, max_length: int) -> Tensor:
        first_B = batch["cu_seqlens"][:-1].long()
        inputs = read_texts(batch, max_length, first_B)
        reading = inputs.layout.reading(first_B)
        return self.pooler(reading.read(last_states(self, inputs, reading)))

    def tokens(self, batch: Batch, max_length: int) -> Tensor:
        inputs = read_texts(batch, max_length, batch["cu_seqlens"][:0].long())
        return last_states(self, inputs, inputs.layout)

    def token_features(self, batch: Batch, max_length: int) -> Tensor:
        """ModernBERT's go through the dense layer and norm of its pooler, as in its fine-tuning by transformers."""
        x_TD = self.tokens(batch, max_length)
        return x_TD if self.pooler.norm is None else self.pooler(x_TD)

    def vectors_and_tokens(self, batch: Batch, max_length: int) -> tuple[Tensor, Tensor]:
        x_TD = self.tokens(batch, max_length)
        return self.pooler(x_TD[batch["cu_seqlens"][:-1].long()]), x_TD

    def freeze_pooling(self) -> None:
        if self.pooler.norm is None:
            self.pooler.requires_grad_(False)


def build_text_encoder(model: BertForPretraining) -> BertTextEncoder:
    """The parts of `model`; where it was trained without sentence order, BERT's pooler is drawn anew."""
    config = model.config
    if not isinstance(config, BertModelConfig):
        head = model.masked_lm
        return BertTextEncoder(model, Pooler(head.dense, head.activation, head.norm))
    if model.sentence_order is not None:
        return BertTextEncoder(model, Pooler(model.sentence_order.pooler))
    weight = model.embeddings.word.weight
    with SkipInitialisation():
        dense = nn.Linear(config.hidden_size, config.hidden_size, device=weight.device)
    if not weight.is_meta:
        initialise_layer(dense, config.initializer_range)
    return BertTextEncoder(model, Pooler(dense))
