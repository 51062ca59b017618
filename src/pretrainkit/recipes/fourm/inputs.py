"""From a batch of the data plane to the streams of tokens the model reads.

Dimensions: B rows, N slots of an encoder row (registers included), M of a decoder row, T and U tokens of the encoder's
and the decoder's stream, n tokens of one modality.

On a CPU rows lose their padding here and never get it back. On a GPU they keep it, because the number of real tokens
is not known on the host without waiting for the device. An example is a *segment* of a row: rows may hold several.

A token of the decoder sees tokens of its own example; of those, unless the model says otherwise, the ones of its own
modality; of those, an image's all, a sequence's up to itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pretrainkit.dist.devices import from_host
from pretrainkit.nn.biased_attention import PairLayout, RowPairs, visible_pairs
from pretrainkit.nn.cpu.attention import Pair, TiledPairs
from pretrainkit.nn.layouts import PairKind, best_pairs, segment_pairs
from pretrainkit.recipes.fourm.config import FourMModelConfig
from pretrainkit.recipes.fourm.modality import Modality
from pretrainkit.training.objective import Batch

_NUMBERS = 256
"""Modalities, and segments of a row, are numbered below this."""
_NOTHING = slice(0, 0)


@dataclass(frozen=True, eq=False)
class InputTokens:
    """Tokens of one modality in the encoder. Indices are int64."""

    slots_n: Tensor
    """Where they are in the encoder's stream."""
    positions_n: Tensor
    """Rows of the table of positions."""
    ids_n: Tensor
    """Token ids. Of pixels and vectors: number of the patch or vector in its row of `values`; -1: zeros."""
    rows_n: Tensor
    """The row of the batch that each is in."""
    values: Tensor | None
    """Of pixels uint8 images (B, C, height, width), of vectors float (B, L, E); None for tokens."""


@dataclass(frozen=True, eq=False)
class TargetTokens:
    """Tokens of one modality in the decoder. All are int64."""

    slots_n: Tensor
    """Where they are in the decoder's stream."""
    positions_n: Tensor
    """Rows of the table of positions."""
    ids_n: Tensor
    """Of sequences the token before, which the decoder reads; of images anything."""
    true_n: Tensor
    """The ids to predict."""


class Examples(NamedTuple):
    """The examples that the tokens of a stream are of."""

    example_T: Tensor
    """int64: a number for each token that those of its example share; the same in encoder and decoder."""
    num: int
    """All numbers are below; not all are used."""


class Layouts(NamedTuple):
    """Which tokens see which."""

    encoder: PairLayout
    decoder: PairLayout
    cross: PairLayout
    """Of the decoder's tokens to the encoder's."""


@dataclass(frozen=True, eq=False)
class FourMInputs:
    """A batch as the model reads it."""

    inputs: Mapping[str, InputTokens]
    """By modality, every input of the model."""
    targets: Mapping[str, TargetTokens]
    layouts: Layouts
    encoder: Examples
    decoder: Examples
    register_slots: Tensor | None
    """int64 (B, R): where in the encoder's stream the registers are; None: there are none."""


@dataclass(frozen=True, eq=False)
class Slots:
    """The rows of one side of a batch."""

    is_real_BN: Tensor
    """bool: what is no padding."""
    segment_BN: Tensor
    """int64: number of the example in its row, from 1; 0 is padding."""
    modality_BN: Tensor
    """int64."""
    num_added: int
    """Slots at the start of each row that the batch does not have."""
    kept: Tensor | None
    """int64: the slots that are in the stream; None: all."""

    @property
    def example(self) -> Tensor:
        """int64 of the stream's length: a number that a segment has alone."""
        row_B1 = torch.arange(len(self.segment_BN), device=self.segment_BN.device)[:, None]
        return self.of_stream(row_B1 * _NUMBERS + self.segment_BN)

    def of_stream(self, values_BN: Tensor) -> Tensor:
        """The values of slots as a stream."""
        return values_BN.flatten() if self.kept is None else values_BN.flatten()[self.kept]

    def in_stream(self, places_n: Tensor) -> tuple[Tensor, Tensor]:
        """Rows, and places in the stream, of slots of the batch."""
        rows_n = places_n // (self.is_real_BN.shape[1] - self.num_added)
        # Every row up to and with its own has added slots in front.
        slots_n = places_n + (rows_n + 1) * self.num_added
        return rows_n, slots_n if self.kept is None else self._place[slots_n]

    @cached_property
    def _place(self) -> Tensor:
        """int64: of each slot in the stream, if it is there."""
        return self.is_real_BN.flatten().cumsum(0) - 1


def read_batch(batch: Batch, config: FourMModelConfig, *, layout: PairKind | None = None) -> FourMInputs:
    """Return the inputs and targets of a batch, whose tensors are on the model's device as `batch.with_places` leaves
    them. `config`: of the model, bound to its data. `layout`: of attention; None: the device's best. Where the
    decoder's tokens see those of other modalities it is rows, which know all rules."""
    layout = layout or best_pairs(batch["encoder_length"], config.hidden_size // config.num_heads)
    if not config.separate_targets:
        layout = "rows"
    is_stream = layout == "tiles"
    encoder = _slots(batch, "encoder", config.num_registers, is_stream=is_stream)
    decoder = _slots(batch, "decoder", 0, is_stream=is_stream)
    register_slots = None
    if config.num_registers:
        num_rows, num_slots = encoder.is_real_BN.shape
        # A row begins behind the real slots of the rows before it, or behind all their slots.
        lengths_B = encoder.is_real_BN.sum(1) if is_stream else encoder.segment_BN.new_full((num_rows,), num_slots)
        first_B = F.pad(lengths_B.cumsum(0), (1, 0))[:-1]
        register_slots = first_B[:, None] + torch.arange(config.num_registers, device=first_B.device)
    return FourMInputs(
        inputs={m.name: _input_tokens(batch, m, encoder) for m in config.modalities if m.is_input},
        targets={m.name: _target_tokens(batch, m, decoder) for m in config.modalities if m.is_target},
        layouts=_tiled(encoder, decoder, config) if is_stream else _in_rows(encoder, decoder, config, layout),
        encoder=Examples(encoder.example, len(encoder.is_real_BN) * _NUMBERS),
        decoder=Examples(decoder.example, len(encoder.is_real_BN) * _NUMBERS),
        register_slots=register_slots,
    )


def _slots(batch: Batch, side: str, num_added: int, *, is_stream: bool) -> Slots:
    modality_BN, segment_BN = batch[f"{side}_modality"].long(), batch[f"{side}_segment"].long()
    slot_N = torch.arange(modality_BN.shape[1], device=modality_BN.device)
    is_real_BN = slot_N < batch[f"{side}_length"][:, None]
    segment_BN = (segment_BN + 1) * is_real_BN
    if num_added:
        is_real_BN = F.pad(is_real_BN, (num_added, 0), value=True)
        segment_BN = F.pad(segment_BN, (num_added, 0), value=1)
        modality_BN = F.pad(modality_BN, (num_added, 0))
    kept = is_real_BN.flatten().nonzero()[:, 0] if is_stream else None
    return Slots(is_real_BN, segment_BN, modality_BN, num_added, kept)


def _input_tokens(batch: Batch, modality: Modality, encoder: Slots) -> InputTokens:
    places_n = batch[f"encoder_places/{modality.name}"].long()
    rows_n, slots_n = encoder.in_stream(places_n)
    positions_n, ids_n = (batch[f"encoder_{what}"].flatten()[places_n].long() for what in ("position", "ids"))
    values = batch[f"{modality.kind}/{modality.name}"] if modality.kind in ("pixels", "vectors") else None
    return InputTokens(slots_n, positions_n, ids_n, rows_n, values)


def _target_tokens(batch: Batch, modality: Modality, decoder: Slots) -> TargetTokens:
    places_n = batch[f"decoder_places/{modality.name}"].long()
    found = (batch[f"decoder_{what}"].flatten()[places_n].long() for what in ("position", "ids", "target"))
    return TargetTokens(decoder.in_stream(places_n)[1], *found)


def _in_rows(encoder: Slots, decoder: Slots, config: FourMModelConfig, layout: PairKind) -> Layouts:
    inputs_BN, targets_BM = encoder.segment_BN, decoder.segment_BN
    if config.separate_targets:
        block_BM, is_open_BM = _blocks(decoder, config)
        own = segment_pairs(layout, block_BM, block_BM, is_causal=True, is_prefix_BP=is_open_BM)
    else:
        visible_BMM = visible_targets(decoder, config)
        own = RowPairs(len(visible_BMM), visible_BMM.shape[1], visible_BMM.shape[2], visible_BMM)
    return Layouts(segment_pairs(layout, inputs_BN, inputs_BN), own, segment_pairs(layout, targets_BM, inputs_BN))


def visible_targets(decoder: Slots, config: FourMModelConfig) -> Tensor:
    """bool (B, M, M): which tokens of the decoder each of them sees."""
    block_BM, is_open_BM = _blocks(decoder, config)
    # Block numbers rise along a row, so what is before a block has a smaller number.
    is_before_BMM = block_BM[:, :, None] > block_BM[:, None]
    if config.separate_targets:
        is_before_BMM = torch.zeros_like(is_before_BMM)
    own_BMM = visible_pairs(block_BM, block_BM, is_causal=True, is_prefix_BP=is_open_BM)
    return visible_pairs(decoder.segment_BN, decoder.segment_BN) & (own_BMM | is_before_BMM)


def _blocks(decoder: Slots, config: FourMModelConfig) -> tuple[Tensor, Tensor]:
    """int64 (B, M): number of the modality of an example, 0 is padding; bool: whether its tokens all see each other."""
    is_real_BM, modality_BM = decoder.is_real_BN, decoder.modality_BN
    block_BM = (decoder.segment_BN * _NUMBERS + modality_BM) * is_real_BM
    is_open_M = [modality.kind == "image" and not config.causal_targets for modality in config.modalities]
    return block_BM, from_host(is_open_M, modality_BM.device)[modality_BM]


def _tiled(encoder: Slots, decoder: Slots, config: FourMModelConfig) -> Layouts:
    asked, asking = _runs(encoder.example), _runs(decoder.example)
    block_BM, is_open_BM = _blocks(decoder, config)
    # Numbers of blocks repeat from row to row; with that of the example in front they do not.
    blocks = _runs(decoder.of_stream(block_BM) + decoder.example * _NUMBERS**2)
    is_open = decoder.of_stream(is_open_BM).tolist()
    num_T, num_U = len(encoder.example), len(decoder.example)
    own = tuple(Pair(s, s, s.stop - s.start if is_open[s.start] else 0) for s in blocks.values())
    return Layouts(
        TiledPairs(tuple(Pair(s, s) for s in asked.values()), num_T),
        TiledPairs(own, num_U, is_causal=True),
        TiledPairs(tuple(Pair(s, asked.get(key, _NOTHING)) for key, s in asking.items()), num_U),
    )


def _runs(number: Tensor) -> dict[int, slice]:
    """Equal numbers that stand together."""
    values = number.numpy()
    if not len(values):
        return {}
    starts = np.flatnonzero(np.diff(values, prepend=-1))
    stops = np.append(starts[1:], len(values))
    runs = {int(values[a]): slice(a, b) for a, b in zip(starts.tolist(), stops.tolist(), strict=True)}
    if len(runs) != len(starts):
        raise ValueError("the tokens of an example or of its modalities do not lie together in the row")
    return runs
