"""Settings of the CLIP recipe. Imports no torch. Presets (complete configs) are in `presets.py`."""

import math
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from pretrainkit.config.base import Config, ReadBy
from pretrainkit.config.fields import Rate
from pretrainkit.config.paths import IsPath
from pretrainkit.files.sources import hub_set
from pretrainkit.images.ops import ImageTransform
from pretrainkit.training.data_config import DataConfig, SourceConfig, as_sources
from pretrainkit.training.evaluate_config import EvaluateConfig
from pretrainkit.training.run import RunConfig

DropoutRate = Annotated[float, Field(ge=0, lt=1)]
TemperatureKind = Literal["constant", "parameter", "log_parameter"]


class TowerConfig(Config):
    """Settings of all kinds of towers."""

    neutral_fields: ClassVar[frozenset[str]] = frozenset(
        {
            *("trainable", "num_trainable_layers", "pretrained"),
            *("patch_dropout", "attention_dropout", "freeze_batch_norm", "sync_batch_norm"),
        }
    )

    trainable: bool = True
    """false: the tower keeps its weights; only its projection learns (locked tower, LiT)."""
    num_trainable_layers: NonNegativeInt | None = None
    """Number of last blocks to train in a trainable tower, together with its final norm; null: train everything."""


class VitConfig(TowerConfig):
    """Our own vision transformer, like CLIP's (Radford et al. 2021, https://arxiv.org/abs/2103.00020): class token,
    learned positions, norm before and after the blocks."""

    kind: Literal["vit"] = "vit"
    """Kind of the image tower."""
    image_size: PositiveInt = 224
    """Height and width of the images, in pixels."""
    patch_size: PositiveInt = 16
    """Height and width of a patch, in pixels; must divide image_size."""
    hidden_size: PositiveInt = 768
    """Width of the residual stream."""
    num_layers: PositiveInt = 12
    """Number of transformer blocks."""
    num_heads: PositiveInt = 12
    """Number of attention heads; must divide hidden_size."""
    intermediate_size: PositiveInt = 3072
    """Width of the feed-forward layers."""
    activation: Literal["gelu", "quick_gelu", "gelu_tanh"] = "gelu"
    """Activation function. OpenAI's weights need quick_gelu, SigLIP's gelu_tanh."""
    pool: Literal["cls", "mean", "mean_then_norm"] = "cls"
    """Vector of the image: the class token, or the mean over patches. mean_then_norm: as in CLIPA (Li et al. 2023,
    https://arxiv.org/abs/2305.07017), the mean before the final norm, and no norm before the blocks."""
    patch_dropout: DropoutRate = 0.0
    """Share of the patches left out in training (FLIP, Li et al. 2022, https://arxiv.org/abs/2212.00794)."""
    attention_dropout: DropoutRate = 0.0
    """Dropout rate of the attention probabilities."""
    layer_norm_epsilon: PositiveFloat = 1e-5
    """Added to the variance in layer norms."""


class TimmConfig(TowerConfig):
    """Any image encoder of timm (extra [vision])."""

    kind: Literal["timm"] = "timm"
    """Kind of the image tower."""
    name: str = "vit_base_patch16_224.augreg_in21k"
    """Model name for `timm.create_model`, also `local-dir:FOLDER` and `hf-hub:NAME`."""
    pretrained: bool = True
    """Start from the published weights."""
    architecture: dict[str, Any] | None = None
    """Contents of config.json of a folder or hub model; null: filled in when a run starts, so that the run can be used
    without the original."""
    image_size: PositiveInt | None = None
    """Height and width of the images, in pixels, for encoders with variable size; null: the encoder's default."""
    options: dict[str, bool | int | float | str | tuple[int | float | str, ...]] = Field(default_factory=dict)
    """Additional arguments of `timm.create_model`, such as {drop_path_rate: 0.1}."""
    patch_dropout: DropoutRate = 0.0
    """Share of the patches left out in training, for encoders that support it."""
    freeze_batch_norm: bool = False
    """Keep batch-norm layers in evaluation mode while training."""
    sync_batch_norm: bool = False
    """Compute batch-norm statistics over all ranks."""


class TextTransformerConfig(TowerConfig):
    """Our own text transformer, like CLIP's: learned positions, norm before each layer, read at the end token."""

    kind: Literal["transformer"] = "transformer"
    """Kind of the text tower."""
    vocab_size: PositiveInt | None = None
    """Number of rows of the embedding table; null: the number of pieces of the tokenizer."""
    max_positions: PositiveInt = 77
    """Number of positions: the maximum length of a caption, in tokens."""
    hidden_size: PositiveInt = 512
    """Width of the residual stream."""
    num_layers: PositiveInt = 12
    """Number of transformer blocks."""
    num_heads: PositiveInt = 8
    """Number of attention heads; must divide hidden_size."""
    intermediate_size: PositiveInt = 2048
    """Width of the feed-forward layers."""
    activation: Literal["gelu", "quick_gelu", "gelu_tanh"] = "gelu"
    """Activation function. OpenAI's weights need quick_gelu, SigLIP's gelu_tanh."""
    causal: bool = True
    """Each token attends only to itself and earlier tokens."""
    pool: Literal["eos", "cls", "mean", "eos_padded", "last"] = "eos"
    """Vector of the caption: its last real token, its first token, or the mean over real tokens. Two kinds attend to
    padding like to tokens and need data.pad_captions=max_length: eos_padded, the last real token, as in MobileCLIP;
    last, the last slot of the row, as in SigLIP."""
    attention_dropout: DropoutRate = 0.0
    """Dropout rate of the attention probabilities."""
    layer_norm_epsilon: PositiveFloat = 1e-5
    """Added to the variance in layer norms."""

    @property
    def attends_padding(self) -> bool:
        return self.pool in ("eos_padded", "last")


class HuggingFaceTextConfig(TowerConfig):
    """Any text encoder of transformers."""

    neutral_fields: ClassVar[frozenset[str]] = TowerConfig.neutral_fields | {"name", "architecture"}

    kind: Literal["huggingface"] = "huggingface"
    """Kind of the text tower."""
    name: Annotated[str, IsPath()] = "bert-base-uncased"
    """A folder written by transformers, or a name on the hub."""
    pretrained: bool = True
    """Start from its weights; false: use only its config."""
    architecture: dict[str, Any] | None = None
    """Contents of its config.json; null: filled in when a run starts, so that the run can be used without the
    folder."""
    pool_token: NonNegativeInt | Literal["mean"] = 0
    """Index of the token whose last hidden state represents the caption; 0 is [CLS]. mean: the mean over real tokens
    represents it."""


ImageTower = Annotated[VitConfig | TimmConfig, Field(discriminator="kind")]
TextTower = Annotated[TextTransformerConfig | HuggingFaceTextConfig, Field(discriminator="kind")]


class ProjectionConfig(Config):
    """Projection from the width of a tower to that of the embeddings."""

    neutral_fields: ClassVar[frozenset[str]] = frozenset({"dropout", "image_trainable", "text_trainable"})

    kind: Literal["linear", "residual", "text_only", "text_mlp", "image_bias"] = "linear"
    """linear: one matrix without bias. residual: linear, GELU, linear, dropout, sum with the first, layer norm.
    text_only: one matrix with bias for texts, none for images, whose tower has the width `dim` (SigLIP). text_mlp:
    two matrices with GELU between them for texts, one for images, all without bias (open_clip with a text encoder of
    transformers). image_bias: like linear, with a bias for images (open_clip's EVA02, MobileCLIP and PE-Core)."""
    dim: PositiveInt = 512
    """Width of the embeddings."""
    dropout: Annotated[DropoutRate, ReadBy("kind", ("residual",))] = 0.1
    """Dropout rate; has an effect only with kind=residual."""
    normalize: bool = True
    """Scale embeddings to length 1."""
    image_trainable: Annotated[bool, ReadBy("kind", ("linear", "residual", "text_mlp", "image_bias"))] = True
    """false: the projection of images keeps its initial weights."""
    text_trainable: bool = True
    """false: the projection of texts keeps its initial weights."""

    def mlp_width(self, tower_width: int) -> int:
        """Return the width between the two matrices of kind=text_mlp, as in open_clip."""
        return (tower_width + self.dim) // 2


class TemperatureConfig(Config):
    """Temperature of the logits: logits are cosines / temperature."""

    neutral_fields: ClassVar[frozenset[str]] = frozenset({"project_back"})

    kind: TemperatureKind = "log_parameter"
    """constant: a number. parameter: learned. log_parameter: the logarithm of the logit scale (1 / temperature) is
    learned, as in CLIP."""
    value: PositiveFloat = 0.07
    """Initial temperature."""
    smallest: PositiveFloat = 0.01
    """Lower limit; smaller temperatures are clamped to it and get no gradient."""
    largest: Annotated[PositiveFloat, ReadBy("kind", ("constant", "parameter"))] = 0.5
    """Upper limit, for constant and parameter; larger temperatures are clamped to it and get no gradient."""
    project_back: bool = True
    """After each update, set a learned temperature that is beyond a limit to the limit. Otherwise its gradient would
    remain zero."""

    def neutral(self) -> frozenset[str]:
        """Return the neutral fields. A learned temperature is in the weights; its start and limits belong to
        training."""
        limits = {"smallest", "largest"}
        return self.neutral_fields | (set() if self.kind == "constant" else {"value", *limits})

    def problems(self) -> list[str]:
        """Return problems: limits in the wrong order, or an initial temperature outside the limits."""
        limits, largest = f"model.temperature.smallest={self.smallest:g}", math.inf
        if self.kind != "log_parameter":
            limits, largest = f"{limits} and model.temperature.largest={self.largest:g}", self.largest
        if self.smallest > largest:
            return [f"{limits} allow no temperature\n  swap the limits"]
        if not self.smallest <= self.value <= largest:
            return [
                f"model.temperature.value={self.value:g} is outside {limits}\n  start within the limits, or change them"
            ]
        return []


class ClipModelConfig(Config):
    """Two towers with a projection each."""

    image: ImageTower
    """The image tower."""
    text: TextTower
    """The text tower."""
    projection: ProjectionConfig = ProjectionConfig()
    """Projections to the common space."""
    temperature: TemperatureConfig = TemperatureConfig()
    """Temperature of the logits."""


class MixupConfig(Config):
    """Coin-flipping mixup of ZeroVL (Cui et al. 2022, https://arxiv.org/abs/2112.09331): in each step either images or
    text embeddings are mixed with those of another pair, and the targets with them."""

    beta: PositiveFloat = 0.1
    """The share of each pair is drawn from Beta(beta, beta)."""
    seed: NonNegativeInt = 2021
    """Seed of the shares and coin flips, the same on every rank."""


_IS_INFONCE = ReadBy("loss", ("infonce",))


class ClipObjectiveConfig(Config):
    """Contrastive loss: image and caption of a pair match, all other combinations do not."""

    loss: Literal["infonce", "siglip"] = "infonce"
    """infonce: softmax over the batch in both directions. siglip: a sigmoid for each pair (Zhai et al. 2023,
    https://arxiv.org/abs/2303.15343)."""
    gather_gradient: Annotated[bool, _IS_INFONCE] = True
    """Compute the full gradient, also through the embeddings that a row is compared with, including other ranks. false:
    treat these as constants, as ZeroVL's `gather_backward: False`."""
    gather: bool = True
    """Compare with the pairs of all ranks; false: only with the pairs of the same rank."""
    gather_group_size: Annotated[PositiveInt | None, ReadBy("gather", (True,))] = None
    """Number of consecutive ranks in a group that compares its pairs; null: all ranks."""
    label_smoothing: Annotated[float, Field(ge=0, lt=1), _IS_INFONCE] = 0.0
    """Share of the target spread over all columns; has an effect only with loss=infonce."""
    mixup: Annotated[MixupConfig | None, _IS_INFONCE] = None
    """Mixup, which has an effect only with loss=infonce; null: off."""
    duplicates: Literal["negatives", "ignore", "positives"] = "negatives"
    """Treatment of pairs with the same image or caption in one batch: negatives like all others, ignored in the
    comparison, or additional positives."""
    siglip_bias: Annotated[float, ReadBy("loss", ("siglip",))] = -10.0
    """Initial bias of the logits; has an effect only with loss=siglip."""
    logits_megabytes: PositiveInt = 256
    """Maximum size of a chunk of the logits, in megabytes. One chunk is computed at a time."""

    def problems(self, world_size: int) -> list[str]:
        """Return a problem if the ranks cannot be split into groups."""
        size = self.gather_group_size
        if size is None or not self.gather or world_size == 1 or world_size % size == 0:
            return []
        return [
            f"{world_size} ranks cannot be split into groups of objective.gather_group_size={size}\n"
            f"  use a divisor of {world_size}"
        ]


class TextAugmentConfig(Config):
    """Random changes of caption pieces in training, as in ZeroVL's code."""

    probability: Rate = 0.2
    """Share of the pieces to change."""
    mask_share: Rate = 0.5
    """Share of the changed pieces that become the mask token."""
    random_share: Rate = 0.1
    """Share of the changed pieces that become a random piece. The other changed pieces are removed."""


class ClipSourceConfig(SourceConfig):
    """One set of image-text pairs."""

    path: Annotated[str, IsPath()]
    """A folder with train_anno.csv and valid_anno.csv (ZeroVL), a folder or pattern of webdataset tars (also at
    addresses such as s3://BUCKET/{000..099}.tar), an img2dataset output folder, a folder of Hugging Face datasets, or
    hf://datasets/NAME on the hub."""
    format: Literal["auto", "csv", "webdataset", "img2dataset", "huggingface"] = "auto"
    """Format of the set; auto: detect it from the files."""
    image_key: str | None = None
    """Column, or the extension inside tars; null: the usual ones (image, jpg, png, webp)."""
    caption_key: str | Annotated[dict[str, PositiveFloat], Field(min_length=1)] | None = None
    """Column, or the extension inside tars (json:KEY is a value inside the sample's .json); null: the usual ones
    (caption, text, txt). Several as {KEY: WEIGHT}: training draws one of the existing captions each time; evaluation
    uses the first."""
    split: str | None = None
    """Split of the set; null: train for data.train, valid (or validation, or test) for data.valid."""
    name: str | None = None
    """Name of the set in metrics; null: the last fixed part of its path."""


ClipSources = Annotated[
    tuple[ClipSourceConfig, ...],
    BeforeValidator(as_sources, json_schema_input_type=str | tuple[str | ClipSourceConfig, ...]),
]


_IS_DEBIASED = ReadBy("order", ("debias",))


class ClipDataConfig(DataConfig):
    """Data and batches of image-text pairs."""

    train: ClipSources = ()
    """Sets of pairs to train on: one path, several separated by commas, or a list of {path, weight, ...}."""
    valid: ClipSources = ()
    """Sets of pairs to evaluate on, each under its own name."""
    tokenizer: Annotated[str | None, IsPath()] = None
    """Folder of a tokenizer of pretrainkit or transformers, or a name on the hub; null: the tokenizer of a huggingface
    text tower."""
    max_length: Annotated[int, Field(ge=3)] = 25
    """Maximum number of tokens of a caption, including control tokens. Longer captions are cut."""
    pad_captions: Literal["longest", "max_length"] = "longest"
    """Pad captions to the longest of the microbatch, or always to max_length, so that shapes never change (for
    torch.compile). The results are the same."""
    order: Literal["shuffle", "sequential", "debias"] = "shuffle"  # type: ignore[assignment]
    """shuffle: all sets together. sequential: one set after another, each shuffled. debias: each batch from a single
    set, which is drawn in proportion to its size or weight."""
    debias_exponent: Annotated[float, Field(ge=0), _IS_DEBIASED] = 1.0
    """Draw a set of N pairs in proportion to N ** this (1: by size, 0: uniformly); only for order=debias."""
    debias_draw: Annotated[Literal["random", "balanced"], _IS_DEBIASED] = "random"
    """Draw a set independently for every batch (random), or per epoch exactly as often as it has batches (balanced)."""
    debias_seed: Annotated[NonNegativeInt, _IS_DEBIASED] = 2021
    """Seed of the sequence of sets, the same on every rank; only for order=debias."""
    small_set: Literal["error", "wrap"] = "error"
    """For a set with fewer pairs than a batch: report an error, or let pairs occur several times in a batch."""
    compat_static_order: bool = False
    """Use the order of ZeroVL: the same in every epoch, without the pairs after the last whole batch of each set."""
    train_transforms: tuple[ImageTransform, ...]
    """Transforms of images in training, in this order."""
    valid_transforms: tuple[ImageTransform, ...]
    """Transforms of images in evaluation, in this order."""
    fast_decoding: bool = True
    """Decode JPEG files less exactly in training. This is 10 % faster, with an average error of 1 to 2 of 255, which is
    less than any augmentation. Evaluation is always exact: images are decoded completely and resized by Pillow."""
    normalize: tuple[tuple[float, float, float], tuple[float, float, float]] | None = None
    """Mean and deviation of red, green and blue in [0, 1]; null: the values of the image tower."""
    text_augment: TextAugmentConfig | None = None
    """Random changes of captions in training; null: none."""
    on_bad_sample: Literal["error", "replace"] = "replace"
    """For a missing or broken image or an empty caption in training: stop, or use another row of the same set. For a
    truncated archive: stop, or use the readable part. In evaluation data, both are errors before training."""
    max_bad_fraction: Rate = 0.01
    """For replace: stop if more than this share of the images and of the captions is bad. The lost rows of truncated
    archives count; their number is estimated from the other archives."""
    cache_frozen: bool = False
    """Compute the features of each frozen tower once before training, store them in the run folder, and train on them.
    The inputs of the tower must never change: no random transforms, mixed images or changed captions. Bad rows are then
    always errors, whatever on_bad_sample is."""
    workers: Literal["threads", "processes"] = "threads"
    """Kind of the workers that decode images in advance."""
    num_workers: NonNegativeInt = 2
    """Number of workers per rank."""

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
"""Default captions for zero-shot classification, written for this project."""


class ClassificationConfig(Config):
    """Zero-shot classification of images with classes."""

    path: Annotated[str, IsPath()]
    """Folder with files CLASS/IMAGE, or a Hugging Face data set with a column of classes: hf://datasets/NAME,
    optionally with @REVISION and :CONFIGURATION, or a folder that `datasets` saved."""
    name: str | None = None
    """Name of the set in metrics; null: the last part of the path that is not train, valid, val or test."""
    split: str | None = None
    """Split of a data set; null: the first existing of valid, validation, val and test."""
    image_key: str | None = None
    """Column of images of a data set; null: one of the usual names (image, img, jpg, png, webp)."""
    label_key: str | None = None
    """Column of classes of a data set; null: one of the usual names (label, labels, fine_label, cls, class, wnid)."""
    suite: Literal["imagenet", "cifar"] | None = None
    """imagenet: the class names and 80 captions of OpenAI's evaluation, for classes named by WordNet ids (ImageNet, -R,
    -A, Sketch) or by their numbers (V2); needs extra [open-clip]. cifar: its 18 captions for CIFAR-10 and CIFAR-100;
    classes are named as without a suite."""
    class_names: Annotated[str | None, IsPath()] = None
    """JSON file {class: name for captions}; null: names of folders, or names of classes in a data set, with spaces for
    underscores."""
    templates: tuple[str, ...] = TEMPLATES
    """Captions with {} for the class name; the embeddings of each class are averaged."""
    templates_file: Annotated[str | None, IsPath()] = None
    """A file with one template per line, in place of `templates`."""

    @model_validator(mode="after")
    def _check_suite(self) -> Self:
        if self.suite == "cifar" and (self.templates_file or self.templates != TEMPLATES):
            raise ValueError("suite defines the captions: leave out templates and templates_file")
        if self.suite == "imagenet" and (self.class_names or self.templates_file or self.templates != TEMPLATES):
            raise ValueError(
                "suite defines class names and captions: leave out class_names, templates and templates_file"
            )
        return self


class ClipEvaluateConfig(EvaluateConfig):
    """Zero-shot retrieval in both directions, exact on all of `data.valid`, and zero-shot classification."""

    num_examples: PositiveInt | None = None  # type: ignore[assignment]
    """Evaluate only this many rows at the start of each set; null: all."""
    max_captions_per_image: PositiveInt | None = None
    """Use at most this many captions of each image, the first ones; null: all. COCO is often evaluated with 5."""
    num_folds: PositiveInt = 1
    """Average over this number of equal parts of the images. 5 parts of COCO's 5,000 images give "COCO 1k"."""
    ranks: bool = False
    """Also report the mean and median rank of the first right answer; 1 is best."""
    classification: tuple[ClassificationConfig, ...] = ()
    """Sets of images with classes for zero-shot classification."""
    precision: Literal["float32", "as_training"] = "float32"
    """Number format of the forward passes. ZeroVL validates in float32. as_training: `precision.compute`."""
    scores_megabytes: PositiveInt = 64
    """Maximum size of a chunk of the scores, in megabytes. Results do not depend on it."""


class ClipRun(RunConfig):
    """One run of the CLIP recipe."""

    recipe: Literal["clip"] = "clip"
    """Name of the recipe this config belongs to."""
    model: ClipModelConfig
    """The towers."""
    objective: ClipObjectiveConfig = ClipObjectiveConfig()
    """The contrastive loss and its options."""
    data: ClipDataConfig
    """The training and held-out data."""
    evaluate: ClipEvaluateConfig = ClipEvaluateConfig()
    """Evaluation while training."""

    @property
    def trained_length(self) -> int:
        return self.data.max_length

    def problems(self, world_size: int = 1) -> list[str]:
        problems = [*super().problems(world_size), *self.objective.problems(world_size)]
        problems += self.model.temperature.problems()
        model, projection = self.model, self.model.projection
        has_tower = model.image.trainable or model.text.trainable
        has_image_projection = projection.kind != "text_only" and projection.image_trainable
        has_projection = has_image_projection or projection.text_trainable
        has_scalar = model.temperature.kind != "constant" or self.objective.loss == "siglip"  # its bias is learned
        if not (has_tower or has_projection or has_scalar):
            problems.append(
                "the model has no trainable part: both towers and both projections are frozen, and the "
                "temperature is constant\n  make one trainable, such as model.projection.image_trainable=true"
            )
        text = model.text if isinstance(model.text, TextTransformerConfig) else None
        if text is not None and text.attends_padding and self.data.pad_captions != "max_length":
            problems.append(
                f"model.text.pool={text.pool} attends to padding, so all rows must have the same length\n"
                "  set data.pad_captions=max_length"
            )
        return problems

    @property
    def has_held_out_data(self) -> bool:
        return bool(self.data.valid or self.evaluate.classification)


def set_name(source: ClipSourceConfig) -> str:
    """Return the name of a set in metrics: its `name`, or the last part of its path that has no wildcard."""
    if source.name is not None:
        return source.name
    if (on_hub := hub_set(source.path)) is not None:
        return on_hub.name.rpartition("/")[2]
    path = Path(source.path)
    if path.suffix == ".tar" or any(mark in path.name for mark in "*?{"):
        fixed = [part for part in path.parent.parts if not any(mark in part for mark in "*?{")]
        return fixed[-1] if fixed and fixed[-1] != path.anchor else path.name
    return path.name or source.path


def class_set_name(classes: ClassificationConfig) -> str:
    """Return the name of a set of classes in metrics: its `name`, or the last part of its path except splits."""
    if classes.name is None and (on_hub := hub_set(classes.path)) is not None:
        return on_hub.name.rpartition("/")[2]
    parts = [part for part in Path(classes.path).parts if part not in _SPLIT_FOLDERS]
    return classes.name or (parts[-1] if parts else classes.path)
