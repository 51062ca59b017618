"""Settings of the 4M recipe: architecture and its published sizes, masking, data, length and loss.

This module does not import torch.

Presets (complete configs) are in `presets.py`.
"""

import math
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from pretrainkit.config.base import DEFAULT, Config, Conflict
from pretrainkit.config.fields import NonNegativeFloat, Rate
from pretrainkit.config.paths import IsPath
from pretrainkit.data.aligned_crops import CropConfig
from pretrainkit.recipes.fourm.mixtures import PUBLISHED, Mixture
from pretrainkit.recipes.fourm.modality import Modalities
from pretrainkit.training.data_config import DataConfig, SourceConfig, as_sources
from pretrainkit.training.run import RunConfig

Variant = Literal["gelu", "swiglu", "swiglu-qknorm"]


class FourMModelConfig(Config):
    """Architecture: an encoder of visible tokens and a decoder of tokens to predict (Mizrahi et al. 2023,
    https://arxiv.org/abs/2312.06647; Bachmann et al. 2024, https://arxiv.org/abs/2406.09406)."""

    neutral_fields: ClassVar[frozenset[str]] = frozenset({"drop_path_rate", "shares_drop_path"})

    modalities: Modalities
    """Input and target modalities. Each is the name of a published modality, module:OBJECT or a mapping of fields."""
    hidden_size: Annotated[int, Field(gt=0, multiple_of=4)]
    """Width of encoder and decoder."""
    num_encoder_layers: PositiveInt
    """Number of blocks of the encoder."""
    num_decoder_layers: PositiveInt
    """Number of blocks of the decoder."""
    num_heads: PositiveInt
    """Number of attention heads; must divide hidden_size."""
    intermediate_size: PositiveInt
    """Width of the feed-forward layers; with `gated`, the width of each of their two halves."""
    activation: Literal["gelu", "swish"] = "swish"
    """Activation of the feed-forward layers, or of their gate; swish is also called SiLU."""
    gated: bool = True
    """Multiply one half of the feed-forward layer by the activation of the other half; with swish this is SwiGLU."""
    biases: bool = False
    """Use biases in linear layers and norms. The projection of the encoder's output for the decoder always has one."""
    query_key_norm: bool = False
    """Normalize queries and keys in each head."""
    tied_logits: bool = True
    """Use the same table to embed the targets of a sequence modality and to predict them."""
    shared_modality_embeddings: bool = True
    """Use the same modality embeddings in encoder and decoder."""
    separate_targets: bool = True
    """Decoder tokens attend only to decoder tokens of their own modality."""
    causal_targets: bool = False
    """Decoder tokens attend only to earlier ones and themselves; otherwise tokens of an image attend to each other."""
    num_registers: NonNegativeInt = 0
    """Number of learned tokens before the input tokens of the encoder."""
    vector_bottleneck: PositiveInt | None = None
    """Width of a layer between input vectors and their embedding; null: no such layer. If the original code has this
    layer, its width is 64."""
    drop_path_rate: Rate = 0.0
    """Share of the examples that skip the layers of the last block. The share increases linearly from 0 in the first
    block of encoder and decoder."""
    shares_drop_path: bool = False
    """Increase drop_path_rate through encoder and decoder together, so the decoder's first block does not start at
    0."""
    layer_norm_epsilon: PositiveFloat = 1e-6
    """Value that layer norms add to the variance."""


SIZES = {
    "tiny": (384, 6, 6),
    "small": (512, 8, 8),
    "base": (768, 12, 12),
    "large": (1024, 24, 16),
    "xlarge": (2048, 24, 32),
}
"""Width, number of layers (of the encoder, and as many of the decoder) and number of heads of the published models,
named `fm_SIZE_…` in the original code."""


def published_model(size: str, modalities: Modalities, variant: Variant = "swiglu") -> FourMModelConfig:
    """Return the config of a model in the original's registry. `size`: a key of `SIZES`. `variant`: gelu (with all
    biases), swiglu (`swiglu_nobias`, as the released models) or swiglu-qknorm (`swiglu_qknorm_nobias`)."""
    width, num_layers, num_heads = SIZES[size]
    is_gated = variant != "gelu"
    return FourMModelConfig(
        modalities=modalities,
        hidden_size=width,
        num_encoder_layers=num_layers,
        num_decoder_layers=num_layers,
        num_heads=num_heads,
        intermediate_size=gated_width(width) if is_gated else 4 * width,
        activation="swish" if is_gated else "gelu",
        gated=is_gated,
        biases=not is_gated,
        query_key_norm=variant == "swiglu-qknorm",
    )


def gated_width(width: int) -> int:
    """Return the width of each half of a gated feed-forward layer that has about as many weights as an ungated layer of
    4 x `width`."""
    return int(2 * (4 * width) / 3)


class MaskingConfig(Config):
    """Division of the tokens of a sample into inputs of the encoder and targets of the decoder."""

    num_input_tokens: PositiveInt = 128
    """Number of slots of an encoder row: the maximum number of input tokens of an example."""
    num_target_tokens: PositiveInt = 128
    """Number of slots of a decoder row: the maximum number of target tokens of an example."""
    min_input_tokens: PositiveInt | None = None
    """Draw the input budget of an example uniformly from this value to num_input_tokens; null: always
    num_input_tokens."""
    min_target_tokens: PositiveInt | None = None
    """Draw the target budget of an example uniformly from this value to num_target_tokens; null: always
    num_target_tokens."""
    mixture: Mixture = PUBLISHED["mod7-all2all-rgb2all"]
    """Division of budgets among modalities: a list of components, or the name of a published mixture."""
    unused: Literal["pack", "pad"] = "pack"
    """Use of the slots that a draw leaves empty, because texts and images can be smaller than their budget. pack: fill
    them by further draws of the same sample from the same mixture; the draws do not see each other. pad: leave them
    empty, as in 4M."""
    min_packed_tokens: PositiveInt = 6
    """pack only: make no further draw if the encoder or the decoder has fewer empty slots than this."""
    max_packed: Annotated[int, Field(ge=1, le=255)] = 16
    """pack only: maximum number of draws for one sample."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        for side in ("input", "target"):
            minimum, maximum = getattr(self, f"min_{side}_tokens"), getattr(self, f"num_{side}_tokens")
            if minimum is not None and minimum > maximum:
                raise ValueError(f"min_{side}_tokens {minimum} is more than num_{side}_tokens {maximum}; swap the two")
        return self


class FourMSetConfig(SourceConfig):
    """One data set. On the command line, a plain path means {path: PATH}."""

    path: Annotated[str, IsPath()]
    """A folder with one folder for each modality, with files MODALITY/ANY/STEM.EXTENSION; or tar files, one for each
    modality, as in s3://bucket/[rgb,caption,tok_rgb]/shard-{00000..00099}.tar."""
    name: str | None = None
    """Name of the data set in messages; null: the last part of the path."""
    modalities: tuple[str, ...] | None = None
    """Names of the modalities to use; null: all modalities of the model that the data set has."""
    folders: dict[str, str] = Field(default={})
    """Folders of modalities that differ from the default, by name of the modality: {"tok_semseg@224":
    "semseg_tokens"}."""
    mixture: Mixture | None = None
    """Mixture for this data set; null: masking.mixture."""


FourMSets = Annotated[
    tuple[FourMSetConfig, ...],
    BeforeValidator(as_sources, json_schema_input_type=str | tuple[str | FourMSetConfig, ...]),
]


class FourMDataConfig(DataConfig):
    """Data to train and evaluate on: samples with aligned modalities."""

    train: FourMSets = ()
    """Data to train on: one path, several paths separated by commas, or a list of {path, weight, …}."""
    valid: FourMSets = ()
    """Held-out data, in the same form as data.train."""
    order: Literal["shuffle", "sequential"] = "shuffle"
    """Order of the samples. shuffle: a new permutation of all samples in each epoch. sequential: as stored."""
    tokenizer: Annotated[str | None, IsPath()] = None
    """Folder of the text tokenizer, which must have sentinels. null works only for models without sequences."""
    crop: CropConfig = CropConfig()
    """Part of each sample that is used."""
    aligned_captions: bool = True
    """Use caption k of a sample for its stored part k > 0. For part 0, and if there is no caption k, draw one of the
    captions."""
    min_box_score: Rate = 0.6
    """Leave out boxes with a lower confidence score."""
    max_boxes: PositiveInt | None = None
    """Maximum number of boxes of a sample; the boxes with the highest scores are kept. null: all."""
    box_order: Literal["distance", "area", "score", "random"] = "distance"
    """Order of boxes. distance: distance of the upper left corner from the upper left corner of the image, ascending.
    area, score: descending. random: a random order."""
    min_box_visibility: Rate = 0.0
    """Leave out boxes of which a smaller share is inside the part of the sample that is used."""
    workers: Literal["threads", "processes"] = "threads"
    """Kind of workers that prepare batches in advance."""
    num_workers: NonNegativeInt = 2
    """Number of workers per rank."""

    @property
    def loader_workers(self) -> tuple[Literal["threads", "processes"], int]:
        return self.workers, self.num_workers


class LengthConfig(Config):
    """Lengths in tokens. Every slot counts as a token, filled or empty: an example has masking.num_input_tokens +
    masking.num_target_tokens of them."""

    num_tokens: PositiveInt | None = None
    """Length of the run, rounded up to whole steps; null: use num_steps."""
    num_epoch_examples: PositiveInt | None = None
    """Number of examples of an epoch. If set, num_tokens is rounded up to whole epochs and each epoch down to whole
    steps, as in the original. null: round to steps only."""
    num_warmup_tokens: PositiveInt | None = None
    """Length of the warm-up, rounded up to whole steps. The last of these steps has the peak learning rate, as in the
    original. null: use schedule.num_warmup_steps."""
    num_cooldown_tokens: PositiveInt | None = None
    """Length of the decay at the end (schedule.name=wsd), rounded up to whole steps; null: use
    schedule.num_decay_steps."""


class FourMObjectiveConfig(Config):
    """Weights of the modalities and their targets in the loss."""

    loss: Literal["modality", "token", "token_compat"] = "modality"
    """modality: the mean over all modalities of the mean loss of a modality's targets; a modality without targets in
    the batch counts as 0. token: the mean over all targets. token_compat: as token in the original, where each target
    is weighted by the size of its vocabulary."""
    modality_weights: dict[str, NonNegativeFloat] = Field(default={})
    """Weights of losses by modality; 1 for modalities that are not named."""


class FourMRun(RunConfig):
    """One pretraining run of the 4M recipe."""

    recipe: Literal["fourm"] = "fourm"
    """Name of the recipe this config belongs to."""
    model: FourMModelConfig
    """The architecture."""
    objective: FourMObjectiveConfig = FourMObjectiveConfig()
    """Loss and weights of modalities."""
    masking: MaskingConfig = MaskingConfig()
    """Division of tokens into inputs and targets."""
    data: FourMDataConfig
    """Data to train and evaluate on."""
    length: LengthConfig = LengthConfig()
    """Lengths in tokens instead of steps."""

    @property
    def example_tokens(self) -> int:
        """Number of slots of an example, filled or empty."""
        return self.masking.num_input_tokens + self.masking.num_target_tokens

    @property
    def step_tokens(self) -> int:
        """Number of slots of a step, filled or empty."""
        return self.example_tokens * self.data.batch_size

    def in_steps(self) -> Self:
        """Return the config with all lengths in steps."""
        length, update, schedule = self.length, dict[str, Any](), dict[str, int]()
        if length.num_tokens is not None:
            batch_size, epoch = self.data.batch_size, length.num_epoch_examples
            update["num_steps"] = math.ceil(length.num_tokens / self.step_tokens)
            if epoch is not None:
                num_epochs = math.ceil(length.num_tokens * batch_size / (self.step_tokens * epoch))
                update["num_steps"] = num_epochs * max(1, epoch // batch_size)
        if length.num_warmup_tokens is not None:  # updates before the one at the peak
            schedule["num_warmup_steps"] = max(1, math.ceil(length.num_warmup_tokens / self.step_tokens)) - 1
        if length.num_cooldown_tokens is not None:
            schedule["num_decay_steps"] = math.ceil(length.num_cooldown_tokens / self.step_tokens)
        return self.changed(**update, schedule=schedule)

    def problems(self, world_size: int = 1) -> list[str]:
        """Return the conflicts that the base class finds and those between settings of this recipe."""
        shared = [self._in_tokens(problem) for problem in super(FourMRun, self.in_steps()).problems(world_size)]
        return [*shared, *self._length_problems(), *self._model_problems()]

    def _in_tokens(self, problem: str) -> str:
        """Return a conflict of the base class; its fixes change `length` where that sets the number of steps."""
        tokens = {
            "schedule.num_warmup_steps": ("num_warmup_tokens", self.length.num_warmup_tokens),
            "schedule.num_decay_steps": ("num_cooldown_tokens", self.length.num_cooldown_tokens),
        }
        if not isinstance(problem, Conflict):
            return problem
        remedies = []
        for path, value in problem.remedies:
            name, num_tokens = tokens.get(path, ("", None))
            if num_tokens is not None:
                path, value = f"length.{name}", value if value is DEFAULT else max(1, value * self.step_tokens)
            remedies.append((path, value))
        return Conflict(problem, remedies, "length.num_tokens", *problem.settings)

    def _length_problems(self) -> Iterator[str]:
        """Yield conflicts between lengths in tokens and lengths in steps."""
        in_steps = self.in_steps()
        schedule, planned = self.schedule, in_steps.schedule
        for name, in_tokens, actual, expected, default in (
            ("num_steps", "num_tokens", self.num_steps, in_steps.num_steps, None),
            ("schedule.num_warmup_steps", "num_warmup_tokens", schedule.num_warmup_steps, planned.num_warmup_steps, 0),
            ("schedule.num_decay_steps", "num_cooldown_tokens", schedule.num_decay_steps, planned.num_decay_steps, 0),
        ):
            if actual not in (default, expected):
                yield Conflict(
                    f"{name}={actual}, but length.{in_tokens} makes it {expected}\n"
                    f"  reset one of them: {name}={'null' if default is None else default} or length.{in_tokens}=null",
                    [(f"length.{in_tokens}", DEFAULT), (name, default)],
                )
        if self.length.num_epoch_examples is not None and self.length.num_tokens is None:
            yield Conflict(
                f"length.num_epoch_examples={self.length.num_epoch_examples} has no effect without length.num_tokens\n"
                "  set both or neither",
                [("length.num_epoch_examples", DEFAULT)],
                "length.num_tokens",
            )
        if self.length.num_warmup_tokens is not None and self.schedule.warmup_share is not None:
            yield Conflict(
                "length.num_warmup_tokens and schedule.warmup_share both define the warm-up\n  set only one of them",
                [("length.num_warmup_tokens", DEFAULT), ("schedule.warmup_share", DEFAULT)],
            )

    def _model_problems(self) -> Iterator[str]:
        model, weights = self.model, self.objective.modality_weights
        if model.hidden_size % model.num_heads:
            yield (
                f"model.hidden_size {model.hidden_size} cannot be split over model.num_heads {model.num_heads}\n"
                f"  use a width that is a multiple of the number of heads, such as {64 * model.num_heads}"
            )
        targets = [modality.name for modality in model.modalities if modality.is_target]
        if not targets or not any(modality.is_input for modality in model.modalities):
            yield "model.modalities has no input or no target\n  add one; pixels and vectors can only be inputs"
        for name in weights:
            if name not in targets:
                known = ", ".join(targets)
                yield (
                    f"objective.modality_weights names {name!r}, which is not a target of the model\n"
                    f"  its targets are {known}"
                )
        if targets and weights and not any(weights.get(name, 1.0) for name in targets):
            yield "objective.modality_weights is 0 for every target, so there is no loss\n  set one of them above 0"
        if model.num_registers and self.masking.unused == "pack":
            yield Conflict(
                f"model.num_registers={model.num_registers} needs rows with one example each, but masking.unused=pack "
                "puts several examples into a row\n  set masking.unused=pad, or model.num_registers=0",
                [("masking.unused", "pad"), ("model.num_registers", 0)],
            )
