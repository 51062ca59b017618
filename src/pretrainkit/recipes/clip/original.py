"""Import and export of checkpoints of ZeroVL, with a timm image tower, a transformers text tower and two projections.

Dimensions: G patches along a side, D width.
"""

import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pretrainkit.errors import CheckpointError, InputError
from pretrainkit.exporting.published_files import read_pickle
from pretrainkit.recipes.clip.architecture import bind_model
from pretrainkit.recipes.clip.config import ClipRun, HuggingFaceTextConfig, TimmConfig
from pretrainkit.recipes.clip.foreign_towers import HuggingFaceTower
from pretrainkit.recipes.clip.model import DualEncoder, with_temperature

logger = logging.getLogger(__name__)

State = Mapping[str, Tensor]

_PREFIXES = {"image.encoder.": "image_encoder.model.model.", "text.encoder.": "text_encoder.model.model."}
"""Maps our prefixes to those of the original."""
_TEMPERATURE = "loss.temperature"
_POSITIONS = "image.encoder.pos_embed"
_LEFTOVERS = ("image_encoder.model.model.pre_logits.", "text_encoder.model.model.embeddings.position_ids")
"""Prefixes of tensors in files of older libraries that are never read."""


def read_original(path: Path) -> dict[str, Tensor]:
    """Return the weights of a checkpoint file by the original's names, without the prefix `module.`. Code in the file
    is never executed. Raises CheckpointError if it is unreadable or has no weights."""
    keys = ("state_dict", "model_state_dict", "model")
    weights = read_pickle(path, keys, "a checkpoint of ZeroVL, such as zerovl_14m.pth")
    return {name.removeprefix("module."): tensor for name, tensor in weights.items()}


def to_original(model: DualEncoder) -> dict[str, Tensor]:
    """Return our weights by the original's names. A learned temperature has the shape (). Raises InputError if the
    model has parts that the original does not support."""
    if isinstance(model.text, HuggingFaceTower) and model.text.pool_token == "mean":
        raise InputError("ZeroVL reads captions from one token, not their mean\n  use --format safetensors")
    converted: dict[str, Tensor] = {}
    for name, tensor in with_temperature(model.state_dict(), "parameter").items():
        prefix = next((ours for ours in _PREFIXES if name.startswith(ours)), None)
        if prefix is not None:
            converted[_PREFIXES[prefix] + name.removeprefix(prefix)] = tensor
        elif name in ("image_projection.linear.weight", "text_projection.linear.weight"):
            converted[name] = tensor
        elif name == "temperature.temperature":
            converted[_TEMPERATURE] = tensor.reshape(())
        else:
            raise InputError(f"ZeroVL has no counterpart of {name}\n  its models have linear projections without bias")
    return converted


def write_original(model: DualEncoder, out: Path) -> None:
    """Write the weights to a checkpoint file for the original's `ckpt.external_resume`. Raises InputError if the model
    has parts that the original does not support, or the name of `out` has the wrong suffix."""
    if out.suffix not in (".pth", ".pt"):
        raise InputError(f"{out.name} ends in {out.suffix!r}\n  choose a file name that ends in .pth")
    torch.save({"state_dict": to_original(model)}, out)


def from_original(tensors: State, model: DualEncoder) -> dict[str, Tensor]:
    """Return the original's weights as the state dict of `model` (maybe on "meta"). Positions are interpolated to its
    image size. Unused tensors of older libraries are logged and left out. Raises CheckpointError if tensors are
    missing, unknown, or have another shape."""
    own = model.state_dict()
    if leftovers := [name for name in tensors if name.startswith(_LEFTOVERS)]:
        logger.warning("left out tensors that are never read: %s", ", ".join(leftovers))
    weights = {
        _our_name(name): tensor.reshape(1) if name == _TEMPERATURE else tensor
        for name, tensor in tensors.items()
        if name not in leftovers
    }
    if "temperature.log_scale" in own:
        weights = with_temperature(weights, "log_parameter")
    if _POSITIONS in own and _POSITIONS in weights:
        num_tokens = own[_POSITIONS].shape[1]
        weights[_POSITIONS] = interpolate_positions(weights[_POSITIONS], num_tokens)
    _require_same(own, weights)
    return weights


def _our_name(name: str) -> str:
    for ours, theirs in _PREFIXES.items():
        if name.startswith(theirs):
            return ours + name.removeprefix(theirs)
    return "temperature.temperature" if name == _TEMPERATURE else name


def _require_same(own: State, given: State) -> None:
    missing, unknown = sorted(own.keys() - given.keys()), sorted(given.keys() - own.keys())
    unlike = [name for name in own.keys() & given.keys() if own[name].shape != given[name].shape]
    problems = [f"it lacks {len(missing)} tensors, such as {', '.join(missing[:3])}"] if missing else []
    problems += (
        [f"{len(unknown)} tensors are unknown to the model, such as {', '.join(unknown[:3])}"] if unknown else []
    )
    problems += [f"{name}: {list(given[name].shape)}, model {list(own[name].shape)}" for name in sorted(unlike)[:3]]
    if problems:
        raise CheckpointError(
            "the checkpoint belongs to another model\n  "
            + "\n  ".join(problems)
            + "\n  give the config of its training: --config clip/zerovl-14m, or a file with other towers"
        )


def interpolate_positions(positions_1TD: Tensor, num_tokens: int) -> Tensor:
    """Interpolate learned positions to another image size: (1, T, D) to (1, num_tokens, D). The grid is resized
    bicubically; the tokens before it, such as the class token, do not change. Raises CheckpointError if the patches are
    not a square grid."""
    _, given, width = positions_1TD.shape
    if given == num_tokens:
        return positions_1TD
    for num_extra in (1, 2, 0):  # class token; class and distillation token, as in DeiT; neither
        old, new = math.isqrt(given - num_extra), math.isqrt(num_tokens - num_extra)
        if old**2 == given - num_extra and new**2 == num_tokens - num_extra:
            break
    else:
        raise CheckpointError(
            f"{given} positions cannot be interpolated to {num_tokens}: these are not square grids\n  use square images"
        )
    grid_1DGG = positions_1TD[:, num_extra:].reshape(1, old, old, width).permute(0, 3, 1, 2)
    resized_1DGG = F.interpolate(grid_1DGG, size=(new, new), mode="bicubic", align_corners=False)
    patches_1PD = resized_1DGG.permute(0, 2, 3, 1).reshape(1, new**2, width)
    return torch.cat((positions_1TD[:, :num_extra], patches_1PD), dim=1)


def import_original(path: Path, config: ClipRun) -> tuple[ClipRun, dict[str, Tensor]]:
    """Return `config` with the temperature and the width of embeddings of a checkpoint file, and its state
    dict. Raises InputError if the towers of `config` are not of timm and transformers, CheckpointError if the file is
    broken, or belongs to other towers."""
    if not isinstance(config.model.image, TimmConfig) or not isinstance(config.model.text, HuggingFaceTextConfig):
        raise InputError(
            f"a checkpoint of ZeroVL has towers of timm and transformers, not {config.model.image.kind} and "
            f"{config.model.text.kind}\n  give a config of the clip recipe with such towers: --config clip/zerovl-14m"
        )
    tensors = read_original(path)
    config = bind_model(_with_file(config, tensors))
    with torch.device("meta"):
        empty = DualEncoder(config)
    return config, from_original(tensors, empty)


def _with_file(config: ClipRun, tensors: State) -> ClipRun:
    """Return the config with the settings of the file: kind of the temperature, width of the embeddings."""
    updates: dict[str, Any] = {"image": {"pretrained": False}, "text": {"pretrained": False}}
    updates["temperature"] = {"kind": "constant"}
    if _TEMPERATURE in tensors:
        kind = config.model.temperature.kind
        value = tensors[_TEMPERATURE].item()
        updates["temperature"] = {"kind": "parameter" if kind == "constant" else kind, "value": value}
    if "image_projection.linear.weight" in tensors:
        updates["projection"] = {"dim": len(tensors["image_projection.linear.weight"])}
    return config.changed(model=updates)
