"""Targets from inputs: greedy, by sampling, by beam search. Keys and values of earlier tokens are kept.

Dimensions: B sequences (times N beams), S slots of the encoder, L slots of the decoder, P of the prompt, D width, H
heads, C width of one head, V vocabulary.
Source: T5X (`t5x/decoding.py`), whose scores, penalties and rules for stopping these are.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from pretrainkit.nn.biased_attention import RowPairs, visible_pairs
from pretrainkit.nn.relative_bias import RelativeBias
from pretrainkit.recipes.t5.model import T5, Block

START_ID, END_ID = 0, 1
_IMPOSSIBLE = -1e7
"""Score of what is no hypothesis, as in T5X: finite, so that it can be divided."""


class Decoded(NamedTuple):
    """What was generated."""

    ids_BL: Tensor
    """int64, without the start token; 0 after the end mark. (B, N, L) from a beam search, the best beam last."""
    scores_B: Tensor
    """float32: the log-probability of the sequence with its end mark, without its prompt; from a beam search (B, N),
    over the brevity penalty."""


class CachedDecoder:
    """The decoder of a model, token by token."""

    def __init__(self, model: T5, encoder_ids_BS: Tensor | None, num_sequences: int, max_length: int) -> None:
        """
        Args:
            model: In evaluation mode.
            encoder_ids_BS: Inputs, padded with 0 at their ends; None for a decoder on its own.
            num_sequences: B.
            max_length: Most decoder positions, the start token counted in.
        """
        if model.decoder is None:
            raise ValueError("a model of kind encoder_only cannot decode")
        self.model, self.stack = model, model.decoder
        self.blocks: list[Block] = list(self.stack.layers)  # type: ignore[arg-type]
        device = model.embedding.weight.device
        config = model.config
        shape = (num_sequences, config.num_heads, max_length, config.head_size)
        dtype = model.embedding.weight.dtype
        self.keys = [torch.zeros(shape, dtype=dtype, device=device) for _ in self.blocks]
        self.values = [torch.zeros(shape, dtype=dtype, device=device) for _ in self.blocks]
        self.cross: list[tuple[Tensor, Tensor]] = []
        self.cross_mask: Tensor | None = None
        if model.encoder is not None:
            assert encoder_ids_BS is not None
            self._encode(encoder_ids_BS)
        # Of the distance 0, -1, ... to earlier keys, for each layer.
        biases = [self._bias_of(block).by_distance(1 - max_length, 0).flip(1) for block in self.blocks]
        self.bias_HL = [bias.to(dtype) for bias in biases]
        self.kept_B: Tensor | None = None

    def _bias_of(self, block: Block) -> RelativeBias:
        bias = self.stack.relative_bias if block.relative_bias is None else block.relative_bias
        assert bias is not None
        return bias

    def _encode(self, ids_BS: Tensor) -> None:
        assert self.model.encoder is not None
        num_rows, length = ids_BS.shape
        segment_BS = (ids_BS != 0).long().flip(1).cumsum(1).flip(1).clamp(max=1)
        layout = RowPairs(num_rows, length, length, visible_pairs(segment_BS, segment_BS))
        encoded_SD = self.model.encoder(self.model.embed(ids_BS.flatten())[0], layout)
        for block in self.blocks:
            assert block.cross_attention is not None
            key_value = block.cross_attention.key_value(encoded_SD).unflatten(0, (num_rows, length))
            key_BHSC, value_BHSC = key_value.permute(2, 0, 3, 1, 4).unbind(0)
            self.cross.append((key_BHSC.contiguous(), value_BHSC.contiguous()))
        # A sequence without any input reads nothing: its mixture is put to zero in `step`.
        self.has_input_B = segment_BS.any(1)
        self.cross_mask = ((segment_BS > 0) | ~self.has_input_B[:, None])[:, None, None]

    def prefill(self, ids_BP: Tensor, num_prefix_B: Tensor) -> None:
        """Read a prefix whose tokens all see each other; `step` leaves what is known of them as it is.

        Args:
            ids_BP: The start token and the prompt.
            num_prefix_B: How many of them are the prefix, of each sequence.
        """
        num_rows, length = ids_BP.shape
        segment_BP = (torch.arange(length, device=ids_BP.device) < num_prefix_B[:, None]).long()
        layout = RowPairs(num_rows, length, length, visible_pairs(segment_BP, segment_BP))
        x_TD = self.model.embed(ids_BP.flatten())[0]
        for number, block in enumerate(self.blocks):
            normal_TD = block.attention_norm(x_TD)
            rows = block.attention.query_key_value(normal_TD).unflatten(0, (num_rows, length)).permute(2, 0, 3, 1, 4)
            self.keys[number][:, :, :length], self.values[number][:, :, :length] = rows[1], rows[2]
            prepared = (
                None if self.stack.relative_bias is None else layout.prepare(self.stack.relative_bias, x_TD.dtype)
            )
            x_TD = block(x_TD, layout, prepared)
        self.kept_B = num_prefix_B

    def step(self, ids_B: Tensor, position: int) -> Tensor:
        """The logits (B, V) of what follows `ids_B`, the decoder's input at `position`."""
        x_BD, table = self.model.embed(ids_B)
        for number, block in enumerate(self.blocks):
            x_BD = self._block(number, block, x_BD, position)
        logits = self.model.head(self.stack.final_norm(x_BD), table, None)
        assert isinstance(logits, Tensor)
        return logits

    def _block(self, number: int, block: Block, x_BD: Tensor, position: int) -> Tensor:
        q_BHC, k_BHC, v_BHC = block.attention.query_key_value(block.attention_norm(x_BD)).unbind(1)
        keys, values = self.keys[number], self.values[number]
        if self.kept_B is not None:
            is_kept = (position < self.kept_B)[:, None, None]
            k_BHC = torch.where(is_kept, keys[:, :, position], k_BHC)
            v_BHC = torch.where(is_kept, values[:, :, position], v_BHC)
        keys[:, :, position], values[:, :, position] = k_BHC, v_BHC
        seen = slice(0, position + 1)
        bias_H1L = self.bias_HL[number][:, seen].flip(1)[:, None]
        mixed = self._mix(q_BHC, keys[:, :, seen], values[:, :, seen], bias_H1L[None])
        x_BD = x_BD + block.attention.out(mixed)
        if block.cross_attention is not None:
            assert block.cross_norm is not None
            q_BHC = block.cross_attention.query(block.cross_norm(x_BD)).unflatten(-1, block.cross_attention.heads)
            mixed = self._mix(q_BHC, *self.cross[number], self.cross_mask) * self.has_input_B[:, None]
            x_BD = x_BD + block.cross_attention.out(mixed)
        return x_BD + block.feed_forward(block.feed_forward_norm(x_BD))

    @staticmethod
    def _mix(q_BHC: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        mixed = F.scaled_dot_product_attention(q_BHC[:, :, None], key, value, attn_mask=mask, scale=1.0)
        return mixed[:, :, 0].flatten(1)

    def choose(self, sequence_B: Tensor) -> None:
        """Go on with these sequences (int64 indices), in this order; one may be there several times."""
        self.keys = [key[sequence_B] for key in self.keys]
        self.values = [value[sequence_B] for value in self.values]
        self.cross = [(key[sequence_B], value[sequence_B]) for key, value in self.cross]
        if self.cross_mask is not None:
            self.cross_mask, self.has_input_B = self.cross_mask[sequence_B], self.has_input_B[sequence_B]
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
    generator: torch.Generator | None = None,
    change_logits: Callable[[Tensor, int], Tensor] | None = None,
) -> Decoded:
    """One sequence per input, token by token. As in T5X the default is greedy: the best token only.

    Args:
        model: Its dropout is switched off meanwhile.
        encoder_ids_BS: Inputs, padded with 0 at their ends; None for a decoder on its own.
        max_length: Most tokens of an answer, its prompt and end mark counted in.
        temperature: Above 0; logits are divided by it.
        top_k: Draw from so many best tokens; 0: from all.
        top_p: Draw from the best tokens that have this probability together; 0: from all. Only one of the two.
        prompt_BP: What the answers begin with, padded with 0 at their ends.
        is_prefix: The prompt is the prefix of a prefix language model: its tokens all see each other.
        generator: Where the draws come from.
        change_logits: Called with the logits (B, V) and the position before each choice.
    """
    if temperature <= 0:
        raise ValueError(f"temperature is {temperature}; it must be above 0 (top_k=1 is greedy)")
    if top_k and top_p:
        raise ValueError(f"top_k={top_k} and top_p={top_p} are both set; set one of them to 0")
    num = _num_sequences(encoder_ids_BS, prompt_BP)
    device = model.embedding.weight.device
    prompt_BP = torch.zeros(num, 0, dtype=torch.int64, device=device) if prompt_BP is None else prompt_BP.long()
    was_training = model.training
    model.eval()
    decoder = CachedDecoder(model, encoder_ids_BS, num, max_length)
    if is_prefix:
        started_BP = F.pad(prompt_BP, (1, 0), value=START_ID)[:, :max_length]
        decoder.prefill(started_BP, (prompt_BP != 0).sum(1) + 1)
    ids_BL = torch.zeros(num, max_length, dtype=torch.int64, device=device)
    scores_B = torch.zeros(num, device=device)
    is_done_B = torch.zeros(num, dtype=torch.bool, device=device)
    current_B = torch.full((num,), START_ID, device=device)
    for position in range(max_length):
        logits_BV = decoder.step(current_B, position)
        if change_logits is not None:
            logits_BV = change_logits(logits_BV, position)
        log_probs_BV = torch.log_softmax(logits_BV / temperature, -1)
        chosen_B = _draw(log_probs_BV, top_k, top_p, generator)
        is_given_B = torch.zeros_like(is_done_B)
        if position < prompt_BP.shape[1]:
            is_given_B = prompt_BP[:, position] != 0
            chosen_B = torch.where(is_given_B, prompt_BP[:, position], chosen_B)
        chosen_log_B = log_probs_BV.gather(1, chosen_B[:, None])[:, 0]
        scores_B = scores_B + chosen_log_B.masked_fill(is_done_B | is_given_B, 0.0)
        current_B = chosen_B.masked_fill(is_done_B, 0)
        ids_BL[:, position] = current_B
        is_done_B = is_done_B | (current_B == END_ID)
        if is_done_B.all():
            break
    model.train(was_training)
    return Decoded(ids_BL, scores_B)


def _num_sequences(encoder_ids_BS: Tensor | None, prompt_BP: Tensor | None) -> int:
    given = encoder_ids_BS if encoder_ids_BS is not None else prompt_BP
    if given is None:
        raise ValueError("give encoder_ids_BS or prompt_BP: one of them says how many sequences to make")
    return len(given)


def _draw(log_probs_BV: Tensor, top_k: int, top_p: float, generator: torch.Generator | None) -> Tensor:
    if top_k == 1:
        return log_probs_BV.argmax(-1)
    if top_k:
        least = log_probs_BV.topk(min(top_k, log_probs_BV.shape[1]), -1).values[:, -1:]
        log_probs_BV = log_probs_BV.masked_fill(log_probs_BV < least, -torch.inf)
    if top_p:
        ordered_BV, index_BV = log_probs_BV.sort(-1, descending=True)
        before_BV = ordered_BV.exp().cumsum(-1) - ordered_BV.exp()
        is_out_BV = torch.zeros_like(before_BV, dtype=torch.bool).scatter(1, index_BV, before_BV >= top_p)
        log_probs_BV = log_probs_BV.masked_fill(is_out_BV, -torch.inf)
    return torch.multinomial(log_probs_BV.exp(), 1, generator=generator)[:, 0]


def brevity_penalty(alpha: float, length: int) -> float:
    """What the log-probability of a sequence of `length` tokens is divided by (Wu et al. 2016, without coverage)."""
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
) -> Decoded:
    """The best sequences of a search that keeps `num_beams` unfinished ones, from worst to best.

    Finished and unfinished ones are kept apart. The search ends when no unfinished one can become better than the
    worst finished one, or at `max_length`.

    Args:
        model: Its dropout is switched off meanwhile.
        encoder_ids_BS: As for `sample`.
        max_length: As for `sample`.
        num_beams: N.
        alpha: Exponent of the brevity penalty; 0: none.
        prompt_BP: As for `sample`.
    """
    num, device = _num_sequences(encoder_ids_BS, prompt_BP), model.embedding.weight.device
    was_training = model.training
    model.eval()
    decoder = CachedDecoder(model, encoder_ids_BS, num, max_length)
    decoder.choose(torch.arange(num, device=device).repeat_interleave(num_beams))
    live_BNL = torch.zeros(num, num_beams, max_length, dtype=torch.int64, device=device)
    live_log_BN = torch.full((num, num_beams), _IMPOSSIBLE, device=device)
    live_log_BN[:, 0] = 0.0  # all beams begin alike: only one of them counts
    done_BNL, done_score_BN = torch.zeros_like(live_BNL), torch.full_like(live_log_BN, _IMPOSSIBLE)
    first_B1 = torch.arange(num, device=device)[:, None] * num_beams
    current = torch.full((num * num_beams,), START_ID, device=device)
    for position in range(max_length):
        log_probs = torch.log_softmax(decoder.step(current, position), -1).view(num, num_beams, -1)
        if prompt_BP is not None and position < prompt_BP.shape[1]:
            log_probs = _force(log_probs, prompt_BP[:, position].long())
        vocab_size = log_probs.shape[-1]
        # Twice as many as beams: at most half of them end here.
        top_log, top_index = (live_log_BN[:, :, None] + log_probs).flatten(1).topk(2 * num_beams, -1)
        parent, token = top_index // vocab_size, top_index % vocab_size
        candidates = live_BNL.gather(1, parent[:, :, None].expand(-1, -1, max_length)).clone()
        candidates[:, :, position] = token
        is_end = token == END_ID

        score = (top_log / brevity_penalty(alpha, position + 1)).masked_fill(~is_end, _IMPOSSIBLE)
        done_score_BN, kept = torch.cat((done_score_BN, score), 1).topk(num_beams, -1)
        done_BNL = torch.cat((done_BNL, candidates), 1).gather(1, kept[:, :, None].expand(-1, -1, max_length))

        live_log_BN, kept = top_log.masked_fill(is_end, _IMPOSSIBLE).topk(num_beams, -1)
        live_BNL = candidates.gather(1, kept[:, :, None].expand(-1, -1, max_length))
        decoder.choose((first_B1 + parent.gather(1, kept)).flatten())
        current = live_BNL[:, :, position].flatten()

        best_live_B = live_log_BN[:, 0] / brevity_penalty(alpha, max_length)
        if (done_score_BN[:, -1] >= best_live_B).all():
            break
    model.train(was_training)
    has_done = (done_score_BN[:, :1] > _IMPOSSIBLE / 2).expand(-1, num_beams)
    ids = torch.where(has_done[:, :, None], done_BNL, live_BNL)
    scores = torch.where(has_done, done_score_BN, live_log_BN / brevity_penalty(alpha, max_length))
    return Decoded(ids.flip(1), scores.flip(1))


def _force(log_probs_BNV: Tensor, prompt_B: Tensor) -> Tensor:
    """Where there is a prompt, its token is certain."""
    forced_BV = torch.full_like(log_probs_BNV[:, 0], _IMPOSSIBLE).scatter(1, prompt_B[:, None], 0.0)
    return torch.where((prompt_B != 0)[:, None, None], forced_BV[:, None], log_probs_BNV)
