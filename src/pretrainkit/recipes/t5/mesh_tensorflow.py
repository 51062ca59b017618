"""Variables of Mesh TensorFlow's T5 in the names of T5X. Shapes are equal, name by name.

Source: https://github.com/google-research/t5x/blob/main/t5x/checkpoint_importer.py.
"""

import re
from collections.abc import Iterable

from pretrainkit.errors import CheckpointError

_SLOT = re.compile(r"_slot_(?:vr|vc|v|m)$")
_STACK = r"(?P<stack>encoder|decoder|transformer)"
_LAYER = rf"{_STACK}/block_(?P<block>\d+)/layer_(?P<layer>\d+)"
_ATTENTION = re.compile(rf"{_LAYER}/(?P<kind>SelfAttention|EncDecAttention)/(?P<part>[qkvo])")
_BIAS = re.compile(rf"{_LAYER}/SelfAttention/relative_attention_bias")
_FEED_FORWARD = re.compile(rf"{_LAYER}/DenseReluDense/(?P<part>wi|wi_\d+|wo)/kernel")
_NORM = re.compile(rf"{_LAYER}/(?:layer|rms)_norm/scale")
_FINAL_NORM = re.compile(rf"{_STACK}/(?:final_layer|rms)_norm/scale")
_LOGITS = re.compile(r"(?:decoder|transformer)/logits/kernel")
_PARTS = {"q": "query", "k": "key", "v": "value", "o": "out"}
_NORMS = {
    "encoder": ("attention", "mlp"),
    "decoder": ("self_attention", "cross_attention", "mlp"),
    "transformer": ("self_attention", "mlp"),
}


def names(variables: Iterable[str]) -> dict[str, str]:
    """T5X's name of each variable that is a parameter; the optimizer's slots and the step are left out. Raises
    CheckpointError where a variable has no place in a T5."""
    given = [name for name in variables if not _SLOT.search(name) and name != "global_step"]
    tables = [name for name in given if _BIAS.fullmatch(name)]
    bias_per_layer = any("/block_000/" not in name for name in tables)
    found = {name: _name(name, bias_per_layer) for name in given}
    unknown = sorted(name for name, theirs in found.items() if theirs is None)
    if unknown:
        raise CheckpointError(
            f"{len(unknown)} variables are none of a T5, such as {', '.join(unknown[:3])}\n"
            "  give a checkpoint of T5 1.0, 1.1, mT5 or ByT5"
        )
    return {name: theirs for name, theirs in found.items() if theirs is not None}


def _name(name: str, bias_per_layer: bool) -> str | None:
    if name == "shared/embedding":
        return "token_embedder/embedding"
    if _LOGITS.fullmatch(name):
        return "decoder/logits_dense/kernel"
    if found := _FINAL_NORM.fullmatch(name):
        return f"{_tower(found)}/{_tower(found)}_norm/scale"
    for pattern in (_ATTENTION, _BIAS, _FEED_FORWARD, _NORM):
        if found := pattern.fullmatch(name):
            return _in_layer(pattern, found, bias_per_layer)
    return None


def _in_layer(pattern: re.Pattern[str], found: re.Match[str], bias_per_layer: bool) -> str | None:
    layer = f"{_tower(found)}/layers_{int(found['block'])}"
    if pattern is _BIAS:
        return f"{layer if bias_per_layer else _tower(found)}/relpos_bias/rel_embedding"
    if pattern is _FEED_FORWARD:
        return f"{layer}/mlp/{found['part']}/kernel"
    if pattern is _NORM:
        parts = _NORMS[found["stack"]]
        number = int(found["layer"])
        return f"{layer}/pre_{parts[number]}_layer_norm/scale" if number < len(parts) else None
    own = "attention" if found["stack"] == "encoder" else "self_attention"
    kind = "encoder_decoder_attention" if found["kind"] == "EncDecAttention" else own
    return f"{layer}/{kind}/{_PARTS[found['part']]}/kernel"


def _tower(found: re.Match[str]) -> str:
    return "decoder" if found["stack"] == "transformer" else found["stack"]
