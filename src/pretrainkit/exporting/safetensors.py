"""Tensors in safetensors files, which cannot execute code when they are read."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from pretrainkit.errors import CheckpointError
from pretrainkit.files.manifest import expected_form, read_object


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
        names = listed_parts(index)
    else:
        raise CheckpointError(
            f"{folder} has neither {single.name} nor {index.name}\n"
            "  copy the weights there; other formats are not supported: first save them with save_pretrained of "
            "transformers"
        )
    tensors: dict[str, Tensor] = {}
    for name in names:
        try:
            tensors |= load_file(folder / name)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{folder / name} cannot be read: {error}\n  copy it again") from None
    return tensors


def listed_parts(index: Path) -> list[str]:
    """Return the names of the files that an index of weights lists. Raises CheckpointError if one is not beside it, and
    DataError if the index is damaged."""
    with expected_form(index, "copy it again"):
        names = sorted(set(read_object(index, "copy it again")["weight_map"].values()))
        for name in names:
            if Path(name).name != name or not os.path.isfile(index.with_name(name)):
                raise CheckpointError(
                    f"{index} lists the part {name!r}, which is not in {index.parent}\n  copy all parts"
                )
    return names
