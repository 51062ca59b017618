"""Which modality of a model a name means. Torch-free."""

from collections.abc import Sequence

from pretrainkit.errors import InputError
from pretrainkit.recipes.fourm.modality import Modality

_OF_TOKENS = ("tok_", "map_")


def targets_named(name: str, modalities: Sequence[Modality]) -> list[Modality]:
    """Of a model, the targets that a name stands for, several only where they differ in resolution.

    In this order: the whole name; without the resolution; the tokens of it, as `tok_rgb` of `rgb`; what is made of a
    folder of that name.
    """
    return _named(name, [modality for modality in modalities if modality.is_target])


def inputs_named(name: str, modalities: Sequence[Modality]) -> list[Modality]:
    """The same for inputs; a name at another resolution than the model has stands for its own."""
    inputs = [modality for modality in modalities if modality.is_input]
    return _named(name, inputs) or [modality for modality in inputs if modality.key == name.partition("@")[0]]


def _named(name: str, modalities: Sequence[Modality]) -> list[Modality]:
    ways = (
        lambda modality: modality.name == name,
        lambda modality: modality.key == name,
        lambda modality: modality.key in tuple(start + name for start in _OF_TOKENS),
        lambda modality: modality.path == name,
    )
    return next((found for way in ways if (found := [one for one in modalities if way(one)])), [])


def the_target(name: str, modalities: Sequence[Modality]) -> Modality | None:
    """The target that a name means; None: this model has none.

    Raises:
        InputError: Several could be meant.
    """
    found = targets_named(name, modalities)
    if len(found) > 1:
        raise InputError(
            f"--to {name}: that may be {' or '.join(modality.name for modality in found)}\n  give the whole name"
        )
    return found[0] if found else None


def require_target(name: str, models: Sequence[Sequence[Modality]]) -> int:
    """Number of the first model of a chain that has the target.

    Raises:
        InputError: None has, or several of its modalities could be meant.
    """
    for number, modalities in enumerate(models):
        if the_target(name, modalities) is not None:
            return number
    everything = [modality for modalities in models for modality in modalities]
    only_read = [modality.name for modality in _named(name, everything)]
    known = ", ".join(dict.fromkeys(modality.name for modality in everything if modality.is_target))
    if only_read:
        raise InputError(f"--to {name}: {only_read[0]} is an input only\n  targets are {known}")
    raise InputError(f"--to {name}: the model has no modality of that name\n  targets are {known}")


def require_inputs(name: str, models: Sequence[Sequence[Modality]]) -> None:
    """Raises InputError where no model of a chain reads what the name stands for."""
    if any(inputs_named(name, modalities) for modalities in models):
        return
    everything = [modality for modalities in models for modality in modalities]
    known = ", ".join(dict.fromkeys(modality.name for modality in everything if modality.is_input))
    is_target = " as an input" if _named(name, everything) else ""
    raise InputError(f"--from {name}: the model reads no modality of that name{is_target}\n  inputs are {known}")
