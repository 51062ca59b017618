"""Objectives on unlabelled text, by name or as parameters: which tokens are hidden and what replaces them.

Imports no torch.

Sources: Raffel et al. 2020, https://arxiv.org/abs/1910.10683, section 3.3; Tay et al. 2022 (UL2),
https://arxiv.org/abs/2205.05131; Tay et al. 2022 (UL2R), https://arxiv.org/abs/2210.11399; the released `t5`.

Dimensions: B segments.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from pretrainkit.config.base import Config
from pretrainkit.data.subsets import slots
from pretrainkit.errors import ConfigError
from pretrainkit.recipes.t5 import spans
from pretrainkit.recipes.t5.ragged import Ragged, constant, joined
from pretrainkit.recipes.t5.segments import GROUP_SIZE, MAX_DOCUMENT_TOKENS
from pretrainkit.rng import Keys

MaskName = Literal["random_spans", "iid", "regular", "suffix", "everything"]
Mode = Literal["R", "X", "S"]
"""Modes of UL2: regular (R) and extreme (X) span corruption, sequential (S, prefix language modelling)."""
Density = Annotated[float, Field(gt=0, lt=1)]
ObjectiveName = Literal[
    "span_corruption",
    "iid_denoising",
    "bert_style",
    "mass_style",
    "drop_tokens",
    "deshuffling",
    "prefix_lm",
    "packed_prefix_lm",
    "lm",
    "full_lm",
    "ul2",
    "ul2r",
]


class DenoiserConfig(Config):
    """One way to make inputs and targets from a segment of text."""

    rate: PositiveFloat = 1.0
    """Share of the examples, relative to the other denoisers."""
    mask: MaskName = "random_spans"
    """Tokens that are noise. random_spans: an exact number of tokens in an exact number of runs. iid: each token
    independently. regular: runs at equal distances. suffix: all after a random prefix. everything: all tokens."""
    noise_density: Density = 0.15
    """Share of the tokens that are noise; for suffix at most 0.5. It has no effect with mask=everything."""
    mean_span_length: Annotated[float, Field(ge=1)] = 3.0
    """Average number of tokens of a run; has an effect only with random_spans."""
    random_roll: bool = False
    """Rotate the mask by a random number of positions, so that the first token can be noise and the last token can be
    clean; has an effect only with random_spans."""
    reserved_for_packing: NonNegativeInt = 0
    """Number of slots of the inputs that segments leave free for other examples in the row; has an effect only with
    random_spans."""
    inputs: spans.Hiding | None = "sentinels"
    """Replacement of the noise in the inputs; null: no inputs, for language models."""
    targets: spans.Hiding = "sentinels"
    """Replacement of everything else in the targets."""
    group_size: PositiveInt | None = None
    """Number of documents that are concatenated; null: the value of data.denoising."""
    end_of_segment: bool = True
    """End inputs and targets with the end mark."""
    end_of_document: bool | None = None
    """End each document within a segment with the end mark; null: the value of data.denoising."""
    is_random_length: bool = False
    """Draw the lengths of segments log-uniformly from 8 up, one for each group of documents."""
    mode: Mode | None = None
    """Mode of data.denoising.modes whose text is put before the inputs; null: no text."""
    pairs: bool = False
    """Cut a segment of twice the length into two examples that share a row. The prefix of one is as long as the rest of
    the other, so rows are always full. A decoder-only model reads one prefix per row and predicts the rest. Only for
    suffix."""

    @model_validator(mode="after")
    def _check_suffix(self) -> Self:
        is_even_lm = (self.mask, self.inputs, self.targets) == ("suffix", "drop", "drop") and self.noise_density == 0.5
        if self.pairs and (not is_even_lm or self.end_of_segment or self.mode is not None or self.is_random_length):
            raise ValueError(
                "pairs=true needs mask=suffix, noise_density=0.5, inputs=drop, targets=drop, end_of_segment=false, "
                "and neither mode nor is_random_length; see the objective packed_prefix_lm"
            )
        if self.mask == "suffix" and self.noise_density > 0.5:
            raise ValueError(f"noise_density={self.noise_density} is too high for mask=suffix; use at most 0.5")
        return self

    @property
    def hides_runs(self) -> bool:
        """True if the sentinels limit the number of runs."""
        return "sentinels" in (self.inputs, self.targets)

    def lengths(self, input_length: int, target_length: int, num_before: int) -> tuple[int, int, int]:
        """Return the number of tokens of a segment and of the longest expected targets, and the maximum number of
        sentinels needed (0: their number sets no limit).

        `input_length` and `target_length` are the numbers of slots of a row; `num_before` is the number of tokens
        before the inputs."""
        end = int(self.end_of_segment)
        if self.pairs:
            return 2 * input_length, input_length, 0
        if self.inputs is None:
            return target_length - end, target_length, 0
        whole = input_length - num_before - end
        if self.mask == "random_spans" and self.inputs in ("sentinels", "shared_sentinel", "drop"):
            # A rotated mask may have one more run, and therefore one more sentinel on each side.
            num_slots = input_length - num_before - self.random_roll - self.reserved_for_packing
            marks = {"extra_inputs": int(self.inputs != "drop"), "extra_targets": int(self.targets != "drop")}
            plan = spans.plan_lengths(num_slots, self.noise_density, self.mean_span_length, **marks)
            num_targets = plan.num_tokens + 1 if self.targets == "keep" else plan.num_targets + self.random_roll
            return plan.num_tokens, num_targets, (plan.num_spans + self.random_roll) * self.hides_runs
        if self.targets == "keep":
            return whole, whole + end, 0
        # Expected for random masks: a run begins where noise follows a clean token, at share * (1 - share) of the
        # tokens.
        share = 1.0 if self.mask == "everything" else self.noise_density
        num_runs = round(whole * share * (1 - share)) if self.mask == "iid" else 0
        if self.mask == "suffix":
            shortest = max(1, round((1 - 2 * share) * (whole - 1)))
            return whole, whole - shortest + end, 0
        return whole, round(whole * share) + num_runs * (self.targets != "drop") + end, num_runs * self.hides_runs


def _spans(mean: float, density: float, **more: Any) -> DenoiserConfig:
    return DenoiserConfig(noise_density=density, mean_span_length=mean, **more)


def _prefix_lm(density: float, *, group_size: int | None = 1, **more: Any) -> DenoiserConfig:
    more |= {"inputs": "drop", "targets": "drop", "group_size": group_size}
    return DenoiserConfig(mask="suffix", noise_density=density, **more)


NAMED: dict[ObjectiveName, tuple[DenoiserConfig, ...]] = {
    "span_corruption": (DenoiserConfig(),),
    "iid_denoising": (DenoiserConfig(mask="iid"),),
    "bert_style": (DenoiserConfig(mask="iid", inputs="random_or_sentinel", targets="keep"),),
    "mass_style": (DenoiserConfig(mask="iid", inputs="sentinel_per_token", targets="keep"),),
    "drop_tokens": (DenoiserConfig(mask="iid", inputs="drop", targets="drop"),),
    "deshuffling": (DenoiserConfig(mask="everything", inputs="permute", targets="keep", group_size=1),),
    "prefix_lm": (_prefix_lm(0.5),),
    "packed_prefix_lm": (_prefix_lm(0.5, group_size=None, end_of_segment=False, end_of_document=True, pairs=True),),
    "lm": (DenoiserConfig(mask="everything", inputs=None, targets="keep", group_size=1),),
    "full_lm": (
        DenoiserConfig(mask="everything", inputs=None, targets="keep", end_of_segment=False, end_of_document=True),
    ),
    "ul2": (
        *(_spans(mean, 0.15, mode="R") for mean in (3, 8)),
        *(_spans(mean, density, mode="X") for mean, density in ((3, 0.5), (8, 0.5), (64, 0.15), (64, 0.5))),
        _prefix_lm(0.25, mode="S"),
    ),
    "ul2r": (
        _spans(3, 0.15, rate=0.25, mode="R"),
        _spans(3, 0.5, rate=0.125, mode="X"),
        _spans(32, 0.15, rate=0.125, mode="X"),
        _prefix_lm(0.25, rate=0.5, mode="S"),
    ),
}
"""The denoisers of the named objectives."""


class DenoisingConfig(Config):
    """Corruption of unlabelled text."""

    name: ObjectiveName = "span_corruption"
    """span_corruption: that of T5. iid_denoising, bert_style, mass_style, drop_tokens, deshuffling: the other
    objectives of its paper. prefix_lm: continue a text from a random prefix. packed_prefix_lm: the same in full rows,
    with two texts per row for an encoder-decoder. lm, full_lm: predict every token, with an end mark per segment or per
    document; only for decoders. ul2: seven denoisers at equal rates. ul2r: half prefix_lm, a quarter each regular and
    extreme spans."""
    denoisers: tuple[DenoiserConfig, ...] = ()
    """Denoisers to use instead of those of `name`."""
    noise_density: Density | None = None
    """Noise density of all denoisers; null: each denoiser keeps its value."""
    mean_span_length: Annotated[float, Field(ge=1)] | None = None
    """Mean span length of all denoisers; null: each denoiser keeps its value."""
    random_roll: bool = False
    """Rotate the masks of random spans by a random number of positions, so that every token can be noise."""
    modes: dict[Mode, str] = Field(default_factory=dict)
    """Text that is put before the inputs of denoisers of each mode, such as {R: "[NLU]", X: "[NLG]", S: "[S2S]"}."""
    num_sentinels: NonNegativeInt | None = None
    """Number of ids after the tokenizer's vocabulary that serve as sentinels, the last one first; null: the tokenizer's
    pieces <extra_id_0> and so on if it has them, else 100 ids."""
    group_size: PositiveInt = GROUP_SIZE
    """Number of documents that are concatenated before they are cut into segments; 1: no segment has text of two
    documents."""
    end_of_document: bool = False
    """Put the end mark between documents of a segment. T5 puts nothing between them."""
    max_document_tokens: PositiveInt | None = MAX_DOCUMENT_TOKENS
    """Use one chunk of at most this many tokens of a longer document, as T5 does; null: use whole documents."""
    chunk_start: Literal["aligned", "uniform"] = "aligned"
    """Start of the chunk. aligned: at a multiple of max_document_tokens. uniform: anywhere from max_document_tokens - 1
    before the document's first token to its last, in short documents too, so that only a part may remain."""

    @model_validator(mode="after")
    def _check_chunks(self) -> Self:
        if self.chunk_start == "uniform" and self.max_document_tokens is None:
            raise ValueError("chunk_start=uniform needs max_document_tokens, the length of a chunk; set a number")
        return self

    def segment_settings(self, denoiser: DenoiserConfig, end: int) -> dict[str, Any]:
        """Return the arguments of `segments_of` for one denoiser of `all` and the id of the end mark."""
        return {
            "group_size": denoiser.group_size or self.group_size,
            "max_document_tokens": self.max_document_tokens,
            "end_mark": end if denoiser.end_of_document else None,
            "is_random_length": denoiser.is_random_length,
            "is_uniform_start": self.chunk_start == "uniform",
        }

    @property
    def all(self) -> tuple[DenoiserConfig, ...]:
        """The denoisers, with the settings that this config applies to all of them."""
        changes = {"noise_density": self.noise_density, "mean_span_length": self.mean_span_length}
        common = {name: value for name, value in changes.items() if value is not None}
        changed = []
        for denoiser in self.denoisers or NAMED[self.name]:
            end_of_document = denoiser.end_of_document
            own = common | {
                "random_roll": denoiser.random_roll or (self.random_roll and denoiser.mask == "random_spans"),
                "group_size": denoiser.group_size or self.group_size,
                "end_of_document": self.end_of_document if end_of_document is None else end_of_document,
            }
            changed.append(DenoiserConfig(**denoiser.model_dump() | own))
        return tuple(changed)


@dataclass(frozen=True)
class TextIds:
    """Ids of the vocabulary that the text was encoded with."""

    end: int
    sentinels: tuple[int, ...]
    """Ids of the sentinels, in the order of use."""
    text_size: int
    """Upper bound: ids of text are below this."""
    modes: Mapping[Mode, tuple[int, ...]]
    """The ids of each mode's text."""


class Denoiser:
    """A denoiser for rows of given lengths and a given vocabulary."""

    def __init__(self, config: DenoiserConfig, input_length: int, target_length: int, ids: TextIds) -> None:
        """Raise ConfigError if the lengths or the sentinels do not suffice."""
        self.config, self.input_length, self.target_length, self.ids = config, input_length, target_length, ids
        self._before = ids.modes.get(config.mode, ()) if config.mode is not None else ()
        self._sentinels = np.array(ids.sentinels, np.int32)
        self.plan = config.lengths(input_length, target_length, len(self._before))
        """See `DenoiserConfig.lengths`."""
        self.segment_length, num_targets, num_sentinels = self.plan
        name = describe(config)
        if num_targets > target_length:
            raise ConfigError(
                f"{name} makes targets of {num_targets} tokens from inputs of {input_length} tokens, but "
                f"data.target_length is {target_length}\n  set data.target_length={num_targets}, or a lower "
                "data.input_length"
            )
        if self.segment_length < 2:
            raise ConfigError(
                f"{name} leaves {self.segment_length} tokens of text in inputs of {input_length} and targets of "
                f"{target_length}\n  make data.input_length and data.target_length larger"
            )
        if num_sentinels > len(ids.sentinels):
            raise ConfigError(
                f"{name} needs {num_sentinels} sentinels for inputs of {input_length} tokens, but the vocabulary "
                f"has {len(ids.sentinels)}\n  set data.denoising.num_sentinels={num_sentinels}, or longer spans\n"
                f"  or: pretrainkit tasks show NAME --sentinels {num_sentinels}"
            )
        needs_sentinel = {"sentinels", "shared_sentinel", "sentinel_per_token", "random_or_sentinel"}
        if not ids.sentinels and needs_sentinel & {config.inputs, config.targets}:
            raise ConfigError(
                f"{name} needs a sentinel, and the vocabulary has none\n  set data.denoising.num_sentinels=100"
            )

    def examples(self, text: Ragged, keys: Keys) -> tuple[Ragged | None, Ragged]:
        """Return inputs and targets, (B,) sequences each or (2 B,) with `pairs`, cut to the lengths of their rows and
        with end marks.

        Segments have at most `segment_length` tokens, and a key for each."""
        config = self.config
        if config.pairs:
            lengths, prefix = spans.paired_prefixes(keys, text.lengths, self.input_length)
            halves = Ragged(text.values, lengths)
            is_rest = slots(lengths) >= np.repeat(prefix, lengths)
            return halves.take_slots(~is_rest), halves.take_slots(is_rest)
        is_plain = config.mask == "random_spans" and not config.random_roll and config.end_of_segment
        is_usual = is_plain and config.inputs == config.targets == "sentinels"
        if is_usual and len(text) and int(text.lengths.min()) > 1:
            rates = config.noise_density, config.mean_span_length
            fast = spans.corrupt_spans(keys, text, *rates, self._sentinels, self.ids.end)
            if fast is not None:
                inputs, targets = self._with_mode(fast[0]), fast[1]
                # The planned lengths almost always fit; only then is the fast result usable.
                if inputs.lengths.max() <= self.input_length and targets.lengths.max() <= self.target_length:
                    return inputs, targets
        is_noise = self._noise(text, keys)
        hiding = self._sentinels, self.ids.text_size
        targets = self._ended(spans.hide(config.targets, text, ~is_noise, keys, *hiding), self.target_length)
        if config.inputs is None:
            return None, targets
        inputs = spans.hide(config.inputs, text, is_noise, keys, *hiding)
        return self._ended(self._with_mode(inputs), self.input_length), targets

    def _with_mode(self, inputs: Ragged) -> Ragged:
        return joined(constant(self._before, len(inputs)), inputs) if self._before else inputs

    def most_tokens(self, lengths: spans.Ints) -> spans.Ints:
        """Return (B,) upper bounds for the tokens of inputs and targets together, only from the lengths of the
        segments."""
        config, end = self.config, int(self.config.end_of_segment)
        if config.pairs:
            return lengths
        if config.inputs is None:
            return np.minimum(lengths + end, self.target_length)
        # Tokens that are hidden on one side are visible on the other, so no token occurs more than twice.
        most = 2 * (lengths + end) + len(self._before)
        if config.mask == "random_spans" and config.inputs == config.targets == "sentinels":
            _, num_spans = spans.count_noise(lengths, config.noise_density, config.mean_span_length)
            most = lengths + 2 * (num_spans + config.random_roll + end) + len(self._before)
        return np.minimum(most, self.input_length + self.target_length)

    def _noise(self, text: Ragged, keys: Keys) -> spans.Mask:
        config, lengths = self.config, text.lengths
        match config.mask:
            case "everything":
                return np.ones(len(text.values), np.bool_)
            case "suffix":
                return spans.suffix(keys, lengths, config.noise_density)
            case "random_spans":
                rates = config.noise_density, config.mean_span_length
                return spans.random_spans(keys, lengths, *rates, random_roll=config.random_roll)
            case "iid":
                is_noise = spans.iid(keys, lengths, config.noise_density)
            case "regular":
                is_noise = spans.regular(keys, lengths, config.noise_density)
        if not config.hides_runs:
            return is_noise
        # Targets may need one more sentinel than inputs, for the clean tokens after the last noise.
        return spans.limit_runs(is_noise, lengths, len(self.ids.sentinels) - 1)

    def _ended(self, sequences: Ragged, most: int) -> Ragged:
        if not self.config.end_of_segment:
            return sequences.head(most)
        return sequences.head(most - 1).with_end(self.ids.end)


def describe(config: DenoiserConfig) -> str:
    """Return a readable description, such as "random_spans of 3.0 tokens at 0.15"."""
    if config.mask == "everything":
        return f"the denoiser {config.inputs or 'lm'}"
    span = f" span {config.mean_span_length} tokens" if config.mask == "random_spans" else ""
    return f"{config.mask}{span} at {config.noise_density}"


def label(config: DenoiserConfig) -> str:
    """Return a name for metrics, such as "random_spans-3-0.15"."""
    parts: list[str] = [config.mask]
    if config.mask == "random_spans":
        parts.append(f"{config.mean_span_length:g}")
    if config.mask != "everything":
        parts.append(f"{config.noise_density:g}")
    return "-".join(parts)
