"""Rows with padding, streams without it, and the attention of one token per row compute the same numbers."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pretrainkit.nn.attention import PaddedLayout, SelfAttention
from pretrainkit.nn.blocks import PlainPreNormBlock
from pretrainkit.nn.row_layout import RowLayout, without_padding

ROWS = st.lists(st.integers(1, 9), min_size=1, max_size=5)


def by_hand(qkv_BS3HK, *, is_causal, lengths):
    """Softmax attention row by row, over the real slots of each."""
    B, S, _, H, K = qkv_BS3HK.shape
    mixed = torch.zeros(B, S, H, K, dtype=qkv_BS3HK.dtype)
    for row, length in enumerate(lengths):
        q, k, v = qkv_BS3HK[row, :length].unbind(1)
        scores = torch.einsum("qhk,phk->hqp", q, k) / K**0.5
        if is_causal:
            scores = scores.masked_fill(torch.ones(length, length).triu(1).bool(), -torch.inf)
        mixed[row, :length] = torch.einsum("hqp,phk->qhk", scores.softmax(-1), v)
    return mixed


@settings(max_examples=20)
@given(lengths=ROWS, is_causal=st.booleans(), seed=st.integers(0, 99))
def test_rows_and_streams_equal_attention_by_hand_in_value_and_gradient(lengths, is_causal, seed):
    torch.manual_seed(seed)
    B, S = len(lengths), max(lengths)
    rows = torch.randn(B, S, 3, 2, 4, dtype=torch.float64, requires_grad=True)
    grad = torch.randn(B, S, 2, 4, dtype=torch.float64)
    layout = RowLayout(B, S, is_causal, torch.tensor(lengths))
    stream, slot_T = without_padding(layout)
    assert len(slot_T) == sum(lengths)
    is_real = (torch.arange(S) < torch.tensor(lengths)[:, None]).flatten()

    expected = by_hand(rows, is_causal=is_causal, lengths=lengths).flatten(0, 1)[is_real]
    padded = layout.attend(rows.flatten(0, 1), window=None, dropout_rate=0.0)[is_real]
    ragged = stream.attend(rows.flatten(0, 1)[slot_T], window=None, dropout_rate=0.0)
    slopes = []
    for mixed in (expected, padded, ragged):
        torch.testing.assert_close(mixed, expected, rtol=1e-9, atol=1e-12)
        (slope,) = torch.autograd.grad(mixed, rows, grad.flatten(0, 1)[is_real])
        slopes.append(slope)
    torch.testing.assert_close(slopes[1], slopes[0], rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(slopes[2], slopes[0], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("reads_last", [False, True])
def test_a_block_that_computes_one_token_per_row_equals_the_whole_block(is_causal, is_stream, reads_last):
    torch.manual_seed(0)
    lengths = torch.tensor([3, 6, 1, 5])
    layout = RowLayout(4, 6, is_causal, lengths)
    wanted = torch.arange(4) * 6 + (lengths - 1 if reads_last else 0)
    num_tokens = 24
    if is_stream:
        layout, _ = without_padding(layout)
        wanted = lengths.cumsum(0) - (1 if reads_last else lengths)
        num_tokens = int(lengths.sum())
    block = PlainPreNormBlock(8, 2, 16, activation="quick_gelu", attention_dropout_rate=0.0, epsilon=1e-5).double()
    x = torch.randn(num_tokens, 8, dtype=torch.float64, requires_grad=True)
    outputs = [block(x, layout)[wanted], block(x, layout.reading(wanted))]
    torch.testing.assert_close(outputs[1], outputs[0], rtol=1e-9, atol=1e-12)
    learned = [x, *block.parameters()]
    grad = torch.randn_like(outputs[0])
    whole, short = (torch.autograd.grad(output, learned, grad) for output in outputs)
    for ours, theirs in zip(short, whole, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


def test_rows_without_padding_equal_the_padded_layout():
    torch.manual_seed(0)
    x, attention = torch.randn(12, 8), SelfAttention(8, 2, has_bias=True, dropout_rate=0.0)
    assert torch.equal(attention(x, RowLayout(3, 4)), attention(x, PaddedLayout(3, 4, None)))


def test_a_window_is_refused():
    with pytest.raises(ValueError, match="a window of 4 tokens"):
        RowLayout(1, 2).attend(torch.randn(2, 3, 1, 4), window=4, dropout_rate=0.0)
