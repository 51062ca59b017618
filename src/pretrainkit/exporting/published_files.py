"""Files of published models: weights as safetensors, with a config in the header or beside them, or a checkpoint of
training.

Source: section 3.14 of the specification; the hub's format of `apple/ml-4m`.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from pretrainkit.errors import CheckpointError, InputError
from pretrainkit.exporting.folder import new_file
from pretrainkit.exporting.safetensors import write_tensors

_WEIGHTS = "model.safetensors"
_LONGEST = 10_000
"""Longer texts of a header are not parsed, as in the original."""


def write_published(path: Path, tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> None:
    """Write a `.safetensors` file with the config in its header, whole or not at all.

    Raises:
        InputError: `path` exists or is named otherwise.
    """
    if path.suffix != ".safetensors":
        raise InputError(f"{path.name} ends in {path.suffix!r}\n  give a file whose name ends in .safetensors")
    with new_file(path) as aside:
        write_tensors(aside, tensors, {name: str(value) for name, value in config.items()})


def read_published(path: Path, marker: str, *, needs_config: bool) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """float32 weights by their names there, and the config; empty where there is none.

    Args:
        path: A `.safetensors` file, a folder with `model.safetensors`, or a checkpoint of training (`.pth`), of which
            nothing is executed.
        marker: A key that every config has; without it in the header, `config.json` beside the file is read.
        needs_config: Whether to refuse what has no config.

    Raises:
        CheckpointError: It cannot be read, or does not say what it is.
    """
    file = path / _WEIGHTS if path.is_dir() else path
    if file.suffix == ".safetensors":
        tensors, header = _read_safetensors(file)
    else:
        tensors, header = read_pickle(file, ("model",), "a model.safetensors or checkpoint-final.pth"), {}
    beside = path / "config.json" if path.is_dir() else path.with_name("config.json")
    if marker not in header and beside.is_file():
        header = _read_json(beside)
    if needs_config and marker not in header:
        raise CheckpointError(
            f"{path} does not say which model it is: neither its header nor a config.json beside it has {marker}\n"
            "  give --config with the model"
        )
    return {name: tensor.float() for name, tensor in tensors.items()}, header


def _read_safetensors(file: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="pt") as content:
            header = {name: _parsed(text) for name, text in (content.metadata() or {}).items()}
            return {name: content.get_tensor(name) for name in content.keys()}, header  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"{file} cannot be read: {error}\n  give the file or folder of a model, copied whole"
        ) from None


def _parsed(text: str) -> Any:
    """A value of the header as the original reads it."""
    import yaml

    if len(text) > _LONGEST:
        return text
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        return text
    return None if value == "None" else value


def _read_json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}\n  copy it again") from None
    if not isinstance(values, dict):
        raise CheckpointError(f"{path} holds no table of settings\n  copy it again")
    return values


def read_pickle(file: Path, keys: Sequence[str], wanted: str) -> dict[str, Tensor]:
    """The weights of a training checkpoint, maybe under one of `keys`. Nothing in it is executed.

    Raises:
        CheckpointError: It is no such file, of which `wanted` is an example.
    """
    import argparse

    import torch

    try:
        with torch.serialization.safe_globals([argparse.Namespace]):
            content = torch.load(file, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise CheckpointError(f"there is no file {file}\n  give {wanted}") from None
    except Exception as error:  # torch raises what the pickle's bytes provoke
        raise CheckpointError(
            f"{file} cannot be read without running what it holds: {str(error).splitlines()[0][:200]}\n"
            "  copy it again; if you trust who made it, save its weights alone with torch.save"
        ) from None
    found = content
    if isinstance(content, Mapping):
        found = next((content[key] for key in keys if isinstance(content.get(key), Mapping)), content)
    if not isinstance(found, Mapping) or not all(isinstance(value, Tensor) for value in found.values()):
        raise CheckpointError(
            f"{file} holds no weights: none of {', '.join(keys)} is a table of tensors\n  give {wanted}"
        )
    return dict(found)
