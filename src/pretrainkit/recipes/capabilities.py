"""Optional capabilities of recipes besides training; a recipe declares them as base classes.

Callers use `registry.able(recipe, Generates)`, which raises one common error for recipes without the capability. This
module imports no torch.

Unless documented otherwise, `config` is bound to its data, `source` has the training examples, `world` describes the
ranks, `precision` is the run's precision, and `progress` receives the progress of the work.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, Protocol, TypedDict, Unpack

from pretrainkit.recipes.recipe import Recipe, Run, Split
from pretrainkit.training.run import RunConfig
from pretrainkit.training.watch import Evaluation, Sample

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray
    from torch import Tensor, nn

    from pretrainkit.data.source import BatchSource, Records
    from pretrainkit.dist.env import World
    from pretrainkit.eval.inference import Inference, InferenceRequest
    from pretrainkit.eval.probe import ImageEncoder
    from pretrainkit.recipes.proposal import ProjectRequest, Proposal
    from pretrainkit.recipes.text_encoder import TextEncoder
    from pretrainkit.recipes.text_reader import TextReader
    from pretrainkit.tasks.sources import TaskSource
    from pretrainkit.training.evaluate_config import TaskProbeConfig
    from pretrainkit.training.objective import HostBatch
    from pretrainkit.training.precision import Precision
    from pretrainkit.workers.processes import Progress

Evaluator = Callable[["nn.Module"], dict[str, float]]
"""Function that returns held-out metrics of a model by name. All ranks call it and get the same result."""


class Capability(ABC, Generic[Run]):
    """Base class of the optional capabilities of a recipe."""

    does: ClassVar[str]
    """Verb phrase for the message "recipe 'bert' cannot DOES"."""
    instead: ClassVar[str] = ""
    """Advice for users of a recipe without the capability."""


class PlansWithoutData(Capability[Run]):
    """Supports `pretrainkit plan` for a preset without data."""

    does = "be planned without data, because the cost of a step depends on its examples"
    instead = "pass the data or a sample of it as data.train=PATH"

    @abstractmethod
    def without_data(self, config: Run) -> tuple[Run, str]:
        """Return the bound config for a plan without data, and a text that lists the assumed values. Raises ConfigError
        if a value that depends on the data has no usual default."""

    @abstractmethod
    def assumed_batch(self, config: Run, num_examples: int) -> HostBatch:
        """Return a batch whose examples have the maximum length of the config from `without_data`."""


@dataclass(frozen=True)
class DataCheck:
    """Summary of the training data of a run, shown before training."""

    figures: dict[str, Any]
    """Statistics by name, for people and JSON."""
    notes: list[str]
    """Possible mistakes, each with advice."""
    examples: list[Sample] = field(default_factory=list)
    """The first examples as the model reads them."""
    problems: list[str] = field(default_factory=list)
    """Unusable files or records, after a check of all of them; the other fields are then empty."""
    lengths: dict[str, list[float]] = field(default_factory=dict)
    """Histogram of the lengths of examples in tokens, if they differ: `counts` (N,) and `edges` (N + 1,)."""
    languages: dict[str, Any] = field(default_factory=dict)
    """`of`: "language" or "script"; `counts`: number of examples of each. Empty for data without text."""


class ChecksData(Capability[Run]):
    """Adds its own checks and statistics to the summary of the training data."""

    does = "check its data beyond the common checks"

    @abstractmethod
    def check_data(
        self, config: Run, source: BatchSource, summary: Mapping[str, Any], records: Callable[[int], Records]
    ) -> tuple[dict[str, Any], list[str]]:
        """Return figures and notes beyond those of every recipe, see `DataCheck`. `records` returns the records of a
        step's batch."""


class StoredRecord(NamedTuple):
    """A record as it is stored, without the random choices of training."""

    name: str
    """Name for people, such as a file, or a folder and a number."""
    text: str
    """Its text, such as a document or a caption; "" if it has none."""
    content: bytes
    """Bytes that are the same for copies of the record."""


class ShowsExamples(Capability[Run]):
    """Shows its training data, for `pretrainkit data check`."""

    does = "show its examples"

    @abstractmethod
    def show_examples(self, config: Run, source: BatchSource, records: Records) -> list[Sample]:
        """Return each example as the model reads it in training, with its masks and targets."""

    @abstractmethod
    def stored_records(self, config: Run, source: BatchSource, records: Records) -> list[StoredRecord]:
        """Return the records as they are stored; `source` may be of either split."""


class ChecksFiles(Capability[Run]):
    """Has its own check of all files, in place of building every example."""

    does = "check its files without building every example"

    @abstractmethod
    def check_files(self, config: Run, progress: Progress) -> list[str]:
        """Read every file of the training and held-out data and return a message for each unusable file. `config` is
        not bound: data that do not match it are reported, too."""

    def check_new_run(self, config: Run, source: BatchSource) -> None:
        """Raise ConfigError or DataError for training data that a new run must not use, although an older run may be
        resumed with them. Default: all data are allowed."""


class StartsProjects(Capability[Run]):
    """Proposes a project from raw data, for `pretrainkit new`."""

    does = "start a project from raw data"

    reads: ClassVar[str]
    """Raw data that it reads, for the message "bert reads READS"."""

    @abstractmethod
    def propose(self, request: ProjectRequest) -> Proposal:
        """Look at the raw data and decide on everything that a training needs, with reasons. Nothing is written. Raises
        DataError if the data cannot be used."""


class CachesFeatures(Capability[Run]):
    """Caches the features of frozen parts of its models."""

    does = "cache features"

    @abstractmethod
    def with_cached_features(
        self,
        config: Run,
        source: BatchSource,
        model: Callable[[], nn.Module],
        cache: Path,
        world: World,
        precision: Precision,
    ) -> BatchSource:
        """Return the source to train on instead of `source`, with features of frozen parts of the model. All ranks call
        this before training. `model` returns the model on the device, as initialized or last saved. `cache` is a folder
        of the run for the features; features that an earlier start stored there may be used again."""


class KeepsTokenizer(Capability[Run]):
    """Defines the folder of its tokenizer; other recipes use the one beside the first component of the data."""

    does = "define the folder of its tokenizer"

    @abstractmethod
    def tokenizer_folder(self, config: Run) -> Path | None:
        """Return the folder of the tokenizer that created the data of a run. The run stores a copy of it."""

    @abstractmethod
    def with_tokenizer(self, config: Run, tokenizer: Path) -> Run:
        """Return the config with the copy of the tokenizer beside a model in place of the original."""

    def has_own_vocabulary(self, config: Run) -> bool:
        """Return True if a model works without a tokenizer; other methods then accept `tokenizer=None`."""
        return False


class Evaluates(Capability[Run]):
    """Has metrics that are not sums over batches."""

    does = "compute its own metrics"

    def build_evaluator(self, config: Run, world: World, precision: Precision) -> Evaluator | None:
        """Return an evaluator for metrics that are not sums over batches, such as retrieval. Default: None, which sums
        the metrics of the objective over `open_data(config, "valid")`."""
        return None

    def more_evaluations(
        self, config: Run, world: World, precision: Precision, folder: Path | None
    ) -> Sequence[Evaluation]:
        """Return additional evaluations with their own schedule, such as the metrics of tasks. `folder` is the run
        folder for files that people read, or None if nothing can be written. Default: none."""
        return ()

    def metric_rows(self, config: Run, metrics: Mapping[str, float], model: str) -> Sequence[Mapping[str, str | float]]:
        """Return rows of a table of the metrics of `model`. Default: one row with a column for each metric."""
        return [{"model": model, **metrics}]


class GenerateOptions(TypedDict, total=False):
    """Options of `pretrainkit.generate`. A recipe accepts the options in its `generate_options`."""

    top: int  # BERT, CLIP: number of answers per masked word, or of images per prompt
    images: str | Path  # CLIP: folder of the images to search
    num: int  # T5: number of answers per prompt. 4M: number of variations of each example
    # T5 and 4M: how answers are drawn; see `DecodingConfig` and `GenerationPlan`.
    beams: int
    alpha: float
    temperature: float
    top_k: float
    top_p: float
    seed: int
    max_length: int
    batch_size: int  # number of examples per forward pass
    inputs: Sequence[str]  # 4M: NAME=TEXT or NAME=FILE; with `from_data`: names of the inputs
    to: Sequence[str]  # 4M: names of targets, in order
    from_data: int  # 4M: number of held-out samples of the run's data to use as examples
    plan: str | Path  # 4M: a YAML file of a `GenerationPlan`
    settings: Sequence[str]  # 4M: NAME.FIELD=VALUE of a target, or FIELD=VALUE of the plan
    out: str | Path  # 4M: a new folder for pictures, JSON and the sheet
    then: Sequence[str | Path]  # 4M: further models for the remaining targets
    image_tokenizers: Sequence[str]  # 4M: NAME=RUN of tokenizers that decode tokens to pictures


class Generates(Capability[Run]):
    """Answers prompts."""

    does = "generate"
    instead = "load the model in Python: pretrainkit.load_model(RUN)"

    @property
    def generate_options(self) -> tuple[str, ...]:
        """Names of the options that `generate` accepts."""
        return ("top",)

    @abstractmethod
    def generate(
        self, config: Run, model: nn.Module, tokenizer: Any, prompts: list[str], **options: Any
    ) -> list[dict[str, Any]]:
        """Return one answer per prompt, as plain values for people and JSON; people are shown "text". The model is in
        evaluation mode. `tokenizer` is its folder, None only if `has_own_vocabulary`. `options` has the options from
        `generate_options` that the user set."""


class Scores(Capability[Run]):
    """Computes log-probabilities of texts."""

    does = "score texts"

    @abstractmethod
    def score(self, config: Run, model: nn.Module, tokenizer: Any, pairs: list[tuple[str, str]]) -> list[float]:
        """Return the log-probability of each second text given the first. Arguments are as in `generate`."""


class Infers(Capability[Run]):
    """Runs inference on files of examples."""

    does = "run inference on files of examples"
    instead = "try pretrainkit generate"

    def open_rows(self, config: Run, path: str, split: str) -> TaskSource:
        """Return a source with a file of examples as its only split. Default: a file of rows."""
        from pretrainkit.tasks.row_files import open_rows

        return open_rows(path, split)

    def tasks_of_mixture(self, config: Run, tokenizer: Any, name: str, split: str) -> tuple[str, ...] | None:
        """Return the tasks of the mixture `name` that have the split; None if `name` is not a mixture."""
        return None

    @abstractmethod
    def open_inference(
        self, config: Run, model: nn.Module, tokenizer: Any, request: InferenceRequest, precision: Precision
    ) -> Inference:
        """Return the inference for `pretrainkit infer`. The model is on its device; `tokenizer` is as in `generate`."""


class EncodesImages(Capability[Run]):
    """Has an image encoder."""

    does = "encode images"

    @abstractmethod
    def image_encoder(self, config: Run, model: nn.Module) -> ImageEncoder:
        """Return the image tower of a trained model for a probe."""

    def published_image_encoder(self, name: str) -> ImageEncoder | None:
        """Return an encoder of a library with its published weights, such as timm:NAME; None if the name is unknown."""
        return None


class DecodeOptions(TypedDict, total=False):
    """Options of a diffusion decoder."""

    num_steps: int | None  # None: the default of the model
    guidance: float  # classifier-free guidance scale; 1: no guidance
    seed: int  # seed of the initial noise


class ImageTokenOptions(TypedDict, total=False):
    """Options of writing the tokens of a data set's images."""

    num_parts: int  # number of crops per image: the largest centre square, then random crops; default 1
    min_scale: float  # smallest share of the image's area that a random crop has; default 0.8
    seed: int  # seed of the random crops
    folder: str | None  # folder of the images; None: the domain of the tokenizer
    out: str | None  # folder of tokens; None: the name of a published modality, or tok_DOMAIN@PIXELS
    shard: tuple[int, int]  # (index from 0, number of shards), of all images or all archives


class ImageCodec(Protocol):
    """Loaded image tokenizer with NumPy inputs and outputs."""

    def encode(self, images: NDArray[Any], /) -> NDArray[np.integer]:
        """Return integer ids (B, tokens), in row-major order, of images as stored in their files."""
        ...

    def decode(self, ids: NDArray[np.integer], /, **options: Unpack[DecodeOptions]) -> NDArray[Any]:
        """Return images of ids; see `pretrainkit.decode_tokens`."""
        ...


class TokenizesImages(Capability[Run]):
    """Converts images to tokens and back."""

    does = "turn images into tokens"
    instead = "train an image tokenizer: pretrainkit train image_tokenizer/tiny data.train=FOLDER --out RUN"

    @abstractmethod
    def image_codec(self, model: nn.Module, device: torch.device, batch_size: int) -> ImageCodec:
        """Return a codec of a trained model, with `batch_size` images per forward pass."""

    @abstractmethod
    def write_image_tokens(
        self, codec: Any, place: str, fingerprint: str, settings: Mapping[str, Any], progress: Progress | None
    ) -> dict[str, Any]:
        """Write the tokens of images beside the images and return the manifest. `place` is a folder with a folder for
        each modality, or tar files as in `ROOT/[rgb]/{00..09}.tar`; `fingerprint` identifies the weights; `settings`
        has those options of `ImageTokenOptions` that were set."""


class ReadsPairs(Capability[Run]):
    """Reads sets of image-text pairs, for `pretrainkit data`."""

    does = "read image-text pairs"

    @abstractmethod
    def open_pairs(
        self, path: str, split: Split, *, format: str, image_key: str | None, caption_key: str | None
    ) -> Any:
        """Return a split of a set, with its `fingerprint`. Raises DataError if the set lacks the split."""

    @abstractmethod
    def scan_pairs(self, pairs: Any, *, tokenizer: str | None, **settings: Any) -> dict[str, Any]:
        """Decode every image, read every caption, and return statistics and the bad pairs."""

    @abstractmethod
    def require_held_out(self, train: Sequence[Any], valid: Sequence[Any]) -> None:
        """Raise DataError if held-out images are in the training data."""

    @abstractmethod
    def pack_pairs(
        self,
        parts: Mapping[Split, Any],
        out: Path,
        *,
        shard_bytes: int,
        max_bad: int,
        heldout: float,
        progress: Progress,
    ) -> dict[str, dict[str, Any]]:
        """Write a set as tar files, completely or not at all, and return the manifest of each split. `heldout` is the
        share of images for "valid" of a set without held-out images."""

    @abstractmethod
    def write_captions(self, sets: Sequence[Any], out: Path) -> int:
        """Write captions as JSON lines and return their number."""


class CorruptsWords(Capability[Run]):
    """Adds errors to words, to measure the robustness of a model: `pretrainkit corpus corrupt`."""

    does = "add errors to words"

    @abstractmethod
    def write_noisy(
        self,
        source: Path,
        out: Path,
        attack: Any,
        severity: float,
        *,
        columns: Sequence[str],
        seed: int,
        typos: Path | None,
    ) -> int:
        """Write a copy of a labelled file with errors in the share `severity` of its words. Return the number of
        texts."""


class EncodesText(Capability[Run]):
    """Has a text encoder, on which a model of a `BuildsOnEncoder` recipe can be built."""

    does = "encode texts"

    @abstractmethod
    def text_reader(self, config: Run, tokenizer: Path) -> TextReader:
        """Return the reader for the encoder of `build_text_encoder`; `tokenizer` is the model's tokenizer folder."""

    def as_text_encoder(self, config: Run, tokenizer: Path | None, max_length: int) -> tuple[Run, Path | None]:
        """Return the config and the tokenizer folder of an encoder for texts of at most `max_length` slots, as a
        fine-tuning run stores them. Default: both unchanged."""
        return config, tokenizer

    @abstractmethod
    def build_text_encoder(self, config: Run, model: nn.Module) -> TextEncoder:
        """Return the text encoder of a model of this recipe. It shares its parameters with `model`. Layers that the
        model lacks, such as a pooler, are initialized from torch's global generator (on "meta" without values).
        `config` may be a config from `as_text_encoder`, different from the one that `model` was built from."""

    def text_encoder_flops(self, config: Run, lengths_B: np.ndarray) -> float:
        """Return the matmul FLOPs of a forward and backward pass of the text encoder over examples of `lengths_B`
        tokens; 0 if they are not counted."""
        return 0.0

    def assumed_texts(self, config: Run, num_examples: int, length: int) -> HostBatch:
        """Return a batch like that of `ReadExamples.build`, for a plan without data: every text fills `length` slots.
        Default: tokens."""
        import numpy as np

        positions = np.tile(np.arange(length, dtype=np.int32), num_examples)
        return {
            "input_ids": np.zeros_like(positions),
            "token_type_ids": np.zeros_like(positions),
            "positions": positions,
            "cu_seqlens": np.arange(0, len(positions) + 1, length, dtype=np.int32),
            "lengths": np.full(num_examples, length, np.int32),
            "slot_numbers": np.arange(length, dtype=np.int32),
        }

    def fitted_text_encoder(
        self, config: Run, given: Run, weights: Mapping[str, Tensor], fresh: Mapping[str, Tensor]
    ) -> Mapping[str, Tensor]:
        """Convert weights of a fine-tuned text encoder from config `given` to config `config`, for example to another
        text length. New parameters get their values from `fresh`. Default: unchanged."""
        return weights


Answers = Callable[[str, str, str, str], list[dict[str, Any]]]
"""Function of (training task, evaluated task, split, file) that returns the answers, each with its index."""


@dataclass(frozen=True)
class Benchmark:
    """Tasks of a sweep of fine-tunings."""

    name: str
    tasks: tuple[str, ...]
    """Tasks with training data."""
    usual: tuple[str, ...]
    """Default tasks of a sweep."""
    own: tuple[str, ...]
    """Tasks on the user's own files, whose paths are settings."""
    intermediate: str
    """A large task whose model can initialize the small tasks."""
    after_it: tuple[str, ...]
    """Small tasks that can start from the model of `intermediate`."""
    num_rows: Mapping[str, int]
    """Number of answers in each file of a leaderboard submission."""
    submit: Callable[[Path, Container[str], Answers, Mapping[str, int]], tuple[Path, list[str]]]
    """Function of (folder, trained tasks, answers, expected rows per file) that writes the zip of a submission. Returns
    the zip and the reasons for which the leaderboard would reject it."""


class BuildsOnEncoder(Capability[Run]):
    """Builds models from the encoder of another recipe, set by `init_from`, and a new head."""

    does = "build a model on an encoder of another recipe"

    @abstractmethod
    def has_encoder(self, config: Run) -> bool:
        """Return True if the config describes the encoder and names its tokenizer."""

    @abstractmethod
    def with_encoder(self, config: Run, recipe: str, encoder_config: RunConfig, tokenizer: Path | None) -> Run:
        """Return the config of a run on a model of `recipe` with the config `encoder_config`."""

    @abstractmethod
    def load_encoder(
        self, config: Run, model: nn.Module, recipe: str, encoder_config: RunConfig, trained: nn.Module
    ) -> None:
        """Copy the encoder of `model` from the trained model of `with_encoder`."""

    @abstractmethod
    def import_classifier(self, folder: Path, pooling: str) -> tuple[Run, Mapping[str, Tensor]]:
        """Import a classifier like `import_huggingface`, with the pooling that its files do not specify."""

    @abstractmethod
    def open_probe(
        self,
        probe: TaskProbeConfig,
        folders: Mapping[str, str],
        recipe: Recipe[Any],
        encoder_config: RunConfig,
        tokenizer: Path | None,
        world: World,
        precision: Precision,
    ) -> Evaluator:
        """Read the rows of a task and return an evaluator for successive models of `recipe` with `encoder_config`,
        whose encoder may change. Raises ConfigError or DataError if the task or its data do not exist, and InputError
        if `recipe` has no encoder."""

    @property
    @abstractmethod
    def benchmark(self) -> Benchmark:
        """Benchmark of `pretrainkit sweep`."""


class FitsWeights(Capability[Run]):
    """Can start from weights of another length or layout."""

    does = "convert weights to another length or layout"

    @abstractmethod
    def fitted_weights(
        self, config: Run, given: Run, weights: Mapping[str, Tensor]
    ) -> tuple[Run, Mapping[str, Tensor]]:
        """Convert config and weights of a checkpoint for a run of `config`, for example to another text length, and
        return them. Conversions that need training are left out. Raises ConfigError if the two do not match and a
        setting would fix it."""
