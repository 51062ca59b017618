"""Checkpoints of T5X: a folder with the MessagePack file `checkpoint` and a zarr array for every large parameter.

Small arrays are in the file; of a large one it has a TensorStore spec, and the array lies in a folder beside it, named
by the path with dots: `target.encoder.layers_0.attention.query.kernel`. Version 2 kept bfloat16 as uint16.

Source: https://github.com/google-research/t5x/blob/main/t5x/checkpoints.py.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretrainkit.errors import CheckpointError
from pretrainkit.formats.flax_file import read_flax
from pretrainkit.formats.ocdbt import MANIFEST
from pretrainkit.formats.orbax_checkpoint import OrbaxCheckpoint, is_orbax
from pretrainkit.formats.tf_types import from_bfloat16
from pretrainkit.formats.zarr_folder import Read, folder_store, read_zarr

_STEP = re.compile(r"checkpoint_(\d+)")


class T5xCheckpoint(Mapping[str, NDArray[Any]]):
    """The arrays of a checkpoint by path: `target/encoder/encoder_norm/scale`, `state/step`; read when asked for.

    Args:
        folder: With the file `checkpoint`.

    Raises:
        CheckpointError: It is damaged.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        tree = read_flax(self.folder / "checkpoint")
        self.version = int(tree.get("version", 0)) if isinstance(tree, dict) else 0
        if not isinstance(tree, dict) or "optimizer" not in tree:
            raise CheckpointError(
                f"{self.folder / 'checkpoint'} is no checkpoint of T5X: it has no 'optimizer'\n"
                "  files of other systems are read with another --format"
            )
        self._leaves = dict(_leaves(tree["optimizer"], (), self.folder))

    def __iter__(self) -> Iterator[str]:
        return iter(self._leaves)

    def __len__(self) -> int:
        return len(self._leaves)

    def __getitem__(self, name: str) -> NDArray[Any]:
        leaf = self._leaves[name]
        try:
            found = np.asarray(leaf) if isinstance(leaf, (int, float, np.ndarray)) else read_zarr(leaf)
        except (ValueError, KeyError, OSError) as error:
            raise CheckpointError(
                f"{name} of {self.folder} cannot be read: {error}\n  copy the whole folder again"
            ) from error
        return from_bfloat16(found) if found.dtype == np.uint16 else found


def open_t5x(path: Path) -> Mapping[str, NDArray[Any]]:
    """The arrays of a checkpoint, whether T5X or Orbax wrote it.

    Args:
        path: The folder `checkpoint_1000000`, a file in it, or a run's folder, of which the newest checkpoint is taken.

    Raises:
        CheckpointError: There is none, or it is damaged.
    """
    if path.is_file():
        return open_t5x(path.parent)
    for folder in (path, path / "state"):
        if (folder / "checkpoint").is_file():
            return T5xCheckpoint(folder)
        if is_orbax(folder):
            return OrbaxCheckpoint(folder)
    steps = {int(found[1]): one for one in path.glob("checkpoint_*") if (found := _STEP.fullmatch(one.name))}
    if not steps:
        raise CheckpointError(
            f"{path} is no checkpoint of T5X: it has no file `checkpoint` or `{MANIFEST}`, and no folders "
            "`checkpoint_STEP`\n  give the folder of one step, copied as a whole"
        )
    return open_t5x(steps[max(steps)])


def _leaves(tree: Any, path: tuple[str, ...], folder: Path) -> Iterator[tuple[str, Any]]:
    if not isinstance(tree, dict):
        if isinstance(tree, (int, float, np.ndarray)):
            yield "/".join(path), tree
        return
    if "driver" in tree and ("kvstore" in tree or "path" in tree):
        yield "/".join(path), _stored(tree, path, folder)
        return
    for key, value in tree.items():
        yield from _leaves(value, (*path, key), folder)


def _stored(spec: dict[str, Any], path: tuple[str, ...], folder: Path) -> Read:
    """The folder beside the file; what the spec has before its last name was a place on the machine that wrote it."""
    where = spec.get("kvstore", spec).get("path", "")
    named = folder / Path(where.rstrip("/")).name
    return folder_store(named if where and named.is_dir() else folder / ".".join(path))
