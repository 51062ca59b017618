"""Tensors in safetensors files, which cannot execute code when they are read."""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from pretrainkit.errors import CheckpointError


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Write contiguous CPU copies of `tensors` to one file; transformers requires the metadata {"format": "pt"}.
    Raises OSError if the file cannot be written."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    copies = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    try:
        save_file(copies, path, metadata={"format": "pt", **(metadata or {})})
    except SafetensorError as error:  # its message contains the OS error, such as a full disk
        number = re.search(r"os error (\d+)", str(error))
        raise (OSError(int(number[1]), os.strerror(int(number[1]))) if number else OSError(str(error))) from error


def read_tensors(folder: Path, stem: str = "model") -> dict[str, Tensor]:
    """Return all tensors of `stem`.safetensors, or of the parts that `stem`.safetensors.index.json lists. Raises
    CheckpointError if neither file exists, or a part is missing or damaged."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    single, index = folder / f"{stem}.safetensors", folder / f"{stem}.safetensors.index.json"
    if single.is_file():
        names = [single.name]
    elif index.is_file():
        names = sorted(set(json.loads(index.read_text("utf-8"))["weight_map"].values()))
    else:
        raise CheckpointError(
            f"{folder} has neither {single.name} nor {index.name}\n"
            "  copy the weights there; other formats are not supported: first save them with save_pretrained of "
            "transformers"
        )
    tensors: dict[str, Tensor] = {}
    for name in names:
        if Path(name).name != name or not (folder / name).is_file():
            raise CheckpointError(f"{index} lists the part {name!r}, which is not in {folder}\n  copy all parts")
        try:
            tensors |= load_file(folder / name)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{folder / name} cannot be read: {error}\n  copy it again") from None
    return tensors
