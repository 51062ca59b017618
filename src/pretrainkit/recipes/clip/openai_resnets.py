"""Import of OpenAI's ResNets (RN50, RN101, RN50x4, RN50x16, RN50x64) from files of OpenAI and open_clip, as image
encoders of timm, which compute the same.

Dimensions: E width of the embeddings, H width of the last feature map.
Source: Radford et al. 2021, https://arxiv.org/abs/2103.00020, section 2.4.
"""

import re
from collections.abc import Mapping

import torch
from torch import Tensor

from pretrainkit.errors import CheckpointError
from pretrainkit.recipes.clip.config import TimmConfig

FIRST = "visual.layer1.0.conv1.weight"
"""Name of a tensor by which these ResNets are recognized."""
_MODELS = {
    (32, (3, 4, 6, 3)): "resnet50_clip",
    (32, (3, 4, 23, 3)): "resnet101_clip",
    (40, (4, 6, 10, 6)): "resnet50x4_clip",
    (48, (6, 8, 18, 8)): "resnet50x16_clip",
    (64, (3, 15, 36, 10)): "resnet50x64_clip",
}
"""Maps (channels of the first convolution, blocks of each stage) to timm's name."""
_STRIDE = 32
_NAMES = (
    (r"^(conv|bn)([123])\.", lambda match: f"stem.conv{match[2]}.{match[1]}."),
    (r"^layer(\d)\.", lambda match: f"stages.{int(match[1]) - 1}."),
    (r"^(stages\.\d+\.\d+)\.(conv|bn)([13])\.", lambda match: f"{match[1]}.conv{match[3]}_1x1.{match[2]}."),
    (r"^(stages\.\d+\.\d+)\.(conv|bn)2\.", lambda match: f"{match[1]}.conv2_kxk.{match[2]}."),
    (r"\.downsample\.0\.", lambda _: ".shortcut.conv.conv."),
    (r"\.downsample\.1\.", lambda _: ".shortcut.conv.bn."),
    (r"^attnpool\.([qkv])_proj\.", lambda match: f"head.{match[1]}."),
    (r"^attnpool\.positional_embedding$", lambda _: "head.pos_embed"),
)
"""Replacements from OpenAI's names to timm's, applied in this order."""


def read_resnet(tensors: Mapping[str, Tensor]) -> tuple[TimmConfig, dict[str, Tensor], Tensor]:
    """Return the image tower, its tensors by our names, and the projection (E, H).

    OpenAI's projection has a bias, ours has none. The bias is moved to the bias of the values: attention weights sum to
    1, so this adds a constant to the output of attention, which the projection maps to the original bias.

    Args:
        tensors: Tensors of the whole model.

    Raises:
        CheckpointError: It is not one of the published ResNets.
    """
    visual = {name.removeprefix("visual."): tensor for name, tensor in tensors.items() if name.startswith("visual.")}
    matches = [re.match(r"layer(\d)\.(\d+)\.", name) for name in visual]
    blocks = {(int(match[1]), int(match[2])) for match in matches if match}
    sizes = len(visual["conv1.weight"]), tuple(sum(stage == number for stage, _ in blocks) for number in range(1, 5))
    if sizes not in _MODELS:
        raise CheckpointError(
            f"the image tower is a ResNet of {sizes[0]} channels and {sizes[1]} blocks, which timm does not have\n"
            f"  supported: {', '.join(_MODELS.values())}"
        )
    weight_EH, bias_E = visual.pop("attnpool.c_proj.weight"), visual.pop("attnpool.c_proj.bias")
    values = "attnpool.v_proj.bias"
    # The solution with the smallest norm, in float64, so that its error is invisible in float32.
    added_H = torch.linalg.lstsq(weight_EH.double(), bias_E.double()[:, None], driver="gelsd").solution[:, 0]
    visual[values] = (visual[values].double() + added_H).float()
    state = {f"image.encoder.{_timm_name(name)}": tensor for name, tensor in visual.items()}
    state = {name: tensor.long() if name.endswith("batches_tracked") else tensor for name, tensor in state.items()}
    side = round((len(visual["attnpool.positional_embedding"]) - 1) ** 0.5)
    tower = TimmConfig(
        name=_MODELS[sizes], pretrained=False, image_size=side * _STRIDE, options={"global_pool": "token"}
    )
    return tower, state, weight_EH


def _timm_name(name: str) -> str:
    for pattern, replace in _NAMES:
        name = re.sub(pattern, replace, name)
    return name
