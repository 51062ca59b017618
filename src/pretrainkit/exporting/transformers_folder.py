"""Folders of transformers: `config.json` beside `model.safetensors`, whose tensors are ours under other names."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from pretrainkit.errors import CheckpointError
from pretrainkit.exporting.folder import new_folder
from pretrainkit.exporting.safetensors import write_tensors

T = TypeVar("T")
A = TypeVar("A", bound=str)
Same = Mapping[str, str]
"""Our name of a tensor to theirs."""
Split = Mapping[str, tuple[str, ...]]
"""Our name of a tensor to theirs of its parts, equally many rows each, one below the other."""


def read_config(
    folder: Path, parse: Callable[[dict[str, Any]], T], kind: str = "written by save_pretrained"
) -> tuple[T, dict[str, Any]]:
    """Return what `parse` makes of the `config.json` of a folder, and its contents; `kind` says which folder to give
    instead of one that has none. Raises CheckpointError where it is missing or broken, or `parse` raised that, or a
    KeyError."""
    path = folder / "config.json"
    if not path.is_file():
        raise CheckpointError(f"{folder} has no config.json\n  give a folder {kind}")
    try:
        values = json.loads(path.read_bytes())
        return parse(values), values
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(f"{path} cannot be read: {error!r}\n  copy it again") from None


def only(values: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    """Raises CheckpointError where a `config.json` has another value than the only one that we have, if it has any."""
    for name, value in known.items():
        if values.get(name, value) != value:
            raise CheckpointError(f"config.json has {name} {values[name]!r}\n  this recipe only has {value!r}")


def our_activation(theirs: str, ours: Mapping[str, A]) -> A:
    """Our name of an activation. Raises CheckpointError where we have none."""
    if theirs not in ours:
        raise CheckpointError(f"config.json has the activation {theirs!r}\n  this recipe has {', '.join(sorted(ours))}")
    return ours[theirs]


@contextmanager
def new_transformers_folder(out: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Iterator[Path]:
    """The new folder `out` with a config and weights, complete or absent, to add files to. Raises InputError where
    `out` exists and is not an empty folder, or cannot be written."""
    with new_folder(out) as folder:
        write_tensors(folder / "model.safetensors", tensors)
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")
        yield folder


def their_names(same: Same, split: Split) -> list[str]:
    """All names that `to_ours` reads."""
    return [*same.values(), *(name for names in split.values() for name in names)]


def to_theirs(state: Mapping[str, Tensor], same: Same, split: Split) -> dict[str, Tensor]:
    """Tensors under their names."""
    found = {theirs: state[ours] for ours, theirs in same.items()}
    for ours, names in split.items():
        found |= zip(names, state[ours].chunk(len(names)), strict=True)
    return found


def to_ours(state: Mapping[str, Tensor], same: Same, split: Split) -> dict[str, Tensor]:
    """Tensors under our names."""
    found = {ours: state[theirs] for ours, theirs in same.items()}
    return found | {ours: torch.cat([state[name] for name in names]) for ours, names in split.items()}
