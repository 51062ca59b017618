"""Checkpoints of T5X and of Orbax, with which newer versions of T5X write. TensorStore reads their arrays.

T5X writes a folder with the MessagePack file `checkpoint`. Small arrays are in that file; of a large one it has a
TensorStore spec, and the array is in a folder beside it, named by the path with dots:
`target.encoder.layers_0.attention.query.kernel`. Version 2 kept bfloat16 as uint16.

Orbax writes `checkpoint_1000/state/` with all arrays in one OCDBT store (`manifest.ocdbt` and data files), or in a
folder each. No spec of a file is opened as it is, because it may name any place: only folders of the checkpoint are.

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
"""Exceptions of TensorStore for damaged and unsupported files."""


class T5xCheckpoint(Mapping[str, NDArray[Any]]):
    """The arrays of a checkpoint by path: `target/encoder/encoder_norm/scale`, `state/step`; read when asked for.

    bfloat16 comes as float32.
    """

    def __init__(self, folder: Path, leaves: dict[str, Any], *, may_pack_bfloat16: bool) -> None:
        """`leaves`: an array or number by path, or the TensorStore spec of the place where it is stored."""
        self.folder, self._leaves, self._may_pack_bfloat16 = folder, leaves, may_pack_bfloat16

    def __iter__(self) -> Iterator[str]:
        return iter(self._leaves)

    def __len__(self) -> int:
        return len(self._leaves)

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Raises KeyError, and CheckpointError where an array is missing or damaged."""
        leaf = self._leaves[name]
        try:
            found = np.asarray(_read_zarr(leaf) if isinstance(leaf, dict) else leaf)
        except _UNREADABLE as error:
            raise _damaged(f"{name} of {self.folder}", error) from error
        return from_bfloat16(found) if self._may_pack_bfloat16 and found.dtype == np.uint16 else found


def open_t5x(path: Path) -> T5xCheckpoint:
    """The arrays of a checkpoint, whether T5X or Orbax wrote it. `path` is the folder `checkpoint_1000000`, a file
    in it, or a run's folder, of which the newest checkpoint is taken. Raises CheckpointError where there is none, or
    it is damaged, and MissingPackageError where TensorStore is needed and not installed."""
    if path.is_file():
        return open_t5x(path.parent)
    for folder in (path, path / "state"):
        if (folder / "checkpoint").is_file():
            tree = read_flax(folder / "checkpoint")
            if not isinstance(tree, dict) or "optimizer" not in tree:
                raise CheckpointError(
                    f"{folder / 'checkpoint'} is no checkpoint of T5X: it has no 'optimizer'\n"
                    "  files of other systems are read with another --format"
                )
            return T5xCheckpoint(folder, dict(_leaves(tree["optimizer"], (), folder)), may_pack_bfloat16=True)
        if (folder / _MANIFEST).is_file():
            return T5xCheckpoint(folder, _ocdbt_leaves(folder), may_pack_bfloat16=False)
        if arrays := sorted(folder.glob(f"*/{_ZARRAY}")):
            leaves = {one.parent.name.replace(".", "/"): _file_spec(one.parent) for one in arrays}
            return T5xCheckpoint(folder, leaves, may_pack_bfloat16=False)
    steps = {int(found[1]): one for one in path.glob("checkpoint_*") if (found := _STEP.fullmatch(one.name))}
    if not steps:
        raise CheckpointError(
            f"{path} is no checkpoint of T5X: it has no file `checkpoint` or `{_MANIFEST}`, and no folders "
            "`checkpoint_STEP`\n  give the folder of one step, copied as a whole"
        )
    return open_t5x(steps[max(steps)])


def _leaves(tree: Any, path: tuple[str, ...], folder: Path) -> Iterator[tuple[str, Any]]:
    if isinstance(tree, (int, float, np.ndarray)):
        yield "/".join(path), tree
    elif isinstance(tree, dict) and "driver" in tree and ("kvstore" in tree or "path" in tree):
        # What the spec has before its last name was a place on the machine that wrote it.
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
    found = np.asarray(_tensorstore().open(spec, open=True, read=True).result().read().result())
    # NumPy itself has no bfloat16: TensorStore gives a type of the package ml_dtypes.
    return found.astype(np.float32) if found.dtype.name == "bfloat16" else found


def _damaged(what: str, error: Exception) -> CheckpointError:
    reason = str(error).partition(" [source locations")[0]
    return CheckpointError(f"{what} cannot be read: {reason}\n  copy the whole folder again")


def _tensorstore() -> ModuleType:
    return import_optional("tensorstore", "t5x", "reading the arrays of a T5X checkpoint")
