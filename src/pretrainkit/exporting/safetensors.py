"""Tensors in safetensors files: read without running any code that others wrote."""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from pretrainkit.errors import CheckpointError


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Write contiguous copies on the CPU of `tensors` to one file; transformers asks for metadata {"format": "pt"}.
    Raises OSError where the file cannot be written."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    found = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    try:
        save_file(found, path, metadata={"format": "pt", **(metadata or {})})
    except SafetensorError as error:  # tells of a full disk in its own way
        number = re.search(r"os error (\d+)", str(error))
        raise (OSError(int(number[1]), os.strerror(int(number[1]))) if number else OSError(str(error))) from error


def read_tensors(folder: Path, stem: str = "model") -> dict[str, Tensor]:
    """All tensors of `stem`.safetensors, or of the parts that `stem`.safetensors.index.json lists. Raises
    CheckpointError where there is no such file, a part is missing, or one is broken."""
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
            "  weights in other formats are not read: save them with transformers' save_pretrained first"
        )
    found: dict[str, Tensor] = {}
    for name in names:
        if Path(name).name != name or not (folder / name).is_file():
            raise CheckpointError(f"{index} names the part {name!r}, which is not in {folder}\n  copy all parts")
        try:
            found |= load_file(folder / name)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{folder / name} cannot be read: {error}\n  copy it again") from None
    return found
