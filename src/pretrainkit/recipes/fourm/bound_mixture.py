"""A mixture for the modalities of a model and of a data set.

Dimensions: K components, D modalities.
"""

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from pretrainkit.errors import ConfigError
from pretrainkit.recipes.fourm.mixtures import ALL, KEEPS, Component, Keep
from pretrainkit.recipes.fourm.modality import Modality

T = TypeVar("T")


class Bound:
    """A mixture for given modalities, as arrays: K components, D modalities."""

    def __init__(self, mixture: Sequence[Component], modalities: Sequence[Modality], present: Sequence[str]) -> None:
        """
        Args:
            mixture: Its components.
            modalities: Of the model, in order.
            present: Names of those that the data have.

        Raises:
            ConfigError: A name fits no modality of the model, an input is asked to be a target, or a component wants
                nothing.
        """
        problems: list[str] = []
        self.weights_K = np.array([component.weight for component in mixture])
        has = np.array([modality.name in present for modality in modalities])
        is_input = np.array([modality.is_input for modality in modalities]) & has
        is_target = np.array([modality.is_target for modality in modalities]) & has
        self.inputs_KD = _table([c.inputs for c in mixture], modalities, 0.0, problems) * is_input
        self.targets_KD = _table([c.targets for c in mixture], modalities, 0.0, problems) * is_target
        self.keep_KD = _keep_table([c.keep for c in mixture], modalities, problems)
        for number, component in enumerate(mixture):
            problems += _impossible(number, component, modalities)
            if not self.inputs_KD[number].any() or not self.targets_KD[number].any():
                problems.append(
                    f"component {number} of the mixture wants no inputs or no targets of {', '.join(present)}\n"
                    "  give it a modality of these data, or leave it out"
                )
        if not mixture:
            problems.append("the mixture has no component\n  give one, such as {inputs: {'*': 1}, targets: {'*': 1}}")
        if problems:
            raise ConfigError(list(dict.fromkeys(problems)))


def _table(
    rows: Sequence[dict[str, float]], modalities: Sequence[Modality], default: float, problems: list[str]
) -> NDArray[np.float64]:
    table = np.empty((len(rows), len(modalities)))
    for number, row in enumerate(rows):
        problems += _unknown(number, row, modalities)
        table[number] = [_of(row, modality, default) for modality in modalities]
    return table


def _keep_table(
    rows: Sequence[dict[str, Keep]], modalities: Sequence[Modality], problems: list[str]
) -> NDArray[np.int64]:
    for number, row in enumerate(rows):
        problems += _unknown(number, row, modalities)
    return np.array([[KEEPS.index(_of(row, modality, "random")) for modality in modalities] for row in rows], np.int64)


def _of(row: dict[str, T], modality: Modality, default: T) -> T:
    return row.get(modality.name, row.get(modality.key, row.get(ALL, default)))


def _unknown(number: int, row: dict[str, float] | dict[str, Keep], modalities: Sequence[Modality]) -> list[str]:
    known = {ALL} | {m.name for m in modalities} | {m.key for m in modalities}
    return [
        f"component {number} of the mixture names {name!r}, which is no modality of the model\n"
        f"  it has {', '.join(m.name for m in modalities)}"
        for name in row
        if name not in known
    ]


def _impossible(number: int, component: Component, modalities: Sequence[Modality]) -> list[str]:
    found = []
    for modality in modalities:
        for row, is_possible, what in (
            (component.inputs, modality.is_input, "an input"),
            (component.targets, modality.is_target, "a target"),
        ):
            named = row.get(modality.name, row.get(modality.key, 0.0))
            if named and not is_possible:
                found.append(
                    f"component {number} of the mixture wants {modality.name} as {what}, which it cannot be\n"
                    "  leave it out there"
                )
    return found
