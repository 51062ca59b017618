"""Muon: orthogonal updates of the blocks' matrices, equal to torch's own; AdamW for the rest."""

import copy

import pytest
import torch
from torch import nn

from pretrainkit.training.optimizers.build import build_optimizer, set_learning_rate
from pretrainkit.training.optimizers.config import OptimizerConfig
from pretrainkit.training.optimizers.muon import ADAMW_RMS, Muon, orthogonalised
from support.toy_objectives import TwoHeads


class Net(nn.Module):
    """A block with a fused projection and a matrix of another shape; a table and a head beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.word = nn.Embedding(11, 8)
        self.block = nn.ModuleDict({"qkv": nn.Linear(8, 24), "down": nn.Linear(24, 8)})
        self.head = nn.Linear(8, 3)

    def stacked_layers(self) -> dict[str, int]:
        return {"block.qkv": 3}

    def blocks(self) -> list[nn.Module]:
        return [self.block]


def with_gradients(model: nn.Module, seed: int) -> None:
    torch.manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter) * 10.0 ** (seed % 3 - 1)


def config_of(**values: object) -> OptimizerConfig:
    return OptimizerConfig(name="muon", momentum=0.95, peak_lr=0.02, weight_decay=0.1).model_copy(update=values)


@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 8, 24), (6, 5, 7)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_singular_vectors_stay_and_singular_values_come_near_one(shape, dtype):
    torch.manual_seed(1)
    matrices = torch.randn(shape) * 37.0
    (found,) = orthogonalised([matrices], dtype)
    assert found.dtype is dtype
    u, s, v = torch.linalg.svd(matrices, full_matrices=False)
    inner = u.mT @ found.float() @ v.mT
    values = inner.diagonal(dim1=-2, dim2=-1)
    is_clear = s > 0.05 * s.amax(-1, keepdim=True)  # tiny ones need more than five iterations
    assert values[is_clear].min() > 0.6
    assert values.max() < 1.3
    off_diagonal = inner - torch.diag_embed(values)
    assert off_diagonal.abs().max() < (1e-4 if dtype is torch.float32 else 0.05)


def test_batches_computed_together_equal_each_alone():
    torch.manual_seed(0)
    batches = [torch.randn(shape) for shape in ((2, 4, 12), (1, 6, 12), (3, 4, 9), (1, 6, 6))]
    alone = [orthogonalised([batch], torch.float32)[0] for batch in batches]
    torch.testing.assert_close(orthogonalised(batches, torch.float32), alone)


def test_groups_without_a_number_of_matrices_are_updated_by_adamw():
    torch.manual_seed(0)
    weights = [nn.Parameter(torch.ones(3, 4)) for _ in range(2)]
    ours = Muon([weights[0]], 0.1, weight_decay=0.2)
    theirs = torch.optim.AdamW([weights[1]], 0.1, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.2)
    for _ in range(3):
        weights[0].grad = torch.randn(3, 4)
        weights[1].grad = weights[0].grad.clone()
        ours.step()
        theirs.step()
    torch.testing.assert_close(*weights)


def test_a_gradient_of_zeros_changes_nothing_but_the_decay():
    weight = nn.Parameter(torch.randn(4, 4))
    before = weight.detach().clone()
    weight.grad = torch.zeros(4, 4)
    Muon([{"params": [weight], "num_parts": 1}], lr=0.1, weight_decay=0.5).step()
    torch.testing.assert_close(weight.detach(), before * 0.95)


def test_updates_are_torchs_muon_with_the_size_of_adamws():
    torch.manual_seed(0)
    ours = nn.Parameter(torch.randn(6, 10))
    theirs, start = nn.Parameter(ours.detach().clone()), ours.detach().clone()
    optimizer = Muon([{"params": [ours], "num_parts": 1}], lr=0.02, weight_decay=0.1, dtype=torch.bfloat16)
    reference = torch.optim.Muon([theirs], lr=0.02, weight_decay=0.1, momentum=0.95, adjust_lr_fn="match_rms_adamw")
    for _ in range(4):
        ours.grad = torch.randn(6, 10)
        theirs.grad = ours.grad.clone()
        optimizer.step()
        reference.step()
    assert (ours - theirs).norm() < 0.03 * (theirs - start).norm()  # both round to bfloat16, in another order


def test_the_size_of_an_update_is_that_of_adamw():
    torch.manual_seed(0)
    weight = nn.Parameter(torch.zeros(32, 64))
    weight.grad = torch.randn(32, 64) * 1e-4
    Muon([{"params": [weight], "num_parts": 1}], lr=1.0).step()
    assert 0.8 * ADAMW_RMS < weight.detach().square().mean().sqrt() < 1.2 * ADAMW_RMS


def test_only_matrices_of_blocks_are_orthogonalised_and_the_rest_is_adamw():
    torch.manual_seed(2)
    model, reference = Net(), Net()
    reference.load_state_dict(model.state_dict())
    muon = build_optimizer(model, config_of(beta1=0.8, beta2=0.9))
    adamw = build_optimizer(
        reference, OptimizerConfig(peak_lr=0.02, beta1=0.8, beta2=0.9, weight_decay=0.1, epsilon=1e-6)
    )
    for seed in range(3):
        for net, optimizer in ((model, muon), (reference, adamw)):
            with_gradients(net, seed)
            set_learning_rate(optimizer, 0.01 * (seed + 1))
            optimizer.step()
    for (name, ours), theirs in zip(model.named_parameters(), reference.parameters(), strict=True):
        is_matrix = name in ("block.qkv.weight", "block.down.weight")
        assert torch.allclose(ours, theirs, rtol=1e-5, atol=1e-7) != is_matrix, name
        assert ("momentum_buffer" in muon.state[ours]) == is_matrix


def test_query_key_and_value_are_three_matrices():
    model = Net()
    optimizer = build_optimizer(model, config_of(weight_decay=0.0))
    assert isinstance(optimizer, Muon)
    optimizer.dtype = torch.float32
    before = model.block["qkv"].weight.detach().clone()
    with_gradients(model, 4)
    grad = model.block["qkv"].weight.grad.clone()
    set_learning_rate(optimizer, 1.0)
    optimizer.step()
    moved = before - model.block["qkv"].weight.detach()
    for ours, part in zip(moved.chunk(3), grad.chunk(3), strict=True):
        (wanted,) = orthogonalised([part[None]], torch.float32)
        torch.testing.assert_close(ours, wanted[0] * ADAMW_RMS * 8**0.5, rtol=1e-3, atol=1e-4)


def test_resuming_from_a_state_gives_the_same_bits():
    torch.manual_seed(3)
    whole = TwoHeads()
    optimizer = build_optimizer(whole, config_of())
    with_gradients(whole, 0)
    optimizer.step()
    resumed = TwoHeads()
    resumed.load_state_dict(whole.state_dict())
    other = build_optimizer(resumed, config_of())
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for net, one in ((whole, optimizer), (resumed, other)):
        with_gradients(net, 1)
        one.step()
    for ours, theirs in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(ours, theirs)
