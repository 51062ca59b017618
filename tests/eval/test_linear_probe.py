"""Linear probes: LARS computed by hand, layers that do not influence one another, and exact scores."""

import math

import numpy as np
import pytest
import torch

from pretrainkit.eval.linear_probe import Heads, score_heads, train_heads
from pretrainkit.eval.probe_config import ProbeConfig

CPU = torch.device("cpu")


def toy(num=60, width=7, num_classes=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    centre_CF = torch.randn(num_classes, width, generator=generator)
    label_N = torch.randint(0, num_classes, (num,), generator=generator)
    return centre_CF[label_N] + 0.5 * torch.randn(num, width, generator=generator), label_N


def fixed_batches(num_steps, features, labels, size=20):
    for step in range(num_steps):
        rows = (torch.arange(size) + step * size) % len(features)
        yield features[rows], labels[rows]


def train(rates, num_steps=12, **settings):
    features, labels = toy()
    config = ProbeConfig(**settings)
    return train_heads(fixed_batches(num_steps, features, labels), num_steps, 7, 4, rates, config, CPU)


@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
def test_updates_are_those_of_the_original(weight_decay):
    """The update of section 13 in plain float64 NumPy, with a gradient of the cross-entropy that was derived by
    hand."""
    num_steps, lr, momentum = 12, 20.0, 0.9
    features, labels = toy()
    start = Heads(7, 4, 1, seed=0)
    params = [start.weights[0].detach().double().numpy(), start.biases[0].detach().double().numpy()]
    buffers = [np.zeros_like(p) for p in params]
    warmup = int(0.3 * num_steps)  # rounded down, as in ZeroVL
    for step, (x, y) in enumerate(fixed_batches(num_steps, features.double(), labels)):
        x, onehot = x.numpy(), np.eye(4)[y.numpy()]
        logits = x @ params[0].T + params[1]
        p = np.exp(logits - logits.max(1, keepdims=True))
        error = (p / p.sum(1, keepdims=True) - onehot) / len(x)
        factor = (
            step / warmup if step < warmup else 0.5 * (1 + math.cos(math.pi * (step - warmup) / (num_steps - warmup)))
        )
        for i, grad in enumerate((error.T @ x, error.sum(0))):
            size, slope = np.linalg.norm(params[i]), np.linalg.norm(grad)
            local = 0.001 * size / (slope + weight_decay * size + 1e-8) if size and slope else 1.0
            buffers[i] = momentum * buffers[i] + local * lr * factor * (grad + weight_decay * params[i])
            params[i] = params[i] - buffers[i]
    heads = train((lr,), num_steps, warmup_share=0.3, weight_decay=weight_decay)
    np.testing.assert_allclose(heads.weights[0].detach().numpy(), params[0], atol=1e-6)
    np.testing.assert_allclose(heads.biases[0].detach().numpy(), params[1], atol=1e-6)


def test_layers_of_several_learning_rates_are_those_trained_alone():
    rates = (1.0, 10.0, 30.0)
    together = train(rates)
    for i, rate in enumerate(rates):
        alone = train((rate,))
        torch.testing.assert_close(together.weights[i], alone.weights[0], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(together.biases[i], alone.biases[0], rtol=1e-5, atol=1e-6)


def test_cutting_a_batch_changes_nothing(monkeypatch):
    whole = train((30.0, 3.0))
    monkeypatch.setattr(Heads, "rows_at_once", lambda self: 3)
    cut = train((30.0, 3.0))
    torch.testing.assert_close(cut.weights[0], whole.weights[0], rtol=1e-5, atol=1e-6)


def test_a_separable_set_is_learned():
    _, labels = toy(seed=5)
    centred = torch.nn.functional.one_hot(labels, 4).float() * 4
    config = ProbeConfig()
    heads = train_heads(fixed_batches(100, centred, labels), 100, 4, 4, (0.3, 100.0), config, CPU)
    assert score_heads(heads, centred, labels)[1].acc1 == 100


def test_scores_count_ties_by_class_number_and_diverged_layers_as_wrong():
    heads = Heads(3, 8, 2, seed=0)
    with torch.no_grad():
        heads.weights[0].zero_()
        heads.weights[1].fill_(math.nan)
    features, labels = torch.ones(8, 3), torch.arange(8)
    same, diverged = score_heads(heads, features, labels)
    assert (same.acc1, same.acc5) == (100 / 8, 500 / 8)
    assert (diverged.acc1, diverged.acc5) == (0, 0)
