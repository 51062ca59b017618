"""Conversion of a batch from the data plane into the streams of tokens that the model reads.

Dimensions: R rows, P slots of an encoder row, Q slots of a decoder row, S and T tokens of the encoder's and the
decoder's stream, K predictions.

A batch has `encoder_input_tokens` (R, P), `decoder_input_tokens` and `decoder_target_tokens` (R, Q) and
`decoder_loss_weights` (R, Q). A packed batch also has `encoder_segment_ids` and `decoder_segment_ids`: examples of a
row are numbered from 1 with the same number on both sides; 0 is padding. Prefix language models mark their prefix in
`decoder_causal_attention`. Without segment ids a row is one example, up to its last id that is not 0. `components`, of
the shape of the targets, has the number of the mixture's component that an example is from.

On a CPU, padding is removed from the rows here. On a GPU it remains, because the number of real tokens is not known on
the host without waiting for the device.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from pretrainkit.nn.biased_attention import PairLayout, RowPairs, visible_pairs
from pretrainkit.nn.cpu.attention import Pair, TiledPairs
from pretrainkit.nn.cuda.attention import flex_pairs
from pretrainkit.nn.layouts import PairKind, best_pairs
from pretrainkit.training.objective import Batch

Kind = Literal["encoder_decoder", "decoder_only", "encoder_only"]


@dataclass(frozen=True, eq=False)
class T5Inputs:
    encoder_ids_S: Tensor | None
    """Integer token ids; None without encoder."""
    decoder_ids_T: Tensor | None
    """Integer token ids, each target's predecessor; None without decoder."""
    encoder_layout: PairLayout | None
    """Pairs of encoder tokens that attend to each other."""
    decoder_layout: PairLayout | None
    """Pairs of decoder tokens that attend to each other."""
    cross_layout: PairLayout | None
    """Encoder tokens that each decoder token attends to."""
    predicted_K: Tensor | None
    """int64: index into the last stream of each token to predict; None: all, in order."""


@dataclass(frozen=True, eq=False)
class T5Targets:
    token_K: Tensor
    """int64: the true id of each predicted token."""
    weight_K: Tensor
    """float32: the weight of its loss; 0 for slots without a prediction."""
    example_K: Tensor
    """int64: number of the token's example, below `num_groups`; not all numbers are used."""
    num_groups: int
    """Upper bound of the example numbers."""
    component_K: Tensor | None = None
    """int64: number of the mixture's component that the example is from; None if the batch has no `components`."""


def read_batch(
    batch: Batch, kind: Kind = "encoder_decoder", *, layout: PairKind | None = None
) -> tuple[T5Inputs, T5Targets]:
    """Return the inputs and targets of a batch on the model's device.

    `layout`: of attention; None: tiles on a CPU, else rows, which support heads of any width."""
    layout = layout or best_pairs(next(iter(batch.values())), head_width=0)
    encoder = None if kind == "decoder_only" else _segments(batch, "encoder", "encoder_input_tokens")
    decoder = None if kind == "encoder_only" else _segments(batch, "decoder", "decoder_target_tokens")
    last, slots = ("encoder", encoder) if decoder is None else ("decoder", decoder)
    assert slots is not None
    prefix = batch["decoder_causal_attention"].bool() if "decoder_causal_attention" in batch else None
    key: Any = encoder
    query: Any = decoder
    pairs: Callable[..., PairLayout] = partial(_row_pairs, prefix, layout)
    kept_S = kept_T = None
    if layout == "tiles":
        key, query = (None if segments is None else _stream(segments) for segments in (encoder, decoder))
        kept_S, kept_T = (None if stream is None else stream.kept_T for stream in (key, query))
        pairs = partial(_tiled_pairs, prefix)
    num_rows, length = slots.shape
    example = _numbered(slots).flatten()
    token, weight = batch[f"{last}_target_tokens"].flatten().long(), batch[f"{last}_loss_weights"].float().flatten()
    component = batch["components"].flatten().long() if "components" in batch else None
    predicted, kept = None, kept_S if decoder is None else kept_T
    if kept is not None:
        # Tokens of the stream without a loss need no logits.
        predicted = weight[kept].nonzero()[:, 0]
        place = kept[predicted]
        token, weight, example = token[place], weight[place], example[place]
        component = None if component is None else component[place]
        predicted = None if len(predicted) == len(kept) else predicted
    inputs = T5Inputs(
        encoder_ids_S=None if encoder is None else _real(batch["encoder_input_tokens"], kept_S),
        decoder_ids_T=None if decoder is None else _real(batch["decoder_input_tokens"], kept_T),
        encoder_layout=None if encoder is None else pairs(key, key),
        decoder_layout=None if decoder is None else pairs(query, query, is_causal=True),
        cross_layout=None if encoder is None or decoder is None else pairs(query, key),
        predicted_K=predicted,
    )
    return inputs, T5Targets(token, weight, example, num_rows * (length + 1), component)


def _real(ids: Tensor, kept: Tensor | None) -> Tensor:
    return ids.flatten() if kept is None else ids.flatten()[kept]


def target_examples(batch: Batch, side: str) -> Tensor:
    """Return int64 of the shape of the targets on `side` (encoder or decoder): for each position a number that is
    unique to its example."""
    tokens = "encoder_input_tokens" if side == "encoder" else "decoder_target_tokens"
    return _numbered(_segments(batch, side, tokens))


def _numbered(segments: Tensor) -> Tensor:
    # A row has numbers from 0 (padding) to `length`, so rows are `length` + 1 apart.
    num_rows, length = segments.shape
    return segments + torch.arange(num_rows, device=segments.device)[:, None] * (length + 1)


def _segments(batch: Batch, side: str, tokens: str) -> Tensor:
    """Return int64 (R, slots): the number of the example in each slot, 0 for padding."""
    if f"{side}_segment_ids" in batch:
        return batch[f"{side}_segment_ids"].long()
    is_token = batch[tokens] != 0
    # True up to the last token of the row, so that an id 0 before it counts as a token.
    return is_token.long().flip(1).cumsum(1).flip(1).clamp(max=1)


def _row_pairs(
    prefix: Tensor | None, layout: PairKind, query: Tensor, key: Tensor, *, is_causal: bool = False
) -> PairLayout:
    prefix = prefix if is_causal else None
    if layout == "flex":
        return flex_pairs(query, key, is_causal=is_causal, is_prefix_BP=prefix)
    visible = visible_pairs(query, key, is_causal=is_causal, is_prefix_BP=prefix)
    return RowPairs(len(query), query.shape[1], key.shape[1], visible)


@dataclass(frozen=True, eq=False)
class _Stream:
    """The real tokens of some rows."""

    kept_T: Tensor
    """int64: slots of the tokens in the flattened rows."""
    examples: dict[tuple[int, int], slice]
    """Slice of the stream's tokens by (row, number)."""


def _stream(segments: Tensor) -> _Stream:
    host = segments.numpy()
    if not host.any():
        # A rank gets a microbatch without examples if another rank needs one more. The model then reads one slot of
        # padding, so that every parameter has a (zero) gradient to share. Its number is 0; examples count from 1.
        return _Stream(torch.zeros(1, dtype=torch.int64), {(0, 0): slice(0, 1)})
    length = host.shape[1]
    kept = np.flatnonzero(host)
    # Row and number of the example as one integer, as numbers are at most `length`. It changes where an example ends.
    key = (kept // length) * (length + 1) + host.reshape(-1)[kept]
    starts = np.flatnonzero(np.diff(key, prepend=-1))
    stops = np.append(starts[1:], len(key))
    examples = {
        divmod(int(key[start]), length + 1): slice(start, stop)
        for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)
    }
    if len(examples) != len(starts):
        raise ValueError("the tokens of an example are not contiguous in its row: each segment id must occur only once")
    return _Stream(torch.from_numpy(kept), examples)


_NOTHING = slice(0, 0)


def _tiled_pairs(prefix: Tensor | None, query: _Stream, key: _Stream, *, is_causal: bool = False) -> PairLayout:
    """Return each example of the query with its tokens of the key; an example without inputs gets none."""
    lengths = [0] * len(query.examples)
    if is_causal and prefix is not None:
        is_prefix = prefix.flatten()[query.kept_T]
        lengths = [int(is_prefix[tokens].sum()) for tokens in query.examples.values()]
    pairs = zip(query.examples.items(), lengths, strict=True)
    return TiledPairs(
        tuple(Pair(tokens, key.examples.get(example, _NOTHING), num) for (example, tokens), num in pairs),
        len(query.kept_T),
        is_causal=is_causal,
    )
