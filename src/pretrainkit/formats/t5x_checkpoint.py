"""Read checkpoints of T5X and of Orbax, which newer versions of T5X use. TensorStore reads their arrays.

T5X writes a folder with the MessagePack file `checkpoint`. Small arrays are in that file. For a large array, the file
has a TensorStore spec, and the array is in a folder next to it, named by the path with dots:
`target.encoder.layers_0.attention.query.kernel`. Version 2 stored bfloat16 as uint16.

Orbax writes `checkpoint_1000/state/` with all arrays in one OCDBT store (`manifest.ocdbt` and data files), or in one
folder per array. A spec may name any path, so it is never opened directly: only folders of the checkpoint are opened.

Sources: https://github.com/google-research/t5x/blob/main/t5x/checkpoints.py,
https://orbax.readthedocs.io/en/latest/guides/checkpoint/checkpoint_format.html.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretrainkit.errors import CheckpointError, import_optional
from pretrainkit.formats.flax_file import read_flax
from pretrainkit.formats.tf_messages import from_bfloat16

_STEP = re.compile(r"checkpoint_(\d+)")
_MANIFEST, _ZARRAY = "manifest.ocdbt", ".zarray"
_UNREADABLE = (ValueError, KeyError, OSError, NotImplementedError)
"""Exceptions that TensorStore raises for damaged files, and for formats that it does not support."""


class T5xCheckpoint(Mapping[str, NDArray[Any]]):
    """The arrays of a checkpoint by path, such as `target/encoder/encoder_norm/scale` or `state/step`. An array is read
    when it is accessed. bfloat16 is converted to float32.
    """

    def __init__(self, folder: Path, leaves: dict[str, Any], *, may_pack_bfloat16: bool) -> None:
        """`leaves`: arrays and numbers by path, or the TensorStore specs of the places where they are stored."""
        self.folder, self._leaves, self._may_pack_bfloat16 = folder, leaves, may_pack_bfloat16

    def __iter__(self) -> Iterator[str]:
        return iter(self._leaves)

    def __len__(self) -> int:
        return len(self._leaves)

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Read an array. Raises KeyError if there is none, and CheckpointError if its file is missing or damaged."""
        leaf = self._leaves[name]
        try:
            array = np.asarray(_read_zarr(leaf) if isinstance(leaf, dict) else leaf)
        except _UNREADABLE as error:
            raise _damaged(f"{name} of {self.folder}", error) from error
        return from_bfloat16(array) if self._may_pack_bfloat16 and array.dtype == np.uint16 else array


def open_t5x(path: Path) -> T5xCheckpoint:
    """Open a checkpoint that T5X or Orbax wrote. `path` is the folder `checkpoint_1000000`, a file in it, or a run's
    folder, whose newest checkpoint is opened. Raises CheckpointError if there is none or it is damaged, and
    MissingPackageError if TensorStore is needed but not installed."""
    if path.is_file():
        return open_t5x(path.parent)
    for folder in (path, path / "state"):
        if (folder / "checkpoint").is_file():
            tree = read_flax(folder / "checkpoint")
            if not isinstance(tree, dict) or "optimizer" not in tree:
                raise CheckpointError(
                    f"{folder / 'checkpoint'} is not a T5X checkpoint: it has no 'optimizer'\n"
                    "  files of other systems are read with another --format"
                )
            try:
                leaves = dict(_leaves(tree["optimizer"], (), folder))
            except (AttributeError, TypeError, ValueError, OSError) as error:  # a path of another type, or too long
                raise _damaged(str(folder / "checkpoint"), error) from error
            return T5xCheckpoint(folder, leaves, may_pack_bfloat16=True)
        if (folder / _MANIFEST).is_file():
            return T5xCheckpoint(folder, _ocdbt_leaves(folder), may_pack_bfloat16=False)
        if arrays := sorted(folder.glob(f"*/{_ZARRAY}")):
            leaves = {file.parent.name.replace(".", "/"): _file_spec(file.parent) for file in arrays}
            return T5xCheckpoint(folder, leaves, may_pack_bfloat16=False)
    folders = path.glob("checkpoint_*")
    steps = {int(match[1]): folder for folder in folders if (match := _STEP.fullmatch(folder.name))}
    if not steps:
        raise CheckpointError(
            f"{path} is not a T5X checkpoint: it has no file `checkpoint` or `{_MANIFEST}`, and no folders "
            "`checkpoint_STEP`\n  give the complete folder of one step"
        )
    return open_t5x(steps[max(steps)])


def _leaves(tree: Any, path: tuple[str, ...], folder: Path) -> Iterator[tuple[str, Any]]:
    if isinstance(tree, (int, float, np.ndarray)):
        yield "/".join(path), tree
    elif isinstance(tree, dict) and "driver" in tree and ("kvstore" in tree or "path" in tree):
        # The path before the last name was on the machine that wrote the checkpoint.
        where = tree.get("kvstore", tree).get("path", "")
        named = folder / Path(where.rstrip("/")).name
        yield "/".join(path), _file_spec(named if where and named.is_dir() else folder / ".".join(path))
    elif isinstance(tree, dict):
        for key, value in tree.items():
            yield from _leaves(value, (*path, key), folder)


def _ocdbt_leaves(folder: Path) -> dict[str, Any]:
    # TensorStore refuses paths in the store that lead out of the folder (tests/formats).
    store = {"driver": "ocdbt", "base": {"driver": "file", "path": f"{folder.resolve()}/"}}
    tensorstore = _tensorstore()
    try:
        keys = [key.decode() for key in tensorstore.KvStore.open(store).result().list().result()]
    except _UNREADABLE as error:
        raise _damaged(str(folder), error) from error
    names = [key.removesuffix(f"/{_ZARRAY}") for key in keys if key.endswith(f"/{_ZARRAY}")]
    return {name.replace(".", "/"): store | {"path": f"{name}/"} for name in names}


def _file_spec(folder: Path) -> dict[str, Any]:
    return {"driver": "file", "path": f"{folder.resolve()}/"}


def _read_zarr(place: dict[str, Any]) -> Any:
    if place["driver"] == "file" and not Path(place["path"], _ZARRAY).is_file():
        raise ValueError(f"it has no {_ZARRAY}")
    spec = {"driver": "zarr", "kvstore": place}
    array = np.asarray(_tensorstore().open(spec, open=True, read=True).result().read().result())
    # NumPy itself has no bfloat16. TensorStore returns the type of the package ml_dtypes.
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array


def _damaged(subject: str, error: Exception) -> CheckpointError:
    reason = str(error).partition(" [source locations")[0]
    return CheckpointError(f"{subject} cannot be read: {reason}\n  copy the whole folder again")


def _tensorstore() -> ModuleType:
    return import_optional("tensorstore", "t5x", "reading the arrays of a checkpoint of T5X or Orbax")
