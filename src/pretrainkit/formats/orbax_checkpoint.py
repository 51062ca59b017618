"""Checkpoints of Orbax, as newer T5X writes them: zarr arrays named by the path with dots.

`checkpoint_1000/state/` has them in one OCDBT store (`manifest.ocdbt` and data files), or in a folder each. Source:
https://orbax.readthedocs.io/en/latest/guides/checkpoint/checkpoint_format.html.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretrainkit.errors import CheckpointError
from pretrainkit.formats.ocdbt import MANIFEST, OcdbtStore
from pretrainkit.formats.zarr_folder import METADATA, Read, folder_store, read_zarr


def is_orbax(folder: Path) -> bool:
    """Whether a folder holds arrays in one of Orbax's two ways."""
    return (folder / MANIFEST).is_file() or any(folder.glob(f"*/{METADATA}"))


class OrbaxCheckpoint(Mapping[str, NDArray[Any]]):
    """The arrays of a checkpoint by path: `target/encoder/encoder_norm/scale`; read when asked for.

    Args:
        folder: What `is_orbax` knows.

    Raises:
        CheckpointError: It is damaged.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._arrays: dict[str, Read] = {}
        if (folder / MANIFEST).is_file():
            store = OcdbtStore(folder)
            for key in store:
                name, slash, last = key.rpartition("/")
                if slash and last == METADATA:
                    self._arrays[name.replace(".", "/")] = _entries(store, name)
        else:
            for path in sorted(folder.glob(f"*/{METADATA}")):
                self._arrays[path.parent.name.replace(".", "/")] = folder_store(path.parent)

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __getitem__(self, name: str) -> NDArray[Any]:
        try:
            return np.asarray(read_zarr(self._arrays[name]))
        except (ValueError, OSError) as error:
            raise CheckpointError(f"{name} of {self.folder} cannot be read: {error}\n  copy it all again") from error


def _entries(store: OcdbtStore, name: str) -> Read:
    return lambda file: store.get(f"{name}/{file}")
