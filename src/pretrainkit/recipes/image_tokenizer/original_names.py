"""Names of the original's tensors and ours, both ways.

Source: sections 10.1 to 10.4 of the specification; `apple/ml-4m`.
"""

import re
from collections.abc import Mapping

import torch
from torch import Tensor

from pretrainkit.errors import CheckpointError
from pretrainkit.recipes.image_tokenizer.coders import grid_table
from pretrainkit.recipes.image_tokenizer.diffusion import UVIT_GRID
from pretrainkit.recipes.image_tokenizer.model import ImageTokenizer
from pretrainkit.recipes.image_tokenizer.model_config import ImageTokenizerModelConfig

State = Mapping[str, Tensor]

_TRANSFORMER = (
    ("layers.", "blocks."),
    ("attention_norm.", "norm1."),
    ("attention.qkv.", "attn.qkv."),
    ("attention.out.", "attn.proj."),
    ("feed_forward_norm.", "norm2."),
    ("feed_forward.up.", "mlp.fc1."),
    ("feed_forward.down.", "mlp.fc2."),
    ("last_mlp.norm.", "norm_mlp."),
    ("last_mlp.up.", "post_mlp.fc1."),
    ("last_mlp.down.", "post_mlp.fc2."),
)
_TIMED_UNET = {
    "norm_1": "in_layers.0",
    "convolution_1": "in_layers.2",
    "time": "emb_layers.1",
    "norm_2": "out_layers.0",
    "convolution_2": "out_layers.3",
    "skip": "skip_connection",
    "norm": "norm",
    "qkv": "qkv",
    "out": "proj_out",
    "convolution": "conv",
}
_TIMED_UVIT = {
    "norm_1": "norm1",
    "convolution_1": "conv1",
    "time": "time_emb_proj",
    "norm_2": "norm2",
    "convolution_2": "conv2",
    "skip": "conv_shortcut",
}
_LAYER_UVIT = {
    "attention_norm": "norm1",
    "feed_forward_norm": "norm2",
    "qkv": "attn.qkv",
    "out": "attn.proj",
    "up": "mlp.fc1",
    "down": "mlp.fc2",
    "modulation": "adaLN_modulation",
    "gate": "adaLN_gate",
}
_TOP_UNET = {"time_1": "time_embed.0", "time_2": "time_embed.2", "norm": "out.0", "out": "out.2"}
_TOP_UVIT = {
    "patch": "conv_in",
    "time_1": "time_embedding.linear_1",
    "time_2": "time_embedding.linear_2",
    "halve_middle": "downsample_mid.conv",
    "double_middle.convolution": "upsample_mid.conv",
    "told": "mid_block.mid_cond_proj",
    "into": "mid_block.mid_proj_in",
    "back": "mid_block.mid_proj_out",
    "norm": "conv_norm_out",
    "pixels": "conv_out",
}


def original_name(name: str, config: ImageTokenizerModelConfig) -> str:
    """The original's name of one of our tensors.

    Raises:
        CheckpointError: The original has no such part.
    """
    part, _, rest = name.partition(".")
    if part == "class_table":
        return f"cls_emb.{rest}"
    if part == "to_latents":
        return f"quant_proj.{rest}"
    if part == "from_codes":
        return f"post_quant_proj.{rest}"
    if part == "quantizer":
        return (
            "quantize."
            + {
                "codes_KD": "_codebook.embed",
                "use_K": "_codebook.cluster_size",
                "sums_KD": "_codebook.embed_avg",
                "is_ready": "_codebook.initted",
                "codes_HKE": "codes",
                "keys_HEE": "to_k.weight",
                "values_HEE": "to_v.weight",
            }[rest]
        )
    coder = config.encoder if part == "encoder" else config.decoder
    if coder.kind == "vit":
        return f"{part}.{_of_vit(rest, part)}"
    if coder.kind == "mlp":
        return f"{part}.{_of_mlp(rest)}"
    if coder.kind == "unet":
        return f"{part}.{_of_unet(rest)}"
    if coder.kind == "uvit":
        return f"{part}.{_of_uvit(rest)}"
    raise CheckpointError(f"the original has no {part} of kind {coder.kind!r}\n  use --format safetensors")


def to_original(model: ImageTokenizer) -> dict[str, Tensor]:
    """The original's state dict, with its tables of positions."""
    config = model.config
    found = {original_name(name, config): tensor for name, tensor in model.state_dict().items()}
    if "quantize._codebook.initted" in found:
        found["quantize._codebook.initted"] = found["quantize._codebook.initted"].float().reshape(1)
    for name, table in _positions(config).items():
        found[name] = table
    return found


def from_original(tensors: State, config: ImageTokenizerModelConfig) -> dict[str, Tensor]:
    """Our state dict of a model with this config.

    Raises:
        CheckpointError: Tensors are missing, or there are others.
    """
    with torch.device("meta"):
        names = list(ImageTokenizer(config).state_dict())
    theirs = {name: original_name(name, config) for name in names}
    extra = {name for name in tensors if name.startswith("pipeline.")} | _positions(config).keys()
    missing = sorted(set(theirs.values()) - tensors.keys())
    unexpected = sorted(tensors.keys() - set(theirs.values()) - extra)
    if missing or unexpected:
        raise CheckpointError(
            "the file is of another tokenizer\n"
            f"  missing: {', '.join(missing[:4]) or 'none'}\n  unexpected: {', '.join(unexpected[:4]) or 'none'}\n"
            "  give --config with the model it is of"
        )
    found = {name: tensors[other] for name, other in theirs.items()}
    if "quantizer.is_ready" in found:
        found["quantizer.is_ready"] = found["quantizer.is_ready"].reshape(()).bool()
    return found


def _positions(config: ImageTokenizerModelConfig) -> dict[str, Tensor]:
    found = {}
    for part, coder in (("encoder", config.encoder), ("decoder", config.decoder)):
        if coder.kind == "vit":
            found[f"{part}.pos_emb"] = grid_table(config.grid, config.grid, coder.hidden_size)
        elif coder.kind == "uvit":
            found[f"{part}.mid_block.mid_pos_emb"] = grid_table(UVIT_GRID, UVIT_GRID, coder.hidden_size)
    return found


def _of_vit(rest: str, part: str) -> str:
    for ours, theirs in _TRANSFORMER:
        rest = rest.replace(ours, theirs) if ours in rest else rest
    if part == "encoder":
        return re.sub(r"^patch\.", "proj.", rest)
    rest = re.sub(r"^out\.", "out_proj.", rest)
    match = re.fullmatch(r"convolutions\.(\d+)\.(.+)", rest)
    if match is None:
        return rest
    inner = match[2].replace("convolution.", "dwconv.").replace("up.", "pwconv1.").replace("down.", "pwconv2.")
    return f"out_conv.{match[1]}.{'gamma' if inner == 'scale' else inner}"


def _of_mlp(rest: str) -> str:
    match = re.fullmatch(r"layers\.(\d+)\.(norm|up|down)\.(\w+)", rest)
    if match is None:
        return rest.replace("first.", "linear_in.").replace("last.", "linear_out.")
    number, layer, leaf = match.groups()
    return (
        f"layernorms.{number}.{leaf}"
        if layer == "norm"
        else f"blocks.{number}.block.{0 if layer == 'up' else 2}.{leaf}"
    )


def _of_unet(rest: str) -> str:
    match = re.fullmatch(r"(down|middle|up)\.(.+)", rest)
    if match is None:
        part, leaf = rest.rsplit(".", 1)
        return f"{_TOP_UNET[part]}.{leaf}"
    side, inner = match.groups()
    places = re.match(r"[\d.]+", inner)
    assert places is not None
    numbers, layer = places[0].rstrip("."), inner[places.end() :]
    block = {"down": "input_blocks", "middle": "middle_block", "up": "output_blocks"}[side]
    if "." not in layer:  # a convolution itself: the first one, or one that halves
        return f"{block}.{numbers}.{layer}" if numbers == "0.0" else f"{block}.{numbers}.op.{layer}"
    name, leaf = layer.split(".")
    return f"{block}.{numbers}.{_TIMED_UNET[name]}.{leaf}"


def _of_uvit(rest: str) -> str:
    if rest == "mask_token":
        return "mid_block.mask_token"
    match = re.fullmatch(r"(down|up)\.(\d+)\.(\d+)\.(\w+)\.(\w+)", rest)
    if match is not None:
        side, level, number, layer, leaf = match.groups()
        return f"{side}_blocks.{level}.resnets.{number}.{_TIMED_UVIT[layer]}.{leaf}"
    match = re.fullmatch(r"layers\.(\d+)\.(\w+)\.(\w+)", rest)
    if match is not None:
        number, layer, leaf = match.groups()
        return f"mid_block.mid_block.{number}.{_LAYER_UVIT[layer]}.{leaf}"
    match = re.fullmatch(r"(halves|doubles)\.(\d+)\.(?:convolution\.)?(\w+)", rest)
    if match is not None:
        side = "down_blocks" if match[1] == "halves" else "up_blocks"
        sampler = "downsamplers" if match[1] == "halves" else "upsamplers"
        return f"{side}.{match[2]}.{sampler}.0.conv.{match[3]}"
    part, leaf = rest.rsplit(".", 1)
    return f"{_TOP_UVIT[part]}.{leaf}"
