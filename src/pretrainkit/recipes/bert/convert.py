"""Names and layouts of other programs for the same weights: Hugging Face's `BertForPreTraining` and `ModernBertForMaskedLM`, and the flat
Flax names of Sabertooth (`original`).

Nothing here imports transformers: a Hugging Face folder is `config.json` and `model.safetensors`.
Dimensions: D width, V vocabulary, H heads, K width of one head.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from pretrainkit.recipes.bert.config import BertModelConfig, ModernModelConfig

AnyModelConfig = BertModelConfig | ModernModelConfig

_HF_ACTIVATIONS = {"gelu_tanh": "gelu_new", "gelu": "gelu", "relu": "relu", "swish": "silu"}


def _bert_pairs(num_layers: int, *, has_sentence_order: bool) -> dict[str, str]:
    """Our name to Hugging Face's, for tensors that are the same in both."""
    pairs = {
        "embeddings.word.weight": "bert.embeddings.word_embeddings.weight",
        "embeddings.position.weight": "bert.embeddings.position_embeddings.weight",
        "embeddings.token_type.weight": "bert.embeddings.token_type_embeddings.weight",
        "masked_lm.decoder_bias": "cls.predictions.bias",
    }
    modules = {
        "embeddings.norm": "bert.embeddings.LayerNorm",
        "masked_lm.dense": "cls.predictions.transform.dense",
        "masked_lm.norm": "cls.predictions.transform.LayerNorm",
    }
    for layer in range(num_layers):
        ours, theirs = f"layers.{layer}", f"bert.encoder.layer.{layer}"
        modules |= {
            f"{ours}.attention.out": f"{theirs}.attention.output.dense",
            f"{ours}.attention_norm": f"{theirs}.attention.output.LayerNorm",
            f"{ours}.feed_forward.up": f"{theirs}.intermediate.dense",
            f"{ours}.feed_forward.down": f"{theirs}.output.dense",
            f"{ours}.feed_forward_norm": f"{theirs}.output.LayerNorm",
        }
    if has_sentence_order:
        modules |= {
            "sentence_order.pooler": "bert.pooler.dense",
            "sentence_order.classifier": "cls.seq_relationship",
        }
    for ours, theirs in modules.items():
        pairs |= {f"{ours}.{kind}": f"{theirs}.{kind}" for kind in ("weight", "bias")}
    return pairs


def from_huggingface_state(state: Mapping[str, Tensor], config: AnyModelConfig) -> dict[str, Tensor]:
    pairs = _bert_pairs(config.num_layers, has_sentence_order="cls.seq_relationship.weight" in state)
    found = {ours: state[theirs] for ours, theirs in pairs.items()}
    for layer in range(config.num_layers):
        for kind in ("weight", "bias"):
            parts = [f"bert.encoder.layer.{layer}.attention.self.{name}.{kind}" for name in ("query", "key", "value")]
            found[f"layers.{layer}.attention.qkv.{kind}"] = torch.cat([state[name] for name in parts])
    return found


def huggingface_config(config: AnyModelConfig) -> dict[str, Any]:
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "intermediate_size": config.intermediate_size,
        "hidden_act": _HF_ACTIVATIONS[config.activation],
        "hidden_dropout_prob": config.hidden_dropout,
        "attention_probs_dropout_prob": config.attention_dropout,
        "max_position_embeddings": config.max_positions,
        "type_vocab_size": config.type_vocab_size,
        "layer_norm_eps": config.layer_norm_epsilon,
    }
