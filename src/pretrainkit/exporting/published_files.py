"""Files of published models: weights as safetensors, with the config in the header or in a file beside them, or a
training checkpoint.

Source: the hub's format of `apple/ml-4m`.
"""

import math
import pickle
import re
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from zipfile import ZIP_STORED, BadZipFile, ZipFile, is_zipfile

import torch
from torch import Tensor

from pretrainkit.errors import CheckpointError, InputError
from pretrainkit.exporting.safetensors import listed_parts, read_tensors, write_tensors
from pretrainkit.files.manifest import read_object
from pretrainkit.files.outputs import new_file

_WEIGHTS = "model.safetensors"
_PICKLED = "pytorch_model"
_LONGEST = 10_000
"""Maximum number of characters of a header value that is parsed, as in the original."""


def write_published(path: Path, tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> None:
    """Write a `.safetensors` file with the config in its header. After an error there is no file.

    Raises:
        InputError: `path` exists or does not end in `.safetensors`.
    """
    if path.suffix != ".safetensors":
        raise InputError(f"{path.name} ends in {path.suffix!r}\n  choose a file name that ends in .safetensors")
    with new_file(path) as aside:
        write_tensors(aside, tensors, {name: str(value) for name, value in config.items()})


def read_published(path: Path, marker: str, *, needs_config: bool) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the weights as float32 under their names in the file, and the config, which is empty if there is none.

    Args:
        path: A `.safetensors` file, a folder with `model.safetensors`, or a training checkpoint (`.pth`), whose code
            is never executed.
        marker: A key that every config has; without it in the header, `config.json` beside the file is read.
        needs_config: True to refuse files without a config.

    Raises:
        CheckpointError: The file cannot be read, or a required config is missing.
    """
    file = path / _WEIGHTS if path.is_dir() else path
    if file.suffix == ".safetensors":
        tensors, header = _read_safetensors(file)
    else:
        tensors, header = read_pickle(file, ("model",), "a model.safetensors or checkpoint-final.pth"), {}
    beside = path / "config.json" if path.is_dir() else path.with_name("config.json")
    if marker not in header and beside.is_file():
        header = read_object(beside, "copy it again")
    if needs_config and marker not in header:
        raise CheckpointError(
            f"{path} has no model config: neither its header nor a config.json beside it has {marker}\n"
            "  pass the config of the model with --config"
        )
    return {name: tensor.float() for name, tensor in tensors.items()}, header


def _read_safetensors(file: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="pt") as content:
            metadata = content.metadata() or {}
            tensors = {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:  # ValueError: a name that is not UTF-8
        raise CheckpointError(
            f"{file} cannot be read: {error}\n  it may be incomplete: copy it again, or pass another file or folder"
        ) from None
    # `safetensors.torch.save_model` writes a shared tensor once; the header maps its other names to that one.
    tensors |= {name: tensors[kept] for name, kept in metadata.items() if kept in tensors}
    return tensors, {name: _parsed(text) for name, text in metadata.items()}


def _parsed(text: str) -> Any:
    """Parse a header value as the original does."""
    import yaml

    if len(text) > _LONGEST:
        return text
    try:
        value = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        return text
    return None if value == "None" else value


def read_saved(folder: Path) -> dict[str, Tensor]:
    """Return the weights that transformers saved in a folder: those of safetensors files, or else of
    pytorch_model.bin and its parts, of which only tensors are unpickled. Raises CheckpointError."""
    single, index = folder / f"{_PICKLED}.bin", folder / f"{_PICKLED}.bin.index.json"
    if any(folder.glob("*.safetensors")) or not (single.is_file() or index.is_file()):
        return read_tensors(folder)
    tensors: dict[str, Tensor] = {}
    for name in [single.name] if single.is_file() else listed_parts(index):
        tensors |= read_pickle(folder / name, ("state_dict",), "the weights that transformers saved")
    return tensors


def read_pickle(file: Path, keys: Sequence[str], expected: str) -> dict[str, Tensor]:
    """Return the weights of a training checkpoint, which may be under one of `keys`. No code in the file is executed.

    Raises:
        CheckpointError: The file is not a checkpoint with weights. The message suggests `expected` instead.
    """
    import argparse

    try:
        with torch.serialization.safe_globals([argparse.Namespace]):
            content = torch.load(file, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise CheckpointError(f"there is no file {file}\n  pass {expected}") from None
    except Exception as error:  # damaged pickles raise exceptions of any type
        code = re.search(r"GLOBAL ([\w.]+)", str(error))
        reason = f"it calls {code[1]}" if code else "it is damaged, or holds more than tensors"
        raise CheckpointError(
            f"{file} cannot be read without executing code in it: {reason}\n"
            "  copy it again; if you trust its author, save only its weights with torch.save"
        ) from None
    weights = content
    if isinstance(content, Mapping):
        weights = next((content[key] for key in keys if isinstance(content.get(key), Mapping)), content)
    if not isinstance(weights, Mapping) or not all(isinstance(value, Tensor) for value in weights.values()):
        raise CheckpointError(
            f"{file} has no weights: none of {', '.join(keys)} is a mapping of tensors\n  pass {expected}"
        )
    for name, value in weights.items():
        if value.layout is not torch.strided or value.numel() * value.element_size() > value.untyped_storage().nbytes():
            raise CheckpointError(
                f"{file}: the tensor {name!r} repeats its elements, which no trained weights do\n  pass {expected}"
            )
    return dict(weights)


_STORAGES = {
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "BoolStorage": torch.bool,
}


def is_torchscript(file: Path) -> bool:
    """Return True if a file is a program of `torch.jit.save`, the format of OpenAI's CLIP."""
    if not is_zipfile(file):
        return False
    try:
        with ZipFile(file) as archive:
            return any(name.endswith("/constants.pkl") for name in archive.namelist())
    except (BadZipFile, ValueError, NotImplementedError):  # a damaged archive, which the other reader reports
        return False


def read_torchscript(file: Path) -> dict[str, Tensor]:
    """Return the tensors of a TorchScript program by their names in its state dict. The program is neither compiled nor
    executed: only its tensors are read.

    Raises:
        CheckpointError: The file is damaged, or has objects other than modules and tensors.
    """
    try:
        with ZipFile(file) as archive:
            names = (name for name in archive.namelist() if name.endswith("/data.pkl"))
            root = next(names).removesuffix("data.pkl")
            read = (entry for entry in archive.infolist() if entry.filename.startswith((f"{root}data", f"{root}const")))
            if any(entry.compress_type != ZIP_STORED for entry in read):  # torch compresses only code
                raise ValueError("its tensors are compressed, which torch.jit.save does not do")
            return dict(_tensors_of(_TorchScriptReader(archive, root).load()))
    except Exception as error:  # damaged pickles and archives raise exceptions of any type
        raise CheckpointError(f"{file} cannot be read: {str(error)[:200]}\n  copy it again") from None


class _Module:
    """Replaces a class of the program. Its attributes are the parameters and submodules."""


class _TorchScriptReader(pickle.Unpickler):
    """Reads modules and tensors, and refuses everything else."""

    def __init__(self, archive: ZipFile, root: str) -> None:
        super().__init__(archive.open(f"{root}data.pkl"))
        self._archive, self._root = archive, root

    def find_class(self, module: str, name: str) -> Any:
        if module.startswith("__torch__"):
            return _Module
        if module == "torch" and name in _STORAGES:
            return _STORAGES[name]
        known = {("collections", "OrderedDict"): OrderedDict, ("torch._utils", "_rebuild_tensor_v2"): _tensor}
        if (module, name) not in known:
            raise pickle.UnpicklingError(f"it has an object of the unknown kind {module}.{name}")
        return known[module, name]

    def persistent_load(self, pid: Any) -> Tensor:
        _, dtype, key, _, num = pid
        return torch.frombuffer(bytearray(self._archive.read(f"{self._root}data/{key}")), dtype=dtype, count=num)


def _tensor(storage: Tensor, offset: int, size: Sequence[int], stride: Sequence[int], *_: Any) -> Tensor:
    if math.prod(size) > storage.numel():
        raise ValueError(f"a tensor of {list(size)} repeats its elements")
    return storage.as_strided(size, stride, offset).clone()


def _tensors_of(module: Any, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    for name, value in vars(module).items():
        if isinstance(value, Tensor):
            yield prefix + name, value
        elif isinstance(value, _Module):
            yield from _tensors_of(value, f"{prefix}{name}.")
