"""Stacked examples give what the same examples give one after another, forwards and backwards."""

import numpy as np
import pytest
import torch

from pretrainkit.nn import stacked_attention as module
from pretrainkit.nn.biased_attention import Pair, TiledPairs, _TiledAttention, _tiles

HEADS, WIDTH = 3, 8


def _ranges(lengths):
    ends = np.cumsum(lengths)
    return [slice(int(end - length), int(end)) for length, end in zip(lengths, ends, strict=True)]


def _pairs(kind, generator):
    asking = _ranges(generator.integers(1, 70, 9))
    if kind == "self":
        return tuple(Pair(one, one) for one in asking), asking[-1].stop
    if kind == "causal":
        prefixes = [0, 4, *(one.stop - one.start for one in asking[2:6]), 0, 0, 1]
        both = zip(asking, prefixes, strict=True)
        return tuple(Pair(one, one, min(prefix, one.stop - one.start)) for one, prefix in both), asking[-1].stop
    asked = _ranges([5, 0, 64, 3, 33, 0, 17, 8, 1])
    return tuple(map(Pair, asking, asked)), asked[-1].stop + 2  # the last two are asked by nobody


@pytest.mark.parametrize("scores", [1, 1 << 18])
@pytest.mark.parametrize("kind", ["self", "causal", "cross"])
def test_stacks_are_the_tiles(monkeypatch, kind, scores):
    monkeypatch.setattr(module, "_SCORES_AT_A_TIME", scores)
    pairs, num_asked = _pairs(kind, np.random.default_rng(0))
    num, is_causal = pairs[-1].queries.stop, kind == "causal"
    layout = TiledPairs(pairs, num, is_causal=is_causal)
    assert layout._lengths is not None
    torch.manual_seed(0)
    query = torch.randn(num, HEADS, WIDTH, dtype=torch.float64) if kind == "cross" else None
    kv = torch.randn(num_asked, 2 if kind == "cross" else 3, HEADS, WIDTH, dtype=torch.float64)
    above = torch.randn(num, HEADS, WIDTH, dtype=torch.float64)
    results = []
    for attend in (
        lambda q, kv: layout.attend(q, kv, None, dropout_rate=0.0, scale=0.3),
        lambda q, kv: _TiledAttention.apply(q, kv, None, _tiles(pairs, is_causal), num, 0.0, 0.3),
    ):
        own = [None if one is None else one.clone().requires_grad_() for one in (query, kv)]
        mixed = attend(*own)
        mixed.backward(above)
        results.append([mixed.detach(), *(one.grad for one in own if one is not None)])
    for found, wanted in zip(*results, strict=True):
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize(("length", "is_stacked"), [(16, True), (300, False)])
def test_few_long_examples_are_not_stacked(length, is_stacked):
    ranges = _ranges([length, length])
    layout = TiledPairs(tuple(Pair(one, one) for one in ranges), 2 * length)
    mixed = layout.attend(None, torch.zeros(2 * length, 3, HEADS, WIDTH, requires_grad=True), None, dropout_rate=0.0)
    assert mixed.grad_fn.name() == ("_StackedAttentionBackward" if is_stacked else "_TiledAttentionBackward")
