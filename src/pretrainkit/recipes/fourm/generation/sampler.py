"""Generates the targets of a plan, one after another.

Every draw is a function of (seed, number of the example, modality, step, place): it depends neither on what else is
generated nor on the batch. Last digits of sums do depend on the batch, so a draw at the very edge may fall otherwise.

The encoder is computed anew only when what it reads has changed: after each step that fills places of an image, once
for a whole sequence. Views that guidance needs are rows of the same pass.

Dimensions: B examples, W views, R = W B rows, S slots of the encoder, D width, P places of an image, N queries, V
vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pretrainkit import rng
from pretrainkit.recipes.fourm.batch import HostBatch
from pretrainkit.recipes.fourm.generation.draw import draw, middle
from pretrainkit.recipes.fourm.generation.guidance import Guided, guided
from pretrainkit.recipes.fourm.generation.known import Known, Places, decoder_rows, encoder_rows, whole
from pretrainkit.recipes.fourm.generation.plan import GenerationPlan, TargetConfig
from pretrainkit.recipes.fourm.generation.schedules import COLDEST, temperatures, token_counts
from pretrainkit.recipes.fourm.generation.show import numbers_of
from pretrainkit.recipes.fourm.generation.token_by_token import TokenByToken
from pretrainkit.recipes.fourm.inputs import read_batch
from pretrainkit.recipes.fourm.modality import Modality
from pretrainkit.recipes.fourm.model import FourM
from pretrainkit.recipes.fourm.sequences import Ids
from pretrainkit.recipes.fourm.text import TextVocabulary

_ORDER, _TOKENS, _NOISE = range(3)
"""Streams of the key of an example and a modality."""


@dataclass
class _Encoded:
    """What the encoder made of some rows."""

    rows: HostBatch
    context_TD: Tensor
    """With padding, row by row."""


class Sampler:
    """A trained model that generates."""

    def __init__(self, model: FourM, modalities: Sequence[Modality], vocabulary: TextVocabulary | None) -> None:
        """
        Args:
            model: In evaluation mode, whole, on its device.
            modalities: Of its config.
            vocabulary: Of its sequences; None where there are none.
        """
        self.model, self.modalities, self.vocabulary = model, tuple(modalities), vocabulary
        self.num_encoded = 0
        """Rows that the encoder was computed for."""
        self._last: _Encoded | None = None
        self._number = {modality.name: number for number, modality in enumerate(self.modalities)}

    @torch.no_grad()
    def run(self, plan: GenerationPlan, known: Known, examples_B: Sequence[int], conditions: Sequence[str]) -> Known:
        """What is known after all targets.

        Args:
            plan: Names in it are those of the model's modalities.
            known: What is given, which is not changed. Sequences among the targets may have sentinels for what is to be
                filled in; others are begun here.
            examples_B: Numbers of the examples, for their draws.
            conditions: Names of what guidance is about.
        """
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
        """A copy with room for all targets."""
        known = known.take(range(known.num))
        for target in plan.targets:
            modality = self.modalities[self._number[target.modality]]
            if modality.kind == "image" and modality.name not in known.images:
                shape = (known.num, modality.max_tokens)
                known.images[modality.name] = Places(np.zeros(shape, np.int32), np.zeros(shape, np.bool_))
            if modality.kind == "sequence":
                begun = known.sequences.get(modality.name, [None] * known.num)
                empty = np.array([self._sentinel], np.int32)
                known.sequences[modality.name] = [empty if one is None else one for one in begun]
        return known

    @property
    def _sentinel(self) -> int:
        """Of the first missing part of a sequence."""
        return 0 if self.vocabulary is None else self.vocabulary.sentinels[1]

    def _fill_places(
        self, target: TargetConfig, modality: Modality, known: Known, keys_B: rng.Keys, guidance: Guided
    ) -> None:
        """All open places of an image, in steps."""
        places, is_roar = known.images[modality.name], target.scheme != "maskgit"
        open_B = (~places.is_known_BP).sum(axis=1)
        schedule = target.schedule or ("linear" if is_roar else "cosine")
        counts_B = [token_counts(schedule, target.num_steps, int(num)) for num in open_B]
        heat_B = [temperatures(target.temperature_schedule, target.temperature, counts) for counts in counts_B]
        rank_BP = rng.uniform(rng.fold(keys_B, _ORDER), modality.max_tokens)
        order_BP = np.where(places.is_known_BP, np.inf, rank_BP).argsort(axis=1)
        num_done = np.zeros(known.num, np.int64)
        for step in range(max(map(len, counts_B), default=0)):
            rows = [row for row, counts in enumerate(counts_B) if step < len(counts) and counts[step]]
            if not rows:
                continue
            counts = [counts_B[row][step] for row in rows]
            if is_roar:
                asked = [
                    np.sort(order_BP[row, num_done[row] : num_done[row] + n])
                    for row, n in zip(rows, counts, strict=True)
                ]
            else:
                asked = [np.flatnonzero(~places.is_known_BP[row]) for row in rows]
            place_N, row_N = np.concatenate(asked), np.repeat(rows, [len(own) for own in asked])
            heat_N = np.array([heat_B[row][step] for row in row_N])
            logits_NV = self._image_logits(modality, known, rows, [own.astype(np.int32) for own in asked], guidance)
            keys_N = rng.fold(rng.fold(rng.fold(keys_B, _TOKENS), step)[row_N], place_N)
            ids_N, sure_N = self._taken(logits_NV, keys_N, heat_N, target, modality)
            if not is_roar:
                noise_N = _gumbel(rng.fold(keys_N, _NOISE)) * target.confidence_noise
                chosen = surest(np.log(np.maximum(sure_N, 1e-300)) + noise_N, [len(own) for own in asked], counts)
                place_N, row_N, ids_N = place_N[chosen], row_N[chosen], ids_N[chosen]
            places.ids_BP[row_N, place_N] = ids_N
            places.is_known_BP[row_N, place_N] = True
            num_done[rows] += counts

    def _write(
        self, target: TargetConfig, modality: Modality, known: Known, keys_B: rng.Keys, guidance: Guided
    ) -> None:
        """What is missing of a sequence, token after token."""
        vocabulary, given = self.vocabulary, known.sequences[modality.name]
        assert vocabulary is not None
        sentinels = frozenset(vocabulary.sentinels)
        rows = [row for row in range(known.num) if any(int(one) in sentinels for one in _of(given, row))]
        if not rows:
            return
        # The target of a sequence with k missing parts is [S_1] part [S_2] part … [S_k+1], as in training.
        end_B = np.array([self._sentinel + sum(int(one) in sentinels for one in _of(given, row)) for row in rows])
        length = min(target.max_tokens or modality.max_tokens, modality.max_tokens) + int(end_B.max() - self._sentinel)
        decoder = TokenByToken(self.model, modality, *self._contexts(known, rows, guidance), length)
        token_B = np.full(len(rows), self._sentinel, np.int64)
        written: list[list[int]] = [[self._sentinel] for _ in rows]
        is_open_B = np.ones(len(rows), np.bool_)
        device, heat_B = self._device, np.full(len(rows), max(target.temperature, COLDEST))
        keys_B = rng.fold(keys_B, _TOKENS)[rows]
        for place in range(length):
            ids_R = torch.from_numpy(np.tile(token_B, len(guidance.views))).to(device)
            logits_BV = _summed(decoder.step(ids_R), guidance.weights)
            token_B, _ = self._drawn(logits_BV, rng.fold(keys_B, place), heat_B, target)
            is_open_B &= token_B != end_B
            for row in np.flatnonzero(is_open_B).tolist():
                written[row].append(int(token_B[row]))
            is_open_B &= token_B != vocabulary.eos
            if not is_open_B.any():
                break
        for row, own in zip(rows, written, strict=True):
            merged = vocabulary.merge(_of(given, row), np.array(own, np.int32))
            given[row] = ended(merged, vocabulary.eos)[: modality.max_tokens]

    def _taken(
        self,
        logits_NV: Tensor,
        keys_N: rng.Keys,
        heat_N: NDArray[np.float64],
        target: TargetConfig,
        modality: Modality,
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Tokens of an image, and how sure they are."""
        if target.take == "draw":
            return self._drawn(logits_NV, keys_N, heat_N, target)
        heat = torch.from_numpy(heat_N).to(logits_NV.device)
        ids_N, sure_N = middle(
            logits_NV, heat, target.take, numbers_of(modality), top_k=target.top_k, top_p=target.top_p
        )
        return ids_N.cpu().numpy(), sure_N.cpu().numpy()

    def _drawn(
        self, logits_NV: Tensor, keys_N: rng.Keys, heat_N: NDArray[np.float64], target: TargetConfig
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        uniform_N = torch.from_numpy(rng.uniform(keys_N, 1)[:, 0]).to(logits_NV.device)
        heat = torch.from_numpy(heat_N).to(logits_NV.device)
        ids_N, sure_N = draw(logits_NV, uniform_N, heat, top_k=target.top_k, top_p=target.top_p)
        return ids_N.cpu().numpy(), sure_N.cpu().numpy()

    def _image_logits(
        self, modality: Modality, known: Known, rows: Sequence[int], places: Sequence[Ids], guidance: Guided
    ) -> Tensor:
        """float32 (N, V) for the places of all rows, one row after another."""
        encoder = encoder_rows(known, rows, guidance.views, self.modalities, self._sentinel)
        decoder = decoder_rows(places, self._number[modality.name], len(guidance.views))
        inputs = read_batch(self._tensors(whole(encoder, decoder, self.modalities)), self.model.config, layout="rows")
        hidden_ND = self.model.decode(self._encode(encoder).context_TD, inputs)[modality.name]
        return _summed(self.model.logits(modality.name, hidden_ND), guidance.weights)

    def _contexts(self, known: Known, rows: Sequence[int], guidance: Guided) -> tuple[Tensor, Tensor]:
        """(R, S, D) and bool (R, S): which slots are real."""
        encoder = encoder_rows(known, rows, guidance.views, self.modalities, self._sentinel)
        context_TD, num_added = self._encode(encoder).context_TD, self.model.config.num_registers
        num_rows = len(encoder["encoder_length"])
        context_RSD = context_TD.unflatten(0, (num_rows, -1))
        slot_S = torch.arange(context_RSD.shape[1], device=context_TD.device)
        length_R = torch.from_numpy(encoder["encoder_length"]).to(context_TD.device) + num_added
        return context_RSD, slot_S < length_R[:, None]

    def _encode(self, encoder: HostBatch) -> _Encoded:
        """The decoder's view of the encoder's output; the last one where nothing has changed."""
        if self._last is None or not _equal(self._last.rows, encoder):
            nothing = decoder_rows([np.empty(0, np.int32)] * len(encoder["encoder_length"]), 0, 1)
            batch = self._tensors(whole(encoder, nothing, self.modalities))
            inputs = read_batch(batch, self.model.config, layout="rows")
            x_TD, place_TD = self.model.embed(inputs)
            context_TD = self.model.context(self.model.encode(x_TD, inputs)) + place_TD
            self._last = _Encoded(encoder, context_TD)
            self.num_encoded += len(encoder["encoder_length"])
        return self._last

    @property
    def _device(self) -> torch.device:
        return self.model.mask_token.device

    def _tensors(self, batch: HostBatch) -> dict[str, Tensor]:
        found = {name: torch.from_numpy(values).to(self._device) for name, values in batch.items()}
        dtype = self.model.mask_token.dtype
        return {name: value.to(dtype) if value.is_floating_point() else value for name, value in found.items()}


def surest(sure_N: NDArray[np.float64], num_asked: Sequence[int], num_kept: Sequence[int]) -> NDArray[np.int64]:
    """Of the queries of each row, end to end, the places of those with the largest values; of equal ones the first."""
    found, start = [], 0
    for asked, kept in zip(num_asked, num_kept, strict=True):
        found.append(start + np.argsort(-sure_N[start : start + asked], kind="stable")[:kept])
        start += asked
    return np.sort(np.concatenate(found))


def ended(ids: Ids, end: int) -> Ids:
    """Up to and with the first end mark."""
    ends = np.flatnonzero(ids == end)
    return ids[: ends[0] + 1] if len(ends) else ids


def _of(values: Sequence[Ids | None], row: int) -> Ids:
    found = values[row]
    assert found is not None
    return found


def _summed(logits_RV: Tensor, weights: Sequence[float]) -> Tensor:
    """Views, one after another, to the sum of each times its weight."""
    parts = logits_RV.chunk(len(weights))
    return sum((part * weight for part, weight in zip(parts[1:], weights[1:], strict=True)), parts[0] * weights[0])


def _equal(before: HostBatch, now: HostBatch) -> bool:
    return before.keys() == now.keys() and all(np.array_equal(values, now[name]) for name, values in before.items())


def _gumbel(keys_N: rng.Keys) -> NDArray[np.float64]:
    uniform_N = np.maximum(rng.uniform(keys_N, 1)[:, 0], 1e-300)
    return -np.log(-np.log(uniform_N))
