"""Feature converters: from the sequences of examples to the arrays that a model reads, in rows of fixed length; and the
placement of several examples in a row. An example is always within one row.

All arrays are (R, W), int32 except the float32 loss weights, and 0 in slots without a token. The lengths of the
sequences decide which slots have a token, so an id 0 inside a sequence is a token.

`..._input_tokens`, `..._target_tokens`: the tokens to read and to predict. A decoder reads its targets one position
later, with 0 at the start of every example. `..._loss_weights`: 1 for tokens to predict.
Only if rows hold several examples: `..._segment_ids`, the example's number in its row from 1; `..._positions`, from 0
in each example. `decoder_causal_attention`: 1 where a decoder attends to later tokens too, which is the prefix and the
position that reads its last token.

An example has the same number in its row for all of its sequences, even if one of them is empty; the released packers
number each sequence separately and then pair sequences of different examples.

Dimensions: R rows, W slots of a row, B examples, F sequences of each.
Source: SeqIO (`seqio/feature_converters.py`), whose names these are.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pretrainkit.data.plan import pack_rows
from pretrainkit.data.subsets import slots
from pretrainkit.errors import DataError
from pretrainkit.recipes.t5.config import T5Run
from pretrainkit.recipes.t5.ragged import Ragged, joined

Arrays = dict[str, NDArray]
Ints = NDArray[np.int64]
_LONG = 128
"""Average length in tokens from which copying whole sequences is faster than copying tokens by index."""
BOS = 0
"""First input of a decoder. Rows of zeros already contain it."""


@dataclass(frozen=True)
class Placement:
    row: Ints
    """(B,) index of the row."""
    number: Ints
    """(B,) number within the row, from 1."""
    offset: dict[str, Ints]
    """(B,) slot of the first token, by sequence."""
    num_rows: int


Packer = Callable[[Mapping[str, Ints], Mapping[str, int]], Placement]


def encoder_decoder(
    inputs: Ragged, targets: Ragged, input_length: int, target_length: int, *, packer: Packer | None = None
) -> Arrays:
    """Return rows for an encoder and a decoder. `packer` places several examples into a row; None: one per row.

    Raises DataError if a sequence is longer than its row, or ends with id 0, which looks like padding without segment
    ids."""
    rows = _Rows({"inputs": inputs, "targets": targets}, {"inputs": input_length, "targets": target_length}, packer)
    return {
        "encoder_input_tokens": rows.lay("inputs", inputs.values),
        **_decoder(rows, "targets", targets),
        **rows.numbering("encoder", "inputs"),
    }


def language_model(targets: Ragged, length: int, *, packer: Packer | None = None) -> Arrays:
    """Return rows for a decoder-only model that predicts every token. Arguments are those of `encoder_decoder`."""
    return _decoder(_Rows({"targets": targets}, {"targets": length}, packer), "targets", targets)


def prefix_language_model(inputs: Ragged, targets: Ragged, length: int, *, packer: Packer | None = None) -> Arrays:
    """Return rows of `length` slots for a decoder-only model that reads the inputs as a whole and predicts the
    targets."""
    whole = joined(inputs, targets)
    rows = _Rows({"targets": whole}, {"targets": length}, packer)
    # For each token of an example: its position in it, and the number of tokens of the prefix.
    place, num_inputs = slots(whole.lengths), np.repeat(inputs.lengths, whole.lengths)
    arrays = _decoder(rows, "targets", whole)
    arrays["decoder_loss_weights"] = rows.lay("targets", (place >= num_inputs).astype(np.float32))
    arrays["decoder_causal_attention"] = rows.lay("targets", (place <= num_inputs).astype(np.int32))
    return arrays


def encoder(inputs: Ragged, targets: Ragged, length: int, *, mask_id: int, packer: Packer | None = None) -> Arrays:
    """Return rows for an encoder-only model that predicts the original token at each `mask_id`. `targets` are the text,
    aligned with the inputs. Raises DataError if inputs and targets differ in length."""
    if (inputs.lengths != targets.lengths).any():
        row = int(np.flatnonzero(inputs.lengths != targets.lengths)[0])
        raise DataError(
            f"example {row} has {inputs.lengths[row]} input tokens and {targets.lengths[row]} target tokens, but an "
            "encoder predicts one token per input token\n"
            "  hide tokens by sentinel_per_token, or train an encoder-decoder"
        )
    rows = _Rows({"inputs": inputs}, {"inputs": length}, packer)
    return {
        "encoder_input_tokens": rows.lay("inputs", inputs.values),
        "encoder_target_tokens": rows.lay("inputs", targets.values),
        "encoder_loss_weights": rows.lay("inputs", (inputs.values == mask_id).astype(np.float32)),
        **rows.numbering("encoder", "inputs"),
    }


def lay_out(
    config: T5Run,
    inputs: Ragged | None,
    targets: Ragged,
    *,
    mask_id: int,
    component: Ints | None = None,
    is_paired: bool = False,
) -> Arrays:
    """Return rows for the kind of model and the layout of a config; with `num_examples` (1,) float32 if rows hold
    several examples, and `components`, of the shape of the targets, if `component` is not None.

    Args:
        config: Its lengths are those of the rows.
        inputs: None for language models.
        targets: As many sequences as inputs.
        mask_id: Only for encoder-only models.
        component: Number of the mixture's component of each example, (B,), or of each pair, (B / 2,).
        is_paired: Examples 2 i and 2 i + 1 share row i, and count as one.
    """
    data, kind = config.data, config.model.kind
    placements: list[Placement] = []
    fit = pairs if is_paired else best_fit_rows(data.packed_rows)

    def pack(lengths: Mapping[str, Ints], widths: Mapping[str, int]) -> Placement:
        placements.append(fit(lengths, widths))
        return placements[-1]

    packer = pack if data.packing or is_paired else None
    if inputs is None:
        batch = language_model(targets, data.target_length, packer=packer)
    elif kind == "encoder_only":
        batch = encoder(inputs, targets, data.input_length, mask_id=mask_id, packer=packer)
    elif kind == "encoder_decoder":
        batch = encoder_decoder(inputs, targets, data.input_length, data.target_length, packer=packer)
    else:
        batch = prefix_language_model(inputs, targets, data.input_length + data.target_length, packer=packer)
    if packer is not None:
        batch["num_examples"] = np.array([len(targets) // (1 + is_paired)], np.float32)
    if component is not None:
        side = "encoder" if kind == "encoder_only" else "decoder"
        repeated = np.repeat(component, 1 + is_paired)
        batch["components"] = _components(batch, side, repeated, placements[0] if placements else None)
    return batch


def num_packed_rows(config: T5Run, inputs: Ragged | None, targets: Ragged) -> int:
    """Return the number of rows that examples need if `lay_out` packs them."""
    batch = lay_out(config.changed(data={"packed_rows": None}), inputs, targets, mask_id=-1)
    has_tokens = [array.any(axis=1) for name, array in batch.items() if name.endswith("_segment_ids")]
    return int(np.logical_or.reduce(has_tokens).sum())


def best_fit_rows(num_rows: int | None = None) -> Packer:
    """Return `best_fit` into `num_rows` rows as a `packer`; None: as many as needed, rounded up by `few_sizes`."""

    def pack(lengths: Mapping[str, Ints], widths: Mapping[str, int]) -> Placement:
        placement = best_fit(lengths, widths, num_rows)
        return placement if num_rows is not None else replace(placement, num_rows=few_sizes(placement.num_rows))

    return pack


def few_sizes(num: int) -> int:
    """Return `num` rounded up to four significant bits, by an eighth at most. Batches that need similar numbers of rows
    then have the same number, which avoids recompilation."""
    step = 1 << max(0, num.bit_length() - 4)
    return -(-num // step) * step


def _components(batch: Arrays, side: str, component: Ints, placement: Placement | None) -> NDArray:
    """Return int32 (R, W): the component of the example in each slot; any number in slots of padding."""
    if placement is None:
        return np.repeat(component.astype(np.int32)[:, None], batch[f"{side}_target_tokens"].shape[1], axis=1)
    # Table of components by row and example number, indexed by the numbers of the slots.
    table = np.zeros((placement.num_rows, int(placement.number.max(initial=0)) + 1), np.int32)
    table[placement.row, placement.number] = component
    return np.take_along_axis(table, batch[f"{side}_segment_ids"], axis=1)


def _decoder(rows: "_Rows", name: str, targets: Ragged) -> Arrays:
    # Each input token is the previous target token; the first one of each example is BOS.
    before = np.empty_like(targets.values)
    before[1:] = targets.values[:-1]
    before[targets.begins[targets.lengths > 0]] = BOS
    return {
        "decoder_target_tokens": rows.lay(name, targets.values),
        "decoder_input_tokens": rows.lay(name, before),
        "decoder_loss_weights": rows.lay(name, np.ones(len(before), np.float32)),
        **rows.numbering("decoder", name),
    }


class _Rows:
    """Rows, and the slot of each token."""

    def __init__(self, sequences: Mapping[str, Ragged], widths: Mapping[str, int], packer: Packer | None) -> None:
        lengths = {name: sequence.lengths for name, sequence in sequences.items()}
        _check(lengths, widths)
        self._is_packed, self._lengths, self._widths = packer is not None, lengths, widths
        self._placement = (packer or one_per_row)(lengths, widths)
        self._places: dict[str, Ints | list[tuple[int, int, int]]] = {}
        for name, sequence in sequences.items():
            if packer is None:
                _check_last_ids(name, sequence)
            # Slots in the flattened rows: of each token; or first token, first slot and length of each sequence.
            starts = self._placement.row * widths[name] + self._placement.offset[name]
            if len(sequence.values) < _LONG * len(sequence):
                begins = np.repeat(starts - sequence.begins, sequence.lengths)
                self._places[name] = begins + np.arange(len(sequence.values))
            else:
                columns = (sequence.begins.tolist(), starts.tolist(), sequence.lengths.tolist())
                self._places[name] = list(zip(*columns, strict=True))

    def lay(self, name: str, values: NDArray) -> NDArray:
        """Return (R, W): `values`, one for each token of a sequence, in their slots."""
        rows = np.zeros((self._placement.num_rows, self._widths[name]), values.dtype)
        flat, places = rows.reshape(-1), self._places[name]
        if isinstance(places, np.ndarray):
            flat[places] = values
            return rows
        for begin, start, length in places:
            flat[start : start + length] = values[begin : begin + length]
        return rows

    def numbering(self, side: str, name: str) -> Arrays:
        """Return segment ids and positions if rows hold several examples."""
        if not self._is_packed:
            return {}
        lengths = self._lengths[name]
        return {
            f"{side}_segment_ids": self.lay(name, np.repeat(self._placement.number.astype(np.int32), lengths)),
            f"{side}_positions": self.lay(name, slots(lengths).astype(np.int32)),
        }


def _check_last_ids(name: str, sequence: Ragged) -> None:
    last = sequence.ends[sequence.lengths > 0] - 1
    if not sequence.values[last].all():
        row = int(np.flatnonzero(sequence.lengths > 0)[int(np.argmax(sequence.values[last] == 0))])
        raise DataError(
            f"the {name} of example {row} end with id 0, which looks like padding\n"
            "  add an end mark, or pack, which numbers the tokens of each example"
        )


def one_per_row(lengths: Mapping[str, Ints], widths: Mapping[str, int]) -> Placement:
    """Put example i into row i. As a `packer` it adds segment ids to rows, so that an example may end with id 0."""
    num = len(next(iter(lengths.values())))
    zeros = np.zeros(num, np.int64)
    return Placement(np.arange(num), zeros + 1, dict.fromkeys(widths, zeros), num)


def pairs(lengths: Mapping[str, Ints], widths: Mapping[str, int]) -> Placement:
    """Put examples 2 i and 2 i + 1 into row i. Raises DataError if both together are longer than a row."""
    joined = {name: sizes.reshape(-1, 2).sum(1) for name, sizes in lengths.items()}
    _check(joined, widths)
    num_rows = len(next(iter(joined.values())))
    return placed(np.repeat(np.arange(num_rows), 2), lengths, num_rows)


def best_fit(lengths: Mapping[str, Ints], widths: Mapping[str, int], num_rows: int | None = None) -> Placement:
    """Place the longest examples first, each into the row with the least remaining space. The result is deterministic.

    Args:
        lengths: (B,) numbers of tokens, each at most the width, by sequence.
        widths: Number of slots of a row, by sequence.
        num_rows: Number of rows, some of which may be empty; None: as many as needed. Raises DataError if more are
            needed.
    """
    if len(lengths) == 1:
        ((name, sizes),) = lengths.items()
        row = _one_sequence(sizes, widths[name])
    else:
        row = _several_sequences(np.stack([*lengths.values()], axis=1), np.array([widths[name] for name in lengths]))
    needed = int(row.max(initial=-1)) + 1
    if num_rows is not None and needed > num_rows:
        raise DataError(
            f"{len(row)} examples need {needed} rows of {dict(widths)} tokens, but there are {num_rows}\n"
            "  allow more rows, or use fewer examples in a microbatch"
        )
    return placed(row, lengths, needed if num_rows is None else num_rows)


def placed(row: Ints, lengths: Mapping[str, Ints], num_rows: int) -> Placement:
    """Place the examples of a row one after another in the order of their indices."""
    # Stable sort by row: `first` is then the position of the first example of each example's row.
    order = np.argsort(row, kind="stable")
    sorted_rows = row[order]
    first = np.searchsorted(sorted_rows, sorted_rows, side="left")
    number = np.empty(len(row), np.int64)
    number[order] = np.arange(len(row)) - first + 1
    offsets = {}
    for name, sizes in lengths.items():
        # Tokens of all earlier examples, minus those before the row.
        before = np.cumsum(sizes[order]) - sizes[order]
        offset = np.empty(len(row), np.int64)
        offset[order] = before - before[first]
        offsets[name] = offset
    return Placement(row, number, offsets, num_rows)


def _one_sequence(lengths: Ints, width: int) -> Ints:
    row = np.zeros(len(lengths), np.int64)
    has_tokens = lengths > 0
    if has_tokens.any():  # an example without tokens fits into any row and is put into the first
        row[has_tokens] = pack_rows(lengths[has_tokens], width).row
    return row


def _several_sequences(lengths_BF: Ints, widths_F: Ints) -> Ints:
    """Return the row of each example. Full rows remain candidates: checking all rows at once costs less than keeping
    them sorted by several measures."""
    share_BF = lengths_BF / widths_F
    order = np.argsort(-share_BF.max(1), kind="stable")
    free_FR = np.empty((len(widths_F), len(lengths_BF)), np.int64)
    weight_F = 1 / widths_F
    row, num_rows = np.empty(len(lengths_BF), np.int64), 0
    for example in order.tolist():
        left_FR = free_FR[:, :num_rows] - lengths_BF[example][:, None]
        fits_R = (left_FR >= 0).all(0)
        if fits_R.any():
            # Remaining slots of each sequence relative to its width, so that long and short rows count equally.
            best = int(np.where(fits_R, weight_F @ left_FR, np.inf).argmin())
        else:
            best, num_rows = num_rows, num_rows + 1
            free_FR[:, best] = widths_F
        free_FR[:, best] -= lengths_BF[example]
        row[example] = best
    return row


def _check(lengths: Mapping[str, Ints], widths: Mapping[str, int]) -> None:
    for name, sizes in lengths.items():
        if len(sizes) and int(sizes.max()) > widths[name]:
            raise DataError(
                f"the {name} of example {int(sizes.argmax())} have {int(sizes.max())} tokens, more than the "
                f"{widths[name]} slots of a row\n  shorten examples before they are converted, or use longer rows"
            )
