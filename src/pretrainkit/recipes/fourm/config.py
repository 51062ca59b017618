"""Settings of the 4M recipe: the architecture and its published sizes, what is given and asked for, what is fed, how
long. Presets (complete configs) are in `presets.py`. Torch-free."""

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
    """An encoder of visible tokens and a decoder of tokens to predict (Mizrahi et al. 2023,
    https://arxiv.org/abs/2312.06647; Bachmann et al. 2024, https://arxiv.org/abs/2406.09406)."""

    neutral_fields: ClassVar[frozenset[str]] = frozenset({"drop_path_rate", "shares_drop_path"})

    modalities: Modalities
    """What goes in and comes out, each by the name of a published one, as module:NAME or as a mapping of its fields."""
    hidden_size: Annotated[int, Field(gt=0, multiple_of=4)]
    """Width of encoder and decoder."""
    num_encoder_layers: PositiveInt
    """Blocks of the encoder."""
    num_decoder_layers: PositiveInt
    """Blocks of the decoder."""
    num_heads: PositiveInt
    """Attention heads; must divide hidden_size."""
    intermediate_size: PositiveInt
    """Width of the feed-forward layers (gated: of each of their two halves)."""
    activation: Literal["gelu", "swish"] = "swish"
    """Of the feed-forward layers, or of their gate; swish is also called SiLU."""
    gated: bool = True
    """Multiply a half of the feed-forward layer by the other one through the activation: with swish SwiGLU."""
    biases: bool = False
    """In linear layers and norms. The decoder's view of the encoder's output has one whatever this says."""
    query_key_norm: bool = False
    """Normalise queries and keys in each head."""
    tied_logits: bool = True
    """The table that embeds the targets of a modality also predicts them."""
    shared_modality_embeddings: bool = True
    """What tells a modality from the others is the same in encoder and decoder."""
    separate_targets: bool = True
    """A token of the decoder sees those of its own modality only; others it knows from the encoder."""
    causal_targets: bool = False
    """All tokens of the decoder see those before them only; else those of an image see each other."""
    num_registers: NonNegativeInt = 0
    """Learned tokens in front of the encoder's."""
    vector_bottleneck: PositiveInt | None = None
    """Width of a layer between given vectors and their embedding; the original has 64 where it has one. null: none."""
    drop_path_rate: Rate = 0.0
    """Share of the examples that skip the last block's layers; grows from 0 in the first block of encoder and
    decoder."""
    shares_drop_path: bool = False
    """It grows through encoder and decoder together, so that the decoder's first block does not begin at 0."""
    layer_norm_epsilon: PositiveFloat = 1e-6
    """Added to variances."""


SIZES = {
    "tiny": (384, 6, 6),
    "small": (512, 8, 8),
    "base": (768, 12, 12),
    "large": (1024, 24, 16),
    "xlarge": (2048, 24, 32),
}
"""Width, layers of encoder and of decoder, and heads of the published models, as `fm_SIZE_…` in the original."""


def published_model(size: str, modalities: Modalities, variant: Variant = "swiglu") -> FourMModelConfig:
    """A model of the original's registry, of one of `SIZES`. `variant`: gelu (with all biases), swiglu
    (`swiglu_nobias`, the released ones) or swiglu-qknorm (`swiglu_qknorm_nobias`)."""
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
    """Of each half of a gated feed-forward layer with about as many weights as a plain one four times as wide."""
    return int(2 * (4 * width) / 3)


class MaskingConfig(Config):
    """Which tokens of a sample the encoder sees and which the decoder predicts."""

    num_input_tokens: PositiveInt = 128
    """Slots of the encoder; the most tokens of an example."""
    num_target_tokens: PositiveInt = 128
    """Slots of the decoder; the most tokens of an example."""
    min_input_tokens: PositiveInt | None = None
    """The budget of an example's inputs is uniform from this to num_input_tokens; null: always num_input_tokens."""
    min_target_tokens: PositiveInt | None = None
    """The same for targets."""
    mixture: Mixture = PUBLISHED["mod7-all2all-rgb2all"]
    """How budgets are divided among modalities: components, or the name of a published mixture."""
    unused: Literal["pack", "pad"] = "pack"
    """What becomes of slots that a draw leaves empty, as texts are shorter and images smaller than their budget. pack:
    further draws of the same mixture for the same sample, apart from each other, with what is left as their budget.
    pad: nothing, as in 4M."""
    min_packed_tokens: PositiveInt = 6
    """pack only: no further draw for fewer empty slots than this in the encoder or in the decoder."""
    max_packed: Annotated[int, Field(ge=1, le=255)] = 16
    """pack only: at most so many draws for one sample."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        for side in ("input", "target"):
            least, most = getattr(self, f"min_{side}_tokens"), getattr(self, f"num_{side}_tokens")
            if least is not None and least > most:
                raise ValueError(f"min_{side}_tokens {least} is more than num_{side}_tokens {most}; exchange the two")
        return self


class FourMSetConfig(SourceConfig):
    """One data set. On the command line a plain path stands for {path: PATH}."""

    path: Annotated[str, IsPath()]
    """A folder with one folder for each modality, whose files lie in MODALITY/ANY/STEM.EXTENSION; or tar files, one for
    each modality, as in s3://bucket/[rgb,caption,tok_rgb]/shard-{00000..00099}.tar."""
    name: str | None = None
    """In messages; null: the last part of the path."""
    modalities: tuple[str, ...] | None = None
    """Names of those that are used; null: all of the model's that it has."""
    folders: dict[str, str] = Field(default={})
    """Folder of a modality where it is not the usual one, by name: {"tok_semseg@224": "semseg_tokens"}."""
    mixture: Mixture | None = None
    """In place of `masking.mixture`; null: that one."""


FourMSets = Annotated[
    tuple[FourMSetConfig, ...],
    BeforeValidator(as_sources, json_schema_input_type=str | tuple[str | FourMSetConfig, ...]),
]


class FourMDataConfig(DataConfig):
    """What the model is fed: samples whose modalities belong together."""

    train: FourMSets = ()
    """To train on: one path, several separated by commas, or a list of {path, weight, …}."""
    valid: FourMSets = ()
    """Held out; the same kinds of paths."""
    order: Literal["shuffle", "sequential"] = "shuffle"
    """shuffle: every sample independently permuted, anew each epoch. sequential: as stored."""
    tokenizer: Annotated[str | None, IsPath()] = None
    """Folder of the text tokenizer, with sentinels; null only without sequences."""
    crop: CropConfig = CropConfig()
    """Which part of a sample is used."""
    aligned_captions: bool = True
    """Where a sample has as many captions as parts, each part has its own; else one is drawn."""
    min_box_score: Rate = 0.6
    """Boxes that were found with less confidence are left out."""
    max_boxes: PositiveInt | None = None
    """At most so many boxes of a sample, those with the highest scores; null: all."""
    box_order: Literal["distance", "area", "score", "random"] = "distance"
    """Order of boxes: distance of the upper left corner from that of the image, ascending; area or score, descending;
    random."""
    min_box_visibility: Rate = 0.0
    """Boxes of which less than this share lies inside the part that is used are left out."""
    workers: Literal["threads", "processes"] = "threads"
    """What prepares batches ahead."""
    num_workers: NonNegativeInt = 2
    """How many per rank."""

    @property
    def loader_workers(self) -> tuple[Literal["threads", "processes"], int]:
        return self.workers, self.num_workers


class LengthConfig(Config):
    """Lengths in tokens. One is a slot of the largest budgets (masking.num_input_tokens + masking.num_target_tokens of
    each example), filled or not."""

    num_tokens: PositiveInt | None = None
    """Of the run, rounded up to whole steps; null: num_steps says it."""
    num_epoch_examples: PositiveInt | None = None
    """Round up to whole epochs of so many examples instead, of which each has only whole steps, as in the original;
    null: to steps."""
    num_warmup_tokens: PositiveInt | None = None
    """Until peak_lr is reached, rounded up to whole steps, of which the last one has it, as in the original; null:
    schedule.num_warmup_steps says it."""
    num_cooldown_tokens: PositiveInt | None = None
    """Of the decay at the end (schedule.name wsd), rounded up; null: schedule.num_decay_steps says it."""


class FourMObjectiveConfig(Config):
    """How the targets of the modalities count."""

    loss: Literal["modality", "token", "token_compat"] = "modality"
    """modality: the mean over a modality's targets, and of that the mean over all modalities; one that a batch has no
    target of counts as 0. token: the mean over all targets. token_compat: the original's, where targets count by the
    size of their vocabulary."""
    modality_weights: dict[str, NonNegativeFloat] = Field(default={})
    """Factors of losses by modality; 1 for others."""


class FourMRun(RunConfig):
    """One pretraining run of the 4M recipe."""

    recipe: Literal["fourm"] = "fourm"
    """Name of the recipe this config belongs to."""
    model: FourMModelConfig
    """The architecture."""
    objective: FourMObjectiveConfig = FourMObjectiveConfig()
    """How losses count."""
    masking: MaskingConfig = MaskingConfig()
    """What is given and what is asked for."""
    data: FourMDataConfig
    """What the model is fed."""
    length: LengthConfig = LengthConfig()
    """How long, in tokens instead of steps."""

    @property
    def example_tokens(self) -> int:
        """Slots of an example, filled or not."""
        return self.masking.num_input_tokens + self.masking.num_target_tokens

    @property
    def step_tokens(self) -> int:
        """Slots of a step, filled or not."""
        return self.example_tokens * self.data.batch_size

    def in_steps(self) -> Self:
        """The same with all lengths in steps."""
        length, update, schedule = self.length, dict[str, Any](), dict[str, int]()
        if length.num_tokens is not None:
            batch_size, epoch = self.data.batch_size, length.num_epoch_examples
            update["num_steps"] = math.ceil(length.num_tokens / self.step_tokens)
            if epoch is not None:
                num_epochs = math.ceil(length.num_tokens * batch_size / (self.step_tokens * epoch))
                update["num_steps"] = num_epochs * max(1, epoch // batch_size)
        if length.num_warmup_tokens is not None:  # updates before the one that has the peak
            schedule["num_warmup_steps"] = max(1, math.ceil(length.num_warmup_tokens / self.step_tokens)) - 1
        if length.num_cooldown_tokens is not None:
            schedule["num_decay_steps"] = math.ceil(length.num_cooldown_tokens / self.step_tokens)
        return self.changed(**update, schedule=schedule)

    def problems(self, world_size: int = 1) -> list[str]:
        """What the base class finds, and settings of this recipe that cannot work together."""
        found = [self._in_tokens(problem) for problem in super(FourMRun, self.in_steps()).problems(world_size)]
        return [*found, *self._length_problems(), *self._model_problems()]

    def _in_tokens(self, problem: str) -> str:
        """A conflict of the base class, where `length` says in tokens what would have to give way."""
        tokens = {
            "schedule.num_warmup_steps": ("num_warmup_tokens", self.length.num_warmup_tokens),
            "schedule.num_decay_steps": ("num_cooldown_tokens", self.length.num_cooldown_tokens),
        }
        if not isinstance(problem, Conflict):
            return problem
        remedies = []
        for path, value in problem.remedies:
            name, given = tokens.get(path, ("", None))
            if given is not None:
                path, value = f"length.{name}", value if value is DEFAULT else max(1, value * self.step_tokens)
            remedies.append((path, value))
        return Conflict(problem, remedies, "length.num_tokens", *problem.settings)

    def _length_problems(self) -> Iterator[str]:
        """Lengths that are given twice and not alike."""
        wanted = self.in_steps()
        schedule, planned = self.schedule, wanted.schedule
        for name, in_tokens, given, needed, default in (
            ("num_steps", "num_tokens", self.num_steps, wanted.num_steps, None),
            ("schedule.num_warmup_steps", "num_warmup_tokens", schedule.num_warmup_steps, planned.num_warmup_steps, 0),
            ("schedule.num_decay_steps", "num_cooldown_tokens", schedule.num_decay_steps, planned.num_decay_steps, 0),
        ):
            if given not in (default, needed):
                yield Conflict(
                    f"{name}={given}, but by length.{in_tokens} it is {needed}\n"
                    f"  leave one out: {name}={'null' if default is None else default} or length.{in_tokens}=null",
                    [(f"length.{in_tokens}", DEFAULT), (name, default)],
                )
        if self.length.num_epoch_examples is not None and self.length.num_tokens is None:
            yield Conflict(
                f"length.num_epoch_examples={self.length.num_epoch_examples} is only read with length.num_tokens\n"
                "  give both or none",
                [("length.num_epoch_examples", DEFAULT)],
                "length.num_tokens",
            )
        if self.length.num_warmup_tokens is not None and self.schedule.warmup_share is not None:
            yield Conflict(
                "length.num_warmup_tokens and schedule.warmup_share both set the warm-up\n  give one of them",
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
            yield "model.modalities has no input or no target\n  add one; pixels and vectors can be inputs only"
        for name in weights:
            if name not in targets:
                known = ", ".join(targets)
                yield f"objective.modality_weights names {name!r}, which is no target of the model\n  it has {known}"
        if targets and weights and not any(weights.get(name, 1.0) for name in targets):
            yield "objective.modality_weights leaves nothing to learn: all are 0\n  give one more"
        if model.num_registers and self.masking.unused == "pack":
            yield Conflict(
                f"model.num_registers={model.num_registers} registers are in front of rows, which hold one example "
                "each only with masking.unused=pad\n  set masking.unused=pad, or model.num_registers=0",
                [("masking.unused", "pad"), ("model.num_registers", 0)],
            )
