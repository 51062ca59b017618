"""Convert a batch of the data pipeline to the token streams that the model reads.

Dimensions: B rows, N slots of an encoder row (registers included), M slots of a decoder row, T and U tokens of the
encoder's and the decoder's stream, n tokens of one modality.

On a CPU this module removes the padding of rows. On a GPU the padding stays, because the host cannot know the number of
real tokens without waiting for the device. An example is a *segment* of a row; a row may hold several segments.

A token of the decoder sees tokens of its own example only. By default it sees those of its own modality only: all
tokens of an image; in a sequence those before it and itself.
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
"""Upper limit of the numbers of modalities and of segments in a row, exclusive."""
_NOTHING = slice(0, 0)


@dataclass(frozen=True, eq=False)
class InputTokens:
    """Tokens of one modality in the encoder. Indices are int64."""

    slots_n: Tensor
    """Slots of the tokens in the encoder's stream."""
    positions_n: Tensor
    """Rows of the position table."""
    ids_n: Tensor
    """Token ids. For pixels and vectors: index of the patch or vector in its row of `values`; -1: zeros."""
    rows_n: Tensor
    """Row of the batch of each token."""
    values: Tensor | None
    """For pixels uint8 images (B, C, height, width), for vectors float (B, L, E); None for other kinds."""


@dataclass(frozen=True, eq=False)
class TargetTokens:
    """Tokens of one modality in the decoder. All tensors are int64."""

    slots_n: Tensor
    """Slots of the tokens in the decoder's stream."""
    positions_n: Tensor
    """Rows of the position table."""
    ids_n: Tensor
    """For sequences the previous token, which the decoder reads; for images any value."""
    true_n: Tensor
    """Token ids to predict."""


class Examples(NamedTuple):
    """Assignment of the tokens of a stream to examples."""

    example_T: Tensor
    """int64: number of each token's example; the same numbers in encoder and decoder."""
    num: int
    """Upper limit of the numbers, exclusive; some numbers are unused."""


class Layouts(NamedTuple):
    """Attention layouts: they define which key tokens each query token sees."""

    encoder: PairLayout
    decoder: PairLayout
    cross: PairLayout
    """Queries from the decoder, keys from the encoder."""


@dataclass(frozen=True, eq=False)
class FourMInputs:
    """Batch in the form that the model reads."""

    inputs: Mapping[str, InputTokens]
    """Tokens of every input of the model by modality."""
    targets: Mapping[str, TargetTokens]
    layouts: Layouts
    encoder: Examples
    decoder: Examples
    register_slots: Tensor | None
    """int64 (B, R): slots of the registers in the encoder's stream; None: the model has no registers."""


@dataclass(frozen=True, eq=False)
class Slots:
    """Encoder or decoder rows of a batch."""

    is_real_BN: Tensor
    """bool: True for real slots, False for padding."""
    segment_BN: Tensor
    """int64: number of the example in its row, from 1; 0 for padding."""
    modality_BN: Tensor
    """int64: index of the modality."""
    num_added: int
    """Number of register slots at the start of each row, which the batch does not have."""
    kept: Tensor | None
    """int64: the slots that are in the stream; None: all slots."""

    @property
    def example(self) -> Tensor:
        """Number of each token's segment, int64 of the stream's length; unique over all rows."""
        row_B1 = torch.arange(len(self.segment_BN), device=self.segment_BN.device)[:, None]
        return self.of_stream(row_B1 * _NUMBERS + self.segment_BN)

    def of_stream(self, values_BN: Tensor) -> Tensor:
        """Return values of all slots as a stream."""
        return values_BN.flatten() if self.kept is None else values_BN.flatten()[self.kept]

    def in_stream(self, places_n: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rows of slots of the batch, and their indices in the stream."""
        rows_n = places_n // (self.is_real_BN.shape[1] - self.num_added)
        # Each row up to this one, including it, starts with added slots.
        slots_n = places_n + (rows_n + 1) * self.num_added
        return rows_n, slots_n if self.kept is None else self._place[slots_n]

    @cached_property
    def _place(self) -> Tensor:
        """int64: index in the stream of each slot; meaningless for padding."""
        return self.is_real_BN.flatten().cumsum(0) - 1


def read_batch(batch: Batch, config: FourMModelConfig, *, layout: PairKind | None = None) -> FourMInputs:
    """Return the inputs and targets of a batch, whose tensors come from `batch.with_places` and are on the model's
    device. `config`: of the model, bound to its data. `layout`: of attention; None: the best for the device. If decoder
    tokens see those of other modalities, the layout is always "rows", the only one that supports this."""
    layout = layout or best_pairs(batch["encoder_length"], config.hidden_size // config.num_heads)
    if not config.separate_targets:
        layout = "rows"
    is_stream = layout == "tiles"
    encoder = _slots(batch, "encoder", config.num_registers, is_stream=is_stream)
    decoder = _slots(batch, "decoder", 0, is_stream=is_stream)
    register_slots = None
    if config.num_registers:
        num_rows, num_slots = encoder.is_real_BN.shape
        # In a stream, a row begins after the real slots of the rows before it; otherwise after all their slots.
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
    positions_n, ids_n = (batch[f"encoder_{field}"].flatten()[places_n].long() for field in ("position", "ids"))
    values = batch[f"{modality.kind}/{modality.name}"] if modality.kind in ("pixels", "vectors") else None
    return InputTokens(slots_n, positions_n, ids_n, rows_n, values)


def _target_tokens(batch: Batch, modality: Modality, decoder: Slots) -> TargetTokens:
    places_n = batch[f"decoder_places/{modality.name}"].long()
    fields = (batch[f"decoder_{field}"].flatten()[places_n].long() for field in ("position", "ids", "target"))
    return TargetTokens(decoder.in_stream(places_n)[1], *fields)


def _in_rows(encoder: Slots, decoder: Slots, config: FourMModelConfig, layout: PairKind) -> Layouts:
    inputs_BN, targets_BM = encoder.segment_BN, decoder.segment_BN
    if config.separate_targets:
        block_BM, is_open_BM = _blocks(decoder, config)
        self_pairs = segment_pairs(layout, block_BM, block_BM, is_causal=True, is_prefix_BP=is_open_BM)
    else:
        visible_BMM = visible_targets(decoder, config)
        self_pairs = RowPairs(len(visible_BMM), visible_BMM.shape[1], visible_BMM.shape[2], visible_BMM)
    return Layouts(
        segment_pairs(layout, inputs_BN, inputs_BN), self_pairs, segment_pairs(layout, targets_BM, inputs_BN)
    )


def visible_targets(decoder: Slots, config: FourMModelConfig) -> Tensor:
    """Return bool (B, M, M): True where a decoder token (query) sees another one (key)."""
    block_BM, is_open_BM = _blocks(decoder, config)
    # Block numbers increase along a row, so earlier blocks have smaller numbers.
    is_before_BMM = block_BM[:, :, None] > block_BM[:, None]
    if config.separate_targets:
        is_before_BMM = torch.zeros_like(is_before_BMM)
    in_block_BMM = visible_pairs(block_BM, block_BM, is_causal=True, is_prefix_BP=is_open_BM)
    return visible_pairs(decoder.segment_BN, decoder.segment_BN) & (in_block_BMM | is_before_BMM)


def _blocks(decoder: Slots, config: FourMModelConfig) -> tuple[Tensor, Tensor]:
    """Return int64 (B, M): number of a modality within an example, 0 for padding; and bool: True if all tokens of the
    modality see each other."""
    is_real_BM, modality_BM = decoder.is_real_BN, decoder.modality_BN
    block_BM = (decoder.segment_BN * _NUMBERS + modality_BM) * is_real_BM
    is_open_M = [modality.kind == "image" and not config.causal_targets for modality in config.modalities]
    return block_BM, from_host(is_open_M, modality_BM.device)[modality_BM]


def _tiled(encoder: Slots, decoder: Slots, config: FourMModelConfig) -> Layouts:
    input_runs, target_runs = _runs(encoder.example), _runs(decoder.example)
    block_BM, is_open_BM = _blocks(decoder, config)
    # Block numbers repeat from row to row; together with the example's number they are unique.
    blocks = _runs(decoder.of_stream(block_BM) + decoder.example * _NUMBERS**2)
    is_open = decoder.of_stream(is_open_BM).tolist()
    num_T, num_U = len(encoder.example), len(decoder.example)
    self_pairs = tuple(Pair(s, s, s.stop - s.start if is_open[s.start] else 0) for s in blocks.values())
    return Layouts(
        TiledPairs(tuple(Pair(s, s) for s in input_runs.values()), num_T),
        TiledPairs(self_pairs, num_U, is_causal=True),
        TiledPairs(tuple(Pair(s, input_runs.get(key, _NOTHING)) for key, s in target_runs.items()), num_U),
    )


def _runs(number: Tensor) -> dict[int, slice]:
    """Return the slice of each run of equal numbers, by number."""
    values = number.numpy()
    if not len(values):
        return {}
    starts = np.flatnonzero(np.diff(values, prepend=-1))
    stops = np.append(starts[1:], len(values))
    runs = {int(values[a]): slice(a, b) for a, b in zip(starts.tolist(), stops.tolist(), strict=True)}
    if len(runs) != len(starts):
        raise ValueError("the tokens of an example or of one of its modalities are not contiguous in the row")
    return runs
