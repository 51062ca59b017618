"""Per-tensor rules do not depend on how a model stores its weights: queries, keys and values (keys and values, gate and
value) as one tensor are updated as if they were apart."""

import copy

import pytest
import torch
from torch import nn

import pretrainkit
from pretrainkit.exporting.torchvision_shim import import_timm
from pretrainkit.nn.attention import SelfAttention
from pretrainkit.nn.blocks import GatedFeedForward
from pretrainkit.nn.foreign import stacked_layers
from pretrainkit.recipes.registry import Recipes
from pretrainkit.training.optimizers import parameters
from pretrainkit.training.optimizers.adafactor import Adafactor
from pretrainkit.training.optimizers.build import build_optimizer, set_learning_rate
from pretrainkit.training.optimizers.config import AdafactorConfig, OptimizerConfig
from pretrainkit.training.optimizers.parameters import stacked_parameters

WIDTH, INNER = 8, 12
FACTORED = AdafactorConfig(min_dim_size_to_factor=4, beta1=0.9)
RULES: dict[str, dict] = {
    "lamb": {"name": "lamb"},
    "lars": {"name": "lars"},
    "lars nesterov": {"name": "lars", "nesterov": True},
    "adafactor": {"name": "adafactor", "adafactor": FACTORED},
    "adafactor, full moments": {"name": "adafactor", "adafactor": AdafactorConfig(beta1=0.9)},
    "muon": {"name": "muon"},
    "relative adamw": {"scale_by_parameter_rms": True},
    "adamw": {},
    "lion": {"name": "lion"},
}


class Together(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = SelfAttention(WIDTH, 2, has_bias=True, dropout_rate=0.0)
        self.feed_forward = GatedFeedForward(WIDTH, INNER, "gelu", 0.0)
        self.pooling = nn.MultiheadAttention(WIDTH, 2)

    def blocks(self) -> list[nn.Module]:
        return [self.attention, self.feed_forward]


class Apart(nn.Module):
    """The same parameters, each in a layer of its own."""

    def __init__(self, model: Together) -> None:
        super().__init__()
        self.layers = nn.ModuleDict()
        for name, layer in model.named_modules():
            if isinstance(layer, nn.Linear):
                weights = layer.weight.chunk(PARTS.get(name, 1))
                biases = [None] * len(weights) if layer.bias is None else layer.bias.chunk(PARTS.get(name, 1))
                for part, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
                    self.layers[f"{name}.{part}".replace(".", "/")] = apart = nn.Linear(*weight.shape[::-1])
                    apart.weight = nn.Parameter(weight.detach().clone())
                    apart.bias = None if bias is None else nn.Parameter(bias.detach().clone())
        self.packed = nn.ParameterList(part.detach().clone() for part in model.pooling.in_proj_weight.chunk(3))

    def blocks(self) -> list[nn.Module]:
        return [layer for name, layer in self.layers.items() if not name.startswith("pooling")]


PARTS = {"attention.qkv": 3, "feed_forward.up": 2}


def pairs(model: Together, apart: Apart) -> list[tuple[torch.Tensor, list[torch.Tensor]]]:
    """Each parameter, and those that hold its rows."""
    found = [(model.pooling.in_proj_weight, list(apart.packed))]
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Linear):
            layers = [apart.layers[f"{name}.{part}".replace(".", "/")] for part in range(PARTS.get(name, 1))]
            found.append((layer.weight, [one.weight for one in layers]))
            if layer.bias is not None:
                found.append((layer.bias, [one.bias for one in layers]))
    return found


def models() -> tuple[Together, Apart]:
    torch.manual_seed(0)
    model = Together()
    with torch.no_grad():  # sizes that a common norm would mix up
        model.attention.qkv.weight[WIDTH : 2 * WIDTH] *= 10
        model.attention.qkv.bias[:WIDTH] *= 0.1
        model.feed_forward.up.weight[INNER:] *= 5
    return model, Apart(model)


def train(model: Together, apart: Apart, config: OptimizerConfig, num_steps: int) -> torch.optim.Optimizer:
    optimizers = build_optimizer(model, config), build_optimizer(apart, config)
    generator = torch.Generator().manual_seed(1)
    for optimizer in optimizers:
        set_learning_rate(optimizer, 0.05)
        if config.name == "muon":
            optimizer.dtype = torch.float32
    for _ in range(num_steps):
        for whole, parts in pairs(model, apart):
            sizes = torch.rand(len(whole), generator=generator).view(-1, *[1] * (whole.ndim - 1))
            whole.grad = torch.randn(whole.shape, generator=generator) * sizes
            for part, grad in zip(parts, whole.grad.chunk(len(parts)), strict=True):
                part.grad = grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    return optimizers[0]


@pytest.mark.parametrize("rule", RULES)
def test_parts_of_one_tensor_are_updated_as_if_they_were_apart(rule):
    model, apart = models()
    config = OptimizerConfig(**({"peak_lr": 0.05, "weight_decay": 0.1, "decay_mask": "all"} | RULES[rule]))
    train(model, apart, config, 6)
    for whole, parts in pairs(model, apart):
        torch.testing.assert_close(whole, torch.cat([*parts]), rtol=1e-5, atol=1e-7)


class Mixed(nn.Module):
    """Parameters of every number of dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.together, self.kernel = Together(), nn.Conv2d(3, 5, 3)
        self.others = nn.ParameterList([torch.randn(7, 0), torch.randn(6, 16), torch.tensor(0.3), torch.randn(9)])
        self.transposed = nn.Parameter(torch.randn(5, 4).t())  # has a buffer of its own everywhere

    def blocks(self) -> list[nn.Module]:
        return self.together.blocks()


@pytest.mark.parametrize("rule", RULES)
def test_buffers_that_parameters_share_on_a_gpu_give_the_updates_of_buffers_of_their_own(rule, monkeypatch):
    config = OptimizerConfig(**({"peak_lr": 0.05, "weight_decay": 0.1, "decay_mask": "all"} | RULES[rule]))
    found = []
    for reads_at_once in (True, False):
        monkeypatch.setattr(parameters, "reads_at_once", lambda device, answer=reads_at_once: answer)
        torch.manual_seed(0)
        model = Mixed()
        optimizer = build_optimizer(model, config)
        set_learning_rate(optimizer, 0.05)
        for _ in range(3):
            for number, parameter in enumerate(model.parameters()):
                parameter.grad = torch.randn_like(parameter) * 10.0 ** (number % 4 - 2)
            optimizer.step()
        found.append([parameter.detach() for parameter in model.parameters()])
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-7)


def test_modules_declare_the_parameters_that_they_stack():
    model, _ = models()
    names = {parameter: name for name, parameter in model.named_parameters()}
    assert {names[parameter]: parts for parameter, parts in stacked_parameters(model).items()} == {
        "attention.qkv.weight": 3,
        "attention.qkv.bias": 3,
        "feed_forward.up.weight": 2,
        "pooling.in_proj_weight": 3,
        "pooling.in_proj_bias": 3,
    }


@pytest.mark.parametrize(
    ("preset", "layers"),
    [
        ("bert/base", {"qkv": 3}),
        ("bert/modern-base", {"qkv": 3, "up": 2}),
        ("clip/vit-b-32", {"qkv": 3}),
        ("fourm/tiny", {"qkv": 3, "key_value": 2, "up": 2}),
        ("image_tokenizer/tiny", {"qkv": 3}),
        ("image_tokenizer/rgb-uvit", {"qkv": 3}),
        ("pixel/tiny", {"qkv": 3}),
        ("t5/tiny", {}),
    ],
)
def test_the_models_of_every_recipe_declare_the_parameters_that_they_stack(preset, layers):
    """It is also a guard: it examines undeclared layers whose height is two or three times their width."""
    model = pretrainkit.build_model(Recipes().preset(preset), "meta")
    stacked = stacked_parameters(model)
    found = {name.split(".")[-2]: stacked[one] for name, one in model.named_parameters() if one in stacked}
    assert found == layers
    known = {"gate", "into", "relative_bias"} | ({"0", "1"} if preset.startswith("t5/") else set())
    others = {
        name.split(".")[-2]
        for name, one in model.named_parameters()
        if one not in stacked and one.ndim == 2 and len(one) in (2 * one.shape[1], 3 * one.shape[1])
    }
    assert others <= known


def test_layers_of_other_libraries_are_known_by_their_names():
    encoder = import_timm("a test").create_model("vit_tiny_patch16_224", img_size=32, depth=1, num_classes=0)
    assert stacked_layers(encoder) == {"blocks.0.attn.qkv": 3}


@pytest.mark.parametrize(("smallest", "height"), [(4, 24), (10, 24)])
def test_adafactor_continues_from_second_moments_that_were_factored_as_one_matrix(smallest, height):
    """Earlier versions stored them like this. The smaller matrices may be too small to be factored at all."""
    config = AdafactorConfig(min_dim_size_to_factor=smallest)
    torch.manual_seed(0)
    start, grads = torch.randn(height, 16), [torch.randn(height, 16).exp() for _ in range(3)]
    old = nn.Parameter(start.clone())
    before = Adafactor([old], lr=0.0, config=config)
    for old.grad in grads:
        before.step()
    row, column = before.state[old]["v_col"].clone(), before.state[old]["v_row"].clone()  # of 24 rows, of 16 columns
    estimate = torch.outer(row, column) / row.mean()

    new = nn.Parameter(start.clone())
    after = Adafactor([new], lr=0.0, config=config, stacked={new: 3})
    after.load_state_dict(copy.deepcopy(before.state_dict()))
    new.grad = torch.zeros_like(new)
    after.step()
    state, kept = after.state[new], 1 - 4**-0.8
    if "v" in state:
        found = state["v"]
    else:
        rows, columns = state["v_row"], state["v_col"]
        by_part = zip(rows, columns, strict=True)
        found = torch.cat([torch.outer(r, c) / r.mean() for r, c in by_part])
    torch.testing.assert_close(found, estimate * kept, rtol=1e-5, atol=1e-12)
