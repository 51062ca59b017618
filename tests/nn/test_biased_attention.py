"""All layouts compute the same numbers, and no pair sees what it must not."""

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask

from pretrainkit.nn.biased_attention import RowPairs, visible_pairs
from pretrainkit.nn.cpu import attention as on_cpu
from pretrainkit.nn.cpu.attention import Pair, TiledPairs
from pretrainkit.nn.cuda import attention as on_cuda
from pretrainkit.nn.cuda.attention import flex_pairs
from pretrainkit.nn.relative_bias import RelativeBias

HEADS, WIDTH = 2, 4


def make_bias(*, is_bidirectional):
    torch.manual_seed(1)
    bias = RelativeBias(HEADS, num_buckets=8, max_distance=20, is_bidirectional=is_bidirectional).double()
    bias.weight.data.normal_()
    return bias


def softmax_rows(q_THK, k_SHK, v_SHK, bias_HTS, is_visible_TS):
    """Plain formula; queries that see nothing give 0."""
    scores = torch.einsum("qhk,phk->hqp", q_THK, k_SHK) + bias_HTS
    share = torch.softmax(scores.masked_fill(~is_visible_TS, -1e30), -1) * is_visible_TS
    return torch.einsum("hqp,phk->qhk", share, v_SHK)


SELF = {
    "one": ([5], [0]),
    "two, one longer than a tile": ([150, 3], [0, 0]),
    "prefixes": ([140, 7], [131, 4]),
}


@pytest.mark.parametrize("case", SELF)
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("scores_at_a_time", [1, 1 << 17])
def test_tiles_equal_the_formula_in_value_and_gradient(monkeypatch, case, is_causal, scores_at_a_time):
    monkeypatch.setattr(on_cpu, "_SCORES_AT_A_TIME", scores_at_a_time)
    lengths, prefixes = SELF[case]
    num = sum(lengths)
    bias = make_bias(is_bidirectional=not is_causal)
    torch.manual_seed(0)
    qkv = torch.randn(num, 3, HEADS, WIDTH, dtype=torch.float64, requires_grad=True)
    segment = torch.repeat_interleave(torch.arange(1, len(lengths) + 1), torch.tensor(lengths))[None]
    is_prefix = torch.cat([torch.arange(length) < prefix for length, prefix in zip(lengths, prefixes, strict=True)])
    visible = visible_pairs(segment, segment, is_causal=is_causal, is_prefix_BP=is_prefix[None])[0]
    starts = [sum(lengths[:i]) for i in range(len(lengths))]
    pairs = tuple(
        Pair(slice(start, start + length), slice(start, start + length), prefix)
        for start, length, prefix in zip(starts, lengths, prefixes, strict=True)
    )
    layout = TiledPairs(pairs, num, is_causal=is_causal)
    ours = layout.attend(None, qkv, layout.prepare(bias, torch.float64), dropout_rate=0.0)
    plain = softmax_rows(*qkv.unbind(1), bias(num, num), visible)
    torch.testing.assert_close(ours, plain)
    above = torch.randn_like(plain)
    for mine, theirs in zip(
        torch.autograd.grad((ours * above).sum(), (qkv, bias.weight)),
        torch.autograd.grad((plain * above).sum(), (qkv, bias.weight)),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs)


def test_cross_attention_reads_its_own_example_and_nothing_gives_zero():
    torch.manual_seed(0)
    q = torch.randn(6, HEADS, WIDTH, dtype=torch.float64, requires_grad=True)
    kv = torch.randn(5, 2, HEADS, WIDTH, dtype=torch.float64, requires_grad=True)
    pairs = (Pair(slice(0, 2), slice(3, 5)), Pair(slice(2, 4), slice(0, 0)), Pair(slice(4, 6), slice(0, 3)))
    ours = TiledPairs(pairs, 6).attend(q, kv, None, dropout_rate=0.0)
    visible = visible_pairs(torch.tensor([[2, 2, 3, 3, 1, 1]]), torch.tensor([[1, 1, 1, 2, 2]]))[0]
    plain = softmax_rows(q, *kv.unbind(1), torch.zeros(HEADS, 6, 5, dtype=torch.float64), visible)
    torch.testing.assert_close(ours, plain)
    assert not ours[2:4].any()
    above = torch.randn_like(plain)
    for mine, theirs in zip(
        torch.autograd.grad((ours * above).sum(), (q, kv)),
        torch.autograd.grad((plain * above).sum(), (q, kv)),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs)


def packed_rows():
    """Two rows of 12: two examples and padding; one example, with a prefix."""
    segment = torch.tensor([[1] * 5 + [2] * 4 + [0] * 3, [1] * 12])
    is_prefix = torch.zeros_like(segment, dtype=torch.bool)
    is_prefix[0, 5:7] = is_prefix[1, :6] = True
    return segment, is_prefix


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("is_causal", [False, True])
def test_rows_and_flex_equal_the_formula(is_causal):
    """FlexAttention's backward pass needs a GPU; its forward pass, uncompiled, does not."""
    segment, is_prefix = packed_rows()
    bias = make_bias(is_bidirectional=not is_causal).float()
    torch.manual_seed(0)
    qkv = torch.randn(24, 3, HEADS, WIDTH)
    visible = visible_pairs(segment, segment, is_causal=is_causal, is_prefix_BP=is_prefix)
    plain = torch.cat([softmax_rows(*qkv[12 * r : 12 * r + 12].unbind(1), bias(12, 12), visible[r]) for r in (0, 1)])
    rows = RowPairs(2, 12, 12, visible)
    flex = flex_pairs(segment, segment, is_causal=is_causal, is_prefix_BP=is_prefix)
    for layout in (rows, flex):
        with torch.no_grad():
            found = layout.attend(None, qkv, layout.prepare(bias, torch.float32), dropout_rate=0.0)
        torch.testing.assert_close(found, plain, rtol=1e-5, atol=1e-5)


def differentiable_flex(q_BHQK, k_BHPK, v_BHPK, *, score_mod, block_mask, scale, kernel_options):
    """Compute the documented result of FlexAttention on any device: all pairs at once."""
    assert q_BHQK.shape[2] % 128 == k_BHPK.shape[2] % 128 == 0  # other lengths give wrong gradients on a GPU
    num_rows, num_heads, num_queries, _ = q_BHQK.shape
    sizes = (num_rows, num_heads, num_queries, k_BHPK.shape[2])
    where = [torch.arange(size).view([-1 if dim == own else 1 for dim in range(4)]) for own, size in enumerate(sizes)]
    scores = score_mod(q_BHQK @ k_BHPK.mT * scale, *where)
    is_visible = block_mask.mask_mod(*where)
    return torch.softmax(scores.masked_fill(~is_visible, -1e30), -1) * is_visible @ v_BHPK


@pytest.mark.parametrize("is_causal", [False, True])
def test_flex_computes_the_formula_and_the_gradients_of_queries_keys_values_and_bias(monkeypatch, is_causal):
    monkeypatch.setattr(on_cuda, "_flex_attention", lambda _: differentiable_flex)
    segment, is_prefix = packed_rows()
    bias = make_bias(is_bidirectional=not is_causal)
    torch.manual_seed(0)
    qkv = torch.randn(24, 3, HEADS, WIDTH, dtype=torch.float64, requires_grad=True)
    visible = visible_pairs(segment, segment, is_causal=is_causal, is_prefix_BP=is_prefix)
    plain = torch.cat([softmax_rows(*qkv[12 * r : 12 * r + 12].unbind(1), bias(12, 12), visible[r]) for r in (0, 1)])
    layout = flex_pairs(segment, segment, is_causal=is_causal, is_prefix_BP=is_prefix)
    found = layout.attend(None, qkv, layout.prepare(bias, torch.float64), dropout_rate=0.0)
    torch.testing.assert_close(found, plain)
    above = torch.randn_like(plain)
    for mine, theirs in zip(
        torch.autograd.grad((found * above).sum(), (qkv, bias.weight)),
        torch.autograd.grad((plain * above).sum(), (qkv, bias.weight)),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs)


def test_queries_that_see_nothing_have_finite_gradients_of_zero():
    segment, _ = packed_rows()
    bias = make_bias(is_bidirectional=True)
    qkv = torch.randn(24, 3, HEADS, WIDTH, dtype=torch.float64, requires_grad=True)
    layout = RowPairs(2, 12, 12, visible_pairs(segment, segment))
    found = layout.attend(None, qkv, layout.prepare(bias, torch.float64), dropout_rate=0.0)
    assert not found[9:12].any()
    found.sum().backward()
    assert qkv.grad.isfinite().all()
    assert not qkv.grad[9:12].any()


def test_dropout_keeps_the_mean_of_what_is_mixed():
    torch.manual_seed(0)
    qkv = torch.randn(4, 3, HEADS, WIDTH)
    layout = TiledPairs((Pair(slice(0, 4), slice(0, 4)),), 4)
    dropped = torch.stack([layout.attend(None, qkv, None, dropout_rate=0.25) for _ in range(4000)])
    whole = layout.attend(None, qkv, None, dropout_rate=0.0)
    assert not torch.equal(dropped[0], dropped[1])
    torch.testing.assert_close(dropped.mean(0), whole, rtol=0, atol=0.05)


def test_dropout_has_the_gradient_of_what_was_kept():
    torch.manual_seed(0)
    qkv = torch.randn(3, 3, HEADS, WIDTH, dtype=torch.float64, requires_grad=True)
    bias = make_bias(is_bidirectional=True)
    layout = TiledPairs((Pair(slice(0, 3), slice(0, 3)),), 3)

    def attend(qkv, weight):
        torch.manual_seed(7)
        return layout.attend(None, qkv, weight.expand(HEADS, 3, 3), dropout_rate=0.5)

    assert torch.autograd.gradcheck(attend, (qkv, bias(3, 3).detach().requires_grad_()))


def test_flex_refuses_dropout():
    segment, _ = packed_rows()
    layout = flex_pairs(segment, segment)
    with pytest.raises(ValueError, match=r"rate is 0\.1"):
        layout.attend(None, torch.randn(24, 3, HEADS, WIDTH), None, dropout_rate=0.1)


@pytest.mark.parametrize("layout", ["tiles", "rows"])
def test_the_scale_is_a_factor_of_the_queries(layout):
    torch.manual_seed(0)
    qkv = torch.randn(150, 3, HEADS, WIDTH, dtype=torch.float64, requires_grad=True)
    tokens = slice(0, 150)
    pairs = TiledPairs((Pair(tokens, tokens),), 150) if layout == "tiles" else RowPairs(1, 150, 150, None)
    ours = pairs.attend(None, qkv, None, dropout_rate=0.0, scale=0.3)
    plain = pairs.attend(0.3 * qkv[:, 0], qkv[:, 1:], None, dropout_rate=0.0)
    torch.testing.assert_close(ours, plain)
    above = torch.randn_like(plain)
    mine, theirs = (torch.autograd.grad((found * above).sum(), qkv)[0] for found in (ours, plain))
    torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize(
    ("num_queries", "num_keys", "is_causal"),
    [(512, 512, False), (114, 512, False), (300, 300, False), (300, 300, True)],
)
def test_the_block_mask_of_flex_attention_is_that_of_torch(num_queries: int, num_keys: int, is_causal: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    segments = [torch.randint(0, 4, (5, num), generator=generator).sort(-1).values for num in (num_queries, num_keys)]
    if num_queries == num_keys:
        segments[1] = segments[0]
        segments[0][0] = 1  # one example in the whole row
    prefix = torch.rand(5, num_keys, generator=generator) > 0.5 if is_causal else None
    mask = flex_pairs(*segments, is_causal=is_causal, is_prefix_BP=prefix).block_mask
    expected = create_block_mask(mask.mask_mod, 5, None, *mask.seq_lengths, device=segments[0].device)
    lists = [
        f"{full}{kind}"
        for full in ("", "full_")
        for kind in ("kv_num_blocks", "kv_indices", "q_num_blocks", "q_indices")
    ]
    for name in lists:
        found, wanted = getattr(mask, name), getattr(expected, name)
        assert found.dtype == wanted.dtype, name
        assert torch.equal(found, wanted), name
        assert found.is_contiguous(), name
