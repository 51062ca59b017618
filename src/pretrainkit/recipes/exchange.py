"""What a recipe may be able to exchange with other systems: configs, weights, classifiers. Torch-free to import."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from pretrainkit.recipes.capabilities import Capability, EncodesText
from pretrainkit.recipes.recipe import Run
from pretrainkit.training.run import RunConfig

if TYPE_CHECKING:
    from torch import Tensor, nn

    from pretrainkit.recipes.text_encoder import TextEncoder


@dataclass(frozen=True)
class TextClassifier:
    """A text encoder with a linear head, as it is exported."""

    encoder: TextEncoder
    head: nn.Linear
    """From the encoder's width to as many logits as there are classes, or to one number."""
    classes: tuple[str, ...]
    """Names by number; empty where the head gives a number."""
    dropout: float
    """In front of the head."""
    reads: Literal["examples", "words", "spans"] = "examples"
    """What the head reads: the encoder's vector of an example, the features of a word's first slot, or those of every
    slot, for which it gives scores that an answer begins and ends there."""


@dataclass(frozen=True)
class ImportedTextClassifier:
    """A text encoder with a linear head, as transformers saved it."""

    config: RunConfig
    """Of the encoder."""
    encoder: Mapping[str, Tensor]
    """The state dict of the text encoder of a model with that config."""
    head: Mapping[str, Tensor]
    """weight and bias."""
    classes: tuple[str, ...]
    """Names by number; empty where the head gives a number."""
    max_positions: int | None
    """Most tokens of an example."""
    reads: Literal["examples", "words", "spans"] = "examples"
    """What the head reads."""
    length: int | None = None
    """Tokens of an example as it was trained, where that is known."""


class ConvertsClassifiers(Capability[Run]):
    """Exchanges its text encoder with a head on it with transformers."""

    does = "exchange its encoder under a head with transformers"
    instead = "use --format safetensors"
    chooses_pooling: ClassVar[bool] = False
    """Whether files do not always say how a classifier makes one vector of a text."""

    @abstractmethod
    def export_text_classifier(self, config: Run, model: TextClassifier, tokenizer: Path | None, out: Path) -> None:
        """Write the new folder `out`, complete or absent, for `transformers`: text encoder and head."""

    @abstractmethod
    def import_text_classifier(self, folder: Path, pooling: str | None = None) -> ImportedTextClassifier:
        """Read a folder that `export_text_classifier` wrote, or transformers. `pooling`: how it makes one vector of a
        text, where its files do not say so."""


class TellsIds(Capability[Run]):
    """Reads ids of texts."""

    does = "tell the ids of texts"

    def input_ids(self, config: Run, tokenizer: Path, texts: Sequence[str]) -> list[list[int]] | None:
        """What the model reads of each text, control tokens included, to be compared with what transformers makes of
        an export; None: it does not read ids of texts. Default: what the reader of its text encoder gives."""
        from pretrainkit.recipes.token_reader import ids_of_singles

        assert isinstance(self, EncodesText)
        return ids_of_singles(self.text_reader(config, tokenizer), texts)


@dataclass(frozen=True)
class ImportedConfig:
    """A config file of another system in our terms: a run, or a command where no run is meant."""

    config: RunConfig | None
    notes: list[str]
    """What someone who uses it should know."""
    command: tuple[str, ...] = ()
    """Words of a command line; empty where there is a config."""
    without_effect: Mapping[str, str] = field(default_factory=dict)
    """Keys of the file that change nothing here, and why."""
    weights_command: tuple[str, ...] = ()
    """Words of the command line that reads the weights which the run starts from, or `command` is about; empty where
    there are none. Of a config it wants `--config` with the file that the config is written to."""


class ReadsConfigs(Capability[Run]):
    """Reads config files of another system."""

    does = "read config files of other systems"
    reads_configs_of: ClassVar[str]
    """The system."""

    @property
    @abstractmethod
    def keys_of_other_configs(self) -> frozenset[str]:
        """Top-level keys of those files, by which they are recognised."""

    @abstractmethod
    def import_config(self, path: Path, settings: Iterable[str], nproc: int) -> ImportedConfig:
        """A config file of another system as ours."""


class ReadsHuggingFace(Capability[Run]):
    """Reads folders that transformers wrote."""

    does = "read folders of transformers"
    huggingface_types: ClassVar[tuple[str, ...]] = ()
    """The values of `model_type` in config.json that it reads."""
    reads_other_huggingface: ClassVar[bool] = False
    """Whether it reads folders of a `model_type` that no recipe names."""
    reads_unnamed_huggingface: ClassVar[bool] = False
    """Whether it reads folders whose config.json names no `model_type`."""

    @abstractmethod
    def import_huggingface(self, folder: Path) -> tuple[Run, Mapping[str, Tensor]]:
        """Read a folder written by `transformers`: a complete config and the state dict of `build_model(config)`."""

    def carried_weights(self, carried: Run, weights: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """What `import_huggingface` read from an export, as the model of the `carried` config of the run has it.
        Default: as they are; a recipe that writes something in another form turns it back."""
        return weights


class WritesHuggingFace(Capability[Run]):
    """Writes folders for transformers."""

    does = "write a folder for transformers"
    instead = "use --format safetensors"

    @abstractmethod
    def export_huggingface(self, config: Run, model: nn.Module, tokenizer: Path | None, out: Path) -> None:
        """Write the new folder `out`, complete or absent, for `transformers`: weights, config, tokenizer."""

    def own_tokenizer(self, config: Run, out: Path) -> bool:
        """Write the tokenizer of a model that was trained with none beside it, such as one of bytes, to the new folder
        `out`; returns False where there is none to write. Default: there is none."""
        return False


class ComparesWithHuggingFace(Capability[Run]):
    """Can be held against transformers."""

    does = "be compared with transformers"
    instead = "leave --check out"

    @abstractmethod
    def difference_from_huggingface(self, config: Run, model: nn.Module, folder: Path) -> float:
        """The largest difference between the model's outputs on random inputs and those of transformers for `folder`,
        which `export_huggingface` wrote."""


@dataclass(frozen=True)
class ImportedModel:
    """A model of another system in our terms."""

    config: RunConfig
    """Complete but for its data."""
    state: Mapping[str, Tensor]
    """The state dict of `build_model(config)`."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Our name of each tensor to that in the file, where they are one by one the same."""
    step: int | None = None
    """Updates it was trained for, where the file says."""
    trained_length: int | None = None
    """Most tokens of an example in training, where that is known."""


class ReadsFiles(Capability[Run]):
    """Reads weight files of other systems."""

    does = "read weight files of other systems"
    file_formats: ClassVar[tuple[str, ...]]
    """By the name of the system."""

    @abstractmethod
    def import_file(self, path: Path, format: str, config: Run | None) -> ImportedModel:
        """Read a file or folder of one of `file_formats`. `config` says the architecture; None: the one that the file
        is of, or the usual one."""


class WritesFiles(Capability[Run]):
    """Writes weight files for other systems."""

    does = "write weight files for other systems"
    instead = "use --format safetensors"
    export_formats: ClassVar[tuple[str, ...]]
    """By the name of the system."""

    @abstractmethod
    def export_file(self, config: Run, model: nn.Module, format: str, out: Path) -> None:
        """Write the new file `out` in one of `export_formats`."""
