"""Matmul FLOPs of a training step, by the layers of a model on "meta"."""

from functools import cache
from typing import Any, cast

import torch
from torch import Tensor, nn

from pretrainkit.recipes.image_tokenizer.model_config import ImageTokenizerModelConfig


def forward_backward_flops(config: ImageTokenizerModelConfig, size: int) -> float:
    """Of one image of `size` x `size` pixels: 2 per multiply-add of linear layers, convolutions and attention over
    places, three times for forward and backward."""
    return _flops(config.model_dump_json(), size)


@cache
def _flops(config: str, size: int) -> float:
    from pretrainkit.recipes.image_tokenizer.model import ImageTokenizer

    model_config = ImageTokenizerModelConfig.model_validate_json(config)
    with torch.device("meta"):
        model: Any = ImageTokenizer(model_config).to("meta")
    total = 0.0

    def count(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        nonlocal total
        weight = cast(Tensor, module.weight)
        places = output.numel() / (output.shape[-1] if isinstance(module, nn.Linear) else output.shape[1])
        total += 2.0 * weight.numel() * places

    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d):
            module.register_forward_hook(count)
    side = model_config.grid if model_config.domain.kind == "features" else size
    grid = size // model_config.patch_size if model_config.domain.kind != "features" else side
    values = torch.zeros(1, model_config.domain.num_channels, side, side, device="meta")
    codes = torch.zeros(1, model_config.quantizer.width, grid, grid, device="meta")
    with torch.no_grad():
        model.to_latents(model.encoder(values))
        if model.from_codes is None:
            model.decoder(values, torch.zeros(1, device="meta"), codes)
        else:
            model.decoder(model.from_codes(codes))
    for coder in (model_config.encoder, model_config.decoder):
        if coder.kind == "vit":
            total += coder.num_layers * 4.0 * (size // model_config.patch_size) ** 4 * coder.hidden_size
    return 3 * total
