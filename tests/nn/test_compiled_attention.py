"""Compiled attention gives what tiles give, forwards and backwards, and refuses arrays that do not fit."""

import numpy as np
import pytest
import torch

from pretrainkit.nn.biased_attention import Pair, TiledPairs, _TiledAttention, _tiles

compiled = pytest.importorskip("pretrainkit.nn._attention", reason="there was no compiler at installation")
HEADS, SCALE = 3, 0.3


def _ranges(lengths):
    ends = np.cumsum(lengths)
    return [slice(int(end - length), int(end)) for length, end in zip(lengths, ends, strict=True)]


def _pairs(kind, generator):
    """Lengths around multiples of the 6 rows and 16 columns that are computed together."""
    asking = _ranges([*generator.integers(1, 70, 9), 1, 5, 6, 7, 16, 17, 64])
    if kind == "self":
        return tuple(Pair(one, one) for one in asking), asking[-1].stop
    if kind == "causal":
        lengths = [one.stop - one.start for one in asking]
        prefixes = [0, 4, *lengths[2:6], *([0] * (len(lengths) - 7)), 1]
        both = zip(asking, prefixes, lengths, strict=True)
        return tuple(Pair(one, one, min(prefix, length)) for one, prefix, length in both), asking[-1].stop
    asked = _ranges([5, 0, 64, 3, 33, 0, 17, 8, 1, 16, 15, 48, 80, 2, 31, 40])
    return tuple(map(Pair, asking, asked)), asked[-1].stop + 2  # the last two are asked by nobody


@pytest.mark.parametrize("width", [16, 48, 64, 80])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("kind", ["self", "causal", "cross"])
def test_compiled_examples_are_the_tiles(kind, threads, width):
    pairs, num_asked = _pairs(kind, np.random.default_rng(0))
    num, is_causal, has_queries = pairs[-1].queries.stop, kind == "causal", kind != "cross"
    torch.manual_seed(0)
    query = None if has_queries else torch.randn(num, HEADS, width)
    kv = torch.randn(num_asked, 3 if has_queries else 2, HEADS, width)
    above = torch.randn(HEADS, num, width).transpose(0, 1)  # not contiguous
    layout = TiledPairs(pairs, num, is_causal=is_causal)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    results = []
    for attend in (
        lambda q, kv: layout.attend(q, kv, None, dropout_rate=0.0, scale=SCALE),
        lambda q, kv: _TiledAttention.apply(q, kv, None, _tiles(pairs, is_causal), num, 0.0, SCALE),
    ):
        own = [None if one is None else one.clone().requires_grad_() for one in (query, kv)]
        mixed = attend(*own)
        assert (mixed.grad_fn.name() == "_CompiledAttentionBackward") == (not results)
        mixed.backward(above)
        results.append([mixed.detach(), *(one.grad for one in own if one is not None)])
    torch.set_num_threads(before)
    for found, wanted in zip(*results, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("value", [-1e4, 1e4, float("nan"), float("inf")])
def test_large_and_broken_scores_do_what_a_softmax_does(value):
    torch.manual_seed(0)
    kv = torch.randn(20, 3, 1, 16)
    kv[3, 1] = value
    ranges = _ranges([10, 10])
    pairs = tuple(Pair(one, one) for one in ranges)
    found = TiledPairs(pairs, 20).attend(None, kv, None, dropout_rate=0.0, scale=SCALE)
    wanted = _TiledAttention.apply(None, kv, None, _tiles(pairs, False), 20, 0.0, SCALE)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5, equal_nan=True)
    assert found[10:].isfinite().all()


def _arguments():
    kv = np.zeros((8, 3, 2, 16), np.float32)
    examples = np.array([[0, 4, 0, 4, 4, 0], [4, 4, 4, 4, 4, 128]], np.int64)
    shares, mixed = np.zeros(256, np.float32), np.zeros((8, 2, 16), np.float32)
    return [np.zeros(0, np.float32), kv, examples, shares, mixed, 2, 16, 1.0, 1]


def test_arrays_that_fit_are_taken():
    compiled.forward(*_arguments())


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (0, np.zeros(5, np.float32)),
        (1, np.zeros((8, 3, 2, 8), np.float32)),
        (1, np.zeros((8, 3, 2, 16), np.float64)),
        (2, np.array([[0, 4, 0, 9, 9, 0]])),
        (2, np.array([[0, 9, 0, 4, 4, 0]])),
        (2, np.array([[-1, 4, 0, 4, 4, 0]])),
        (2, np.array([[5, 4, 0, 4, 4, 0]])),
        (2, np.array([[0, 4, 0, 4, 4, 0], [4, 4, 3, 4, 4, 128]])),
        (2, np.array([[0, 4, 0, 4, 4, 16]])),
        (2, np.zeros((2, 5), np.int64)),
        (3, np.zeros(255, np.float32)),
        (4, np.zeros((7, 2, 16), np.float32)),
        (5, 0),
        (6, 12),
        (7, 0.0),
        (8, 0),
    ],
)
def test_arrays_that_do_not_fit_are_refused(place, value):
    arguments = _arguments()
    arguments[place] = value
    with pytest.raises(ValueError, match="do not fit"):
        compiled.forward(*arguments)
