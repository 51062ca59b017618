"""Decay groups, Adam and LAMB against the published formulas, clipping."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from pretrainkit.training.optimizers.build import (
    build_optimizer,
    clip_gradients,
    decayed_names,
    set_learning_rate,
    step_if_finite,
)
from pretrainkit.training.optimizers.config import OptimizerConfig
from pretrainkit.training.optimizers.per_tensor import Lamb
from pretrainkit.training.precision import Precision


class RMSNorm(nn.Module):
    """A norm of a recipe's own."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)
        self.out = nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)
        self.post = RMSNorm(8)


class SmallBert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.word = nn.Embedding(16, 8)
        self.position = nn.Embedding(4, 8)
        self.layers = nn.ModuleList([Layer(), Layer()])
        self.decoder = nn.Linear(8, 16)
        self.decoder.weight = self.word.weight
        self.frozen = nn.Parameter(torch.zeros(3, 3), requires_grad=False)


def adam_config(**changes) -> OptimizerConfig:
    return OptimizerConfig(**({"peak_lr": 1e-2} | changes))


def test_fact_34_biases_and_norms_do_not_decay_by_name() -> None:
    decays = decayed_names(SmallBert(), adam_config())
    assert {name for name, is_decayed in decays.items() if is_decayed} == {
        "word.weight",
        "position.weight",
        *(f"layers.{i}.{part}.weight" for i in (0, 1) for part in ("qkv", "out")),
    }
    assert {name for name, is_decayed in decays.items() if not is_decayed} == {
        "decoder.bias",
        *(f"layers.{i}.{part}.bias" for i in (0, 1) for part in ("qkv", "out", "norm")),
        *(f"layers.{i}.{part}" for i in (0, 1) for part in ("norm.weight", "post.scale")),
    }


def test_fact_34_query_key_value_biases_decay_in_compat() -> None:
    by_name = decayed_names(SmallBert(), adam_config())
    compat = decayed_names(SmallBert(), adam_config(decay_mask="by_ndim_compat"))
    assert {name for name in compat if compat[name] != by_name[name]} == {"layers.0.qkv.bias", "layers.1.qkv.bias"}


@pytest.mark.parametrize("decay_mask", ["by_name", "by_ndim_compat"])
def test_wrappers_do_not_change_which_parameters_decay(decay_mask) -> None:
    config = adam_config(decay_mask=decay_mask)
    model = SmallBert()
    plain = decayed_names(model, config)
    wrapped = nn.Module()
    wrapped.module = torch.compile(model)  # nothing runs, so nothing is compiled
    names = decayed_names(wrapped, config)
    assert all(name.startswith("module._orig_mod.") for name in names)
    assert {name.removeprefix("module._orig_mod."): decays for name, decays in names.items()} == plain


def test_optimizer_holds_every_trainable_parameter_once() -> None:
    model = SmallBert()
    optimizer = build_optimizer(model, adam_config(weight_decay=0.1))
    held = [p for group in optimizer.param_groups for p in group["params"]]
    assert len(held) == len({id(p) for p in held})
    assert {id(p) for p in held} == {id(p) for p in model.parameters() if p.requires_grad}
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.1, 0.0]
    set_learning_rate(optimizer, 0.25)
    assert {group["lr"] for group in optimizer.param_groups} == {0.25}


def reference_steps(weights, grads_per_step, lrs, *, beta1, beta2, eps, weight_decay, use_ratio):
    """Specification 12.1 in float64, line by line."""
    p = weights.astype(np.float64)
    m, v = np.zeros_like(p), np.zeros_like(p)
    for t, (g, lr) in enumerate(zip(grads_per_step, lrs), start=1):
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g * g
        u = (m / (1 - beta1**t)) / (np.sqrt(v / (1 - beta2**t)) + eps)
        u = u + weight_decay * p
        if use_ratio:
            norm_p, norm_u = np.linalg.norm(p), np.linalg.norm(u)
            u = u * (norm_p / norm_u if norm_p > 0 and norm_u > 0 else 1.0)
        p = p - lr * u
    return p


@pytest.mark.parametrize("name", ["adamw", "lamb"])
@settings(deadline=None, max_examples=25)
@given(
    seed=st.integers(0, 2**31),
    betas=st.tuples(st.floats(0, 0.95), st.floats(0.5, 0.999)),
    eps=st.sampled_from([1e-8, 1e-6, 1e-2]),
    weight_decay=st.sampled_from([0.0, 0.01, 0.5]),
)
def test_updates_match_the_formula(name, seed, betas, eps, weight_decay):
    rng = np.random.default_rng(seed)
    layer = nn.Linear(5, 4)
    start = {key: param.detach().numpy().copy() for key, param in layer.named_parameters()}
    config = adam_config(
        name=name, beta1=betas[0], beta2=betas[1], epsilon=eps, weight_decay=weight_decay, max_grad_norm=0
    )
    optimizer = build_optimizer(layer, config)
    lrs = [0.0, 1e-2, 5e-3, 1e-3]
    grads = {key: [rng.normal(size=value.shape) for _ in lrs] for key, value in start.items()}
    for step, lr in enumerate(lrs):
        set_learning_rate(optimizer, lr)
        for key, param in layer.named_parameters():
            param.grad = torch.tensor(grads[key][step], dtype=torch.float32)
        optimizer.step()
    for key, param in layer.named_parameters():
        expected = reference_steps(
            start[key],
            grads[key],
            lrs,
            beta1=betas[0],
            beta2=betas[1],
            eps=eps,
            weight_decay=weight_decay if key == "weight" else 0.0,
            use_ratio=name == "lamb",
        )
        # float32 weights of size 1 and updates of 1e-2: a few roundings of 6e-8, more where v is tiny.
        np.testing.assert_allclose(param.detach().numpy(), expected, rtol=2e-5, atol=2e-6)


def test_adam_by_hand() -> None:
    # One weight 2.0, gradients 1 and 3, lr 0.1, betas 0.9 and 0.99, eps 0, decay 0.5.
    # t=1: m_hat 1, v_hat 1, u = 1 + 0.5 * 2 = 2, p = 1.8.
    # t=2: m_hat = (0.09 + 0.3) / 0.19, v_hat = (0.0099 + 0.09) / 0.0199, u = m_hat / sqrt(v_hat) + 0.9.
    parameter = nn.Parameter(torch.tensor([[2.0]]))
    optimizer = torch.optim.AdamW([parameter], lr=0.1, betas=(0.9, 0.99), eps=1e-12, weight_decay=0.5, fused=True)
    for gradient in (1.0, 3.0):
        parameter.grad = torch.tensor([[gradient]])
        optimizer.step()
    expected = 1.8 - 0.1 * ((0.39 / 0.19) / math.sqrt(0.0999 / 0.0199) + 0.9)
    assert parameter.item() == pytest.approx(expected, rel=1e-6)


@given(seed=st.integers(0, 2**31), lr=st.sampled_from([1e-3, 0.1]), weight_decay=st.sampled_from([0.0, 0.1]))
@settings(deadline=None, max_examples=20)
def test_fact_36_lamb_moves_each_tensor_by_lr_times_its_norm(seed, lr, weight_decay):
    generator = torch.Generator().manual_seed(seed)
    params = [nn.Parameter(torch.randn(shape, generator=generator) * 3) for shape in [(4, 5), (7,), (2, 3, 2)]]
    before = [p.detach().clone() for p in params]
    for p in params:
        p.grad = torch.randn(p.shape, generator=generator)
    Lamb(params, lr=lr, weight_decay=weight_decay).step()
    for p, old in zip(params, before):
        assert (p - old).norm().item() == pytest.approx(lr * old.norm().item(), rel=1e-3)


def test_fact_36_lamb_ratio_is_one_where_a_norm_is_zero() -> None:
    zero_weight, zero_update = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.ones(3))
    zero_weight.grad, zero_update.grad = torch.tensor([1.0, -2.0, 4.0]), torch.zeros(3)
    Lamb([zero_weight, zero_update], lr=0.1, eps=1e-12, weight_decay=0.0).step()
    # Adam's first update is the sign of the gradient; without a ratio it is scaled by lr alone.
    torch.testing.assert_close(zero_weight.detach(), torch.tensor([-0.1, 0.1, -0.1]))
    assert torch.equal(zero_update.detach(), torch.ones(3))


def test_lamb_resumes_exactly_from_its_state() -> None:
    def steps(optimizer, params, numbers):
        for number in numbers:
            for p in params:
                p.grad = torch.full_like(p, 0.1 * number) + p.detach()
            optimizer.step()

    straight = [nn.Parameter(torch.arange(6.0).view(2, 3)), nn.Parameter(torch.ones(4))]
    stopped = [nn.Parameter(p.detach().clone()) for p in straight]
    steps(Lamb(straight, lr=0.1), straight, range(6))
    first = Lamb(stopped, lr=0.1)
    steps(first, stopped, range(3))
    second = Lamb(stopped, lr=0.1)
    second.load_state_dict(first.state_dict())
    steps(second, stopped, range(3, 6))
    assert all(torch.equal(a, b) for a, b in zip(straight, stopped))


def with_norm(norm: float) -> list[nn.Parameter]:
    params = [nn.Parameter(torch.zeros(3, 2)), nn.Parameter(torch.zeros(5)), nn.Parameter(torch.zeros(2))]
    grads = torch.arange(1.0, 12.0)
    grads *= norm / grads.norm()
    params[0].grad, params[1].grad = grads[:6].view(3, 2).clone(), grads[6:].clone()
    return params  # the third has no gradient


def global_norm(params: list[nn.Parameter]) -> float:
    return torch.cat([p.grad.flatten() for p in params if p.grad is not None]).norm().item()


@pytest.mark.parametrize(
    ("clip", "threshold", "norm", "expected"),
    [
        ("squared_norm_legacy", 0.4, 0.6, 0.6),  # 0.36 < 0.4
        ("squared_norm_legacy", 0.4, 2.0, 0.2),  # 2 * 0.4 / 4
        ("squared_norm_legacy", 1.0, 4.0, 0.25),
        ("norm", 0.4, 2.0, 0.4),
        ("norm", 0.4, 0.39, 0.39),
        ("norm", 0.0, 50.0, 50.0),
        ("squared_norm_legacy", 0.0, 50.0, 50.0),
    ],
)
def test_fact_35_clipping(clip, threshold, norm, expected):
    params = with_norm(norm)
    before = [p.grad.clone() for p in params[:2]]
    # A generator: it must not be used up before the scaling.
    measured = clip_gradients((p for p in params), adam_config(clip=clip, max_grad_norm=threshold))
    assert measured.dtype == torch.float32
    assert measured.shape == ()
    assert measured.item() == pytest.approx(norm, rel=1e-6)
    assert global_norm(params) == pytest.approx(expected, rel=1e-6)
    if norm == expected:
        assert all(torch.equal(p.grad, old) for p, old in zip(params, before))


def test_clipping_by_value_is_that_of_torch() -> None:
    params, theirs = with_norm(3.0), with_norm(3.0)
    measured = clip_gradients(params, adam_config(clip="value", max_grad_norm=0.9))
    torch.nn.utils.clip_grad_value_(theirs, 0.9)
    assert measured.item() == pytest.approx(3.0)
    assert max(p.grad.abs().max().item() for p in params[:2]) == pytest.approx(0.9)
    assert all(torch.equal(p.grad, q.grad) for p, q in zip(params[:2], theirs))


def test_clipping_shows_non_finite_gradients_in_the_norm() -> None:
    params = with_norm(1.0)
    params[1].grad[2] = math.nan
    assert not math.isfinite(clip_gradients(params, adam_config()).item())
    params[1].grad[2] = math.inf
    assert not math.isfinite(clip_gradients(params, adam_config()).item())


def test_clipping_nothing_and_zero_gradients() -> None:
    assert clip_gradients([nn.Parameter(torch.ones(2))], adam_config()).item() == 0.0
    zero = nn.Parameter(torch.ones(2))
    zero.grad = torch.zeros(2)
    assert clip_gradients([zero], adam_config()).item() == 0.0
    assert torch.equal(zero.grad, torch.zeros(2))


@pytest.mark.parametrize("name", ["adamw", "lamb"])
@pytest.mark.parametrize("is_scaled", [False, True])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_step_with_a_gradient_that_is_not_finite_changes_nothing(name, is_scaled, bad) -> None:
    def updates(values: list[float]) -> tuple[list[torch.Tensor], list[bool]]:
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0) if is_scaled else None
        precision = Precision(torch.device("cpu"), torch.float32, uses_tf32=False, scaler=scaler)
        params = [nn.Parameter(torch.arange(4.0).view(2, 2)), nn.Parameter(torch.ones(3))]
        config = adam_config(name=name)
        layer = nn.ParameterList(params)
        optimizer = build_optimizer(layer, config)
        skipped = []
        for value in values:
            optimizer.zero_grad()
            precision.backward((params[0] * value).sum() + params[1].square().sum())
            precision.unscale_(optimizer)
            norm = clip_gradients(params, config)
            skipped.append(bool(step_if_finite(optimizer, precision, norm)))
        assert precision.can_scale_down is is_scaled
        if is_scaled:
            assert precision.state_dict()["scale"] == 4.0 / 2 ** sum(skipped)
        state = [value for p in params for value in optimizer.state[p].values()]
        return [p.detach() for p in params] + state, skipped

    with_bad, skipped = updates([1.0, bad, 2.0])
    without, _ = updates([1.0, 2.0])
    assert skipped == [False, True, False]
    assert all(torch.equal(a, b) for a, b in zip(with_bad, without, strict=True))


def test_an_optimizer_that_knows_nothing_of_skipping_is_not_called() -> None:
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    precision = Precision(torch.device("cpu"), torch.float32, uses_tf32=False, scaler=None)
    weight.grad = torch.tensor([1.0, math.nan])
    assert step_if_finite(optimizer, precision, torch.tensor(math.nan))
    assert weight.tolist() == [1.0, 1.0]
    weight.grad = torch.tensor([1.0, 0.5])
    assert not step_if_finite(optimizer, precision, torch.tensor(1.0))
    assert weight.tolist() == [0.0, 0.5]


@pytest.mark.parametrize("name", ["lamb", "adafactor"])
def test_a_scaler_that_did_not_unscale_gradients_gives_the_same_update(name) -> None:
    found = []
    for scale in (1.0, 1024.0):
        weight = nn.Parameter(torch.arange(1.0, 5.0).view(2, 2))
        optimizer = build_optimizer(nn.ParameterList([weight]), adam_config(name=name))
        scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        for _ in range(2):
            weight.grad = None
            scaler.scale(weight.square().sum()).backward()
            scaler.step(optimizer)
            scaler.update()
        found.append(weight.detach())
    assert torch.equal(*found)
    assert not torch.equal(found[0], torch.arange(1.0, 5.0).view(2, 2))
