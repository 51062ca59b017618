"""Export in pretrainkit's own format: a folder with config.yaml, pretrainkit.json, model.safetensors and tokenizer/,
which may hold a renderer. No pickle."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pretrainkit.config.yaml import dump_yaml
from pretrainkit.exporting.safetensors import write_tensors
from pretrainkit.exporting.settings import SETTINGS, shared_config, write_settings
from pretrainkit.files.outputs import new_folder
from pretrainkit.rendering.folder import copy_renderer, is_renderer
from pretrainkit.tokenizers.folder import copy_tokenizer

if TYPE_CHECKING:
    from torch import nn

    from pretrainkit.training.run import RunConfig

WEIGHTS = "model.safetensors"


def write_native(
    config: RunConfig, model: nn.Module, tokenizer: Path | None, out: Path, trained_length: int | None = None
) -> None:
    """Write a model with its config and its tokenizer or renderer to the new folder `out`. Raises InputError if `out`
    exists or cannot be written."""
    with new_folder(out) as folder:
        # open_clip finds the text encoder of an export by the path or name in the model's config.
        values = {**shared_config(config), "model": config.model.model_dump(mode="json")}
        (folder / "config.yaml").write_text(dump_yaml(values), encoding="utf-8")
        write_tensors(folder / WEIGHTS, model.state_dict())
        write_settings(folder / SETTINGS, config, trained_length)
        if tokenizer is not None and is_renderer(tokenizer):
            copy_renderer(tokenizer, folder / "tokenizer")
        elif tokenizer is not None:
            copy_tokenizer(tokenizer, folder / "tokenizer")
