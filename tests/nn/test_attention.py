"""All layouts compute the same attention, which never crosses examples."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pretrainkit.nn.attention import PaddedLayout, SelfAttention, padded_layout
from pretrainkit.nn.cpu.attention import TiledLayout
from pretrainkit.nn.rotary import rotate, rotation

LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=6)


def padded_for(lengths, *, room=0):
    ends = torch.tensor([0, *lengths]).cumsum(0).int()
    return padded_layout(ends, max(lengths), sum(lengths) + room)


@settings(max_examples=25, deadline=None)
@given(lengths=LENGTHS, window=st.sampled_from([None, 2, 6, 16, 200]), seed=st.integers(0, 99))
def test_tiles_equal_padded_rows_in_value_and_gradient(lengths, window, seed):
    torch.manual_seed(seed)
    qkv = torch.randn(sum(lengths), 3, 2, 8)
    grad = torch.randn(sum(lengths), 2, 8)
    results = []
    for layout in (TiledLayout(tuple(lengths)), padded_for(lengths)):
        own = qkv.clone().requires_grad_()
        mixed = layout.attend(own, window=window, dropout_rate=0.0)
        mixed.backward(grad)
        results.append((mixed.detach(), own.grad))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@settings(max_examples=25, deadline=None)
@given(lengths=LENGTHS, window=st.sampled_from([None, 4, 16]), seed=st.integers(0, 99), data=st.data())
def test_attention_of_some_tokens_equals_theirs_among_all(lengths, window, seed, data):
    torch.manual_seed(seed)
    total = sum(lengths)
    wanted = torch.tensor(sorted(data.draw(st.sets(st.integers(0, total - 1)))), dtype=torch.long)
    qkv = torch.randn(total, 3, 2, 8)
    grad = torch.randn(len(wanted), 2, 8)
    layout = TiledLayout(tuple(lengths))
    own = qkv.clone().requires_grad_()
    some = layout.attend_from(own[wanted, 0], own[:, 1:], wanted, window=window, dropout_rate=0.0)
    some.backward(grad)
    other = qkv.clone().requires_grad_()
    all_of_them = layout.attend(other, window=window, dropout_rate=0.0)[wanted]
    all_of_them.backward(grad)
    torch.testing.assert_close(some, all_of_them, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(own.grad, other.grad, rtol=1e-4, atol=1e-5)


def test_windows_longer_than_a_tile_equal_padded_rows():
    torch.manual_seed(0)
    lengths = (300, 7, 129, 450)
    qkv = torch.randn(sum(lengths), 3, 1, 4)
    results = []
    for layout in (TiledLayout(lengths), padded_for(lengths)):
        own = qkv.clone().requires_grad_()
        mixed = layout.attend(own, window=128, dropout_rate=0.0)
        mixed.square().sum().backward()
        results.append((mixed.detach(), own.grad))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("make", [lambda lengths: TiledLayout(tuple(lengths)), padded_for])
@pytest.mark.parametrize("window", [None, 4])
def test_other_examples_have_no_influence(make, window):
    lengths = [5, 9, 3]
    qkv = torch.randn(17, 3, 2, 8)
    alone = make([9]).attend(qkv[5:14], window=window, dropout_rate=0.0)
    qkv[:5], qkv[14:] = 1e4, -1e4
    together = make(lengths).attend(qkv, window=window, dropout_rate=0.0)
    torch.testing.assert_close(together[5:14], alone, rtol=1e-5, atol=1e-6)


def test_a_window_reaches_half_of_itself_to_each_side():
    """Token 10 of 32 with a window of 8 sees 6 to 14."""
    qkv = torch.zeros(32, 3, 1, 4)
    qkv[:, 2, 0, 0] = torch.arange(32.0)
    for layout in (TiledLayout((32,)), PaddedLayout(1, 32, None)):
        seen = layout.attend(qkv, window=8, dropout_rate=0.0)[:, 0, 0]
        assert seen[10] == pytest.approx(sum(range(6, 15)) / 9)
        assert seen[0] == pytest.approx(sum(range(5)) / 5)


def test_rows_without_padding_need_no_gather():
    qkv = torch.randn(24, 3, 2, 8)
    rows = PaddedLayout(4, 6, None).attend(qkv, window=None, dropout_rate=0.0)
    torch.testing.assert_close(rows, TiledLayout((6,) * 4).attend(qkv, window=None, dropout_rate=0.0))


def test_room_behind_the_last_example_stays_finite_and_without_influence():
    lengths = [5, 9]
    qkv = torch.randn(20, 3, 2, 8, requires_grad=True)
    mixed = padded_for(lengths, room=6).attend(qkv, window=4, dropout_rate=0.0)
    assert mixed.isfinite().all()
    expected = TiledLayout((5, 9)).attend(qkv[:14], window=4, dropout_rate=0.0)
    torch.testing.assert_close(mixed[:14], expected, rtol=1e-5, atol=1e-6)
    mixed[:14].sum().backward()
    assert qkv.grad.isfinite().all()
    assert not qkv.grad[14:].any()


def test_unused_examples_in_cu_seqlens_are_harmless():
    qkv = torch.randn(9, 3, 1, 4)
    layout = padded_layout(torch.tensor([0, 4, 9, 9, 9]), 6, 9)
    torch.testing.assert_close(
        layout.attend(qkv, window=None, dropout_rate=0.0),
        TiledLayout((4, 5)).attend(qkv, window=None, dropout_rate=0.0),
    )


def test_dropout_on_probabilities_keeps_the_mean():
    torch.manual_seed(0)
    qkv = torch.randn(16, 3, 1, 4)
    layout = TiledLayout((16,))
    expected = layout.attend(qkv, window=None, dropout_rate=0.0)
    draws = torch.stack([layout.attend(qkv, window=None, dropout_rate=0.2) for _ in range(2000)])
    assert (draws.mean(0) - expected).abs().max() < 5 * draws.std(0).max() / 2000**0.5
    assert draws.std(0).min() > 0


def test_gradient_with_dropout_is_that_of_the_same_masks():
    """A double difference along one direction, with the same seed on both sides."""
    qkv = torch.randn(11, 3, 2, 4, requires_grad=True)
    direction = torch.randn_like(qkv)
    layout = TiledLayout((4, 7))

    def loss(values):
        torch.manual_seed(5)
        return layout.attend(values, window=None, dropout_rate=0.3).sin().sum()

    loss(qkv).backward()
    step = 1e-2
    with torch.no_grad():
        slope = (loss(qkv + step * direction) - loss(qkv - step * direction)) / (2 * step)
    torch.testing.assert_close((qkv.grad * direction).sum(), slope, rtol=5e-3, atol=1e-3)


def test_double_precision_takes_the_reference_path():
    qkv = torch.randn(9, 3, 1, 4, dtype=torch.float64)
    mixed = TiledLayout((4, 5)).attend(qkv, window=None, dropout_rate=0.0)
    torch.testing.assert_close(mixed, padded_for([4, 5]).attend(qkv, window=None, dropout_rate=0.0))


def test_rotation_makes_scores_depend_on_distance_alone():
    torch.manual_seed(0)
    one = torch.randn(1, 3, 2, 8).expand(30, 3, 2, 8)
    turned = rotate(one[:, :2], rotation(torch.arange(30), 8, 100.0))
    scores = torch.einsum("thk,shk->hts", turned[:, 0], turned[:, 1])
    for distance in (0, 1, 7):
        diagonal = scores.diagonal(distance, 1, 2)
        torch.testing.assert_close(diagonal, diagonal[:, :1].expand_as(diagonal), rtol=1e-4, atol=1e-4)


def test_width_must_be_a_multiple_of_the_heads():
    with pytest.raises(ValueError, match="width 10 is not a multiple of num_heads 4"):
        SelfAttention(10, 4, has_bias=True, dropout_rate=0.0)
