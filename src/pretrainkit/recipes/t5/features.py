"""Feature converters: from the sequences of examples to the arrays that a model reads, in rows of fixed length; and
where examples lie that share rows: all of an example is in one.

All arrays are (R, W), int32 but the float32 loss weights, and 0 where there is no token. Whether a slot holds a token
follows from the lengths of the sequences, never from its id, so that an id 0 inside of a sequence is one.

`..._input_tokens`, `..._target_tokens`: what is read and what is to be said. What a decoder reads is what it is to say,
one place later, with 0 at the start of every example. `..._loss_weights`: 1 where a token is to be said.
Only where rows hold several examples: `..._segment_ids`, the example's number in its row from 1; `..._positions`, from
0 in each. `decoder_causal_attention`: 1 where a decoder may look ahead, which is the prefix and the place that reads
its last token.

An example has the same number in its row for all of its sequences, also where one of them is empty; the released
packers number each sequence by itself and then pair those of different examples.

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
"""Tokens: from this average length on it is faster to copy sequences one by one than tokens by their index."""
BOS = 0
"""What a decoder reads first. Rows of zeros have it already."""


@dataclass(frozen=True)
class Placement:
    row: Ints
    """(B,) index of the row."""
    number: Ints
    """(B,) number within the row, from 1."""
    offset: dict[str, Ints]
    """By sequence, (B,) slot of its first token."""
    num_rows: int


Packer = Callable[[Mapping[str, Ints], Mapping[str, int]], Placement]


def encoder_decoder(
    inputs: Ragged, targets: Ragged, input_length: int, target_length: int, *, packer: Packer | None = None
) -> Arrays:
    """For an encoder and a decoder, with rows of so many slots. `packer`: how to lay several examples into a row; None:
    one each. Raises DataError where a sequence is longer than a row, or has an id 0 at its end, which nothing but
    segment ids could tell from padding."""
    rows = _Rows({"inputs": inputs, "targets": targets}, {"inputs": input_length, "targets": target_length}, packer)
    return {
        "encoder_input_tokens": rows.lay("inputs", inputs.values),
        **_decoder(rows, "targets", targets),
        **rows.numbering("encoder", "inputs"),
    }


def language_model(targets: Ragged, length: int, *, packer: Packer | None = None) -> Arrays:
    """For a decoder alone, which is to say all of a text. Arguments as for `encoder_decoder`."""
    return _decoder(_Rows({"targets": targets}, {"targets": length}, packer), "targets", targets)


def prefix_language_model(inputs: Ragged, targets: Ragged, length: int, *, packer: Packer | None = None) -> Arrays:
    """For a decoder alone, which reads inputs as a whole and is to say the targets, both in rows of `length` slots."""
    whole = joined(inputs, targets)
    rows = _Rows({"targets": whole}, {"targets": length}, packer)
    # Of each token of an example: its place in it, and how many tokens the prefix has.
    place, num_inputs = slots(whole.lengths), np.repeat(inputs.lengths, whole.lengths)
    found = _decoder(rows, "targets", whole)
    found["decoder_loss_weights"] = rows.lay("targets", (place >= num_inputs).astype(np.float32))
    found["decoder_causal_attention"] = rows.lay("targets", (place <= num_inputs).astype(np.int32))
    return found


def encoder(inputs: Ragged, targets: Ragged, length: int, *, mask_id: int, packer: Packer | None = None) -> Arrays:
    """For an encoder alone, which is to say what stood in the place of each `mask_id`. `targets`: the text, token by
    token beside the inputs. Raises DataError where inputs and targets differ in length."""
    if (inputs.lengths != targets.lengths).any():
        row = int(np.flatnonzero(inputs.lengths != targets.lengths)[0])
        raise DataError(
            f"example {row} has {inputs.lengths[row]} inputs and {targets.lengths[row]} targets, but an encoder says "
            "one token for each it reads\n  hide tokens by sentinel_per_token, or train an encoder-decoder"
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
    """Rows for the kind of model and the layout that a config asks for; `num_examples` (1,) float32 where rows hold
    several; and `components`, of the shape of the targets, where `component` is given.

    Args:
        config: With the lengths of rows.
        inputs: None for language models.
        targets: As many as inputs.
        mask_id: For encoders alone.
        component: Number of the component of the mixture that each example is of, (B,), or (B / 2,) of each pair.
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
        of_each = np.repeat(component, 1 + is_paired)
        batch["components"] = _components(batch, side, of_each, placements[0] if placements else None)
    return batch


def num_packed_rows(config: T5Run, inputs: Ragged | None, targets: Ragged) -> int:
    """Return how many rows examples need where `lay_out` packs them."""
    batch = lay_out(config.changed(data={"packed_rows": None}), inputs, targets, mask_id=-1)
    has_tokens = [array.any(axis=1) for name, array in batch.items() if name.endswith("_segment_ids")]
    return int(np.logical_or.reduce(has_tokens).sum())


def best_fit_rows(num_rows: int | None = None) -> Packer:
    """`best_fit` into so many rows, as a `packer`. None: as many as are needed, rounded up by `few_sizes`."""

    def pack(lengths: Mapping[str, Ints], widths: Mapping[str, int]) -> Placement:
        placement = best_fit(lengths, widths, num_rows)
        return placement if num_rows is not None else replace(placement, num_rows=few_sizes(placement.num_rows))

    return pack


def few_sizes(num: int) -> int:
    """`num` rounded up to four significant bits, by an eighth at most: batches that need nearly the same number of rows
    then have equally many, so that little is compiled anew."""
    step = 1 << max(0, num.bit_length() - 4)
    return -(-num // step) * step


def _components(batch: Arrays, side: str, component: Ints, placement: Placement | None) -> NDArray:
    """int32 (R, W): of the example of each slot; anything where there is none."""
    if placement is None:
        return np.repeat(component.astype(np.int32)[:, None], batch[f"{side}_target_tokens"].shape[1], axis=1)
    # The component by row and number within it, looked up by the numbers of the slots.
    table = np.zeros((placement.num_rows, int(placement.number.max(initial=0)) + 1), np.int32)
    table[placement.row, placement.number] = component
    return np.take_along_axis(table, batch[f"{side}_segment_ids"], axis=1)


def _decoder(rows: "_Rows", name: str, targets: Ragged) -> Arrays:
    # All tokens one place later, but for the first of each example.
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
    """Rows and which slot each token gets."""

    def __init__(self, sequences: Mapping[str, Ragged], widths: Mapping[str, int], packer: Packer | None) -> None:
        lengths = {name: sequence.lengths for name, sequence in sequences.items()}
        _check(lengths, widths)
        self._is_packed, self._lengths, self._widths = packer is not None, lengths, widths
        self._placement = (packer or one_per_row)(lengths, widths)
        self._places: dict[str, Ints | list[tuple[int, int, int]]] = {}
        for name, sequence in sequences.items():
            if packer is None:
                _check_last_ids(name, sequence)
            # Slots of the flattened rows: of each token, or first token, first slot and length of each sequence.
            starts = self._placement.row * widths[name] + self._placement.offset[name]
            if len(sequence.values) < _LONG * len(sequence):
                begins = np.repeat(starts - sequence.begins, sequence.lengths)
                self._places[name] = begins + np.arange(len(sequence.values))
            else:
                columns = (sequence.begins.tolist(), starts.tolist(), sequence.lengths.tolist())
                self._places[name] = list(zip(*columns, strict=True))

    def lay(self, name: str, values: NDArray) -> NDArray:
        """(R, W): `values`, one for each token of a sequence, in their slots."""
        rows = np.zeros((self._placement.num_rows, self._widths[name]), values.dtype)
        flat, places = rows.reshape(-1), self._places[name]
        if isinstance(places, np.ndarray):
            flat[places] = values
            return rows
        for begin, start, length in places:
            flat[start : start + length] = values[begin : begin + length]
        return rows

    def numbering(self, side: str, name: str) -> Arrays:
        """Segment ids and positions, where rows hold several examples."""
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
            f"the {name} of example {row} end with id 0, which would be taken for padding\n"
            "  end them with an end mark, or pack, which numbers the tokens of each example"
        )


def one_per_row(lengths: Mapping[str, Ints], widths: Mapping[str, int]) -> Placement:
    """Example i in row i. As a `packer` it gives rows segment ids, so that an example may end in an id 0."""
    num = len(next(iter(lengths.values())))
    zeros = np.zeros(num, np.int64)
    return Placement(np.arange(num), zeros + 1, dict.fromkeys(widths, zeros), num)


def pairs(lengths: Mapping[str, Ints], widths: Mapping[str, int]) -> Placement:
    """Examples 2 i and 2 i + 1 in row i. Raises DataError where both together are longer than a row."""
    joined = {name: sizes.reshape(-1, 2).sum(1) for name, sizes in lengths.items()}
    _check(joined, widths)
    num_rows = len(next(iter(joined.values())))
    return placed(np.repeat(np.arange(num_rows), 2), lengths, num_rows)


def best_fit(lengths: Mapping[str, Ints], widths: Mapping[str, int], num_rows: int | None = None) -> Placement:
    """Longest examples first, each into the row that it leaves least room in. Pure: the same lengths, the same rows.

    Args:
        lengths: By sequence, (B,) tokens, each at most its width.
        widths: By sequence, slots of a row.
        num_rows: Rows to make, the last ones maybe empty; None: as many as are needed. More are a DataError.
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
            "  allow more rows, or put fewer examples into a microbatch"
        )
    return placed(row, lengths, needed if num_rows is None else num_rows)


def placed(row: Ints, lengths: Mapping[str, Ints], num_rows: int) -> Placement:
    """Examples of a row one after another in the order of their indices."""
    # Sorted by row, stably: `first` is then the place of the first example of each example's row.
    order = np.argsort(row, kind="stable")
    sorted_rows = row[order]
    first = np.searchsorted(sorted_rows, sorted_rows, side="left")
    number = np.empty(len(row), np.int64)
    number[order] = np.arange(len(row)) - first + 1
    offsets = {}
    for name, sizes in lengths.items():
        # Tokens of all examples before it, less those before its row.
        before = np.cumsum(sizes[order]) - sizes[order]
        offset = np.empty(len(row), np.int64)
        offset[order] = before - before[first]
        offsets[name] = offset
    return Placement(row, number, offsets, num_rows)


def _one_sequence(lengths: Ints, width: int) -> Ints:
    row = np.zeros(len(lengths), np.int64)
    has_tokens = lengths > 0
    if has_tokens.any():  # an example without tokens fits anywhere, and is put into the first row
        row[has_tokens] = pack_rows(lengths[has_tokens], width).row
    return row


def _several_sequences(lengths_BF: Ints, widths_F: Ints) -> Ints:
    """The row of each example. Rows that are full or nearly so stay candidates: to look at all of them at once costs
    less than to keep them sorted by several measures."""
    share_BF = lengths_BF / widths_F
    order = np.argsort(-share_BF.max(1), kind="stable")
    room_FR = np.empty((len(widths_F), len(lengths_BF)), np.int64)
    weight_F = 1 / widths_F
    row, num_rows = np.empty(len(lengths_BF), np.int64), 0
    for example in order.tolist():
        left_FR = room_FR[:, :num_rows] - lengths_BF[example][:, None]
        fits_R = (left_FR >= 0).all(0)
        if fits_R.any():
            # What is left, each sequence measured by its width, so that long and short rows count alike.
            best = int(np.where(fits_R, weight_F @ left_FR, np.inf).argmin())
        else:
            best, num_rows = num_rows, num_rows + 1
            room_FR[:, best] = widths_F
        room_FR[:, best] -= lengths_BF[example]
        row[example] = best
    return row


def _check(lengths: Mapping[str, Ints], widths: Mapping[str, int]) -> None:
    for name, sizes in lengths.items():
        if len(sizes) and int(sizes.max()) > widths[name]:
            raise DataError(
                f"example {int(sizes.argmax())} has {int(sizes.max())} {name}, more than the {widths[name]} slots of a "
                "row\n  cut examples to the row before they are converted, or make rows longer"
            )
