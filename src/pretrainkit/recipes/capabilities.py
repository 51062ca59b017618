"""What a recipe may be able to do besides training; the base classes of a recipe say what it is.

Callers ask `registry.able(recipe, Generates)`, which has the one message for recipes that are not. Torch-free to
import, as `recipe`.

Unless said otherwise `config` is bound to its data, `source` has the training examples, `world` are the ranks and
`precision` is the run's; `progress` is told how far the work is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypedDict, Unpack

from pretrainkit.recipes.recipe import Recipe, Run, Split
from pretrainkit.training.run import RunConfig
from pretrainkit.training.watch import Evaluation

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray
    from torch import Tensor, nn

    from pretrainkit.data.source import BatchSource, Records
    from pretrainkit.dist.env import World
    from pretrainkit.eval.inference import Inference, InferenceRequest
    from pretrainkit.eval.probe import ImageEncoder
    from pretrainkit.recipes.text_encoder import TextEncoder
    from pretrainkit.recipes.text_reader import TextReader
    from pretrainkit.tasks.sources import TaskSource
    from pretrainkit.training.evaluate_config import TaskProbeConfig
    from pretrainkit.training.objective import HostBatch
    from pretrainkit.training.precision import Precision
    from pretrainkit.workers.processes import Progress

Evaluator = Callable[["nn.Module"], dict[str, float]]
"""Held-out metrics of a model, by name; a collective, the same on all ranks."""


class Capability(ABC, Generic[Run]):
    """Something that only some recipes can do."""

    does: ClassVar[str]
    """As in: recipe 'bert' cannot DOES."""
    instead: ClassVar[str] = ""
    """What to do with a recipe that cannot."""


class PlansWithoutData(Capability[Run]):
    """For `pretrainkit plan` of a preset alone."""

    does = "be planned without data, as its examples say how much a step computes"
    instead = "give the data, or a sample of them: data.train=PATH"

    @abstractmethod
    def without_data(self, config: Run) -> tuple[Run, str]:
        """The bound config for a plan without data, with usual values where the data would decide, and a text that
        names what was assumed. Raises ConfigError where there is no usual value."""

    @abstractmethod
    def assumed_batch(self, config: Run, num_examples: int) -> HostBatch:
        """Return a batch for a plan without data, its examples as long as the config of `without_data` allows."""


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


class ChecksData(Capability[Run]):
    """Has more to say about the training data than every recipe."""

    does = "say more about its data"

    @abstractmethod
    def check_data(
        self, config: Run, source: BatchSource, summary: Mapping[str, Any], records: Callable[[int], Records], num: int
    ) -> DataCheck:
        """More about the training data than every recipe has to say: `records` are those of the whole batch of a step,
        `num` is how many examples to show of each component."""


class ChecksFiles(Capability[Run]):
    """Has data of separate files."""

    does = "check every file: it reads no separate ones"
    instead = "leave out --deep"

    @abstractmethod
    def check_files(self, config: Run, progress: Progress) -> list[str]:
        """Read every file of the data, training and held out, and return what cannot be used, each with its file.
        `config` is not bound: data that do not fit it are reported, too."""

    @abstractmethod
    def check_new_run(self, config: Run, source: BatchSource) -> None:
        """Refuse training data that a new run must not be started with, though an older run may be resumed with them.
        Raises ConfigError, DataError."""


class CachesFeatures(Capability[Run]):
    """Has models with parts that never change."""

    does = "keep features"

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
        """What to train on instead of `source`, where parts of the model never change: a collective, before training.
        `model` gives the model at the start of training, or as it was saved last, on the device; `cache` is a folder of
        the run for what is computed, in which what an earlier start left may be used."""


class KeepsTokenizer(Capability[Run]):
    """Says itself where its tokenizer lies; of other recipes it lies beside the first component of the data."""

    does = "say where its tokenizer lies"

    @abstractmethod
    def tokenizer_folder(self, config: Run) -> Path | None:
        """The tokenizer that the data of a run was made with, which the run keeps a copy of."""

    @abstractmethod
    def with_tokenizer(self, config: Run, tokenizer: Path) -> Run:
        """The config for use with the copy of the tokenizer that lies beside a model, wherever the original may be."""

    def has_own_vocabulary(self, config: Run) -> bool:
        """Whether a model can be used without a tokenizer beside it. Then `tokenizer` may be None in what follows."""
        return False


class Evaluates(Capability[Run]):
    """Has metrics of its own, besides sums over batches."""

    does = "evaluate by itself"

    def build_evaluator(self, config: Run, world: World, precision: Precision) -> Evaluator | None:
        """For metrics that are no sums over batches, such as retrieval. Default: none; then those of the
        objective are added up over `open_data(config, "valid")`."""
        return None

    def more_evaluations(
        self, config: Run, world: World, precision: Precision, folder: Path | None
    ) -> Sequence[Evaluation]:
        """What is evaluated besides, at times of its own, such as answers by the metrics of tasks. `folder` is the
        run's, for files that people look at; None: there is none to write to. Default: nothing."""
        return ()


class GenerateOptions(TypedDict, total=False):
    """Options of `pretrainkit.generate`. A recipe takes those that its `generate_options` name."""

    top: int  # BERT, CLIP: answers per masked word, or images per prompt
    images: str | Path  # CLIP: folder of the images to find what the prompts say in
    num: int  # T5: answers per prompt. 4M: variations of each example
    # T5 and 4M: how answers are drawn; see `DecodingConfig` and `GenerationPlan`.
    beams: int
    alpha: float
    temperature: float
    top_k: float
    top_p: float
    seed: int
    max_length: int
    batch_size: int  # examples of a forward pass
    given: Sequence[str]  # 4M: NAME=TEXT or NAME=FILE; with `from_data` names of what the samples give
    to: Sequence[str]  # 4M: names of targets, in order
    from_data: int  # 4M: so many held-out samples of the run's data as examples
    plan: str | Path  # 4M: a YAML file of a `GenerationPlan`
    settings: Sequence[str]  # 4M: NAME.FIELD=VALUE of a target, or FIELD=VALUE of the plan
    out: str | Path  # 4M: a new folder for pictures, JSON and the sheet
    then: Sequence[str | Path]  # 4M: further models, which make what those before them have not
    image_tokenizers: Sequence[str]  # 4M: NAME=RUN of what makes pictures of tokens
    device: str  # 4M; None: the CPU


class Generates(Capability[Run]):
    """Answers prompts."""

    does = "generate"
    instead = "load the model in Python: pretrainkit.load_model(RUN)"

    @property
    def generate_options(self) -> tuple[str, ...]:
        """The options that `generate` takes, by name."""
        return ("top",)

    @abstractmethod
    def generate(
        self, config: Run, model: nn.Module, tokenizer: Any, prompts: list[str], **options: Any
    ) -> list[dict[str, Any]]:
        """One answer per prompt, as plain values for people and JSON; "text" is what people are shown. The model is in
        evaluation mode; `tokenizer` is its folder, None only where `has_own_vocabulary`; `options` are those of
        `generate_options` that were given."""


class Scores(Capability[Run]):
    """Says how likely texts are."""

    does = "score texts"

    @abstractmethod
    def score(self, config: Run, model: nn.Module, tokenizer: Any, pairs: list[tuple[str, str]]) -> list[float]:
        """The log-probability of each second text given the first. Arguments are those of `generate`."""


class Infers(Capability[Run]):
    """Answers files of examples."""

    does = "answer files of examples"
    instead = "try pretrainkit generate"

    def open_rows(self, config: Run, path: str, split: str) -> TaskSource:
        """A file of examples for `open_inference`, as the only split of a source. Default: a file of rows."""
        from pretrainkit.tasks.row_files import open_rows

        return open_rows(path, split)

    def tasks_of_mixture(self, config: Run, tokenizer: Any, name: str, split: str) -> tuple[str, ...] | None:
        """The tasks of a mixture that have the split, for `open_inference` one by one; None where it is no mixture."""
        return None

    @abstractmethod
    def open_inference(
        self, config: Run, model: nn.Module, tokenizer: Any, request: InferenceRequest, precision: Precision
    ) -> Inference:
        """What `pretrainkit infer` asks about. Model, which is on its device, and tokenizer are as for `generate`."""


class EncodesImages(Capability[Run]):
    """Has a part that turns images into features."""

    does = "encode images"

    @abstractmethod
    def image_encoder(self, config: Run, model: nn.Module) -> ImageEncoder:
        """The image tower of a trained model, to be probed."""

    def published_image_encoder(self, name: str) -> ImageEncoder | None:
        """An encoder of a library with its published weights, such as timm:NAME; None: not one that is known here."""
        return None


class DecodeOptions(TypedDict, total=False):
    """Options of a diffusion decoder."""

    num_steps: int | None  # None: as the model says
    guidance: float  # how much more than an unconditional model; 1: not at all
    seed: int  # of the noise that it begins with


class ImageTokenOptions(TypedDict, total=False):
    """Options of writing the tokens of a data set's images."""

    num_parts: int  # of each image: the largest centre square, and random parts after it; 1 unless given
    min_scale: float  # smallest share of the area of a random part; 0.8 unless given
    seed: int  # of random parts
    folder: str | None  # of the images; None: as the tokenizer's domain says
    out: str | None  # folder of tokens; None: tok_DOMAIN@PIXELS, of published domains as their modality is called
    shard: tuple[int, int]  # this part of so many, from 0: of all images, or of all archives


class ImageCodec(Protocol):
    """An image tokenizer in use. NumPy in and out."""

    def encode(self, images: NDArray[Any], /) -> NDArray[np.integer]:
        """Ids, integers (B, tokens), row by row, of images as their files hold them."""
        ...

    def decode(self, ids: NDArray[np.integer], /, **options: Unpack[DecodeOptions]) -> NDArray[Any]:
        """Images of ids; see `pretrainkit.decode_tokens`."""
        ...


class TokenizesImages(Capability[Run]):
    """Turns images into tokens, and back."""

    does = "turn images into tokens"
    instead = "train one that can: pretrainkit train image_tokenizer/tiny data.train=FOLDER --out RUN"

    @abstractmethod
    def image_codec(self, model: nn.Module, device: torch.device, batch_size: int) -> ImageCodec:
        """A model of this recipe in use, with so many images per forward pass."""

    @abstractmethod
    def write_image_tokens(
        self, codec: Any, place: str, fingerprint: str, settings: Mapping[str, Any], progress: Progress | None
    ) -> dict[str, Any]:
        """Write the tokens of images beside them; returns the manifest. `place` is a folder with a folder for each
        modality, or tar files as in `ROOT/[rgb]/{00..09}.tar`; `fingerprint` is of the model's weights; `settings` are
        those of `ImageTokenOptions` that were given."""


class ReadsPairs(Capability[Run]):
    """Has sets of image-text pairs as data: `pretrainkit data`."""

    does = "read image-text pairs"

    @abstractmethod
    def open_pairs(
        self, path: str, split: Split, *, format: str, image_key: str | None, caption_key: str | None
    ) -> Any:
        """A split of a set, with its `fingerprint`. Raises DataError where it has none."""

    @abstractmethod
    def scan_pairs(self, pairs: Any, *, tokenizer: str | None, **settings: Any) -> dict[str, Any]:
        """Decode every image and read every caption; returns what there is and what is bad."""

    @abstractmethod
    def require_held_out(self, train: Sequence[Any], valid: Sequence[Any]) -> None:
        """Raises DataError where held-out images are in the training data."""

    @abstractmethod
    def pack_pairs(
        self, parts: Mapping[Split, Any], out: Path, *, shard_bytes: int, max_bad: int, progress: Progress
    ) -> dict[str, dict[str, Any]]:
        """Write a set as tars, whole or not at all; returns the manifest of each split."""

    @abstractmethod
    def write_captions(self, sets: Sequence[Any], out: Path) -> int:
        """Write captions as JSON lines; returns how many."""


class CorruptsWords(Capability[Run]):
    """Has kinds of errors in words, to see how much a model minds: `pretrainkit corpus corrupt`."""

    does = "make errors in words"

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
        """Write a file of labelled examples again with errors in that share of its words; returns how many texts."""


class EncodesText(Capability[Run]):
    """Has a part that turns texts into features, on which a model of `StandsOnEncoder` can stand."""

    does = "encode texts"

    @abstractmethod
    def text_reader(self, config: Run, tokenizer: Path) -> TextReader:
        """How the encoder of `build_text_encoder` wants its texts; `tokenizer` is the folder of the model's."""

    def as_text_encoder(self, config: Run, tokenizer: Path | None, max_length: int) -> tuple[Run, Path | None]:
        """The config of an encoder for texts of at most `max_length` slots, and the folder of what its reader needs, as
        a run that trains it further keeps them. Default: as they are."""
        return config, tokenizer

    @abstractmethod
    def build_text_encoder(self, config: Run, model: nn.Module) -> TextEncoder:
        """The parts of a model of this recipe that turn texts into features; they stay shared with `model`, but for
        what is trained here alone. What the model lacks, such as a pooler, is drawn from torch's global generator (on
        "meta": has no values). `config` may be one of `as_text_encoder`, another than the model was built from."""

    def text_encoder_flops(self, config: Run, lengths_B: np.ndarray) -> float:
        """Matmul FLOPs of a forward and backward pass of the text encoder over examples of so many tokens; 0: they are
        not counted."""
        return 0.0

    def assumed_texts(self, config: Run, num_examples: int, length: int) -> HostBatch:
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
            "slot_numbers": np.arange(length, dtype=np.int32),
        }

    def fitted_text_encoder(
        self, config: Run, given: Run, weights: Mapping[str, Tensor], fresh: Mapping[str, Tensor]
    ) -> Mapping[str, Tensor]:
        """Weights of a fine-tuned text encoder of config `given` for one of config `config`, whose fresh weights are
        `fresh`: for texts of another length, or with what is new in it as it was drawn. Default: as they are."""
        return weights


Answers = Callable[[str, str, str, str], list[dict[str, Any]]]
"""Task that was trained on, task that is asked, split and file to the answers, each with its index."""


@dataclass(frozen=True)
class Benchmark:
    """The tasks that a sweep of fine-tunings goes over."""

    name: str
    tasks: tuple[str, ...]
    """Those that can be trained on."""
    usual: tuple[str, ...]
    """Of these, those that a sweep goes over unless others are named."""
    own: tuple[str, ...]
    """Fine-tunings on files of one's own, which settings name."""
    intermediate: str
    """A large task whose model small ones may start from."""
    after_it: tuple[str, ...]
    """The small ones."""
    num_rows: Mapping[str, int]
    """Answers of each file of a submission to the leaderboard."""
    submit: Callable[[Path, Container[str], Answers, Mapping[str, int]], tuple[Path, list[str]]]
    """Write the zip of a submission into a folder, given the tasks that were trained on, what answers a file, and how
    many rows files should have; returns the zip, and what the leaderboard would refuse."""


class StandsOnEncoder(Capability[Run]):
    """Its models are an encoder of another recipe, which `init_from` names, under a new head."""

    does = "stand on an encoder"

    @abstractmethod
    def has_encoder(self, config: Run) -> bool:
        """Whether the config says what the encoder is."""

    @abstractmethod
    def with_encoder(self, config: Run, recipe: str, encoder_config: RunConfig, tokenizer: Path | None) -> Run:
        """The config of a run on top of a model of `recipe` with that config."""

    @abstractmethod
    def load_encoder(
        self, config: Run, model: nn.Module, recipe: str, encoder_config: RunConfig, trained: nn.Module
    ) -> None:
        """Copy what `model` stands on from the trained model of `with_encoder`."""

    @abstractmethod
    def import_classifier(self, folder: Path, pooling: str) -> tuple[Run, Mapping[str, Tensor]]:
        """As `import_huggingface`, of a classifier whose files do not say how it makes one vector of a text."""

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
        """A task with its rows read, to be asked of one model of `recipe` with that config after another, whose encoder
        may change. Raises ConfigError or DataError where there is no such task or its data are not there, InputError
        where `recipe` has no encoder."""

    @property
    @abstractmethod
    def benchmark(self) -> Benchmark:
        """What sweeps go over."""


class FitsWeights(Capability[Run]):
    """Can start from weights of another length or form."""

    does = "fit weights"

    @abstractmethod
    def fitted_weights(
        self, config: Run, given: Run, weights: Mapping[str, Tensor]
    ) -> tuple[Run, Mapping[str, Tensor]]:
        """Config and weights of a checkpoint of this recipe, as a run of `config` starts from them: for texts of
        another length, where nothing has to be trained for it. Raises ConfigError where a setting would mend that they
        are not for each other."""
