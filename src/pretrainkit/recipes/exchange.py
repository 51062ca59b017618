"""Capabilities of recipes to exchange configs, weights and classifiers with other systems. Imports no torch."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pretrainkit.config.explain import nearest
from pretrainkit.errors import ConfigError
from pretrainkit.recipes.capabilities import Capability, EncodesText
from pretrainkit.recipes.recipe import Run
from pretrainkit.training.run import RunConfig

if TYPE_CHECKING:
    from torch import Tensor, nn

    from pretrainkit.exporting.foreign_tokenizer import TokenizerChanges
    from pretrainkit.recipes.text_encoder import TextEncoder


@dataclass(frozen=True)
class TextClassifier:
    """Text encoder with a linear head, for export."""

    encoder: TextEncoder
    head: nn.Linear
    """Maps the encoder's width to one logit per class, or to one number."""
    classes: tuple[str, ...]
    """Names of the classes by number; empty if the head predicts a number."""
    dropout: float
    """Dropout rate before the head."""
    reads: Literal["examples", "words", "spans", "trees"] = "examples"
    """Input of the head: the pooled vector of an example, the features of each word's first slot, or the features of
    every slot, with scores for the start and the end of an answer."""


@dataclass(frozen=True)
class ImportedTextClassifier:
    """Text encoder with a linear head, read from files of transformers."""

    config: RunConfig
    """Config of the encoder."""
    encoder: Mapping[str, Tensor]
    """The state dict of the text encoder of a model with that config."""
    head: Mapping[str, Tensor]
    """Tensors `weight` and `bias`."""
    classes: tuple[str, ...]
    """Names of the classes by number; empty if the head predicts a number."""
    max_positions: int | None
    """Maximum number of tokens of an example."""
    reads: Literal["examples", "words", "spans", "trees"] = "examples"
    """Input of the head, as in `TextClassifier`."""
    length: int | None = None
    """Number of tokens per example in training; None if unknown."""
    dropout: float | None = None
    """Dropout rate before the head; None: that of the encoder."""


class ConvertsClassifiers(Capability[Run]):
    """Converts text encoders with a head to and from the format of transformers."""

    does = "convert its encoder and a head to or from the format of transformers"
    instead = "use --format safetensors"
    chooses_pooling: ClassVar[bool] = False
    """True if some files do not specify the pooling of a classifier."""
    converts_parsers: ClassVar[bool] = False
    """True if it also reads and writes parsers, whose head is `Biaffine` of the recipe glue."""

    @abstractmethod
    def export_text_classifier(self, config: Run, model: TextClassifier, tokenizer: Path | None, out: Path) -> None:
        """Write text encoder and head for `transformers` to the new folder `out`, completely or not at all."""

    @abstractmethod
    def import_text_classifier(self, folder: Path, pooling: str | None = None) -> ImportedTextClassifier:
        """Read a folder written by `export_text_classifier` or transformers. `pooling` is needed if its files do not
        specify it."""


class TellsIds(Capability[Run]):
    """Reports the token ids that its models read for texts."""

    does = "report the token ids of texts"

    def input_ids(self, config: Run, tokenizer: Path, texts: Sequence[str]) -> list[list[int]] | None:
        """Return the ids of each text, with control tokens, for a comparison with transformers; None if the model does
        not read token ids. Default: the ids from the reader of its text encoder."""
        from pretrainkit.recipes.token_reader import ids_of_singles

        assert isinstance(self, EncodesText)
        return ids_of_singles(self.text_reader(config, tokenizer), texts)


@dataclass(frozen=True)
class ImportedConfig:
    """Config file of another system, converted to a run or, if it describes no run, to a command."""

    config: RunConfig | None
    notes: list[str]
    """Remarks for the user."""
    command: tuple[str, ...] = ()
    """Arguments of a command line; empty if there is a config."""
    without_effect: Mapping[str, str] = field(default_factory=dict)
    """Keys of the file without effect here, each with its reason."""
    weights_command: tuple[str, ...] = ()
    """Arguments of the command line that imports the initial weights of the run or the weights for `command`; empty if
    there are none. For a config, append `--config` with the file that the config is written to."""


def checked_keys(
    given: Mapping[str, Any], defaults: Mapping[str, Any], without_effect: frozenset[str], where: str
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the values of a config of another system, with defaults for those that are not given, and the given keys
    without effect, each with the reason. Raises ConfigError for unknown keys."""
    unknown = [key for key in given if key not in defaults and key not in without_effect]
    if unknown:
        known = dict.fromkeys([*defaults, *without_effect], "")
        raise ConfigError([f"{where} has no key {key!r}\n  nearest: {nearest(key, known)}" for key in unknown])
    why = {key: "changes neither examples nor model nor updates" for key in given if key in without_effect}
    return {**defaults, **{key: value for key, value in given.items() if key in defaults}}, why


class ReadsConfigs(Capability[Run]):
    """Reads config files of another system."""

    does = "read config files of other systems"
    reads_configs_of: ClassVar[str]
    """Name of the system."""
    config_suffixes: ClassVar[tuple[str, ...]] = (".yaml", ".yml")
    """Suffixes of its files."""

    @property
    @abstractmethod
    def keys_of_other_configs(self) -> frozenset[str]:
        """Top-level keys that identify such files."""

    @abstractmethod
    def import_config(self, path: Path, settings: Iterable[str], nproc: int) -> ImportedConfig:
        """Convert a config file of another system."""


class ReadsHuggingFace(Capability[Run]):
    """Reads folders written by transformers."""

    does = "read folders of transformers"
    huggingface_types: ClassVar[tuple[str, ...]] = ()
    """Supported values of `model_type` in config.json."""
    reads_other_huggingface: ClassVar[bool] = False
    """True if it reads folders with a `model_type` that no recipe lists."""
    reads_unnamed_huggingface: ClassVar[bool] = False
    """True if it reads folders whose config.json has no `model_type`."""

    @abstractmethod
    def import_huggingface(self, folder: Path) -> tuple[Run, Mapping[str, Tensor]]:
        """Read a folder of `transformers`; return a complete config and the state dict of `build_model(config)`."""

    def carried_weights(self, carried: Run, weights: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Convert weights that `import_huggingface` read from an export to the layout of the run's config `carried`.
        Default: unchanged; a recipe whose exports have another layout reverses the conversion."""
        return weights


class WritesHuggingFace(Capability[Run]):
    """Writes folders for transformers."""

    does = "write a folder for transformers"
    instead = "use --format safetensors"

    @abstractmethod
    def export_huggingface(self, config: Run, model: nn.Module, tokenizer: Path | None, out: Path) -> None:
        """Write weights, config and tokenizer for `transformers` to the new folder `out`, completely or not at all."""

    def own_tokenizer(self, config: Run, out: Path) -> bool:
        """Write the built-in tokenizer of a model, such as one of bytes, to the new folder `out`. Return False if there
        is none, which is the default."""
        return False


class ComparesWithHuggingFace(Capability[Run]):
    """Can be compared with transformers."""

    does = "be compared with transformers"
    instead = "leave --check out"

    @abstractmethod
    def difference_from_huggingface(self, config: Run, model: nn.Module, folder: Path) -> float:
        """Return the largest difference, on random inputs, between the outputs of the model and those of transformers
        for `folder`, written by `export_huggingface`."""


@dataclass(frozen=True)
class ImportedModel:
    """Model of another system, converted."""

    config: RunConfig
    """Config, complete except for the data."""
    state: Mapping[str, Tensor]
    """The state dict of `build_model(config)`."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Tensor names in the file by our names, for tensors that are copied unchanged."""
    step: int | None = None
    """Number of training updates; None if the file does not record it."""
    trained_length: int | None = None
    """Maximum number of tokens of an example in training; None if unknown."""
    changes: TokenizerChanges | None = None
    """Changes to the tokenizer in the file, so that it does the same as the other system; None: it does so already."""


class ReadsFiles(Capability[Run]):
    """Reads weight files of other systems."""

    does = "read weight files of other systems"
    file_formats: ClassVar[tuple[str, ...]]
    """Names of the systems whose formats it reads."""

    @abstractmethod
    def import_file(self, path: Path, format: str, config: Run | None) -> ImportedModel:
        """Read a file or folder of one of `file_formats`. `config` defines the architecture; None: the architecture in
        the file, or the default."""


class WritesFiles(Capability[Run]):
    """Writes weight files for other systems."""

    does = "write weight files for other systems"
    instead = "use --format safetensors"
    export_formats: ClassVar[tuple[str, ...]]
    """Names of the systems whose formats it writes."""
    folder_formats: ClassVar[tuple[str, ...]] = ()
    """Those of `export_formats` that are folders."""

    @abstractmethod
    def export_file(
        self, config: Run, model: nn.Module, tokenizer: Path | None, format: str, out: Path, *, name: str
    ) -> None:
        """Write the new file `out`, or fill the empty folder `out`, in one of `export_formats`. `name`: the model's
        name on the hub."""
