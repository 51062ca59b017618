"""`pretrainkit.json`: settings beside the weights of an export, to evaluate and train the model further like its run.

The file holds the resolved config of the run without data and without paths of its machine. Imports no torch.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pretrainkit.config.base import Config
from pretrainkit.config.paths import is_local, needs_path, without_paths
from pretrainkit.errors import CheckpointError
from pretrainkit.training.run import InitConfig, RunConfig

if TYPE_CHECKING:
    from torch import Tensor

SETTINGS = "pretrainkit.json"
REST = "pretrainkit"
"""Name, without `.safetensors`, of a file beside it with the tensors that the format of the weights cannot hold, or
stores rounded in another form."""
ROUNDED = "rounded."
"""Prefix of tensors in that file whose rounded values are also among the weights."""
_FORMAT = "pretrainkit settings 1"


@dataclass(frozen=True)
class Settings:
    """The contents of a `pretrainkit.json`."""

    config: dict[str, Any]
    """The run's config as nested plain values; `data.train` and `data.valid` are empty."""
    trained_length: int | None
    """Largest number of tokens of an example in training; None if unknown or not counted in tokens."""
    has_own_model: bool
    """True if the model in `config` matches the weights: `config.json` is unchanged since the export."""
    held_out: tuple[str, ...] = ()
    """Overrides for the held-out sets, with FOLDER and FILE for paths; empty if they are only paths of `data.valid`."""


def write_settings(path: Path, config: RunConfig, trained_length: int | None) -> None:
    """Write the settings of a bound run to `path`, in the folder of an export or beside its single file."""
    values = {
        "format": _FORMAT,
        "trained_length": trained_length,
        "config.json": _digest(path.with_name("config.json")),
        "config": shared_config(config),
        "held_out": _held_out(config),
    }
    path.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def shared_config(config: RunConfig) -> dict[str, Any]:
    """Return the values of a run's config without its data, its start and paths of its machine: a run that continues
    from an export has its own."""
    data = config.data.model_copy(update={"train": (), "valid": ()})
    start = {"init_from": None, "init": InitConfig(), "first_step": 0}
    return without_paths(config.model_copy(update={"data": data, **start})).model_dump(mode="json")


def read_settings(path: Path) -> Settings | None:
    """Return what `write_settings` wrote to `path`, or None if there is no such file. Raises CheckpointError if it is
    damaged or of a later version."""
    if not path.is_file():
        return None
    try:
        values = json.loads(path.read_bytes())
        if values["format"] != _FORMAT:
            raise ValueError(f"its format is {values['format']!r}, not {_FORMAT!r}")
        is_same = values["config.json"] == _digest(path.with_name("config.json"))
        held_out = tuple(values.get("held_out", ()))
        return Settings(dict(values["config"]), values["trained_length"], is_same, held_out)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(
            f"{path} cannot be read: {error}\n"
            "  copy the export again; without this file it is read like a model of another tool"
        ) from None


def _held_out(config: RunConfig) -> list[str]:
    """Return the overrides of `Settings.held_out`."""
    sets = {"data.valid": config.data.valid}
    sets |= {f"evaluate.{name}": value for name, value in config.evaluate if _is_list_of_paths(value)}
    named = {name: [_without_folders(source) for source in value] for name, value in sets.items() if value}
    if all(name == "data.valid" and source == {"path": "FOLDER"} for name in named for source in named[name]):
        return []
    return [f"{name}={json.dumps(value)}" for name, value in named.items()]


def _is_list_of_paths(value: Any) -> bool:
    return isinstance(value, tuple) and any(map(needs_path, value))


def _without_folders(source: Config) -> dict[str, Any]:
    """Return the settings of a held-out set that metrics depend on, with placeholders for its paths."""
    settings = source.model_dump(mode="json", exclude_defaults=True, exclude={"weight"})
    files = {name: "FILE" for name, value in settings.items() if is_local(value)}
    return {**settings, **files, "path": "FOLDER"}


def is_rounded(tensor: "Tensor", exact: "Tensor") -> bool:
    """True if two tensors are equal except for rounding."""
    return tensor.shape == exact.shape and bool((tensor - exact).abs().max() <= 1e-6 * (1 + exact.abs().max()))


def settings_beside(file: Path) -> Path:
    """Return the path of the settings of an export that is a single file."""
    return file.with_name(f"{file.name}.{SETTINGS}")


def _digest(path: Path) -> str | None:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None
