"""Sampler that generates the targets of a plan, one after another.

Every draw is a function of (seed, number of the example, modality, step, patch or token). So it does not depend on
other targets or on the batch. Only the last digits of sums depend on the batch; this can change a draw in rare cases.

The encoder is computed again only if its input has changed: after each step that fills patches of an image, and once
for a complete sequence. A view is a pass with some conditions hidden, for guidance; views are rows of the same batch.

Dimensions: B examples, W views, R = W B rows, S slots of the encoder, L tokens of a sequence so far, D width, H heads,
K width of one head, P patches of an image, N queries (tokens to draw), V vocabulary; in `middle` S steps of a number.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, cast

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from pretrainkit import rng
from pretrainkit.recipes.fourm.batch import HostBatch, with_places
from pretrainkit.recipes.fourm.generation.examples import Known, View, decoder_rows, encoder_rows
from pretrainkit.recipes.fourm.generation.plan import COLDEST, GenerationPlan, TargetConfig, temperatures, token_counts
from pretrainkit.recipes.fourm.generation.show import numbers_of
from pretrainkit.recipes.fourm.inputs import FourMInputs, read_batch
from pretrainkit.recipes.fourm.modality import Modality
from pretrainkit.recipes.fourm.model import Block, FourM, TargetEmbedding
from pretrainkit.recipes.fourm.sequences import Ids, merge_spans
from pretrainkit.recipes.fourm.text import TextVocabulary

_ORDER, _TOKENS, _NOISE = range(3)
"""Random streams of an example and a modality."""
_GREEDY = 1e-6
"""Temperature below which the most likely token is used."""


Guidance = Mapping[View, float]
"""Weights of views, by the modalities that a view hides. The logits of a target are the weighted sum of those of its
views."""


def guided(target: TargetConfig, conditions: Sequence[str]) -> Guidance:
    """Return the views of a target with their weights; a single view if guidance has no effect. Names in `target` are
    full names. `conditions`: names of the conditions if `guidance` is one number and `guided_by` is None.

    With one scale s, the logits are hidden + s (visible - hidden), where "hidden" hides all conditions. With a weight w
    for each condition, they are hidden + the sum of w (that condition alone visible - hidden). Other inputs are always
    visible.
    """
    if isinstance(target.guidance, dict):
        named = {name: weight for name, weight in target.guidance.items() if weight}
        everything = frozenset(target.guidance)
        views = {everything - {name}: weight for name, weight in named.items()}
        views[everything] = views.get(everything, 0.0) + 1 - sum(named.values())
    else:
        hidden = frozenset(conditions if target.guided_by is None else target.guided_by)
        scale = target.guidance if hidden else 1.0
        views = {frozenset(): scale}
        views[hidden] = views.get(hidden, 0.0) + 1 - scale
    return {view: weight for view, weight in views.items() if weight}


class Sampler:
    """Generates targets with a trained model."""

    def __init__(self, model: FourM, modalities: Sequence[Modality], vocabulary: TextVocabulary | None) -> None:
        """`model`: in evaluation mode, not sharded, on its device."""
        self.model, self.modalities, self.vocabulary = model, tuple(modalities), vocabulary
        self.num_encoded = 0
        """Number of rows that the encoder has computed."""
        self._last: tuple[HostBatch, Tensor] | None = None
        """Last input of the encoder, and its output."""
        self._number = {modality.name: number for number, modality in enumerate(self.modalities)}

    @torch.no_grad()
    def run(self, plan: GenerationPlan, known: Known, examples_B: Sequence[int], conditions: Sequence[str]) -> Known:
        """Generate all targets and return the known contents. `plan`: with full names of modalities. `known`: the
        inputs, which are not changed; target sequences may have sentinels for missing parts. `examples_B`: numbers of
        the examples, which decide their random draws. `conditions`: names of the conditions for guidance."""
        known, conditions = self._begun(plan, known), list(conditions)
        for target in plan.targets:
            modality = self.modalities[self._number[target.modality]]
            key = rng.stream_key(plan.seed, "fourm", "generation", modality.name)
            keys_B = rng.fold(key, np.asarray(examples_B, np.int64))
            guidance = guided(target, conditions)
            if modality.kind == "image":
                self._fill_places(target, modality, known, keys_B, guidance)
                conditions += [modality.name] if plan.grow_conditions else []
            else:
                self._write(target, modality, known, keys_B, guidance)
        return known

    def _begun(self, plan: GenerationPlan, known: Known) -> Known:
        """Return a copy with empty contents for targets that are unknown."""
        known = known.take(range(known.num))
        for target in plan.targets:
            modality = self.modalities[self._number[target.modality]]
            missing = np.array([self._sentinel], np.int32)
            if modality.kind == "image":
                missing = np.full(modality.max_tokens, -1, np.int32)
            contents = known.of(modality.name)
            known.contents[modality.name] = [missing if content is None else content for content in contents]
        return known

    @property
    def _sentinel(self) -> int:
        """Id of the sentinel for the first missing part of a sequence."""
        return 0 if self.vocabulary is None else self.vocabulary.sentinels[1]

    def _fill_places(
        self, target: TargetConfig, modality: Modality, known: Known, keys_B: rng.Keys, guidance: Guidance
    ) -> None:
        """Fill all open patches of an image in steps."""
        places_BP = np.stack(cast(list[Ids], known.contents[modality.name]))
        known.contents[modality.name] = list(places_BP)  # views of the array, which is changed below
        is_open_BP, is_roar = places_BP < 0, target.scheme != "maskgit"
        schedule = target.schedule or ("linear" if is_roar else "cosine")
        counts_B = [token_counts(schedule, target.num_steps, int(num)) for num in is_open_BP.sum(axis=1)]
        temperatures_B = [temperatures(target.temperature_schedule, target.temperature, counts) for counts in counts_B]
        rank_BP = rng.uniform(rng.fold(keys_B, _ORDER), modality.max_tokens)
        order_BP = np.where(is_open_BP, rank_BP, np.inf).argsort(axis=1)
        num_filled = np.zeros(known.num, np.int64)
        for step in range(max(map(len, counts_B), default=0)):
            rows = [row for row, counts in enumerate(counts_B) if step < len(counts) and counts[step]]
            if not rows:
                continue
            counts = [counts_B[row][step] for row in rows]
            if is_roar:
                # Open patches are first in the order, so the next patches in it are still open.
                begins = zip(rows, num_filled[rows], counts, strict=True)
                places = [np.sort(order_BP[row, begin : begin + n]) for row, begin, n in begins]
            else:
                places = [np.flatnonzero(places_BP[row] < 0) for row in rows]
            place_N, row_N = np.concatenate(places), np.repeat(rows, [len(own) for own in places])
            temperature_N = np.array([temperatures_B[row][step] for row in row_N])
            encoder = encoder_rows(known, rows, tuple(guidance), self.modalities, self._sentinel)
            decoder = decoder_rows(places, self._number[modality.name], len(guidance))
            hidden = self.model.decode(self._encode(encoder), self._inputs(encoder | decoder))[modality.name]
            logits_NV = _summed(self.model.logits(modality.name, hidden), tuple(guidance.values()))
            keys_N = rng.fold(rng.fold(rng.fold(keys_B, _TOKENS), step)[row_N], place_N)
            ids_N, probability_N = self._choose(logits_NV, keys_N, temperature_N, target, numbers_of(modality))
            if not is_roar:
                uniform_N = np.maximum(rng.uniform(rng.fold(keys_N, _NOISE), 1)[:, 0], 1e-300)
                noise_N = -np.log(-np.log(uniform_N)) * target.confidence_noise  # Gumbel noise
                chosen = most_confident(
                    np.log(np.maximum(probability_N, 1e-300)) + noise_N, [len(own) for own in places], counts
                )
                place_N, row_N, ids_N = place_N[chosen], row_N[chosen], ids_N[chosen]
            places_BP[row_N, place_N] = ids_N
            num_filled[rows] += counts

    def _write(
        self, target: TargetConfig, modality: Modality, known: Known, keys_B: rng.Keys, guidance: Guidance
    ) -> None:
        """Generate the missing parts of a sequence, token by token."""
        vocabulary, contents = (
            self.vocabulary,
            cast(list[Ids], known.contents[modality.name]),
        )  # `_begun` has replaced None
        assert vocabulary is not None
        num_missing = [int(np.isin(contents[row], vocabulary.sentinels).sum()) for row in range(known.num)]
        rows = [row for row, num in enumerate(num_missing) if num]
        if not rows:
            return
        # The target of a sequence with k missing parts is [S_1] part [S_2] part … [S_k+1], as in training.
        end_B = np.array([self._sentinel + num_missing[row] for row in rows])
        # Sentinels between parts do not count as tokens of the sequence.
        num_between = int(end_B.max() - self._sentinel) - 1
        length = min(target.max_tokens or modality.max_tokens, modality.max_tokens) + num_between
        decoder = TokenByToken(self.model, modality, *self._contexts(known, rows, guidance), length)
        token_B = np.full(len(rows), self._sentinel, np.int64)
        written: list[list[int]] = [[self._sentinel] for _ in rows]
        is_open_B = np.ones(len(rows), np.bool_)
        temperature_B = np.full(len(rows), max(target.temperature, COLDEST))
        keys_B = rng.fold(keys_B, _TOKENS)[rows]
        for place in range(length):
            ids_R = torch.from_numpy(np.tile(token_B, len(guidance))).to(self._device)
            logits_BV = _summed(decoder.step(ids_R), tuple(guidance.values()))
            token_B, _ = self._choose(logits_BV, rng.fold(keys_B, place), temperature_B, target, 0)
            is_open_B &= token_B != end_B
            for row in np.flatnonzero(is_open_B).tolist():
                written[row].append(int(token_B[row]))
            is_open_B &= token_B != vocabulary.eos
            if not is_open_B.any():
                break
        for row, tokens in zip(rows, written, strict=True):
            merged = merge_spans(contents[row], np.array(tokens, np.int32), frozenset(vocabulary.sentinels))
            contents[row] = ended(merged, vocabulary.eos)[: modality.max_tokens]

    def _choose(
        self,
        logits_NV: Tensor,
        keys_N: rng.Keys,
        temperature_N: NDArray[np.float64],
        target: TargetConfig,
        num_numbers: int,
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        temperature, filters = (
            torch.from_numpy(temperature_N).to(logits_NV.device),
            {"top_k": target.top_k, "top_p": target.top_p},
        )
        if target.take == "draw":
            uniform_N = torch.from_numpy(rng.uniform(keys_N, 1)[:, 0]).to(logits_NV.device)
            ids_N, probability_N = draw(logits_NV, uniform_N, temperature, **filters)
        else:
            ids_N, probability_N = middle(logits_NV, temperature, target.take, num_numbers, **filters)
        return ids_N.cpu().numpy(), probability_N.cpu().numpy()

    def _contexts(self, known: Known, rows: Sequence[int], guidance: Guidance) -> tuple[Tensor, Tensor]:
        """Return the encoder's output for the decoder (R, S, D), and bool (R, S): True for real slots."""
        encoder = encoder_rows(known, rows, tuple(guidance), self.modalities, self._sentinel)
        length_R = torch.from_numpy(encoder["encoder_length"]).to(self._device)
        context_RSD = self._encode(encoder).unflatten(0, (len(length_R), -1))
        slot_S = torch.arange(context_RSD.shape[1], device=self._device)
        return context_RSD, slot_S < length_R[:, None] + self.model.config.num_registers

    def _encode(self, encoder: HostBatch) -> Tensor:
        """Return the encoder's output for the decoder (T, D), with padding. For the same input as in the last call it
        is not computed again."""
        same = self._last is not None and all(np.array_equal(a, encoder[name]) for name, a in self._last[0].items())
        if self._last is None or not same:
            num_rows = len(encoder["encoder_length"])
            inputs = self._inputs(encoder | decoder_rows([np.empty(0, np.int32)] * num_rows, 0, 1))
            x_TD, place_TD = self.model.embed(inputs)
            self._last = encoder, self.model.context(self.model.encode(x_TD, inputs)) + place_TD
            self.num_encoded += num_rows
        return self._last[1]

    @property
    def _device(self) -> torch.device:
        return self.model.mask_token.device

    def _inputs(self, batch: HostBatch) -> FourMInputs:
        """Return a batch with encoder and decoder parts in the form that the model reads."""
        complete = with_places(batch, self.modalities)
        tensors = {name: torch.from_numpy(values).to(self._device) for name, values in complete.items()}
        dtype = self.model.mask_token.dtype
        tensors = {name: value.to(dtype) if value.is_floating_point() else value for name, value in tensors.items()}
        return read_batch(tensors, self.model.config, layout="rows")


def most_confident(
    confidence_N: NDArray[np.float64], num_queries: Sequence[int], num_kept: Sequence[int]
) -> NDArray[np.int64]:
    """Return the indices of the queries with the largest values in each row, `num_kept` of them. Queries of all rows
    are end to end. Of equal values the first ones are taken."""
    chosen, start = [], 0
    for length, kept in zip(num_queries, num_kept, strict=True):
        chosen.append(start + np.argsort(-confidence_N[start : start + length], kind="stable")[:kept])
        start += length
    return np.sort(np.concatenate(chosen))


def ended(ids: Ids, end: int) -> Ids:
    """Return the ids up to the first end mark, including it."""
    ends = np.flatnonzero(ids == end)
    return ids[: ends[0] + 1] if len(ends) else ids


def _summed(logits_RV: Tensor, weights: Sequence[float]) -> Tensor:
    """Return the weighted sum of the logits of views, which are stored one after another."""
    parts = logits_RV.chunk(len(weights))
    return sum((part * weight for part, weight in zip(parts[1:], weights[1:], strict=True)), parts[0] * weights[0])


class TokenByToken:
    """Decoder of one sequence modality, token by token and independently for each row. It caches the keys and values of
    earlier tokens."""

    def __init__(self, model: FourM, modality: Modality, context_RSD: Tensor, is_real_RS: Tensor, length: int) -> None:
        """`context_RSD`: output of the encoder for the decoder, with positions added. `is_real_RS`: bool, True for
        slots that are not padding. `length`: maximum number of steps."""
        self.model, self.modality, self._length = model, modality, 0
        self._blocks = [_Block(cast(Block, block), context_RSD, is_real_RS, length) for block in model.decoder]

    def step(self, ids_R: Tensor) -> Tensor:
        """Add the next token of each row, int64, and return the float32 logits (R, V) of the token after it."""
        model, name = self.model, self.modality.name
        target = model.targets[name]
        assert isinstance(target, TargetEmbedding)
        place = self._length if self._length < self.modality.max_length else 0
        modality = model.input_modality if model.target_modality is None else model.target_modality
        places_RD = target.embed_positions(torch.full_like(ids_R, place)) + modality[name]
        x_RD = target.look_up(ids_R) + places_RD
        for block in self._blocks:
            x_RD = block.step(x_RD, self._length)
        self._length += 1
        return model.logits(name, model.decoder_norm(x_RD))


class _Block:
    """Block of the decoder with its cache of keys and values."""

    def __init__(self, block: Block, context_RSD: Tensor, is_real_RS: Tensor, length: int) -> None:
        self.block = block
        heads = block.attention.heads
        empty = context_RSD.new_empty((len(context_RSD), heads[0], length, heads[1]))
        self.keys_RHLK, self.values_RHLK = empty, torch.empty_like(empty)
        attention, shape = block.cross_attention, context_RSD.shape[:2]
        context_TD = block.context_norm(context_RSD.flatten(0, 1))
        k_THK, v_THK = attention.key_value(context_TD).unflatten(-1, (2, *heads)).unbind(1)
        k_THK = k_THK if attention.key_norm is None else attention.key_norm(k_THK)
        self.context_keys_RHSK, self.context_values_RHSK = (
            x.unflatten(0, shape).transpose(1, 2) for x in (k_THK, v_THK)
        )
        # A softmax needs a key: rows without real slots attend to all slots, and their result is replaced by zeros.
        self._has_keys_R11 = is_real_RS.any(1)[:, None, None]
        hidden_RS = ~is_real_RS & is_real_RS.any(1, keepdim=True)
        self._mask_R11S = torch.zeros_like(hidden_RS, dtype=context_RSD.dtype).masked_fill(hidden_RS, -torch.inf)
        self._mask_R11S = self._mask_R11S[:, None, None]

    def step(self, x_RD: Tensor, place: int) -> Tensor:
        """Map the token at position `place`, (R, D), to the output (R, D)."""
        block, attention, cross_attention = self.block, self.block.attention, self.block.cross_attention
        q_RHK, k_RHK, v_RHK = attention.qkv(block.attention_norm(x_RD)).unflatten(-1, (3, *attention.heads)).unbind(1)
        if attention.query_norm is not None and attention.key_norm is not None:
            q_RHK, k_RHK = attention.query_norm(q_RHK), attention.key_norm(k_RHK)
        self.keys_RHLK[:, :, place], self.values_RHLK[:, :, place] = k_RHK, v_RHK
        visible = slice(place + 1)
        mixed_RHK = _one_query(q_RHK, self.keys_RHLK[:, :, visible], self.values_RHLK[:, :, visible], None)
        x_RD = x_RD + attention.out(mixed_RHK.flatten(1))
        q_RHK = cross_attention.query(block.query_norm(x_RD)).unflatten(-1, cross_attention.heads)
        q_RHK = q_RHK if cross_attention.query_norm is None else cross_attention.query_norm(q_RHK)
        mixed_RHK = _one_query(q_RHK, self.context_keys_RHSK, self.context_values_RHSK, self._mask_R11S)
        x_RD = x_RD + cross_attention.out((mixed_RHK * self._has_keys_R11).flatten(1))
        return x_RD + block.feed_forward(block.feed_forward_norm(x_RD))


def _one_query(q_RHK: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    scale = q_RHK.shape[-1] ** -0.5
    return F.scaled_dot_product_attention(q_RHK[:, :, None], keys, values, attn_mask=mask, scale=scale)[:, :, 0]


def draw(
    logits_NV: Tensor, uniform_N: Tensor, temperature_N: Tensor, *, top_k: float = 0.0, top_p: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Return drawn tokens, int64 (N,), and the probability of each after filtering, float64 (N,).

    `logits_NV`: any float type. `uniform_N`: float64 random numbers in [0, 1), which decide the draws. `temperature_N`:
    float64, above 0. `top_k` and `top_p`: see `TargetConfig`.

    Filters are applied before the temperature, as in the released code of 4M. At a temperature of about 0, the returned
    probability is that of temperature 1. The original returns 1 there, so MaskGIT has no order.
    """
    logits_NV, share_NV, is_greedy_N = _shares(logits_NV, temperature_N, top_k, top_p)
    ends_NV = share_NV.cumsum(-1)
    drawn_N = torch.searchsorted(ends_NV, (uniform_N * ends_NV[:, -1])[:, None], right=True)[:, 0]
    best_N = logits_NV.argmax(-1)
    # A random number that is rounded up to the total has an index after the last token.
    drawn_N = torch.where(is_greedy_N | (drawn_N == logits_NV.shape[1]), best_N, drawn_N)
    return drawn_N, share_NV.gather(1, drawn_N[:, None])[:, 0]


def middle(
    logits_NV: Tensor,
    temperature_N: Tensor,
    statistic: Literal["mean", "median"],
    num_numbers: int,
    *,
    top_k: float = 0.0,
    top_p: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Return the tokens that are nearest to the mean or the median of the distribution, and their probabilities, in the
    form of `draw`. The mean minimizes the expected squared error, the median the absolute error. Tokens represent
    `num_numbers` numbers with S equal steps each: V = S ** num_numbers, and the last number changes fastest. Each
    number has a separate mean or median."""
    logits_NV, share_NV, is_greedy_N = _shares(logits_NV, temperature_N, top_k, top_p)
    num_steps = round(logits_NV.shape[1] ** (1 / num_numbers))
    step_S = torch.arange(num_steps, dtype=torch.float64, device=logits_NV.device)
    share_NS = share_NV.unflatten(1, (num_steps,) * num_numbers)
    ids_N = torch.zeros(len(logits_NV), dtype=torch.int64, device=logits_NV.device)
    for number in range(num_numbers):  # the marginal distribution of each number, over all values of the others
        others = [axis + 1 for axis in range(num_numbers) if axis != number]
        own_NS = share_NS.sum(others) if others else share_NS
        if statistic == "mean":
            place_N = (own_NS * step_S).sum(-1).round().long()
        else:
            place_N = (own_NS.cumsum(-1) < 0.5).sum(-1)
        ids_N = ids_N * num_steps + place_N.clamp(max=num_steps - 1)
    ids_N = torch.where(is_greedy_N, logits_NV.argmax(-1), ids_N)
    return ids_N, share_NV.gather(1, ids_N[:, None])[:, 0]


def _shares(logits_NV: Tensor, temperature_N: Tensor, top_k: float, top_p: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return filtered logits and their probabilities, both float64 (N, V), and bool (N,): True where the most likely
    token is taken; probabilities there are those of temperature 1."""
    logits_NV = filtered(logits_NV.double(), top_k=top_k, top_p=top_p)
    is_greedy_N = temperature_N < _GREEDY
    scale_N = torch.where(is_greedy_N, torch.ones_like(temperature_N), temperature_N)
    return logits_NV, torch.softmax(logits_NV / scale_N[:, None], -1), is_greedy_N


def filtered(logits_NV: Tensor, *, top_k: float = 0.0, top_p: float = 0.0) -> Tensor:
    """Return the logits with minus infinity for tokens that must not be drawn. Of equal logits, lower ids are kept
    first."""
    num_tokens = logits_NV.shape[1]
    num_kept = num_tokens
    if top_k:
        num_kept = min(num_tokens, max(1, int(top_k if top_k >= 1 else top_k * num_tokens)))
    if num_kept == num_tokens and not 0 < top_p < 1:
        return logits_NV
    sorted_NV, order_NV = torch.sort(logits_NV, dim=-1, descending=True, stable=True)
    is_kept_NV = (torch.arange(num_tokens, device=logits_NV.device) < num_kept).expand_as(sorted_NV)
    if 0 < top_p < 1:
        share_NV = torch.softmax(sorted_NV.masked_fill(~is_kept_NV, -torch.inf), -1)
        # The token that exceeds p is the last one that is kept.
        is_kept_NV = is_kept_NV & (share_NV.cumsum(-1) - share_NV <= top_p)
    is_kept_NV = torch.zeros_like(is_kept_NV).scatter(1, order_NV, is_kept_NV)  # back in the order of ids
    return logits_NV.masked_fill(~is_kept_NV, -torch.inf)
