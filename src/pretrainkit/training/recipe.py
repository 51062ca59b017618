"""What a recipe is to the rest of the house. Torch-free to import: methods import what they need."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pretrainkit.errors import ConfigError, InputError
from pretrainkit.training.run import RunConfig

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor, nn

    from pretrainkit.corpus.parallel import Progress
    from pretrainkit.data.order import Order
    from pretrainkit.data.source import BatchSource, Records
    from pretrainkit.data.task_sources import TaskSource
    from pretrainkit.dist.env import World
    from pretrainkit.training.inference import Inference, InferenceRequest
    from pretrainkit.training.objective import AnyObjective, HostBatch
    from pretrainkit.training.precision import Precision
    from pretrainkit.training.text_encoder import TextEncoder
    from pretrainkit.training.text_reader import TextReader

Split = Literal["train", "valid"]
Evaluator = Callable[["nn.Module"], dict[str, float]]
"""Held-out metrics of a model, by name; a collective, the same on all ranks."""


@dataclass(frozen=True)
class Evaluation:
    """One way of evaluating while training goes on."""

    run: Callable[[nn.Module, str], dict[str, float]]
    """Metrics of a model by name; a collective, the same on all ranks. The text tells this evaluation from the others
    of the run: the step, and "-ema" for averaged weights."""
    every_steps: int | None
    """After every so many updates, and after the last; None: only after the last."""

    def is_due(self, step: int) -> bool:
        """Whether it is run after this many updates."""
        return self.every_steps is not None and step % self.every_steps == 0


@dataclass(frozen=True)
class ImageEncoder:
    """The part of a trained model that turns images into features, for probing."""

    module: nn.Module
    """What computes; it is not to be changed."""
    encode: Callable[[Tensor], Tensor]
    """uint8 (B, 3, H, W) on the module's device to features (B, F), before any projection or normalisation."""
    image_size: int
    """Pixels of each side that it is made for."""


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


@dataclass(frozen=True)
class DataCheck:
    """What the training data of a run are, before anything is trained."""

    figures: dict[str, Any]
    """By name, for people and JSON."""
    notes: list[str]
    """What may not be meant, each with what to do."""
    examples: list[dict[str, str]]
    """The first ones, by name of what is shown."""
    problems: list[str] = field(default_factory=list)
    """What cannot be used, of a check of every file; then there is nothing else."""


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


class Recipe(ABC):
    """One folder of `recipes/`, or a third party's entry point in the group `pretrainkit.recipes`."""

    name: str
    """As in preset names: `name/preset`."""
    summary: str
    """One line for `pretrainkit recipes`."""

    @property
    @abstractmethod
    def config_class(self) -> type[RunConfig]: ...

    @property
    @abstractmethod
    def presets(self) -> Mapping[str, Callable[[], RunConfig]]:
        """Preset name (without the recipe) to a function that returns a complete config; its docstring describes it."""

    @abstractmethod
    def bind(self, config: Any) -> Any:
        """Fill in what only the data can say (such as the vocabulary size) and check config against data.

        Raises:
            ConfigError, DataError: The config and the data do not fit each other.
        """

    def without_data(self, config: Any) -> tuple[Any, str]:
        """Return the bound config for a plan without data, with usual values where the data would decide, and a text
        that names what was assumed. Raises ConfigError where there is no usual value."""
        raise ConfigError(
            f"data.train is empty, and how much a step of recipe {self.name} computes follows from its examples\n"
            "  give the data, or a sample of them: data.train=PATH"
        )

    def assumed_batch(self, config: Any, num_examples: int) -> HostBatch:
        """Return a batch for a plan without data, its examples as long as the config of `without_data` allows.

        Called only for recipes that override `without_data`, which must override this method, too.
        """
        raise TypeError(f"recipe {self.name} overrides without_data but not assumed_batch")

    @abstractmethod
    def open_data(self, config: Any, split: Split) -> BatchSource:
        """The examples of a split. For "valid" with fixed randomness: the same masks at every evaluation."""

    def check_data(
        self,
        config: Any,
        source: BatchSource,
        summary: Mapping[str, Any],
        records: Callable[[int], Records],
        num: int,
    ) -> DataCheck:
        """More about the training data than every recipe has to say.

        Args:
            config: Bound.
            source: Of the training examples.
            summary: Of the source.
            records: Of the whole batch of a step.
            num: Examples to show of each component.

        Default: nothing.
        """
        return DataCheck({}, [], [])

    def check_new_run(self, config: Any, source: BatchSource) -> None:
        """Refuse training data that a new run must not be started with, though an older run may be resumed with them.

        Args:
            config: Bound.
            source: Of the training examples.

        Raises:
            ConfigError, DataError: Something is wrong. Default: nothing is.
        """
        return

    def check_files(self, config: Any, progress: Progress) -> list[str]:
        """Read every file of the data, training and held out, and return what cannot be used, each with its file.

        Args:
            config: Not bound: data that do not fit it are reported, too.
            progress: Told how far it is.

        Raises:
            ConfigError: Unless overridden: the recipe has no such check.
        """
        raise ConfigError(
            f"recipe {self.name} reads no separate files, so --deep has nothing to check\n  leave out --deep"
        )

    def build_order(self, config: Any, source: BatchSource) -> Order:
        """In which order training goes over the examples of `source`. Default: as `data.order` says."""
        from pretrainkit.data.order import Order

        data = config.data
        return Order(
            source.sizes,
            weights=[component.weight for component in data.train],
            mode=data.order,
            seed=config.seed,
            batch_size=data.batch_size,
            document_sizes=source.document_sizes if data.order == "lanes" else None,
        )

    def with_cached_features(
        self,
        config: Any,
        source: BatchSource,
        model: Callable[[], nn.Module],
        cache: Path,
        world: World,
        precision: Precision,
    ) -> BatchSource:
        """What to train on instead of `source`, where parts of the model never change: a collective, before training.

        Args:
            config: Bound.
            source: Of the training examples.
            model: The model at the start of training, or as it was saved last, on the device.
            cache: A folder of the run for what is computed; what an earlier start left there may be used.
            world: The ranks.
            precision: Of the run.

        Default: `source` itself.
        """
        return source

    @property
    def held_out_fields(self) -> tuple[str, ...]:
        """Fields of `config.data` that say what is held out; `evaluate --data` comes in the place of all of them."""
        return ("valid",)

    def has_held_out_examples(self, config: Any) -> bool:
        """Whether `open_data(config, "valid")` has examples to show. What is held out may be classes of images alone,
        which are none. Default: where one of `held_out_fields` names something."""
        named = config.data.model_dump(include={*self.held_out_fields}).values()
        return config.has_held_out_data and any(named)

    def build_evaluator(self, config: Any, world: World, precision: Precision) -> Evaluator | None:
        """For metrics that are no sums over batches, such as retrieval. Default: none; then those of the
        objective are added up over `open_data(config, "valid")`."""
        return None

    def more_evaluations(
        self, config: Any, world: World, precision: Precision, folder: Path | None
    ) -> Sequence[Evaluation]:
        """What is evaluated besides, at times of its own, such as answers by the metrics of tasks. Default: nothing.

        Args:
            config: Bound.
            world: The ranks.
            precision: Of the run.
            folder: Of the run, for files that people look at; None: there is none to write to.
        """
        return ()

    def tokenizer_folder(self, config: Any) -> Path | None:
        """The tokenizer that the data of a run was made with, which the run keeps a copy of."""
        return Path(config.data.train[0].path) / "tokenizer"

    @abstractmethod
    def build_model(self, config: Any) -> nn.Module:
        """The model on the current default device (maybe "meta"), initialised from torch's global generator.

        It has a method `blocks()`, which lists the submodules to compile and shard one by one.
        """

    @abstractmethod
    def build_objective(self, config: Any) -> AnyObjective: ...

    def sample(self, config: Any, model: nn.Module, source: BatchSource, num: int) -> list[dict[str, Any]]:
        """Held-out examples for the report: what the model saw, predicted, and the truth. Default: none.

        A value is a text, or a list of things to show: {"text": ..., "image": a data URI, "is_right": true or false}.
        """
        return []

    def baselines(self, config: Any) -> dict[str, float]:
        """Losses of models that learn nothing but frequencies, to compare a run with. Default: none."""
        return {}

    def with_tokenizer(self, config: Any, tokenizer: Path) -> Any:
        """The config for use with the copy of the tokenizer that lies beside a model, wherever the original may be.
        Default: the config itself, as the data bring theirs."""
        return config

    @property
    def generate_options(self) -> tuple[str, ...]:
        """The options that `generate` takes, by name."""
        return ("top",)

    def image_encoder(self, config: Any, model: nn.Module) -> ImageEncoder:
        """The image tower of a trained model, to be probed."""
        raise InputError(f"recipe {self.name!r} has no image encoder to probe\n  give a model that reads images")

    def text_reader(self, config: Any, tokenizer: Path) -> TextReader:
        """How the encoder of `build_text_encoder` wants its texts; `tokenizer` is the folder of the model's."""
        raise InputError(f"recipe {self.name!r} has no text encoder\n  give a model that reads texts, such as a BERT")

    def as_text_encoder(self, config: Any, tokenizer: Path | None, max_length: int) -> tuple[Any, Path | None]:
        """The config of an encoder for texts of at most `max_length` slots, and the folder of what its reader needs, as
        a run that trains it further keeps them. Default: as they are."""
        return config, tokenizer

    def build_text_encoder(self, config: Any, model: nn.Module) -> TextEncoder:
        """The parts of a model of this recipe that turn texts into features; they stay shared with `model`, but for
        what is trained here alone. What the model lacks, such as a pooler, is drawn from torch's global generator (on
        "meta": has no values). `config` may be one of `as_text_encoder`, another than the model was built from."""
        raise InputError(f"recipe {self.name!r} has no text encoder\n  give a model that reads texts, such as a BERT")

    def text_encoder_flops(self, config: Any, lengths_B: np.ndarray) -> float:
        """Matmul FLOPs of a forward and backward pass of the text encoder over examples of so many tokens; 0: they are
        not counted."""
        return 0.0

    def assumed_texts(self, config: Any, num_examples: int, length: int) -> HostBatch:
        """What `ReadExamples.build` would give for a plan without data: texts that all fill `length` slots. Default:
        tokens."""
        import numpy as np

        positions = np.tile(np.arange(length, dtype=np.int32), num_examples)
        return {
            "input_ids": np.zeros_like(positions),
            "token_type_ids": np.zeros_like(positions),
            "positions": positions,
            "cu_seqlens": np.arange(0, len(positions) + 1, length, dtype=np.int32),
            "lengths": np.full(num_examples, length, np.int32),
        }

    def export_text_classifier(self, config: Any, model: TextClassifier, tokenizer: Path | None, out: Path) -> None:
        """Write the new folder `out`, complete or absent, for `transformers`: text encoder and head."""
        raise InputError(
            f"recipe {self.name!r} has no Hugging Face form of its encoder with a head\n  use --format safetensors"
        )

    def import_text_classifier(self, folder: Path, pooling: str | None = None) -> ImportedTextClassifier:
        """Read a folder that `export_text_classifier` wrote, or transformers.

        Args:
            pooling: How it makes one vector of a text, where its files do not say so.
        """
        if pooling is not None:
            raise InputError(f"classifiers of recipe {self.name!r} say themselves how they pool\n  leave --pooling out")
        raise InputError(
            f"recipe {self.name!r} reads no classifiers of transformers\n  give the encoder they were trained from"
        )

    @property
    def reads_text_classifiers(self) -> bool:
        """Whether `import_huggingface` reads the encoders of other recipes with a classifier on them."""
        return False

    @property
    def stands_on_encoder(self) -> bool:
        """Whether `init_from` names a model, maybe of another recipe, whose encoder a model of this one stands on."""
        return False

    def with_encoder(self, config: Any, recipe: str, encoder_config: Any, tokenizer: Path | None) -> Any:
        """The config of a run on top of a model of `recipe` with that config. Only where `stands_on_encoder`."""
        return config

    def load_encoder(self, config: Any, model: nn.Module, recipe: str, encoder_config: Any, trained: nn.Module) -> None:
        """Copy what `model` stands on from the trained model of `with_encoder`. Only where `stands_on_encoder`."""
        raise InputError(f"recipe {self.name!r} stands on no encoder\n  init_from takes a model of its own")

    def fitted_weights(
        self, config: Any, given: Any, weights: Mapping[str, Tensor]
    ) -> tuple[Any, Mapping[str, Tensor]]:
        """Config and weights of a checkpoint of this recipe, as a run of `config` starts from them: for texts of
        another length, where nothing has to be trained for it. Default: as they are.

        Raises:
            ConfigError: They are not for each other, and a setting would mend that.
        """
        return given, weights

    def fitted_text_encoder(
        self,
        config: Any,
        given: Any,
        weights: Mapping[str, Tensor],
        fresh: Mapping[str, Tensor],
    ) -> Mapping[str, Tensor]:
        """Weights of a fine-tuned text encoder of config `given` for one of config `config`, whose fresh weights are
        `fresh`: for texts of another length, or with what is new in it as it was drawn. Default: as they are."""
        return weights

    def trained_length(self, config: Any) -> int | None:
        """Most tokens of an example in training, which is how far positions were trained; None: it is not counted in
        tokens, or positions have no end. Default: None."""
        return None

    def input_ids(self, config: Any, tokenizer: Path, texts: Sequence[str]) -> list[list[int]] | None:
        """What the model reads of each text, control tokens included, to be compared with what transformers makes of
        an export; None: it does not read ids of texts. Default: None."""
        return None

    def own_tokenizer(self, config: Any, out: Path) -> bool:
        """Write the tokenizer of a model that was trained with none beside it, such as one of bytes, to the new folder
        `out`; returns False where there is none to write. Default: there is none."""
        return False

    def carried_weights(self, carried: Any, weights: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """What `import_huggingface` read from an export, as the model of the `carried` config of the run has it.
        Default: as they are; a recipe that writes something in another form turns it back."""
        return weights

    def has_own_vocabulary(self, config: Any) -> bool:
        """Whether a model can be used without a tokenizer beside it. Then `tokenizer` may be None in what follows."""
        return False

    def generate(
        self, config: Any, model: nn.Module, tokenizer: Any, prompts: list[str], **options: Any
    ) -> list[dict[str, Any]]:
        """One answer per prompt, as plain values for people and JSON; "text" is what people are shown.

        Args:
            config: Bound.
            model: In evaluation mode.
            tokenizer: Folder of its tokenizer; None only where `has_own_vocabulary`.
            prompts: Texts.
            options: Those of `generate_options` that were given.
        """
        raise InputError(f"recipe {self.name!r} cannot generate\n  load the model in Python: load_model(RUN)")

    def score(self, config: Any, model: nn.Module, tokenizer: Any, pairs: list[tuple[str, str]]) -> list[float]:
        """The log-probability of each second text given the first. Arguments are those of `generate`."""
        raise InputError(f"recipe {self.name!r} scores no texts\n  load the model in Python: load_model(RUN)")

    def open_rows(self, config: Any, path: str, split: str) -> TaskSource:
        """A file of examples for `open_inference`, as the only split of a source. Default: a file of rows."""
        from pretrainkit.data.row_files import open_rows

        return open_rows(path, split)

    def tasks_of_mixture(self, config: Any, tokenizer: Any, name: str, split: str) -> tuple[str, ...] | None:
        """The tasks of a mixture that have the split, for `open_inference` one by one; None where it is no mixture."""
        return None

    def open_inference(
        self,
        config: Any,
        model: nn.Module,
        tokenizer: Any,
        request: InferenceRequest,
        precision: Precision,
    ) -> Inference:
        """What `pretrainkit infer` asks about.

        Args:
            config: Bound.
            model: In evaluation mode, on its device.
            tokenizer: As for `generate`.
            request: What is asked.
            precision: Of forward passes.
        """
        raise InputError(f"recipe {self.name!r} answers no files of examples\n  try pretrainkit generate")

    @property
    def reads_configs_of(self) -> str | None:
        """The system whose config files `import_config` reads."""
        return None

    @property
    def keys_of_other_configs(self) -> frozenset[str]:
        """Top-level keys of those files, by which they are recognised."""
        return frozenset()

    def import_config(self, path: Path, settings: Iterable[str], nproc: int) -> ImportedConfig:
        """A config file of another system as ours."""
        raise InputError(f"recipe {self.name!r} reads no config files of other systems\n  name another recipe")

    @property
    def huggingface_types(self) -> tuple[str, ...]:
        """The values of `model_type` in config.json that `import_huggingface` reads."""
        return ()

    @property
    def reads_other_huggingface(self) -> bool:
        """Whether `import_huggingface` reads folders of a `model_type` that no recipe names."""
        return False

    def export_huggingface(self, config: Any, model: nn.Module, tokenizer: Path | None, out: Path) -> None:
        """Write the new folder `out`, complete or absent, for `transformers`: weights, config, tokenizer."""
        raise InputError(f"recipe {self.name!r} has no Hugging Face form\n  use --format safetensors")

    def import_huggingface(self, folder: Path) -> tuple[Any, Mapping[str, Any]]:
        """Read a folder written by `transformers`: a complete config and the state dict of `build_model(config)`."""
        raise InputError(f"recipe {self.name!r} cannot import Hugging Face folders\n  name another recipe")

    def import_classifier(self, folder: Path, pooling: str) -> tuple[Any, Mapping[str, Any]]:
        """As `import_huggingface`, of a classifier whose files do not say how it makes one vector of a text."""
        raise InputError(f"recipe {self.name!r} has no choice of pooling\n  leave --pooling out, or give --recipe glue")

    def difference_from_huggingface(self, config: Any, model: nn.Module, folder: Path) -> float:
        """The largest difference between the model's outputs on random inputs and those of transformers for `folder`,
        which `export_huggingface` wrote."""
        raise InputError(f"recipe {self.name!r} has no comparison with transformers\n  leave it out")

    @property
    def file_formats(self) -> tuple[str, ...]:
        """What `import_file` reads: weight files of other systems, by the name of the system."""
        return ()

    def import_file(self, path: Path, format: str, config: Any | None) -> ImportedModel:
        """Read a file or folder of one of `file_formats`.

        Args:
            config: Says the architecture; None: the one that the file is of, or the usual one.
        """
        raise InputError(f"recipe {self.name!r} reads no files of other systems\n  name another recipe")

    @property
    def export_formats(self) -> tuple[str, ...]:
        """What `export_file` writes: weight files for other systems, by the name of the system."""
        return ()

    def export_file(self, config: Any, model: nn.Module, format: str, out: Path) -> None:
        """Write the new file `out` in one of `export_formats`."""
        raise InputError(f"recipe {self.name!r} writes no files for other systems\n  use --format safetensors")
