"""The chunked head against plain logits and cross-entropy."""

import math

import pytest
import torch
import torch.nn.functional as F

from pretrainkit.nn.cpu import cross_entropy as module
from pretrainkit.nn.linear_cross_entropy import linear_cross_entropy, tied_lookup


def plain(x, weight, bias, target):
    logits = F.linear(x, weight, bias)
    nll = F.cross_entropy(logits, target, reduction="none")
    return nll, logits.argmax(1) == target, torch.logsumexp(logits, 1)


@pytest.mark.parametrize("vocab_size", [7, 2048, 2049, 5000])
@pytest.mark.parametrize("scale", [0.1, 30.0])
def test_equals_plain_logits_in_value_and_gradient(vocab_size, scale):
    torch.manual_seed(0)
    x, weight, bias = torch.randn(23, 16) * scale, torch.randn(vocab_size, 16), torch.randn(vocab_size)
    target = torch.randint(vocab_size, (23,))
    target[:8] = F.linear(x, weight, bias).argmax(1)[:8]
    factor = torch.rand(23)
    results = []
    for function in (linear_cross_entropy, plain):
        inputs = [tensor.clone().requires_grad_() for tensor in (x, weight, bias)]
        nll, is_right, log_sum = function(*inputs, target)
        (nll * factor).sum().backward()
        results.append((nll.detach(), is_right, log_sum.detach(), *(tensor.grad for tensor in inputs)))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2e-5, atol=2e-5)
    assert results[0][1].sum() >= 8


def test_the_log_of_the_sum_has_its_gradient_without_a_bias_too():
    torch.manual_seed(0)
    x, weight = torch.randn(9, 16), torch.randn(4100, 16)
    target, factor = torch.randint(4100, (9,)), torch.rand(9)
    results = []
    for run in (linear_cross_entropy, plain):
        inputs = [tensor.clone().requires_grad_() for tensor in (x, weight)]
        nll, _, log_sum = run(*inputs, None, target)
        (nll * factor + 0.1 * log_sum.square()).sum().backward()
        results.append([tensor.grad for tensor in inputs])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2e-5, atol=2e-5)


def test_a_second_backward_gives_the_same():
    x, weight, bias = torch.randn(5, 4, requires_grad=True), torch.randn(9, 4), torch.zeros(9)
    loss = linear_cross_entropy(x, weight, bias, torch.arange(5)).nll_K.sum()
    first = torch.autograd.grad(loss, x, retain_graph=True)[0]
    assert torch.equal(first, torch.autograd.grad(loss, x)[0])


def test_no_predictions_give_no_losses_and_zero_gradients():
    weight = torch.randn(9, 4, requires_grad=True)
    nll, is_right, _ = linear_cross_entropy(torch.zeros(0, 4), weight, torch.zeros(9), torch.zeros(0, dtype=torch.long))
    assert nll.shape == is_right.shape == (0,)
    nll.sum().backward()
    assert not weight.grad.any()


def test_half_precision_gives_float32_losses():
    x, weight, bias = torch.randn(5, 4).bfloat16(), torch.randn(9, 4).bfloat16(), torch.zeros(9)
    assert linear_cross_entropy(x, weight, bias, torch.arange(5)).nll_K.dtype == torch.float32


@pytest.mark.parametrize(
    ("odd", "nll"), [(math.nan, math.nan), (math.inf, math.nan), (-math.inf, math.log(2999)), (100.0, 100.0)]
)
def test_logits_that_are_not_finite_give_losses_that_are_not(odd, nll):
    bias = torch.zeros(3000)
    bias[2500] = odd
    loss = linear_cross_entropy(torch.ones(2, 4), torch.zeros(3000, 4), bias, torch.tensor([0, 2999])).nll_K
    torch.testing.assert_close(loss, torch.full((2,), nll), equal_nan=True)


def test_a_chunk_without_any_possible_id_counts_for_nothing(monkeypatch):
    monkeypatch.setattr(module, "_CHUNK", 100)
    monkeypatch.setattr(module, "_LOGITS", 1)
    bias = torch.zeros(300)
    bias[100:200] = -math.inf
    x, weight = torch.randn(5, 8), torch.randn(300, 8)
    results = []
    for function in (linear_cross_entropy, plain):
        inputs = [tensor.clone().requires_grad_() for tensor in (x, weight)]
        nll, *_ = function(*inputs, bias, torch.tensor([0, 99, 200, 299, 7]))
        nll.sum().backward()
        results.append([nll.detach(), *(tensor.grad for tensor in inputs)])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("num_predictions", [0, 37])
def test_a_lookup_in_the_table_of_the_head_has_the_gradient_of_a_plain_one_to_the_bit(num_predictions):
    generator = torch.Generator().manual_seed(3)
    table_VD = torch.randn(5003, 16, generator=generator)
    ids_T = torch.randint(0, 40, (300,), generator=generator)  # each several times
    target_K = torch.randint(0, 5003, (num_predictions,), generator=generator)

    def gradient(lookup):
        weight_VD = table_VD.clone().requires_grad_()
        for _ in range(2):  # two microbatches
            x_TD, head_VD = lookup(weight_VD, ids_T)
            loss = linear_cross_entropy(x_TD.tanh()[:num_predictions], head_VD, None, target_K).nll_K.sum()
            (loss + x_TD.square().sum()).backward()
        return weight_VD.grad

    plain = gradient(lambda weight_VD, ids_T: (F.embedding(ids_T, weight_VD), weight_VD))
    assert torch.equal(gradient(tied_lookup), plain)
