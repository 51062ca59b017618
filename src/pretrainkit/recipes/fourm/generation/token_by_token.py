"""The decoder for one sequence, token by token: what it computed of the tokens before is kept.

Dimensions: R rows, S slots of the encoder, L tokens of the sequence so far, D width, H heads, K width of one head, V
vocabulary.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from pretrainkit.recipes.fourm.embeddings import TargetEmbedding
from pretrainkit.recipes.fourm.layers import Attention, CrossAttention, DecoderBlock
from pretrainkit.recipes.fourm.modality import Modality
from pretrainkit.recipes.fourm.model import FourM


class TokenByToken:
    """The decoder of a model with contexts that stay: queries of one modality, each row for itself."""

    def __init__(self, model: FourM, modality: Modality, context_RSD: Tensor, is_real_RS: Tensor, length: int) -> None:
        """
        Args:
            model: In evaluation mode.
            modality: The sequence.
            context_RSD: The decoder's view of the encoder's output, positions added.
            is_real_RS: bool: which slots are no padding.
            length: Most steps.
        """
        self.model, self.modality, self._length = model, modality, 0
        self._blocks = [_Block(block, context_RSD, is_real_RS, length) for block in _blocks(model)]

    def step(self, ids_R: Tensor) -> Tensor:
        """The next token of each row, int64, to logits float32 (R, V) of the one behind it."""
        model, name = self.model, self.modality.name
        target = model.targets[name]
        assert isinstance(target, TargetEmbedding)
        place = self._length if self._length < self.modality.max_length else 0
        modality = model.input_modality if model.target_modality is None else model.target_modality
        places_RD = target.places(torch.full_like(ids_R, place)) + modality[name]
        x_RD = target.look_up(ids_R) + places_RD
        for block in self._blocks:
            x_RD = block.step(x_RD, self._length)
        self._length += 1
        return model.logits(name, model.decoder_norm(x_RD))


def _blocks(model: FourM) -> list[DecoderBlock]:
    return [block for block in model.decoder if isinstance(block, DecoderBlock)]


class _Block:
    """One block with its keys and values."""

    def __init__(self, block: DecoderBlock, context_RSD: Tensor, is_real_RS: Tensor, length: int) -> None:
        self.block = block
        heads = block.attention.heads
        empty = context_RSD.new_empty((len(context_RSD), heads[0], length, heads[1]))
        self.keys_RHLK, self.values_RHLK = empty, torch.empty_like(empty)
        self.asked_keys_RHSK, self.asked_values_RHSK = _asked(block, context_RSD)
        # A softmax needs a key: rows that see none read all of them, and get zeros.
        self._sees_R111 = is_real_RS.any(1)[:, None, None, None]
        hidden_RS = ~is_real_RS & is_real_RS.any(1, keepdim=True)
        self._mask_R11S = torch.zeros_like(hidden_RS, dtype=context_RSD.dtype).masked_fill(hidden_RS, -torch.inf)
        self._mask_R11S = self._mask_R11S[:, None, None]

    def step(self, x_RD: Tensor, place: int) -> Tensor:
        """(R, D) of the token at `place` to (R, D)."""
        block = self.block
        x_RD = x_RD + self._own(block.attention, block.attention_norm(x_RD), place)
        x_RD = x_RD + self._crossed(block.cross_attention, block.query_norm(x_RD))
        return x_RD + block.feed_forward(block.feed_forward_norm(x_RD))

    def _own(self, attention: Attention, x_RD: Tensor, place: int) -> Tensor:
        q_RHK, k_RHK, v_RHK = attention.qkv(x_RD).unflatten(-1, (3, *attention.heads)).unbind(1)
        if attention.query_norm is not None and attention.key_norm is not None:
            q_RHK, k_RHK = attention.query_norm(q_RHK), attention.key_norm(k_RHK)
        self.keys_RHLK[:, :, place], self.values_RHLK[:, :, place] = k_RHK, v_RHK
        keys, values = self.keys_RHLK[:, :, : place + 1], self.values_RHLK[:, :, : place + 1]
        scale = attention.heads[1] ** -0.5
        mixed_RH1K = F.scaled_dot_product_attention(q_RHK[:, :, None], keys, values, scale=scale)
        return attention.out(mixed_RH1K[:, :, 0].flatten(1))

    def _crossed(self, attention: CrossAttention, x_RD: Tensor) -> Tensor:
        q_RHK = attention.query(x_RD).unflatten(-1, attention.heads)
        if attention.query_norm is not None:
            q_RHK = attention.query_norm(q_RHK)
        mixed_RH1K = F.scaled_dot_product_attention(
            q_RHK[:, :, None],
            self.asked_keys_RHSK,
            self.asked_values_RHSK,
            attn_mask=self._mask_R11S,
            scale=attention.heads[1] ** -0.5,
        )
        return attention.out((mixed_RH1K * self._sees_R111)[:, :, 0].flatten(1))


def _asked(block: DecoderBlock, context_RSD: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values of the encoder's output, (R, H, S, K) each."""
    attention = block.cross_attention
    asked_TD = block.context_norm(context_RSD.flatten(0, 1))
    k_THK, v_THK = attention.key_value(asked_TD).unflatten(-1, (2, *attention.heads)).unbind(1)
    if attention.key_norm is not None:
        k_THK = attention.key_norm(k_THK)
    shape = context_RSD.shape[:2]
    return k_THK.unflatten(0, shape).transpose(1, 2), v_THK.unflatten(0, shape).transpose(1, 2)
