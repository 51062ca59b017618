"""Our own export: config.yaml, model.safetensors and tokenizer/ in one folder. No pickle."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pretrainkit.config.yaml import dump_yaml
from pretrainkit.errors import DataError

if TYPE_CHECKING:
    from torch import Tensor, nn

WEIGHTS = "model.safetensors"


def write_native(config: Any, model: nn.Module, tokenizer: Path | None, out: Path) -> None:
    """Write a model with its config and tokenizer into the existing folder `out`."""
    from safetensors.torch import save_model

    (out / "config.yaml").write_text(dump_yaml(config.model_dump(mode="json")), encoding="utf-8")
    save_model(model, str(out / WEIGHTS))
    if tokenizer is not None:
        shutil.copytree(tokenizer, out / "tokenizer")


def read_weights(path: Path) -> dict[str, Tensor]:
    """All tensors of a safetensors file, on CPU. Raises DataError when it is missing or broken."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise DataError(f"cannot read the weights in {path}\n  {error}\n  export them again") from None
