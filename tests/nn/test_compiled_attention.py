"""Compiled attention gives what tiles give, forwards and backwards, and refuses arrays that do not fit."""

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from pretrainkit.nn import activations, attention
from pretrainkit.nn.attention import TiledLayout
from pretrainkit.nn.biased_attention import Pair, TiledPairs, _TiledAttention, _tiles
from pretrainkit.nn.gated_swish import gated_swish

compiled = pytest.importorskip("pretrainkit.nn._attention", reason="there was no compiler at installation")
HEADS, SCALE = 3, 0.3


def _ranges(lengths):
    ends = np.cumsum(lengths)
    return [slice(int(end - length), int(end)) for length, end in zip(lengths, ends, strict=True)]


def _pairs(kind, generator):
    """Lengths around multiples of the rows and columns that are computed together, and long ones, in several parts."""
    asking = _ranges([*generator.integers(1, 70, 7), 700, 410, 1, 5, 6, 7, 16, 17, 64])
    if kind == "self":
        return tuple(Pair(one, one) for one in asking), asking[-1].stop
    if kind == "causal":
        lengths = [one.stop - one.start for one in asking]
        prefixes = [0, 4, *lengths[2:6], 0, 150, *([0] * (len(lengths) - 9)), 1]
        both = zip(asking, prefixes, lengths, strict=True)
        return tuple(Pair(one, one, min(prefix, length)) for one, prefix, length in both), asking[-1].stop
    asked = _ranges([5, 0, 64, 3, 33, 0, 17, 600, 1, 16, 15, 48, 80, 2, 31, 40])
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
        # 700 queries add up their rounding at one key, whose gradient is exactly 0 where it is the only one.
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=5e-5)


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_layout_of_examples_gives_what_its_tiles_give(is_whole):
    """`TiledLayout` uses compiled examples where there is no window and no dropout; here against its own tiles."""
    lengths = (3, 0, 300, 1, 40)
    num = sum(lengths)
    torch.manual_seed(0)
    qkv = torch.randn(num, 3, 2, 32)
    wanted_W = torch.tensor([1, *range(5, 200, 7), 303, 343]) if not is_whole else torch.arange(num)
    layout, results = TiledLayout(lengths), []
    tiles = attention._whole_tiles(lengths) if is_whole else layout._tiles_of(wanted_W, None)
    for attend in (
        lambda q, kv: layout.attend_from(q, kv, wanted_W, window=None, dropout_rate=0.0),
        lambda q, kv: attention._TiledAttention.apply(q, kv, tiles, True, 0.0),
        lambda q, kv: layout.attend(torch.cat((q[:, None], kv), 1), window=None, dropout_rate=0.0),
    )[: 3 if is_whole else 2]:
        q, kv = qkv[wanted_W, 0].clone().requires_grad_(), qkv[:, 1:].clone().requires_grad_()
        mixed = attend(q, kv)
        assert (mixed.grad_fn.name() == "_CompiledAttentionBackward") == (len(results) != 1)
        (mixed * qkv[: len(wanted_W), 2]).sum().backward()
        results.append([mixed.detach(), q.grad, kv.grad])
    for found in (results[0], results[-1]):
        for one, expected in zip(found, results[1], strict=True):
            torch.testing.assert_close(one, expected, rtol=1e-4, atol=1e-5)


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


@pytest.mark.parametrize("score", [2.5e4, 2.5e7])
def test_two_equal_keys_share_alike_however_large_their_scores_are(score):
    q, kv = torch.full((1, 1, 16), score / 16, requires_grad=True), torch.ones(2, 2, 1, 16, requires_grad=True)
    layout = TiledPairs((Pair(slice(0, 1), slice(0, 2)),), 1)
    mixed = layout.attend(q, kv, None, dropout_rate=0.0)
    mixed.backward(torch.full_like(mixed, 2.0))
    torch.testing.assert_close(kv.grad[:, 1], torch.ones(2, 1, 16))


def test_nobody_asks():
    kv = torch.randn(10, 2, 2, 16, requires_grad=True)
    q = torch.randn(0, 2, 16, requires_grad=True)
    for mixed in (
        TiledLayout((3, 5, 0, 2)).attend_from(q, kv, torch.zeros(0, dtype=torch.int64), window=None, dropout_rate=0.0),
        TiledPairs((Pair(slice(0, 0), slice(0, 4)),), 0).attend(q, kv, None, dropout_rate=0.0),
        TiledPairs((), 0).attend(q, kv, None, dropout_rate=0.0),
    ):
        assert mixed.shape == (0, 2, 16)
        q.grad = kv.grad = None
        mixed.sum().backward()
        assert not q.grad.any()
        assert not kv.grad.any()


def test_tensors_without_numbers_pass_through_all_compiled_parts():
    """`pretrainkit plan` counts the memory of a step so."""
    with FakeTensorMode():
        qkv = torch.empty(9, 3, 2, 16, requires_grad=True)
        mixed = TiledLayout((4, 5)).attend(qkv, window=None, dropout_rate=0.0).flatten(1)
        rows = activations.gelu(gated_swish(mixed, torch.empty(24, 32), torch.empty(32, 12)))
        rows.sum().backward()
    assert rows.shape == (9, 32)
    assert qkv.grad.shape == qkv.shape


def _apart(x):
    """Rows with something behind them."""
    return torch.cat((x.flatten(1), torch.full((len(x), 5), torch.nan)), 1)[:, :-5].unflatten(1, x.shape[1:])


_VIEWS = {
    "apart": _apart,
    "behind others": lambda x: torch.cat((x[:2], x))[2:],
    "at the end": lambda x: torch.cat((torch.zeros(len(x), 3), x.flatten(1)), 1)[:, 3:].unflatten(1, x.shape[1:]),
    "every second": lambda x: x.repeat_interleave(2, 0)[::2],
    "transposed": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
    "flipped": lambda x: x.flip(0).contiguous().flip(0),
}


@pytest.mark.parametrize("view", _VIEWS)
@pytest.mark.parametrize("has_queries", [False, True])
def test_rows_may_lie_anywhere(view, has_queries):
    torch.manual_seed(0)
    pairs = tuple(Pair(one, one) for one in _ranges([3, 20, 1]))
    layout = TiledPairs(pairs, 24)
    plain = [None if has_queries else torch.randn(24, HEADS, 16), torch.randn(24, 3 if has_queries else 2, HEADS, 16)]
    results = []
    for change in (_VIEWS[view], torch.clone):
        own = [None if one is None else change(one).requires_grad_() for one in plain]
        mixed = layout.attend(*own, None, dropout_rate=0.0, scale=SCALE)
        mixed.square().sum().backward()
        results.append([mixed.detach(), *(one.grad for one in own if one is not None)])
    for found, wanted in zip(*results, strict=True):
        assert torch.equal(found, wanted)


def _arguments():
    kv = np.zeros((8, 3, 2, 16), np.float32)
    examples = np.array([[0, 4, 0, 4, 4], [4, 4, 4, 4, 4]], np.int64)
    shifts, mixed = np.zeros(32, np.float32), np.zeros((8, 2, 16), np.float32)
    return [np.zeros(0, np.float32), kv, examples, shifts, mixed, 2, 16, 1.0, 1]


def test_arrays_that_fit_are_taken():
    compiled.forward(*_arguments())


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (0, np.zeros(5, np.float32)),
        (1, np.zeros((8, 3, 2, 8), np.float32)),
        (1, np.zeros((8, 3, 2, 16), np.float64)),
        (2, np.array([[0, 4, 0, 9, 9]])),
        (2, np.array([[0, 9, 0, 4, 4]])),
        (2, np.array([[-1, 4, 0, 4, 4]])),
        (2, np.array([[5, 4, 0, 4, 4]])),
        (2, np.array([[0, 4, 0, 4, 4], [4, 4, 3, 4, 4]])),
        (2, np.zeros((2, 7), np.int64)),
        (3, np.zeros(31, np.float32)),
        (3, np.zeros(32, np.float64)),
        (4, np.zeros((7, 2, 16), np.float32)),
        (5, 0),
        (6, 12),
        (7, 0.0),
        (8, 0),
        (8, 1 << 20),
        (10, 95),
        (10, 97),
        (10, -96),
        (10, 1 << 62),
    ],
)
def test_arrays_that_do_not_fit_are_refused(place, value):
    arguments = [*_arguments(), 0, 96]
    arguments[place] = value
    with pytest.raises(ValueError, match="do not fit"):
        compiled.forward(*arguments)
