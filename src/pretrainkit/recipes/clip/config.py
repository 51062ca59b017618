"""Settings of the CLIP recipe. Torch-free. Presets (complete configs) are in `presets.py`."""

import math
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, NonNegativeInt, PositiveFloat, PositiveInt

from pretrainkit.config.base import Config, ReadBy
from pretrainkit.config.fields import Rate
from pretrainkit.config.paths import IsPath
from pretrainkit.images.ops import ImageTransform
from pretrainkit.training.data_config import DataConfig, SourceConfig, as_sources
from pretrainkit.training.evaluate_config import EvaluateConfig
from pretrainkit.training.run import RunConfig

DropoutRate = Annotated[float, Field(ge=0, lt=1)]
TemperatureKind = Literal["constant", "parameter", "log_parameter"]


class TowerConfig(Config):
    """What all four towers have."""

    neutral_fields: ClassVar[frozenset[str]] = frozenset(
        {
            *("trainable", "num_trainable_layers", "pretrained"),
            *("patch_dropout", "attention_dropout", "freeze_batch_norm", "sync_batch_norm"),
        }
    )

    trainable: bool = True
    """false: the tower keeps its weights; only its projection learns (locked tower, LiT)."""
    num_trainable_layers: NonNegativeInt | None = None
    """Of a trainable tower: only its last so many blocks (and the final norm) learn; null: everything."""


class VitConfig(TowerConfig):
    """Our own vision transformer, as CLIP's (Radford et al. 2021, https://arxiv.org/abs/2103.00020): class token,
    learned positions, norm before and after the blocks."""

    kind: Literal["vit"] = "vit"
    """Tells the image towers apart."""
    image_size: PositiveInt = 224
    """Pixels of each side."""
    patch_size: PositiveInt = 16
    """Pixels of each side of a patch; must divide image_size."""
    hidden_size: PositiveInt = 768
    """Width of the residual stream."""
    num_layers: PositiveInt = 12
    """Transformer blocks."""
    num_heads: PositiveInt = 12
    """Attention heads; must divide hidden_size."""
    intermediate_size: PositiveInt = 3072
    """Width of the feed-forward layers."""
    activation: Literal["gelu", "quick_gelu"] = "gelu"
    """quick_gelu is that of OpenAI's weights."""
    pool: Literal["cls", "mean"] = "cls"
    """What stands for the image: the class token, or the mean over patches."""
    patch_dropout: DropoutRate = 0.0
    """Share of the patches left out in training (FLIP, Li et al. 2022, https://arxiv.org/abs/2212.00794)."""
    attention_dropout: DropoutRate = 0.0
    """On attention probabilities."""
    layer_norm_epsilon: PositiveFloat = 1e-5
    """Added to variances."""


class TimmConfig(TowerConfig):
    """Any image encoder of timm (extra [vision])."""

    kind: Literal["timm"] = "timm"
    """Tells the image towers apart."""
    name: str = "vit_base_patch16_224.augreg_in21k"
    """Of `timm.create_model`, also `local-dir:FOLDER` and `hf-hub:NAME`."""
    pretrained: bool = True
    """Start from its published weights."""
    architecture: dict[str, Any] | None = None
    """Of a folder or a name on the hub: the contents of its config.json; null: filled in when a run starts, so that the
    run can be used without it."""
    image_size: PositiveInt | None = None
    """Handed to encoders that take one; null: their own."""
    options: dict[str, bool | int | float | str | tuple[int | float | str, ...]] = Field(default_factory=dict)
    """More arguments of `timm.create_model`, such as {drop_path_rate: 0.1}."""
    patch_dropout: DropoutRate = 0.0
    """Share of the patches left out in training; only for encoders that can."""
    freeze_batch_norm: bool = False
    """Keep batch-norm layers in evaluation mode while training."""
    sync_batch_norm: bool = False
    """Batch norm over all ranks."""


class TextTransformerConfig(TowerConfig):
    """Our own text transformer, as CLIP's: learned positions, norm before each layer, read at the end token."""

    kind: Literal["transformer"] = "transformer"
    """Tells the text towers apart."""
    vocab_size: PositiveInt | None = None
    """Rows of the embedding table; null: as many as the tokenizer has pieces."""
    max_positions: PositiveInt = 77
    """Rows of the position table: the longest caption in tokens."""
    hidden_size: PositiveInt = 512
    """Width of the residual stream."""
    num_layers: PositiveInt = 12
    """Transformer blocks."""
    num_heads: PositiveInt = 8
    """Attention heads; must divide hidden_size."""
    intermediate_size: PositiveInt = 2048
    """Width of the feed-forward layers."""
    activation: Literal["gelu", "quick_gelu"] = "gelu"
    """quick_gelu is that of OpenAI's weights."""
    causal: bool = True
    """Tokens see only what stands before them."""
    pool: Literal["eos", "cls", "mean"] = "eos"
    """What stands for the caption: its last real token, its first, or the mean over real tokens."""
    attention_dropout: DropoutRate = 0.0
    """On attention probabilities."""
    layer_norm_epsilon: PositiveFloat = 1e-5
    """Added to variances."""


class HuggingFaceTextConfig(TowerConfig):
    """Any text encoder of transformers."""

    neutral_fields: ClassVar[frozenset[str]] = TowerConfig.neutral_fields | {"name", "architecture"}

    kind: Literal["huggingface"] = "huggingface"
    """Tells the text towers apart."""
    name: Annotated[str, IsPath()] = "bert-base-uncased"
    """A folder written by transformers, or a name on the hub."""
    pretrained: bool = True
    """Start from its weights; false: from its config alone."""
    architecture: dict[str, Any] | None = None
    """The contents of its config.json; null: filled in when a run starts, so that the run can be used without it."""
    pool_token: NonNegativeInt = 0
    """Which token's last hidden state stands for the caption; 0 is [CLS]."""


ImageTower = Annotated[VitConfig | TimmConfig, Field(discriminator="kind")]
TextTower = Annotated[TextTransformerConfig | HuggingFaceTextConfig, Field(discriminator="kind")]


class ProjectionConfig(Config):
    """From the width of a tower to that of the embeddings."""

    neutral_fields: ClassVar[frozenset[str]] = frozenset({"dropout", "image_trainable", "text_trainable"})

    kind: Literal["linear", "residual"] = "linear"
    """linear: one matrix without bias. residual: linear, GELU, linear, dropout, sum with the first, layer norm."""
    dim: PositiveInt = 512
    """Width of the embeddings."""
    dropout: Annotated[DropoutRate, ReadBy("kind", ("residual",))] = 0.1
    """residual only."""
    normalize: bool = True
    """Embeddings of length 1."""
    image_trainable: bool = True
    """false: the projection of images keeps its initial weights."""
    text_trainable: bool = True
    """false: the projection of texts keeps its initial weights."""


class TemperatureConfig(Config):
    """Logits are cosines / temperature."""

    neutral_fields: ClassVar[frozenset[str]] = frozenset({"project_back"})

    kind: TemperatureKind = "log_parameter"
    """constant: a number. parameter: learned. log_parameter: the logarithm of the logit scale (1 / temperature) is
    learned, as in CLIP."""
    value: PositiveFloat = 0.07
    """To start with."""
    smallest: PositiveFloat = 0.01
    """Smaller ones are used as this and get no gradient."""
    largest: Annotated[PositiveFloat, ReadBy("kind", ("constant", "parameter"))] = 0.5
    """Larger ones are used as this and get no gradient (constant and parameter only)."""
    project_back: bool = True
    """A learned temperature beyond a limit is set to it after each update, or its gradient would vanish for good."""

    def neutral(self) -> frozenset[str]:
        """A learned temperature is in the weights: where it starts and where it may go to belong to the training."""
        limits = {"smallest", "largest"}
        return self.neutral_fields | (set() if self.kind == "constant" else {"value", *limits})

    def problems(self) -> list[str]:
        """Limits in the wrong order, or a first temperature beyond them, which would be used as the limit."""
        limits, largest = f"model.temperature.smallest={self.smallest:g}", math.inf
        if self.kind != "log_parameter":
            limits, largest = f"{limits} and model.temperature.largest={self.largest:g}", self.largest
        if self.smallest > largest:
            return [f"{limits} leave no temperature between them\n  exchange them"]
        if not self.smallest <= self.value <= largest:
            return [
                f"model.temperature.value={self.value:g} is beyond {limits}\n  start within the limits, or move them"
            ]
        return []


class ClipModelConfig(Config):
    """Two towers with a projection each."""

    image: ImageTower
    """The image tower."""
    text: TextTower
    """The text tower."""
    projection: ProjectionConfig = ProjectionConfig()
    """To the common space."""
    temperature: TemperatureConfig = TemperatureConfig()
    """Of the logits."""


class MixupConfig(Config):
    """Coin-flipping mixup of ZeroVL (Cui et al. 2022, https://arxiv.org/abs/2112.09331): in each step either images or
    text embeddings are mixed with those of another pair, and the targets with them."""

    beta: PositiveFloat = 0.1
    """The share of each pair is drawn from Beta(beta, beta)."""
    seed: NonNegativeInt = 2021
    """Of the sequence of shares and coins, the same on every rank."""


_IS_INFONCE = ReadBy("loss", ("infonce",))


class ClipObjectiveConfig(Config):
    """Pairs belong together, all others do not."""

    loss: Literal["infonce", "siglip"] = "infonce"
    """infonce: softmax over the batch in both directions. siglip: a sigmoid for each pair (Zhai et al. 2023,
    https://arxiv.org/abs/2303.15343)."""
    gather_gradient: Annotated[bool, _IS_INFONCE] = True
    """Gradient also through the embeddings a row is compared with, those of other ranks too: the true gradient. false:
    those are constants, as ZeroVL's `gather_backward: False`."""
    gather: bool = True
    """Compare with the pairs of all ranks; false: with those of this rank alone."""
    gather_group_size: Annotated[PositiveInt | None, ReadBy("gather", (True,))] = None
    """Compare within groups of so many consecutive ranks; null: all."""
    label_smoothing: Annotated[float, Field(ge=0, lt=1), _IS_INFONCE] = 0.0
    """infonce only: share of the target spread over all columns."""
    mixup: Annotated[MixupConfig | None, _IS_INFONCE] = None
    """infonce only; null: off."""
    duplicates: Literal["negatives", "ignore", "positives"] = "negatives"
    """What pairs with the same image or caption in one batch are to each other: as any other, left out of the
    comparison, or further positives."""
    siglip_bias: Annotated[float, ReadBy("loss", ("siglip",))] = -10.0
    """siglip only: initial bias of the logits."""
    logits_megabytes: PositiveInt = 256
    """Logits are computed in chunks of at most so many megabytes."""

    def problems(self, world_size: int) -> list[str]:
        """Groups of ranks that the ranks cannot be split into."""
        size = self.gather_group_size
        if size is None or not self.gather or world_size == 1 or world_size % size == 0:
            return []
        return [
            f"{world_size} ranks cannot be split into groups of objective.gather_group_size={size}\n"
            f"  use a divisor of {world_size}"
        ]


class TextAugmentConfig(Config):
    """Caption pieces to change in training (ZeroVL, section 4.2 of its code's behaviour)."""

    probability: Rate = 0.2
    """Share of the pieces to change."""
    mask_share: Rate = 0.5
    """Of those, how many become the mask token."""
    random_share: Rate = 0.1
    """How many become a random piece; the rest is removed."""


class ClipSourceConfig(SourceConfig):
    """One set of image-text pairs."""

    path: Annotated[str, IsPath()]
    """A folder with train_anno.csv and valid_anno.csv (ZeroVL), a folder or pattern of webdataset tars, an img2dataset
    output folder, or a folder or hub name of Hugging Face datasets."""
    format: Literal["auto", "csv", "webdataset", "img2dataset", "huggingface"] = "auto"
    """auto: by what the folder holds."""
    image_key: str | None = None
    """Column, or the extension inside tars; null: the usual ones (image, jpg, png, webp)."""
    caption_key: str | Annotated[dict[str, PositiveFloat], Field(min_length=1)] | None = None
    """Column, or the extension inside tars (json:KEY is a value inside the sample's .json); null: the usual ones
    (caption, text, txt). Several as {KEY: WEIGHT}: each time one of those an image has is drawn; evaluation takes the
    first."""
    split: str | None = None
    """Of the set; null: train for data.train, valid (or validation, or test) for data.valid."""
    name: str | None = None
    """What the set is called in metrics; null: the last part of its path, without what varies in a pattern."""


ClipSources = Annotated[
    tuple[ClipSourceConfig, ...],
    BeforeValidator(as_sources, json_schema_input_type=str | tuple[str | ClipSourceConfig, ...]),
]


_IS_DEBIASED = ReadBy("order", ("debias",))


class ClipDataConfig(DataConfig):
    """How pairs become batches."""

    train: ClipSources = ()
    """Sets of pairs to train on: one path, several separated by commas, or a list of {path, weight, ...}."""
    valid: ClipSources = ()
    """Sets of pairs to evaluate on, each under its own name."""
    tokenizer: Annotated[str | None, IsPath()] = None
    """Folder of a tokenizer of ours or of transformers, or a name on the hub; null: that of a huggingface text
    tower."""
    max_length: Annotated[int, Field(ge=3)] = 25
    """Tokens of a caption with its first and last special token; longer ones are cut."""
    pad_captions: Literal["longest", "max_length"] = "longest"
    """Captions of a microbatch are filled up to its longest, or always to max_length (shapes that never change, for
    torch.compile). The numbers are the same."""
    order: Literal["shuffle", "sequential", "debias"] = "shuffle"  # type: ignore[assignment]
    """shuffle: all sets as one. sequential: one set after another, shuffled inside. debias: each batch from one set,
    drawn in proportion to its size or weight."""
    debias_exponent: Annotated[float, Field(ge=0), _IS_DEBIASED] = 1.0
    """debias only: a set of N pairs is drawn in proportion to N ** this (1: size, 0: all alike)."""
    debias_draw: Annotated[Literal["random", "balanced"], _IS_DEBIASED] = "random"
    """debias only. random: drawn anew for every batch. balanced: in each epoch exactly as often as it has batches."""
    debias_seed: Annotated[NonNegativeInt, _IS_DEBIASED] = 2021
    """debias only: of the sequence of sets, the same on every rank."""
    small_set: Literal["error", "wrap"] = "error"
    """A set with fewer pairs than a batch: refuse it, or let pairs occur several times in a batch."""
    compat_static_order: bool = False
    """The order of ZeroVL, the same in every epoch, which never sees the pairs after the last whole batch of each
    set."""
    train_transforms: tuple[ImageTransform, ...]
    """Applied in this order in training."""
    valid_transforms: tuple[ImageTransform, ...]
    """Applied in this order in evaluation."""
    fast_decoding: bool = True
    """Let libjpeg-turbo round coarsely in training: a tenth faster, and 1 to 2 of 255 off on average, less than any
    augmentation. Evaluation is always exact: decoded whole and resized by Pillow."""
    normalize: tuple[tuple[float, float, float], tuple[float, float, float]] | None = None
    """Mean and deviation of red, green and blue in [0, 1]; null: those of the image tower."""
    text_augment: TextAugmentConfig | None = None
    """Changes captions in training; null: off."""
    on_bad_sample: Literal["error", "replace"] = "replace"
    """A row with a missing or broken image or an empty caption in training: stop, or take another row of the same set.
    An archive that breaks off: stop, or use what can be read. In evaluation both are errors, before training."""
    max_bad_fraction: Rate = 0.01
    """replace only: stop when more than this share of the images, and of the captions, was bad. What archives that
    break off lack counts, as far as the others tell how much it is."""
    cache_frozen: bool = False
    """Before training, compute the features of each tower that does not learn, keep them in the run folder, and train
    on those. Only where the tower's inputs never change: no random transforms or mixed images, no changed captions.
    Bad rows are then errors, whatever on_bad_sample says."""
    workers: Literal["threads", "processes"] = "threads"
    """What decodes images ahead."""
    num_workers: NonNegativeInt = 2
    """How many per rank."""

    @property
    def loader_workers(self) -> tuple[Literal["threads", "processes"], int]:
        return self.workers, self.num_workers


_SPLIT_FOLDERS = frozenset({"train", "valid", "validation", "val", "test"})

TEMPLATES = (
    "a photo of a {}.",
    "a picture of the {}, seen from nearby.",
    "this is how a {} looks from far away.",
    "a dark and blurred snapshot of a {}.",
    "a colourful drawing of one {}.",
    "several {} side by side.",
    "{}",
)
"""Captions for zero-shot classification where none are given. Our own words."""


class ClassificationConfig(Config):
    """Zero-shot classification of a folder with one folder of images for each class."""

    path: Annotated[str, IsPath()]
    """FOLDER/CLASS/IMAGE."""
    name: str | None = None
    """In the names of metrics; null: the last part of the path that is not train, valid, val or test."""
    class_names: Annotated[str | None, IsPath()] = None
    """JSON file {folder name: class name}; null: folder names, with spaces for underscores."""
    templates: tuple[str, ...] = TEMPLATES
    """Captions with {} for the class name; the embeddings of each class are averaged."""
    templates_file: Annotated[str | None, IsPath()] = None
    """A file with one template in each line, in place of `templates`."""


class ClipEvaluateConfig(EvaluateConfig):
    """Zero-shot retrieval in both directions, exact on all of `data.valid`, and zero-shot classification."""

    num_examples: PositiveInt | None = None  # type: ignore[assignment]
    """Only the first so many rows of each set; null: all."""
    max_captions_per_image: PositiveInt | None = None
    """Only the first so many captions of an image; null: all. (COCO is often scored with 5.)"""
    num_folds: PositiveInt = 1
    """Average over so many equal parts of the images (5 of COCO's 5,000 images give "COCO 1k")."""
    ranks: bool = False
    """Also the mean and the median rank of the first right answer; 1 is best."""
    classification: tuple[ClassificationConfig, ...] = ()
    """Class folders to classify."""
    precision: Literal["float32", "as_training"] = "float32"
    """Number format of the forward passes. ZeroVL validates in float32. as_training: what `precision.compute` says."""
    scores_megabytes: PositiveInt = 64
    """Scores are computed in chunks of at most so many megabytes. The numbers are the same."""


class ClipRun(RunConfig):
    """One run of the CLIP recipe."""

    recipe: Literal["clip"] = "clip"
    """Name of the recipe this config belongs to."""
    model: ClipModelConfig
    """The towers."""
    objective: ClipObjectiveConfig = ClipObjectiveConfig()
    """What the loss is."""
    data: ClipDataConfig
    """What the model is fed."""
    evaluate: ClipEvaluateConfig = ClipEvaluateConfig()
    """Evaluation while training."""

    @property
    def trained_length(self) -> int:
        return self.data.max_length

    def problems(self, world_size: int = 1) -> list[str]:
        found = [*super().problems(world_size), *self.objective.problems(world_size)]
        found += self.model.temperature.problems()
        model, projection = self.model, self.model.projection
        has_tower = model.image.trainable or model.text.trainable
        has_projection = projection.image_trainable or projection.text_trainable
        has_scalar = model.temperature.kind != "constant" or self.objective.loss == "siglip"  # whose bias is learned
        if not (has_tower or has_projection or has_scalar):
            found.append(
                "nothing of the model learns: both towers and both projections are kept as they are, and the "
                "temperature is constant\n  let one learn, such as model.projection.image_trainable=true"
            )
        return found

    @property
    def has_held_out_data(self) -> bool:
        return bool(self.data.valid or self.evaluate.classification)


def set_name(source: ClipSourceConfig) -> str:
    """Return the name of a set in metrics: its own, or the last part of its path that is the same for all of it."""
    if source.name is not None:
        return source.name
    path = Path(source.path)
    if path.suffix == ".tar" or any(mark in path.name for mark in "*?{"):
        fixed = [part for part in path.parent.parts if not any(mark in part for mark in "*?{")]
        return fixed[-1] if fixed and fixed[-1] != path.anchor else path.name
    return path.name or source.path


def class_set_name(classes: ClassificationConfig) -> str:
    """Return the name of a folder of classes in metrics: its own, or the last part of its path that is not a split."""
    parts = [part for part in Path(classes.path).parts if part not in _SPLIT_FOLDERS]
    return classes.name or (parts[-1] if parts else classes.path)
