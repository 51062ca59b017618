"""Decoding of targets from inputs, greedily, by sampling or by beam search, with cached keys and values.

A step of decoding multiplies a few tokens with every weight, so its time is that of reading the weights. They are
prepared once per answer: concatenated if they multiply the same tokens, in the dtype of the activations, and on a CPU
transposed, which is faster for products of few tokens.

Dimensions: B sequences (of a search N beams for each of I inputs), S slots of the encoder, L slots of the decoder, P of
the prompt, D width, E widths side by side, F feed-forward width, H heads, C width of one head, V vocabulary, A of the B
or I that are not finished.
Source of scores, penalties and stopping rules: T5X (`t5x/decoding.py`).
"""

import functools
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from pretrainkit.dist.autocast import activation_dtype, in_float32
from pretrainkit.eval.evaluator import evaluation_mode
from pretrainkit.nn.activations import ACTIVATIONS
from pretrainkit.nn.biased_attention import RowPairs, visible_pairs
from pretrainkit.nn.cpu.dispatch import laid_out
from pretrainkit.recipes.t5.model import T5, Block

START_ID, END_ID = 0, 1
IMPOSSIBLE = -1e7
"""Score of empty hypotheses, as in T5X: finite, so that it can be divided."""


class Decoded(NamedTuple):
    ids_BL: Tensor
    """int64, without the start token; 0 after the end mark. (B, N, L) from a beam search, the best beam last."""
    scores_B: Tensor
    """float32: the log-probability of the sequence with its end mark, without its prompt. From a beam search (B, N),
    divided by the brevity penalty, and below `IMPOSSIBLE / 2` for the missing ones if fewer than N sequences were
    finished."""


class _BlockWeights:
    """Weights of one block, in the dtype of the activations."""

    def __init__(self, block: Block, dtype: torch.dtype) -> None:
        own, cross = block.attention, block.cross_attention
        qkv_ED = torch.cat([own.query.weight, own.key.weight, own.value.weight])
        self.qkv_DE, self.out_ED = _transposed(qkv_ED, dtype), _transposed(own.out.weight, dtype)
        if cross is not None:
            self.cross_query_DE = _transposed(cross.query.weight, dtype)
            self.cross_out_ED = _transposed(cross.out.weight, dtype)
        self._activations = block.feed_forward.activations
        self._up_DE = _transposed(torch.cat(list(block.feed_forward.up.parameters())), dtype)
        self._down_FD = _transposed(block.feed_forward.down.weight, dtype)

    def feed_forward(self, x_BD: Tensor) -> Tensor:
        """Return (B, D) from (B, D), as `FeedForward` without dropout."""
        parts = (x_BD @ self._up_DE).chunk(len(self._activations), -1)
        activated = [
            part_BF if name == "linear" else ACTIVATIONS[name](part_BF)
            for name, part_BF in zip(self._activations, parts, strict=True)
        ]
        return functools.reduce(torch.mul, activated) @ self._down_FD


def _transposed(weight_ED: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the transposed weight, (D, E)."""
    return laid_out(weight_ED.detach().to(dtype).t())


class CachedDecoder:
    """The decoder of a model, token by token."""

    def __init__(self, model: T5, encoder_ids_BS: Tensor | None, num_sequences: int, max_length: int) -> None:
        """`encoder_ids_BS`: inputs, padded with 0 at their ends; None for a decoder-only model. `num_sequences`: B.
        `max_length`: maximum number of decoder positions, including the start token. The model must be in evaluation
        mode."""
        if model.decoder is None:
            raise ValueError("a model of kind encoder_only cannot decode")
        self.model, self.stack = model, model.decoder
        self.blocks: list[Block] = list(self.stack.layers)  # type: ignore[arg-type]
        device = model.embedding.weight.device
        config = model.config
        shape = (num_sequences, config.num_heads, max_length, config.head_size)
        dtype = activation_dtype(model.embedding.weight)
        self.keys = [torch.zeros(shape, dtype=dtype, device=device) for _ in self.blocks]
        self.values = [torch.zeros(shape, dtype=dtype, device=device) for _ in self.blocks]
        self.cross: list[tuple[Tensor, Tensor]] = []
        self.cross_mask: Tensor | None = None
        self.num_per_input = 1
        if model.encoder is not None:
            assert encoder_ids_BS is not None
            self._encode(encoder_ids_BS)
        # Biases of each layer for the distances 0, -1, ... to earlier keys. A step reads the first `position` + 1.
        self.bias_HL = []
        for block in self.blocks:
            bias = self.stack.relative_bias if block.relative_bias is None else block.relative_bias
            assert bias is not None
            self.bias_HL.append(bias.by_distance(1 - max_length, 0).flip(1).to(dtype))
        self._weights = [_BlockWeights(block, dtype) for block in self.blocks]
        weight_VD = model.embedding.weight if model.logits is None else model.logits.weight
        self.logits_dtype = torch.promote_types(weight_VD.dtype, torch.float32)
        """float32, or the dtype of a wider model."""
        self._table_DV = _transposed(weight_VD, self.logits_dtype)
        self._logit_scale = config.hidden_size**-0.5 if model.logits is None else 1.0
        self.kept_B: Tensor | None = None

    def _encode(self, ids_BS: Tensor) -> None:
        assert self.model.encoder is not None
        num_rows, length = ids_BS.shape
        segment_BS = (ids_BS != 0).long().flip(1).cumsum(1).flip(1).clamp(max=1)
        layout = RowPairs(num_rows, length, length, visible_pairs(segment_BS, segment_BS))
        encoded_SD = self.model.encoder(self.model.embed(ids_BS.flatten()), layout)
        for block in self.blocks:
            assert block.cross_attention is not None
            key_value = block.cross_attention.key_value(encoded_SD).unflatten(0, (num_rows, length))
            key_BHSC, value_BHSC = key_value.permute(2, 0, 3, 1, 4).unbind(0)
            self.cross.append((key_BHSC.contiguous(), value_BHSC.contiguous()))
        # A sequence without inputs attends to nothing: `_cross_attend` sets its mixture to zero.
        self.has_input_I = segment_BS.any(1)
        self.cross_mask = ((segment_BS > 0) | ~self.has_input_I[:, None])[:, None, None]

    def prefill(self, ids_BP: Tensor, num_prefix_B: Tensor) -> None:
        """Read prefixes: the first `num_prefix_B` tokens of start token and prompt, which all attend to each other.
        `step` does not change their keys and values."""
        num_rows, length = ids_BP.shape
        segment_BP = (torch.arange(length, device=ids_BP.device) < num_prefix_B[:, None]).long()
        layout = RowPairs(num_rows, length, length, visible_pairs(segment_BP, segment_BP))
        x_TD = self.model.embed(ids_BP.flatten())
        for number, block in enumerate(self.blocks):
            normal_TD = block.attention_norm(x_TD)
            rows = block.attention.query_key_value(normal_TD).unflatten(0, (num_rows, length)).permute(2, 0, 3, 1, 4)
            self.keys[number][:, :, :length], self.values[number][:, :, :length] = rows[1], rows[2]
            shared = self.stack.relative_bias
            x_TD = block(x_TD, layout, None if shared is None else layout.prepare(shared, x_TD.dtype))
        self.kept_B = num_prefix_B

    def step(self, ids_B: Tensor, position: int, out_BV: Tensor | None = None) -> Tensor:
        """Return the logits (B, V) after `ids_B`, the decoder's input at `position`; `out_BV`: memory for the
        result."""
        x_BD = self.model.embed(ids_B)
        for number, block in enumerate(self.blocks):
            x_BD = self._block(number, block, x_BD, position)
        wide_BD = self.stack.final_norm(x_BD).to(self.logits_dtype) * self._logit_scale
        with in_float32(wide_BD):
            return torch.mm(wide_BD, self._table_DV, out=out_BV)

    def _block(self, number: int, block: Block, x_BD: Tensor, position: int) -> Tensor:
        weights, heads = self._weights[number], block.attention.heads
        q_BHC, k_BHC, v_BHC = (block.attention_norm(x_BD) @ weights.qkv_DE).unflatten(-1, (3, *heads)).unbind(1)
        keys, values = self.keys[number], self.values[number]
        if self.kept_B is not None:
            is_kept = (position < self.kept_B)[:, None, None]
            k_BHC = torch.where(is_kept, keys[:, :, position], k_BHC)
            v_BHC = torch.where(is_kept, values[:, :, position], v_BHC)
        keys[:, :, position], values[:, :, position] = k_BHC, v_BHC
        seen = slice(0, position + 1)
        bias_H1L = self.bias_HL[number][:, seen].flip(1)[:, None]
        mixed_BH1C = F.scaled_dot_product_attention(
            q_BHC[:, :, None], keys[:, :, seen], values[:, :, seen], attn_mask=bias_H1L[None], scale=1.0
        )
        x_BD = x_BD + mixed_BH1C[:, :, 0].flatten(1) @ weights.out_ED
        if block.cross_norm is not None:
            q_BHC = (block.cross_norm(x_BD) @ weights.cross_query_DE).unflatten(-1, heads)
            x_BD = x_BD + self._cross_attend(number, q_BHC) @ weights.cross_out_ED
        return x_BD + weights.feed_forward(block.feed_forward_norm(x_BD))

    def _cross_attend(self, number: int, q_BHC: Tensor) -> Tensor:
        """Attend to the inputs. The sequences of an input are the queries of one attention."""
        q_INHC = q_BHC.unflatten(0, (-1, self.num_per_input))
        key_IHSC, value_IHSC = self.cross[number]
        mixed_IHNC = F.scaled_dot_product_attention(
            q_INHC.transpose(1, 2), key_IHSC, value_IHSC, attn_mask=self.cross_mask, scale=1.0
        )
        mixed_INHC = mixed_IHNC.transpose(1, 2) * self.has_input_I[:, None, None, None]
        return mixed_INHC.flatten(0, 1).flatten(1)

    def repeat(self, num: int) -> None:
        """Replace each sequence by `num` adjacent copies, which share the keys and values of their input."""
        self.num_per_input *= num
        self.keys = [key.repeat_interleave(num, 0) for key in self.keys]
        self.values = [value.repeat_interleave(num, 0) for value in self.values]
        if self.kept_B is not None:
            self.kept_B = self.kept_B.repeat_interleave(num)

    def reorder(self, sequence_B: Tensor, num_read: int) -> None:
        """Continue with these sequences (int64 indices, possibly repeated), each in the place of one with the same
        input.

        `num_read`: positions that were read so far, including `prefill`; only their keys and values are moved."""
        for kept in (*self.keys, *self.values):
            kept[:, :, :num_read] = kept[:, :, :num_read].index_select(0, sequence_B)

    def keep(self, input_I: Tensor) -> None:
        """Continue with only the sequences of these inputs (unique int64 indices)."""
        own = torch.arange(self.num_per_input, device=input_I.device)
        sequence_B = (input_I[:, None] * self.num_per_input + own).flatten()
        self.keys = [key.index_select(0, sequence_B) for key in self.keys]
        self.values = [value.index_select(0, sequence_B) for value in self.values]
        self.cross = [(key.index_select(0, input_I), value.index_select(0, input_I)) for key, value in self.cross]
        if self.cross_mask is not None:
            self.cross_mask, self.has_input_I = self.cross_mask[input_I], self.has_input_I[input_I]
        if self.kept_B is not None:
            self.kept_B = self.kept_B[sequence_B]


@torch.no_grad()
def sample(
    model: T5,
    encoder_ids_BS: Tensor | None,
    *,
    max_length: int,
    temperature: float = 1.0,
    top_k: int = 1,
    top_p: float = 0.0,
    prompt_BP: Tensor | None = None,
    is_prefix: bool = False,
    uniform_BL: Tensor | None = None,
    end_id: int = END_ID,
    max_new: int | None = None,
) -> Decoded:
    """Generate one sequence per input, token by token. As in T5X the default is greedy: only the best token.

    Args:
        model: The model, which is set to evaluation mode during the call.
        encoder_ids_BS: Inputs, padded with 0 at their ends; None for a decoder-only model.
        max_length: Maximum number of tokens of an answer, including its prompt and end mark.
        temperature: Divisor of the logits, above 0.
        top_k: Draw from this many best tokens; 0: from all.
        top_p: Draw from the best tokens with this total probability; 0: from all. Only one of the two may be set.
        prompt_BP: Beginnings of the answers, padded with 0 at their ends.
        is_prefix: The prompt is the prefix of a prefix language model: its tokens all attend to each other.
        uniform_BL: Numbers in [0, 1) that decide the draws, so that an answer does not depend on its batch; None for
            greedy decoding.
        end_id: Id of the end mark.
        max_new: Maximum number of tokens after each prompt; only `max_length` would allow more of them after short
            prompts.
    """
    device = model.embedding.weight.device
    with evaluation_mode(model):
        decoder, prompt_BP = _started(model, encoder_ids_BS, prompt_BP, max_length, is_prefix=is_prefix)
        num = len(prompt_BP)
        ids_BL = torch.zeros(num, max_length, dtype=torch.int64, device=device)
        scores_B = torch.zeros(num, device=device)
        # The unfinished sequences: A of the B.
        row_A = torch.arange(num, device=device)
        is_done_A = torch.zeros(num, dtype=torch.bool, device=device)
        # Allocated once, because fresh memory would cost more time than the logits.
        logits_BV = torch.empty(num, model.config.vocab_size or 0, dtype=decoder.logits_dtype, device=device)
        last_B = (prompt_BP != 0).sum(1) + (max_length if max_new is None else max_new)
        current_A = torch.full((num,), START_ID, device=device)
        for position in range(max_length):
            logits_AV = decoder.step(current_A, position, logits_BV[: len(row_A)])
            log_probs_AV = torch.log_softmax(logits_AV if temperature == 1 else logits_AV / temperature, -1)
            uniform_A = None if uniform_BL is None else uniform_BL[row_A, position]
            current_A = _draw(log_probs_AV, top_k, top_p, uniform_A)
            is_prompt_A = torch.zeros_like(is_done_A)
            if position < prompt_BP.shape[1]:
                forced_A = prompt_BP[row_A, position]
                is_prompt_A = forced_A != 0
                current_A = torch.where(is_prompt_A, forced_A, current_A)
            chosen_log_A = log_probs_AV.gather(1, current_A[:, None])[:, 0]
            scores_B[row_A] += chosen_log_A.masked_fill(is_done_A | is_prompt_A, 0.0)
            current_A = current_A.masked_fill(is_done_A, 0)
            ids_BL[row_A, position] = current_A
            is_done_A = is_done_A | (current_A == end_id) & ~is_prompt_A
            if max_new is not None:
                is_done_A = is_done_A | (position + 1 >= last_B[row_A])
            num_open = int((~is_done_A).sum())
            if not num_open:
                break
            if 2 * num_open <= len(row_A):
                kept = (~is_done_A).nonzero()[:, 0]
                decoder.keep(kept)
                row_A, current_A, is_done_A = row_A[kept], current_A[kept], is_done_A[kept]
    return Decoded(ids_BL, scores_B)


def _started(
    model: T5, encoder_ids_BS: Tensor | None, prompt_BP: Tensor | None, max_length: int, *, is_prefix: bool
) -> tuple[CachedDecoder, Tensor]:
    """Return the decoder after reading the prefix, and the prompts as int64, of width 0 without prompts."""
    rows = encoder_ids_BS if encoder_ids_BS is not None else prompt_BP
    if rows is None:
        raise ValueError("encoder_ids_BS and prompt_BP are both None; pass one of them")
    prompt_BP = rows.new_zeros(len(rows), 0) if prompt_BP is None else prompt_BP
    prompt_BP = prompt_BP.to(model.embedding.weight.device, torch.int64)
    decoder = CachedDecoder(model, encoder_ids_BS, len(rows), max_length)
    if is_prefix:
        started_BP = F.pad(prompt_BP, (1, 0), value=START_ID)[:, :max_length]
        decoder.prefill(started_BP, ((prompt_BP != 0).sum(1) + 1).clamp(max=max_length))
    return decoder, prompt_BP


def _draw(log_probs_BV: Tensor, top_k: int, top_p: float, uniform_B: Tensor | None) -> Tensor:
    if top_k == 1:
        return log_probs_BV.argmax(-1)
    assert uniform_B is not None
    if top_k:
        least = log_probs_BV.topk(min(top_k, log_probs_BV.shape[1]), -1).values[:, -1:]
        log_probs_BV = log_probs_BV.masked_fill(log_probs_BV < least, -torch.inf)
    if top_p:
        ordered_BV, index_BV = log_probs_BV.sort(-1, descending=True)
        # A token is excluded if the tokens before it already have the probability; the first is never excluded.
        before_BV = ordered_BV.exp().cumsum(-1) - ordered_BV.exp()
        is_out_BV = torch.zeros_like(before_BV, dtype=torch.bool).scatter(1, index_BV, before_BV >= top_p)
        log_probs_BV = log_probs_BV.masked_fill(is_out_BV, -torch.inf)
    # Inverse of the cumulative distribution, in float64, whose steps are smaller than those of float32 near 1.
    cumulative_BV = log_probs_BV.exp().double().cumsum(-1)
    place_B1 = (uniform_B.double()[:, None] * cumulative_BV[:, -1:]).contiguous()
    index_B = torch.searchsorted(cumulative_BV, place_B1, right=True)[:, 0]
    # A product that is rounded up may be beyond the last token that can be drawn.
    last_B = (cumulative_BV < cumulative_BV[:, -1:]).sum(-1)
    return torch.minimum(index_B, last_B)


def brevity_penalty(alpha: float, length: int) -> float:
    """Return the divisor of the log-probability of a sequence of `length` tokens (Wu et al. 2016, without coverage)."""
    return ((5.0 + length) / 6.0) ** alpha


@torch.no_grad()
def beam_search(
    model: T5,
    encoder_ids_BS: Tensor | None,
    *,
    max_length: int,
    num_beams: int,
    alpha: float = 0.6,
    prompt_BP: Tensor | None = None,
    is_prefix: bool = False,
    end_id: int = END_ID,
) -> Decoded:
    """Return the best sequences of a beam search with `num_beams` (N) unfinished sequences, from worst to best.
    Arguments are those of `sample`; `alpha` is the exponent of the brevity penalty, 0: no penalty.

    Finished and unfinished sequences are stored separately. The search ends when no unfinished one can become better
    than the worst finished one, or at `max_length`.
    """
    device = model.embedding.weight.device
    with evaluation_mode(model):
        decoder, prompt_BP = _started(model, encoder_ids_BS, prompt_BP, max_length, is_prefix=is_prefix)
        num, num_read = len(prompt_BP), (prompt_BP.shape[1] + 1) * is_prefix
        decoder.repeat(num_beams)
        results, beams = (_Beams.empty(num, num_beams, max_length, device) for _ in range(2))
        row_A = torch.arange(num, device=device)
        current = torch.full((num * num_beams,), START_ID, device=device)
        for position in range(max_length):
            log_probs = torch.log_softmax(decoder.step(current, position), -1).view(len(row_A), num_beams, -1)
            is_prompt_A = torch.zeros_like(row_A, dtype=torch.bool)
            if position < prompt_BP.shape[1]:
                is_prompt_A = prompt_BP[row_A, position] != 0
                # Within a prompt, its token is certain.
                forced_AV = torch.full_like(log_probs[:, 0], IMPOSSIBLE)
                forced_AV = forced_AV.scatter(1, prompt_BP[row_A, position][:, None], 0.0)
                log_probs = torch.where(is_prompt_A[:, None, None], forced_AV[:, None], log_probs)
            beams, sequence = beams.extended(log_probs, position, alpha, end_id, is_prompt_A)
            is_done_A = beams.done_score[:, -1] >= beams.live_log[:, 0] / brevity_penalty(alpha, max_length)
            num_open = int((~is_done_A).sum())
            if not num_open:
                break
            decoder.reorder(sequence, max(num_read, position + 1))
            if 2 * num_open <= len(row_A):
                # Finished searches cannot change any more.
                results.put(row_A, beams)
                kept = (~is_done_A).nonzero()[:, 0]
                beams, row_A = _Beams(*(part[kept] for part in beams)), row_A[kept]
                decoder.keep(kept)
            current = beams.live[:, :, position].flatten()
        results.put(row_A, beams)
    return results.best(alpha, max_length)


class _Beams(NamedTuple):
    """The N best unfinished and the N best finished sequences of each of A inputs, the best one first."""

    live: Tensor
    """int64 (A, N, L)."""
    live_log: Tensor
    """float32 (A, N): log-probabilities."""
    done: Tensor
    """int64 (A, N, L)."""
    done_score: Tensor
    """float32 (A, N): log-probabilities divided by the brevity penalty."""

    @classmethod
    def empty(cls, num: int, num_beams: int, max_length: int, device: torch.device) -> "_Beams":
        live = torch.zeros(num, num_beams, max_length, dtype=torch.int64, device=device)
        impossible = torch.full((num, num_beams), IMPOSSIBLE, device=device)
        live_log = impossible.clone()
        live_log[:, 0] = 0.0  # all beams are equal at first: only one of them counts
        return cls(live, live_log, torch.zeros_like(live), impossible)

    def extended(
        self, log_probs_ANV: Tensor, position: int, alpha: float, end_id: int, is_prompt_A: Tensor
    ) -> tuple["_Beams", Tensor]:
        """Return the beams with one more token, and the parent sequences (A * N) of the unfinished ones. A token of the
        prompt ends no sequence."""
        num, num_beams, vocab_size = log_probs_ANV.shape
        length = self.live.shape[-1]
        # Twice the number of beams, because at most half of them end here.
        top_log, top_index = (self.live_log[:, :, None] + log_probs_ANV).flatten(1).topk(2 * num_beams, -1)
        parent, token = top_index // vocab_size, top_index % vocab_size
        candidates = self.live.gather(1, parent[:, :, None].expand(-1, -1, length))
        candidates[:, :, position] = token
        is_end = (token == end_id) & ~is_prompt_A[:, None]

        score = (top_log / brevity_penalty(alpha, position + 1)).masked_fill(~is_end, IMPOSSIBLE)
        done_score, kept = torch.cat((self.done_score, score), 1).topk(num_beams, -1)
        done = torch.cat((self.done, candidates), 1).gather(1, kept[:, :, None].expand(-1, -1, length))

        live_log, kept = top_log.masked_fill(is_end, IMPOSSIBLE).topk(num_beams, -1)
        live = candidates.gather(1, kept[:, :, None].expand(-1, -1, length))
        first_A1 = torch.arange(num, device=parent.device)[:, None] * num_beams
        return _Beams(live, live_log, done, done_score), (first_A1 + parent.gather(1, kept)).flatten()

    def put(self, row_A: Tensor, other: "_Beams") -> None:
        """Replace the beams of some inputs."""
        for own, others in zip(self, other, strict=True):
            own[row_A] = others

    def best(self, alpha: float, max_length: int) -> Decoded:
        """Return the finished sequences, or the unfinished ones of an input without finished ones; from worst to
        best."""
        has_done_B1 = self.done_score[:, :1] > IMPOSSIBLE / 2
        ids = torch.where(has_done_B1[:, :, None], self.done, self.live)
        scores = torch.where(has_done_B1, self.done_score, self.live_log / brevity_penalty(alpha, max_length))
        return Decoded(ids.flip(1), scores.flip(1))
