"""Model folders of transformers: `config.json` and `model.safetensors`, which has our tensors under their names in
transformers."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from pretrainkit.errors import CheckpointError
from pretrainkit.exporting.safetensors import write_tensors
from pretrainkit.files.manifest import expected_form, read_object
from pretrainkit.files.outputs import new_folder

T = TypeVar("T")
A = TypeVar("A", bound=str)
Same = Mapping[str, str]
"""Maps our names of tensors to their names in transformers."""
Split = Mapping[str, tuple[str, ...]]
"""Maps our names of tensors to the names of their parts in transformers, which have the same number of rows and are
stacked."""

_NUM_LAYERS = frozenset(
    ("num_hidden_layers", "num_layers", "num_decoder_layers", "decoder_num_hidden_layers", "n_layers", "n_layer")
)
_MOST_LAYERS = 10_000


def read_config(
    folder: Path, parse: Callable[[dict[str, Any]], T], kind: str = "written by save_pretrained"
) -> tuple[T, dict[str, Any]]:
    """Return the result of `parse` for the `config.json` of a folder, and its contents. Raises CheckpointError if the
    file is missing or damaged, or `parse` raised that or a KeyError; `kind` describes the expected folder."""
    path = folder / "config.json"
    if not path.is_file():
        raise CheckpointError(f"{folder} has no config.json\n  pass a folder {kind}")
    values = read_object(path, "copy it again")
    for part in (values, *(value for value in values.values() if isinstance(value, dict))):
        for name in _NUM_LAYERS & part.keys():
            if isinstance(part[name], int | float) and part[name] > _MOST_LAYERS:  # tensors' names would fill memory
                raise CheckpointError(
                    f"{path} has {name} {part[name]}; it must be at most {_MOST_LAYERS}\n  copy the file again"
                )
    with expected_form(path, "copy it again"):
        return parse(values), values


def parts_beside_encoder(folder: Path) -> list[str]:
    """Return what a model of sentence-transformers has before and behind its encoder, such as "Pooling (mean)"; nothing
    for other folders. Raises DataError if its settings are damaged."""
    if not (folder / "modules.json").is_file():
        return []
    parts = []
    with expected_form(folder / "modules.json", "copy the folder again"):
        for path in folder.glob("sentence_*_config.json"):
            parts += ["do_lower_case"] if json.loads(path.read_bytes()).get("do_lower_case") else []
        for module in json.loads((folder / "modules.json").read_bytes()):
            kind, settings = module["type"].rpartition(".")[2], folder / module["path"] / "config.json"
            if kind == "Pooling" and settings.is_file():
                pooling, prefix = json.loads(settings.read_bytes()), "pooling_mode_"
                # Before version 6, there was a bool for each way of pooling.
                modes = [name.removeprefix(prefix) for name in pooling if name.startswith(prefix) and pooling[name]]
                mode = pooling.get("pooling_mode", modes)
                kind += f" ({mode if isinstance(mode, str) else ' and '.join(mode)})"
            parts += [] if kind == "Transformer" else [kind]
    return parts


BY_TRANSFORMERS = ", or fine-tune it with the model code of transformers: init.recipe=huggingface"


def only(values: Mapping[str, Any], known: Mapping[str, Any], other_fix: str = "") -> None:
    """Raise CheckpointError if a field of a `config.json` is present and differs from its only supported value. Its
    advice ends with `other_fix`."""
    for name, value in known.items():
        if values.get(name, value) != value:
            raise CheckpointError(
                f"config.json has {name} {values[name]!r}; this recipe only supports {value!r}\n"
                f"  use a model with {name} {value!r}{other_fix}"
            )


def our_activation(theirs: str, ours: Mapping[str, A]) -> A:
    """Return our name of an activation. Raises CheckpointError for an unsupported activation."""
    if theirs not in ours:
        raise CheckpointError(
            f"config.json has activation {theirs!r}\n  this recipe supports {', '.join(sorted(ours))}"
        )
    return ours[theirs]


@contextmanager
def new_transformers_folder(out: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Iterator[Path]:
    """Create the folder `out` with a config and weights, and yield it to add files; after an error it is removed.
    Raises InputError if `out` exists and is not an empty folder, or cannot be written."""
    with new_folder(out) as folder:
        write_tensors(folder / "model.safetensors", tensors)
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")
        yield folder


def their_names(same: Same, split: Split) -> list[str]:
    """Return all names that `to_ours` reads."""
    return [*same.values(), *(name for names in split.values() for name in names)]


def require_no_others(names: Iterable[str], known: Iterable[str], prefixes: tuple[str, ...] = ()) -> None:
    """Raise CheckpointError if some of the `names` of tensors are not `known` and have none of the prefixes."""
    if others := sorted(name for name in set(names).difference(known) if not name.startswith(prefixes)):
        raise CheckpointError(
            f"{len(others)} tensors have no place in this model, such as {', '.join(others[:3])}\n"
            "  the weights are of another architecture than config.json; copy both from one model"
        )


def to_theirs(state: Mapping[str, Tensor], same: Same, split: Split) -> dict[str, Tensor]:
    """Rename and split our tensors for transformers."""
    tensors = {theirs: state[ours] for ours, theirs in same.items()}
    for ours, names in split.items():
        tensors |= zip(names, state[ours].chunk(len(names)), strict=True)
    return tensors


def to_ours(state: Mapping[str, Tensor], same: Same, split: Split) -> dict[str, Tensor]:
    """Convert tensors of transformers to ours: rename them, and join those that are one tensor here."""
    whole = {ours: state[theirs] for ours, theirs in same.items()}
    return whole | {ours: torch.cat([state[name] for name in names]) for ours, names in split.items()}
