"""The BERT encoder with its two heads: masked words and sentence order.

Unusual features: it reads a stream of real tokens, example by example, instead of padded rows; the masked-word head
reads only predicted tokens; queries, keys and values share one matrix. The outputs equal those of `BertForPreTraining`
and `ModernBertForMaskedLM` of transformers (tests/recipes/bert/test_convert.py).

Dimensions: T tokens, B examples, K predictions, D width, V vocabulary.
Sources: Devlin et al. 2018, https://arxiv.org/abs/1810.04805; Warner et al. 2024, https://arxiv.org/abs/2412.13663.
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pretrainkit.dist.autocast import residual
from pretrainkit.dist.compiled import vary
from pretrainkit.nn.activations import ACTIVATIONS
from pretrainkit.nn.attention import AttentionLayout
from pretrainkit.nn.blocks import LayerNorm, Pooler, PostNormBlock, PreNormBlock
from pretrainkit.nn.dropout import dropout
from pretrainkit.nn.initialise import SkipInitialisation, built, initialise_layer
from pretrainkit.nn.linear_cross_entropy import LinearCrossEntropy, TokenLoss, linear_logits, tied_lookup
from pretrainkit.nn.rotary import Rotation, rotation
from pretrainkit.recipes.bert.config import AnyModelConfig, BertModelConfig, ModernModelConfig
from pretrainkit.recipes.bert.inputs import BertInputs, read_texts
from pretrainkit.recipes.text_encoder import TextEncoder
from pretrainkit.training.objective import Batch


class BertOutputs(NamedTuple):
    """Outputs of the model for a batch. A tuple, so that DDP and FSDP2 find its tensors."""

    masked_lm: TokenLoss | None
    """Loss of each prediction; None if no target tokens were passed."""
    logits_KV: Tensor | None
    """float32; None if target tokens were passed."""
    sentence_order_B2: Tensor | None
    """Logits of (in order, swapped); None without that head."""


class Embeddings(nn.Module):
    """Normalized embeddings. BERT adds positions and segments; ModernBERT has its positions in the attention layers."""

    def __init__(self, config: AnyModelConfig, vocab_size: int) -> None:
        super().__init__()
        width, bert = config.hidden_size, config if isinstance(config, BertModelConfig) else None
        self.dropout_rate = config.hidden_dropout
        self.word = nn.Embedding(vocab_size, width)
        self.position = nn.Embedding(bert.max_positions, width) if bert else None
        self.token_type = nn.Embedding(bert.type_vocab_size, width) if bert else None
        self.norm = LayerNorm(width, config.layer_norm_epsilon, has_bias=bert is not None)

    def forward(self, inputs: BertInputs, word_TD: Tensor | None = None) -> Tensor:
        """Return (T, D). `word_TD`: the rows of `word`, if they were already looked up."""
        x_TD = self.word(inputs.ids_T) if word_TD is None else word_TD
        if self.position is not None and self.token_type is not None:
            x_TD = x_TD + self.position(inputs.positions_T) + self.token_type(inputs.type_ids_T)
        return dropout(self.norm(x_TD), self.dropout_rate, is_training=self.training)


class MaskedWordHead(nn.Module):
    """Dense layer, activation, norm, and an output matrix tied to the embedding table, with a bias per piece."""

    def __init__(self, config: AnyModelConfig, vocab_size: int) -> None:
        super().__init__()
        width, has_bias = config.hidden_size, isinstance(config, BertModelConfig)
        self.activation = ACTIVATIONS[config.activation]
        self.dense = nn.Linear(width, width, bias=has_bias)
        self.norm = LayerNorm(width, config.layer_norm_epsilon, has_bias=has_bias)
        self.decoder_bias = nn.Parameter(torch.zeros(vocab_size))
        self.loss = LinearCrossEntropy()

    def forward(self, x_KD: Tensor, word_VD: Tensor, token_K: Tensor | None) -> TokenLoss | Tensor:
        """Return the losses of the target tokens `token_K`, or float32 logits (K, V) if it is None."""
        x_KD = self.norm(self.activation(self.dense(x_KD)))
        if token_K is None:
            return linear_logits(x_KD, word_VD, self.decoder_bias)
        vary(x_KD, token_K)
        return self.loss(x_KD, word_VD, self.decoder_bias, token_K)


class SentenceOrderHead(nn.Module):
    """The pooler (a dense layer with tanh on the first token) and a classifier of two classes."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.pooler = nn.Linear(width, width)
        self.classifier = nn.Linear(width, 2)

    def forward(self, x_BD: Tensor) -> Tensor:
        """(B, D) to (B, 2)."""
        return self.classifier(torch.tanh(self.pooler(x_BD)))


class BertForPretraining(nn.Module):
    """Embeddings, blocks and heads of either architecture."""

    def __init__(self, config: AnyModelConfig, *, has_sentence_order: bool) -> None:
        """Create the layers without initializing them; see `initialise`. `config.vocab_size` must be set."""
        super().__init__()
        if config.vocab_size is None:
            raise ValueError("model.vocab_size is unknown: bind the config to its data, or set it")
        self.config = config
        self.embeddings = Embeddings(config, config.vocab_size)
        self.layers = nn.ModuleList(_block(config, layer) for layer in range(config.num_layers))
        self.final_norm: nn.Module = nn.Identity()
        if isinstance(config, ModernModelConfig):
            self.final_norm = LayerNorm(config.hidden_size, config.layer_norm_epsilon, has_bias=False)
        self.masked_lm = MaskedWordHead(config, config.vocab_size)
        self.sentence_order = SentenceOrderHead(config.hidden_size) if has_sentence_order else None

    def blocks(self) -> list[nn.Module]:
        """Return the submodules that are compiled, sharded and recomputed separately."""
        return list(self.layers)

    def forward(self, inputs: BertInputs, token_K: Tensor | None = None) -> BertOutputs:
        """Compute the losses of the target tokens `token_K` at `inputs.predicted_K`, or logits if it is None."""
        word_TD, word_VD = tied_lookup(self.embeddings.word.weight, inputs.ids_T)
        # The last block computes only the tokens that the heads read: equal results for a sixth of its work.
        read = inputs.predicted_K
        if self.sentence_order is not None:
            read = torch.cat((read, inputs.first_B))
        reading = inputs.layout.reading(read)
        x_RD = reading.read(last_states(self, inputs, reading, word_TD))
        num_predictions = len(inputs.predicted_K)
        loss_or_logits = self.masked_lm(x_RD[:num_predictions], word_VD, token_K)
        order_B2 = None if self.sentence_order is None else self.sentence_order(x_RD[num_predictions:])
        if isinstance(loss_or_logits, TokenLoss):
            return BertOutputs(loss_or_logits, None, order_B2)
        return BertOutputs(None, loss_or_logits, order_B2)

    def encode(self, inputs: BertInputs) -> list[Tensor]:
        """Return the (T, D) states after the embeddings and after each block. The last state is normalized if the
        architecture has a final norm."""
        states = [self.embeddings(inputs)]
        for layer, rotation_ in zip(self.layers, rotations_of(self.config, inputs.positions_T), strict=True):
            vary(states[-1])
            states.append(layer(states[-1], inputs.layout, rotation_))
        states[-1] = self.final_norm(states[-1])
        return states

    def initialise(self) -> None:
        """Draw initial weights from torch's global generator, as in Sabertooth or, if modern, as in ModernBERT."""
        _initialise(self, self.config)


@torch.no_grad()
def _initialise(root: nn.Module, config: AnyModelConfig) -> None:
    scale = config.initializer_range
    small = scale
    if isinstance(config, ModernModelConfig) and config.scale_output_layers:
        small = scale / math.sqrt(2 * config.num_layers)
    for name, module in root.named_modules():
        into_residual = name.endswith(("attention.out", "feed_forward.down")) or name == "masked_lm.dense"
        initialise_layer(module, small if into_residual else scale)
        if isinstance(module, MaskedWordHead):
            module.decoder_bias.zero_()


def last_states(model: Any, inputs: BertInputs, last: AttentionLayout, word_TD: Tensor | None = None) -> Tensor:
    """Return the (T, D) states after the last block, normalized if the architecture has a final norm.

    If `last`, the layout of the last block, has queries for some tokens only, return the states of these tokens.
    `model` has `config`, embeddings, layers and final norm.
    """
    x_TD = residual(model.embeddings(inputs, word_TD))
    rotations = rotations_of(model.config, inputs.positions_T)
    for layer, rotation_ in zip(model.layers[:-1], rotations[:-1], strict=True):
        vary(x_TD)
        x_TD = layer(x_TD, inputs.layout, rotation_)
    vary(x_TD)
    return model.final_norm(model.layers[-1](x_TD, last, rotations[-1]))


def fresh_heads(config: AnyModelConfig) -> nn.ModuleDict:
    """Return heads by their names in `BertForPretraining`, initialized from torch's global generator."""
    assert config.vocab_size is not None
    with SkipInitialisation():
        masked_lm, sentence_order = MaskedWordHead(config, config.vocab_size), SentenceOrderHead(config.hidden_size)
    heads = nn.ModuleDict({"masked_lm": masked_lm, "sentence_order": sentence_order})
    _initialise(heads, config)
    return heads


def rotations_of(config: AnyModelConfig, positions_T: Tensor) -> list[Rotation | None]:
    """Return the rotation of each layer; None if the positions are in the embeddings."""
    if isinstance(config, BertModelConfig):
        return [None] * config.num_layers
    width = config.hidden_size // config.num_heads
    everywhere = rotation(positions_T, width, config.global_rope_theta)
    nearby = rotation(positions_T, width, config.local_rope_theta)
    return [nearby if is_local(config, layer) else everywhere for layer in range(config.num_layers)]


def is_local(config: ModernModelConfig, layer: int) -> bool:
    """True if a layer attends only to a window."""
    return layer % config.global_every != 0


def _block(config: AnyModelConfig, layer: int) -> PostNormBlock | PreNormBlock:
    sizes = (config.hidden_size, config.num_heads, config.intermediate_size)
    settings: dict[str, Any] = {
        "activation": config.activation,
        "dropout_rate": config.hidden_dropout,
        "attention_dropout_rate": config.attention_dropout,
        "epsilon": config.layer_norm_epsilon,
    }
    if isinstance(config, BertModelConfig):
        return PostNormBlock(*sizes, **settings)
    window = config.local_window if is_local(config, layer) else None
    return PreNormBlock(*sizes, **settings, window=window, has_attention_norm=layer > 0)


def build(config: AnyModelConfig, *, has_sentence_order: bool) -> BertForPretraining:
    """Build the model on torch's default device, initialized from its global generator; on "meta" without values."""
    return built(
        lambda: BertForPretraining(config, has_sentence_order=has_sentence_order), BertForPretraining.initialise
    )


class BertTextEncoder(TextEncoder):
    """A trained model without its heads, but with its pooler, for further training."""

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
        """Return the (T, D) features of all tokens. ModernBERT's pass through the dense layer and norm of its pooler,
        as when transformers fine-tunes it."""
        x_TD = self.tokens(batch, max_length)
        return x_TD if self.pooler.norm is None else self.pooler(x_TD)

    def vectors_and_tokens(self, batch: Batch, max_length: int) -> tuple[Tensor, Tensor]:
        x_TD = self.tokens(batch, max_length)
        return self.pooler(x_TD[batch["cu_seqlens"][:-1].long()]), x_TD

    def freeze_pooling(self) -> None:
        if self.pooler.norm is None:
            self.pooler.requires_grad_(False)


def build_text_encoder(model: BertForPretraining) -> BertTextEncoder:
    """Return an encoder with the layers of `model`. If BERT was trained without sentence order, its pooler is
    initialized at random."""
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
