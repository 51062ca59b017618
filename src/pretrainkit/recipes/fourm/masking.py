"""Division of samples into the encoder's inputs and the decoder's targets, for a whole batch at once.

Dimensions: B samples, D modalities, N slots of the encoder, M slots of the decoder, R pairs of a sample and a modality
(for budgets: rows), K components of the mixture, P patches of an image, F tokens end to end.

A draw divides the budgets of input and target tokens among modalities, by mixtures of Dirichlet distributions. Then it
picks disjoint random patches of images and hides spans of sequences (`sequences.py`). Short texts and small images use
less than their budget: with the published mixture of 21 modalities, the original leaves a third of the encoder's slots
empty. Giving these slots to other modalities would increase the share of images. Instead, further draws of the same
sample from the same mixture fill them, with the empty slots as budget. These draws are *segments*, which never see each
other. Every segment follows the published distribution for its budget. So the frequencies of components stay the same,
and the shares of modalities change by at most one point.

Shares of a budget are rounded down. The missing tokens are given out one by one, each to the modality that is largest
in a further draw (4M, https://arxiv.org/abs/2312.06647, released code). The further draws are independent of the first
one, so each component has fixed probabilities for this modality. They are computed once, which gives the same
distribution for a twentieth of the draws."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pretrainkit import rng
from pretrainkit.recipes.fourm.batch import HostBatch, empty_rows
from pretrainkit.recipes.fourm.config import MaskingConfig
from pretrainkit.recipes.fourm.mixtures import KEEPS, Bound
from pretrainkit.recipes.fourm.modality import Modality
from pretrainkit.recipes.fourm.sequences import Ids, Ints, Ragged, hide_spans, spans

_COMPONENT, _NUM_INPUTS, _NUM_TARGETS, _INPUTS, _TARGETS, _PLACES, _SPANS, _KEEP = range(8)
"""Random streams of a segment's key."""
_HELD_BACK = 0.15
"""Target tokens that a draw leaves to the next draws, for each encoder slot that it leaves empty. With 0 the decoder is
full too early: the published mixture of 21 modalities then fills only 91 % of the encoder. With this value it fills 98
% of the encoder and 96 % of the decoder."""
_PLACE = np.uint64((1 << 14) - 1)
"""Low bits of a random number, which the index of a patch replaces (`modality.py` has the limit)."""

_GRID = 4096
"""Number of points at which `probability_of_largest` evaluates its integral."""
_SMALLEST_LOG = 1e-300
_LARGEST_SHARE = 1 - 2**-24
"""The largest float32 below 1. The Dirichlet of torch, which 4M uses, never returns more. So rounding down always
leaves a token to give out."""


@dataclass(frozen=True)
class Contents:
    """Complete tokens of B samples, before masking."""

    num: int
    """Number of samples, B."""
    images: dict[int, Ids] = field(default_factory=dict)
    """Token ids (B, P) by the index of an image modality."""
    sequences: dict[int, Ragged] = field(default_factory=dict)
    """Tokens of all samples by the index of a sequence modality. For vectors, ids are the indices of the vectors."""


class Masking:
    """Draws masked batches of one data set."""

    def __init__(
        self, config: MaskingConfig, modalities: Sequence[Modality], mixture: Bound, first_sentinel: int
    ) -> None:
        """`modalities`: those of the model, in order. `first_sentinel`: id of the first sentinel in a sequence."""
        self.config, self.modalities, self._mixture = config, tuple(modalities), mixture
        self._first_sentinel = first_sentinel
        self._inputs, self._targets = Shares(mixture.inputs_KD), Shares(mixture.targets_KD)
        self._most_D = np.array([modality.max_tokens for modality in modalities], np.int64)
        self._is_image_D = np.array([modality.kind in ("image", "pixels") for modality in modalities])
        self._is_vectors_D = np.array([modality.kind == "vectors" for modality in modalities])
        self._is_target_D = np.array([modality.is_target for modality in modalities])
        self._positions_D = np.array([modality.max_length for modality in modalities], np.int64)
        sizes = np.unique(self._most_D[self._is_image_D]).tolist()
        self._by_size = [(size, np.flatnonzero(self._is_image_D & (self._most_D == size))) for size in sizes]

    def __call__(self, contents: Contents, keys_B: rng.Keys) -> HostBatch:
        """Return a batch without pixels and vectors. A pure function of its arguments."""
        N, M = self.config.num_input_tokens, self.config.num_target_tokens
        out, images = _Slots(contents.num, N, M), self._images(contents)
        for segment in range(self.config.max_packed if self.config.unused == "pack" else 1):
            left_in, left_out = N - out.length_B, M - out.target_length_B
            minimum = self.config.min_packed_tokens if segment else 1
            rows = np.flatnonzero((left_in >= minimum) & (left_out >= minimum))
            if not len(rows):
                break
            self._draw_segment(contents, images, rows, rng.fold(keys_B[rows], segment), out)
        return out.batch

    def _draw_segment(
        self, contents: Contents, images: Sequence[Ids], rows: Ints, keys: rng.Keys, out: "_Slots"
    ) -> None:
        config = self.config
        component = component_of(rng.fold(keys, _COMPONENT), self._mixture.weights_K)
        num_in = np.minimum(
            _amount(rng.fold(keys, _NUM_INPUTS), config.min_input_tokens, config.num_input_tokens),
            config.num_input_tokens - out.length_B[rows],
        )
        limits_RD = np.broadcast_to(self._most_D, (len(rows), len(self._most_D)))
        inputs = self._inputs.draw(rng.fold(keys, _INPUTS), component, num_in, limits_RD)
        num_out = self._target_budget(contents, rows, keys, inputs, out)
        # Patches that the encoder sees cannot be targets; of a sequence, any hidden span can be a target.
        remaining_RD = np.where(self._is_image_D, limits_RD - inputs, limits_RD)
        targets = self._targets.draw(rng.fold(keys, _TARGETS), component, num_out, remaining_RD)
        draw = _Draw(rows, keys, component, inputs, targets)
        sides = list(zip(*self._draw_images(images, draw), *self._draw_sequences(contents, draw), strict=True))
        # A segment needs inputs and targets: one without the other trains nothing, and attention needs keys.
        is_used = np.ones(len(rows), np.bool_) if sides else np.zeros(len(rows), np.bool_)
        for pieces in sides:
            has_tokens = np.zeros(len(rows), np.bool_)
            for piece in pieces:
                has_tokens[piece.row_R[piece.length_R > 0]] = True
            is_used &= has_tokens
        for side, pieces in zip(("encoder", "decoder"), sides, strict=False):
            out.add(side, rows, is_used, pieces, is_sequence_D=~self._is_image_D)
        out.num_segments_B[rows] += is_used

    def _target_budget(self, contents: Contents, rows: Ints, keys: rng.Keys, inputs: Ints, out: "_Slots") -> Ints:
        """Return the number of target tokens to divide among modalities, (B,)."""
        config = self.config
        drawn = _amount(rng.fold(keys, _NUM_TARGETS), config.min_target_tokens, config.num_target_tokens)
        remaining = config.num_target_tokens - out.target_length_B[rows]
        if config.unused == "pad":
            return np.minimum(drawn, remaining)
        used = inputs.copy()
        for number, sequence in contents.sequences.items():
            np.minimum(used[:, number], sequence.length_R[rows], out=used[:, number])
        empty = config.num_input_tokens - out.length_B[rows] - used.sum(axis=1)
        held_back = (empty * _HELD_BACK).astype(np.int64)
        return np.minimum(drawn, np.maximum(remaining - held_back, np.minimum(remaining, config.min_packed_tokens)))

    def _draw_images(self, images: Sequence[Ids], draw: "_Draw") -> "Iterator[tuple[_Piece, _Piece]]":
        """Yield input and target tokens for each image size."""
        for (size, numbers), tokens_OBP in zip(self._by_size, images, strict=True):
            row_R, column_R = np.nonzero(draw.inputs[:, numbers] + draw.targets[:, numbers])
            if not len(row_R):
                continue
            number_R = numbers[column_R]
            num_in, num_out = draw.inputs[row_R, number_R], draw.targets[row_R, number_R]
            chosen = _pick(rng.fold(rng.fold(draw.keys[row_R], _PLACES), number_R), size, num_in, num_out)
            # Offset of each image in the tokens of all images, end to end.
            begin_R = (column_R * tokens_OBP.shape[1] + draw.rows[row_R]) * size
            pieces = []
            for place_F, length_R in zip(chosen, (num_in, num_out), strict=True):
                ids_F = tokens_OBP.reshape(-1)[np.repeat(begin_R, length_R) + place_F]
                pieces.append(_Piece(row_R, number_R, length_R, place_F.astype(np.int32), ids_F, ids_F))
            yield pieces[0], pieces[1]

    def _images(self, contents: Contents) -> list[Ids]:
        """Return the tokens of the O modalities of each image size, (O, B, P); for pixels the indices of patches."""
        tokens_by_size = []
        for size, numbers in self._by_size:
            tokens_OBP = np.empty((len(numbers), contents.num, size), np.int32)
            for tokens_BP, number in zip(tokens_OBP, numbers.tolist(), strict=True):
                is_tokens = self.modalities[number].kind == "image"
                tokens_BP[:] = contents.images[number] if is_tokens else np.arange(size)
            tokens_by_size.append(tokens_OBP)
        return tokens_by_size

    def _draw_sequences(self, contents: Contents, draw: "_Draw") -> "Iterator[tuple[_Piece, _Piece]]":
        """Yield input and target tokens of all sequences at once: pairs of a sample and a modality, in the order of
        modalities."""
        rows_by_number = {n: np.flatnonzero(draw.inputs[:, n] + draw.targets[:, n]) for n in contents.sequences}
        if not sum(map(len, rows_by_number.values())):
            return
        row_R = np.concatenate(list(rows_by_number.values()))
        number_R = np.repeat(list(rows_by_number), [len(own) for own in rows_by_number.values()])
        own_keys = rng.fold(rng.fold(draw.keys[row_R], _SPANS), number_R)
        hidden = hide_spans(
            _joined([contents.sequences[number].take(draw.rows[own]) for number, own in rows_by_number.items()]),
            own_keys,
            _keep_probability(rng.fold(own_keys, _KEEP), self._mixture.keep_KD[draw.component[row_R], number_R]),
            draw.inputs[row_R, number_R],
            np.where(self._is_target_D[number_R], draw.targets[row_R, number_R], 0),
            self._first_sentinel,
        )
        is_vectors_I = np.repeat(self._is_vectors_D[number_R], hidden.input_length_R)
        ids_I = np.where(is_vectors_I, hidden.input_from_I, hidden.input_ids_I)
        input_piece = _Piece(row_R, number_R, hidden.input_length_R, _within(hidden.input_length_R), ids_I, ids_I)
        # The decoder reads the target without its last token and predicts the target without its first token.
        length_R = np.maximum(hidden.target_length_R - 1, 0)
        start_R = np.cumsum(hidden.target_length_R) - hidden.target_length_R
        places = spans(start_R, length_R)
        position_F = _within(length_R)
        position_F = np.where(position_F < np.repeat(self._positions_D[number_R], length_R), position_F, 0)
        previous_F, true_F = hidden.target_ids_T[places], hidden.target_ids_T[places + 1]
        yield input_piece, _Piece(row_R, number_R, length_R, position_F.astype(np.int32), previous_F, true_F)


class _Draw(NamedTuple):
    """Random choices for some rows of a batch."""

    rows: Ints
    """Indices of the rows in the batch."""
    keys: rng.Keys
    component: Ints
    inputs: Ints
    """Input budgets of the modalities, (rows, D)."""
    targets: Ints
    """Target budgets of the modalities, (rows, D)."""


class _Piece(NamedTuple):
    """Tokens chosen from pairs of a sample and a modality, end to end."""

    row_R: Ints
    number_R: Ints
    length_R: Ints
    position_F: Ids
    ids_F: Ids
    target_F: Ids


class _Slots:
    """Arrays of a batch, which are filled segment by segment."""

    def __init__(self, num: int, N: int, M: int) -> None:
        self.num_segments_B = np.zeros(num, np.uint8)
        self.batch = empty_rows("encoder", num, N) | empty_rows("decoder", num, M)
        self.length_B, self.target_length_B = self.batch["encoder_length"], self.batch["decoder_length"]

    def add(
        self,
        side: str,
        rows: Ints,
        is_used: NDArray[np.bool_],
        pieces: Sequence[_Piece],
        is_sequence_D: NDArray[np.bool_],
    ) -> None:
        """Add a segment to the encoder or decoder (`side`) in those `rows` of the batch where it is used."""
        length_B = self.batch[f"{side}_length"]
        counts = np.zeros((len(rows), len(is_sequence_D)), np.int64)
        for piece in pieces:
            counts[piece.row_R, piece.number_R] = piece.length_R * is_used[piece.row_R]
        # Start after the tokens that the row has already, one modality after another.
        start = length_B[rows, None] + np.cumsum(counts, axis=1) - counts
        for piece in pieces:
            # First select pairs (R), then their tokens (F).
            is_used_R, row_R = is_used[piece.row_R], rows[piece.row_R]
            length_R = piece.length_R * is_used_R
            first_R = row_R * self.batch[f"{side}_segment"].shape[1] + start[piece.row_R, piece.number_R]
            slots = spans(first_R, length_R)  # indices into all rows end to end
            own_F = slice(None) if is_used_R.all() else np.repeat(is_used_R, piece.length_R)
            values: dict[str, np.ndarray] = {
                "segment": np.repeat(self.num_segments_B[row_R], length_R),
                "modality": np.repeat(piece.number_R, length_R),
                "position": piece.position_F[own_F],
                "ids": piece.ids_F[own_F],
            }
            if side == "decoder":
                is_text_F = np.repeat(is_sequence_D[piece.number_R], length_R)
                values["ids"] = values["ids"] * is_text_F  # image targets read the mask token
                values["target"] = piece.target_F[own_F]
            for name, own_values in values.items():
                self.batch[f"{side}_{name}"].reshape(-1)[slots] = own_values
        length_B[rows] += counts.sum(axis=1).astype(np.int32)


def _pick(keys_R: rng.Keys, size: int, num_in: Ints, num_out: Ints) -> tuple[Ints, Ints]:
    """Return `num_in` random ones of `size` patches for each row, and `num_out` others. Indices ascend within a row;
    rows are end to end."""
    draws_RP = rng.bits(keys_R, size)
    draws_RP &= ~_PLACE
    draws_RP |= np.arange(size, dtype=np.uint64)  # makes all values different
    ordered_RP = np.sort(draws_RP, axis=1)
    rows, whole = np.arange(len(keys_R)), num_in + num_out
    is_in_RP, is_whole_RP = (
        (draws_RP <= ordered_RP[rows, np.maximum(n - 1, 0)][:, None]) & (n > 0)[:, None] for n in (num_in, whole)
    )
    begin_R = rows * size
    places_in, places_out = np.flatnonzero(is_in_RP), np.flatnonzero(is_whole_RP & ~is_in_RP)
    return places_in - np.repeat(begin_R, num_in), places_out - np.repeat(begin_R, num_out)


def _keep_probability(keys_R: rng.Keys, keep_R: Ints) -> NDArray[np.float64]:
    uniform_R = rng.uniform(keys_R, 1)[:, 0]
    binary_R = (uniform_R < 0.5).astype(np.float64)
    return np.select([keep_R == KEEPS.index("all"), keep_R == KEEPS.index("binary")], [1.0, binary_R], uniform_R)


def _amount(keys_R: rng.Keys, minimum: int | None, maximum: int) -> Ints:
    """Return (R,) uniform draws from `minimum` to `maximum`, both included; without a minimum always `maximum`."""
    if minimum is None:
        return np.full(len(keys_R), maximum, np.int64)
    return minimum + (rng.uniform(keys_R, 1)[:, 0] * (maximum - minimum + 1)).astype(np.int64)


def _within(length_R: Ints) -> Ids:
    """Return 0, 1, 2, … for each row, end to end."""
    return spans(np.zeros_like(length_R), length_R).astype(np.int32)


def _joined(parts: Sequence[Ragged]) -> Ragged:
    units = None
    if any(part.unit_F is not None for part in parts):
        units = np.concatenate([_within(part.length_R) if part.unit_F is None else part.unit_F for part in parts])
    return Ragged(
        np.concatenate([part.ids_F for part in parts]), np.concatenate([part.length_R for part in parts]), units
    )


def component_of(keys_R: rng.Keys, weights_K: NDArray[np.float64]) -> NDArray[np.int64]:
    """Draw (R,) components in proportion to `weights_K`."""
    ends = np.cumsum(weights_K) / weights_K.sum()
    return np.minimum(np.searchsorted(ends, rng.uniform(keys_R, 1)[:, 0], side="right"), len(ends) - 1)


class Shares:
    """Draws budgets of modalities from a table of concentrations."""

    def __init__(self, alphas_KD: NDArray[np.float64]) -> None:
        """`alphas_KD`: concentration of each modality in each component; with 0 it never gets tokens. Each component
        has at least one positive concentration."""
        self.alphas_KD = np.asarray(alphas_KD, np.float64)
        largest_KD = np.stack([probability_of_largest(alphas_D) for alphas_D in self.alphas_KD])
        self._ends_KD = np.cumsum(largest_KD, axis=1)
        last_K = self.alphas_KD.shape[1] - 1 - (largest_KD[:, ::-1] > 0).argmax(axis=1)
        for ends_D, last in zip(self._ends_KD, last_K.tolist(), strict=True):
            ends_D[last:] = 1.0

    def draw(
        self,
        keys_R: rng.Keys,
        component_R: NDArray[np.int64],
        num_tokens_R: NDArray[np.int64],
        limits_RD: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """Return the number of tokens of each modality, (R, D). Tokens above `limits_RD` are lost."""
        alphas_RD = self.alphas_KD[component_R]
        shares_RD = dirichlet(rng.fold(keys_R, 0), alphas_RD).clip(max=_LARGEST_SHARE)
        budget_RD = np.floor(shares_RD * num_tokens_R[:, None]).astype(np.int64)
        short_R = num_tokens_R - budget_RD.sum(axis=1)
        max_short = int(short_R.max(initial=0))
        if max_short > 0:
            drawn_RS = rng.uniform(rng.fold(keys_R, 1), max_short)
            rows, turns = np.nonzero(np.arange(max_short) < short_R[:, None])
            largest = (drawn_RS[rows, turns][:, None] >= self._ends_KD[component_R[rows]]).sum(axis=1)
            np.add.at(budget_RD, (rows, largest), 1)
        return np.minimum(budget_RD, limits_RD)


def dirichlet(keys_R: rng.Keys, alphas_RD: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return (R, D) draws that sum to 1. Concentrations of 0 give 0; each row needs a positive concentration."""
    logs_RD = log_gamma_draws(keys_R, alphas_RD)
    logs_RD -= logs_RD.max(axis=1, keepdims=True)
    np.exp(logs_RD, out=logs_RD)
    logs_RD /= logs_RD.sum(axis=1, keepdims=True)
    return logs_RD


def log_gamma_draws(keys_R: rng.Keys, alphas_RD: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return (R, D) logarithms of gamma variates with scale 1; -inf where the shape is 0. Logarithms keep the precision
    of very small shapes. Method for shapes of at least 1: Marsaglia and Tsang 2000, "A simple method for generating
    gamma variables". A variate of a smaller shape is a variate of shape + 1 times a power of a uniform number."""
    rows, columns = np.nonzero(alphas_RD > 0)
    alphas = alphas_RD[rows, columns]
    keys = rng.fold(keys_R[rows], columns)
    is_small = alphas < 1
    d = np.where(is_small, alphas + 1, alphas) - 1 / 3
    logs = np.empty(len(alphas))
    pending = np.arange(len(alphas))
    attempt = 0
    while len(pending):
        uniforms = rng.uniform(rng.fold(keys[pending], attempt), 3)
        normal = np.sqrt(-2 * np.log1p(-uniforms[:, 0])) * np.cos(2 * math.pi * uniforms[:, 1])
        d_pending = d[pending]
        cube = (1 + normal / np.sqrt(9 * d_pending)) ** 3
        log_cube = np.log(np.maximum(cube, _SMALLEST_LOG))
        is_accepted = (cube > 0) & (np.log1p(-uniforms[:, 2]) < normal * normal / 2 + d_pending * (1 - cube + log_cube))
        logs[pending[is_accepted]] = (np.log(d_pending) + log_cube)[is_accepted]
        pending = pending[~is_accepted]
        attempt += 1
    powers = np.log1p(-rng.uniform(rng.fold(keys[is_small], -1), 1)[:, 0])
    logs[is_small] += powers / alphas[is_small]
    logs_RD = np.full(alphas_RD.shape, -np.inf)
    logs_RD[rows, columns] = logs
    return logs_RD


def probability_of_largest(alphas_D: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the probability that each modality has the largest share in a Dirichlet draw, (D,). It is the same as for
    independent gamma variates: for each distinct shape, the integral over x of its density at x times the probability
    that all others are smaller. The integral uses the logarithm of x. The error is about 1e-4."""
    shapes, group_D, counts = np.unique(alphas_D, return_inverse=True, return_counts=True)
    is_positive, probabilities = shapes > 0, np.zeros(len(shapes))
    if is_positive.sum() == 1:
        probabilities[is_positive] = 1 / counts[is_positive]
    else:
        probabilities[is_positive] = _integrated(shapes[is_positive], counts[is_positive])
    return (probabilities / (probabilities * counts).sum())[group_D]


def _integrated(shape_G: NDArray[np.float64], count_G: Ints) -> NDArray[np.float64]:
    """Return the integral of `probability_of_largest` for each of G shapes. X: points at which values are computed."""
    top = math.log(shape_G[-1] + 12 * math.sqrt(shape_G[-1]) + 40)
    # Below the knee the distribution of shape a is x ** a / gamma(a + 1); only small shapes have values there.
    knee = -6.0
    tail_X = knee - np.geomspace(1e-3, 40 / shape_G[0], _GRID)[::-1]
    logs_X = np.concatenate([tail_X, np.linspace(knee, top, 4 * _GRID)])

    def integrals(values_GX: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the integral of each step by the trapezoidal rule."""
        return np.diff(logs_X) * (values_GX[:, 1:] + values_GX[:, :-1]) / 2

    gamma_G1 = np.array([[math.lgamma(shape)] for shape in shape_G])
    density_GX = np.exp(shape_G[:, None] * logs_X - np.exp(logs_X) - gamma_G1)
    begin_G1 = np.array([[math.exp(shape * logs_X[0] - math.lgamma(shape + 1))] for shape in shape_G])
    whole_GX = np.minimum(begin_G1 + np.cumsum(integrals(density_GX), axis=1), 1.0)
    smaller_GX = np.log(np.maximum(np.concatenate([np.minimum(begin_G1, 1.0), whole_GX], axis=1), _SMALLEST_LOG))
    all_smaller_X = (count_G[:, None] * smaller_GX).sum(axis=0)
    return integrals(density_GX * np.exp(all_smaller_X - smaller_GX)).sum(axis=1)
