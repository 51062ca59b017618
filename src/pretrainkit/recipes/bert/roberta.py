"""Read RoBERTa, CamemBERT and XLM-RoBERTa as BERT models. They differ in names, in their positions, which start at the
row after the padding id's, and in having only one segment.

Source: Liu et al. 2019, https://arxiv.org/abs/1907.11692, as transformers stores it.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from pretrainkit.errors import CheckpointError
from pretrainkit.exporting.transformers_folder import BY_TRANSFORMERS, only

MODEL_TYPES = ("roberta", "camembert", "xlm-roberta")
_POSITIONS = "bert.embeddings.position_embeddings.weight"
_SEGMENTS = "bert.embeddings.token_type_embeddings.weight"
_HEAD = {
    "lm_head.dense.": "cls.predictions.transform.dense.",
    "lm_head.layer_norm.": "cls.predictions.transform.LayerNorm.",
    "lm_head.decoder.": "cls.predictions.decoder.",
    "lm_head.bias": "cls.predictions.bias",
}
_NUM_SEGMENTS = 2


def as_bert_config(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `config.json` of the equivalent BERT. Raises CheckpointError if there is none."""
    only(values, {"hidden_act": "gelu", "type_vocab_size": 1, "pad_token_id": 1}, BY_TRANSFORMERS)
    num_positions = values.get("max_position_embeddings", 514) - _first_position(values)
    rest = {"hidden_act": "gelu", "max_position_embeddings": num_positions, "type_vocab_size": _NUM_SEGMENTS}
    return {"layer_norm_eps": 1e-12, **values, "model_type": "bert", **rest}


def as_bert_state(state: Mapping[str, Tensor], values: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the tensors of a folder with this `config.json` under BERT's names. Both segments get the same embedding,
    so that pairs of texts give equal results. Raises CheckpointError if the embeddings are missing."""
    has_prefix = any(name.startswith("roberta.") for name in state)
    tensors = {_bert_name(name, has_prefix=has_prefix): tensor for name, tensor in state.items()}
    if missing := {_POSITIONS, _SEGMENTS} - tensors.keys():
        raise CheckpointError(f"the weights have no {' and no '.join(sorted(missing))}\n  copy the folder again")
    tensors[_POSITIONS] = tensors[_POSITIONS][_first_position(values) :]
    tensors[_SEGMENTS] = tensors[_SEGMENTS].expand(_NUM_SEGMENTS, -1)
    return tensors


def _first_position(values: Mapping[str, Any]) -> int:
    return values.get("pad_token_id", 1) + 1


def _bert_name(name: str, *, has_prefix: bool) -> str:
    for theirs, ours in _HEAD.items():
        if name.startswith(theirs):
            return ours + name.removeprefix(theirs)
    if has_prefix:
        return "bert." + name.removeprefix("roberta.") if name.startswith("roberta.") else name
    return f"bert.{name}"
