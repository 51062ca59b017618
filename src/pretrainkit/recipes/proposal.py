"""Proposal of a project from raw data: what was found, what was decided and why, and the commands to run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pretrainkit.corpus.survey import LeftOut
from pretrainkit.workers.processes import Progress

MOST_PASSES = 40
"""Number of passes over the training data after which further passes hardly help. Source: Muennighoff et al. 2023,
https://arxiv.org/abs/2305.16264, figure 3."""


@dataclass(frozen=True)
class ProjectRequest:
    """Data and time of a project, and the hardware that it will run on."""

    data: tuple[str, ...]
    """Absolute paths of files, folders and globs."""
    hours: float
    """Time for training."""
    folder: Path
    """Absolute path of the project, which does not exist yet. Commands run in it."""
    device: str
    """Name of the device, such as the model of the CPU."""
    has_accelerator: bool
    """True if there is a GPU or another accelerator."""
    num_cores: int
    progress: Progress


@dataclass(frozen=True)
class Decision:
    """A value with its reason."""

    name: str
    """Dotted path of a setting, or a description of an option of a command."""
    value: Any
    reason: str
    is_setting: bool = True
    """True if it is written into the project's config."""


@dataclass(frozen=True)
class Stage:
    """A command of the project. If it is run again, it keeps finished work."""

    title: str
    command: tuple[str, ...]
    """Arguments of `pretrainkit`."""
    unless: str | None = None
    """File or folder that exists if the stage is finished; for commands that cannot be repeated."""


@dataclass(frozen=True)
class RawData:
    """Folder of raw data that the commands of a project read through a link in it."""

    link: str
    """Path of the link in the project."""
    folder: str
    """Absolute path."""
    unless: str | None = None
    """Folder that replaces the raw data: if it exists, the raw data is no longer needed. None: always needed."""


@dataclass(frozen=True)
class Proposal:
    """Everything that a project needs before it is trained."""

    preset: str
    facts: Mapping[str, str]
    """Descriptions of the raw data, by name, for people."""
    left_out: tuple[LeftOut, ...]
    decisions: tuple[Decision, ...]
    stages: tuple[Stage, ...]
    """Commands that make the training data."""
    export_format: str
    """Format of `pretrainkit export`."""
    raw: tuple[RawData, ...] = ()
    write_files: Callable[[Path], None] = field(default=lambda folder: None)
    """Write further files of the project, such as a renderer, into its folder, which has the links to raw data."""

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of the config by dotted path."""
        return {decision.name: decision.value for decision in self.decisions if decision.is_setting}
