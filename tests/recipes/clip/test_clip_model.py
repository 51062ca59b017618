"""The dual encoder: its embeddings, temperature, frozen parts, sizes."""

import math

import pytest
import torch
from torch import nn

import pretrainkit
from pretrainkit.dist.devices import to_device
from pretrainkit.errors import ConfigError
from pretrainkit.recipes.clip.config import ClipObjectiveConfig, ProjectionConfig, TemperatureConfig
from pretrainkit.recipes.clip.model import Temperature
from pretrainkit.recipes.clip.presets import PRESETS
from pretrainkit.recipes.clip.recipe import RECIPE
from pretrainkit.training.optimizers.build import build_optimizer, decayed_names
from pretrainkit.training.optimizers.config import OptimizerConfig
from support.clip_models import captions, images, random_model, run_config, text, vit


def embed(model, **shares):
    ids, num_tokens = captions()
    return model(images(), ids, num_tokens, **shares)


def test_fact_16_embeddings_have_length_one_and_zeros_stay_zeros():
    model = random_model(run_config())
    for vectors in embed(model).values():
        assert vectors.shape == (3, 20)
        assert (vectors.norm(dim=1) - 1).abs().max() < 1e-6
    nn.init.zeros_(model.image_projection.linear.weight)
    zeros = embed(model)["image"]
    assert not zeros.any()
    zeros.sum().backward()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


def test_one_tower_alone_equals_both():
    model, (ids, num_tokens) = random_model(run_config()), captions()
    both = embed(model)
    assert model(images()).keys() == {"image"}
    torch.testing.assert_close(model(images())["image"], both["image"])
    torch.testing.assert_close(model(None, ids, num_tokens)["text"], both["text"])


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("pool", ["eos", "cls", "mean"])
def test_padding_has_no_influence(causal, pool):
    model = random_model(run_config(words=text(causal=causal, pool=pool))).double()
    lengths = (4, 9, 1)
    ids, num_tokens = captions(lengths)
    expected = model(None, ids, num_tokens)["text"]
    for row, length in enumerate(lengths):
        alone = model(None, ids[row : row + 1, :length])["text"]
        torch.testing.assert_close(alone, expected[row : row + 1])
    longer = torch.cat((ids, torch.full((3, 3), 7, dtype=ids.dtype)), dim=1)
    torch.testing.assert_close(model(None, longer, num_tokens)["text"], expected)
    full = model(None, ids, torch.tensor([9, 9, 9]))["text"]  # takes the path with padding in the stream
    torch.testing.assert_close(full[1], expected[1])


def test_gradient_without_padding_equals_that_of_captions_one_by_one():
    model = random_model(run_config(words=text(causal=False, pool="mean"))).double()
    lengths = (4, 9, 1)
    ids, num_tokens = captions(lengths)
    weights = torch.randn(3, 20, dtype=torch.float64)
    learned = list(model.text.parameters())
    whole = torch.autograd.grad((model(None, ids, num_tokens)["text"] * weights).sum(), learned)
    parts = [
        torch.autograd.grad((model(None, ids[i : i + 1, :n])["text"] * weights[i]).sum(), learned)
        for i, n in enumerate(lengths)
    ]
    for together, *apart in zip(whole, *parts, strict=True):
        torch.testing.assert_close(together, sum(apart), rtol=1e-8, atol=1e-10)


def test_captions_longer_than_the_positions_are_refused():
    with pytest.raises(ValueError, match="captions of 13 tokens"):
        random_model(run_config())(None, torch.ones(1, 13, dtype=torch.int32))


def test_pixels_are_normalized_by_the_config_or_the_tower():
    grey = torch.full((1, 3, 32, 32), 51, dtype=torch.uint8)
    config = run_config(normalize=((0.1, 0.2, 0.3), (0.5, 0.25, 0.2)))
    found = random_model(config).normalized(grey)[0, :, 0, 0]
    torch.testing.assert_close(found, torch.tensor([0.2, 0.0, -0.5]), rtol=0, atol=1e-6)
    found = random_model(run_config(normalize=None)).normalized(grey)[0, :, 0, 0]
    torch.testing.assert_close(found, torch.full((3,), -0.6))
    floats = torch.randn(1, 3, 32, 32)
    assert random_model(config).normalized(floats) is floats


@pytest.mark.parametrize("share", [1.0, 0.3])
def test_fact_23_mixing_images_leaves_texts_and_mixing_texts_leaves_images(share):
    model, alpha = random_model(run_config()).double(), torch.tensor(share)
    plain = embed(model)
    pixels = model.normalized(images())
    mixed_images = embed(model, image_share=alpha)
    torch.testing.assert_close(mixed_images["text"], plain["text"])
    expected = model(share * pixels + (1 - share) * pixels.flip(0))["image"]
    torch.testing.assert_close(mixed_images["image"], expected)

    mixed_texts = embed(model, text_share=alpha)
    torch.testing.assert_close(mixed_texts["image"], plain["image"])
    ids, num_tokens = captions()
    projected = model.text_projection(model.text(ids, num_tokens))
    mixed = share * projected + (1 - share) * projected.flip(0)  # before their lengths become one
    torch.testing.assert_close(mixed_texts["text"], mixed / mixed.norm(dim=1, keepdim=True))


@pytest.mark.parametrize("kind", ["parameter", "log_parameter"])
@pytest.mark.parametrize(("inside", "value", "used"), [(True, 0.05, 0.05), (False, 0.0001, 0.001), (False, 0.9, 0.5)])
def test_fact_18_a_temperature_outside_its_limits_is_clamped_and_gets_no_gradient(kind, inside, value, used):
    if kind == "log_parameter" and value > used:
        pytest.skip("CLIP's logit scale has no lower limit")
    config = TemperatureConfig(kind=kind, value=value, smallest=0.001, largest=0.5)
    temperature = Temperature(config)
    scale = temperature.logit_scale()
    assert scale.shape == ()
    assert scale.item() == pytest.approx(1 / used, rel=1e-5)
    (gradient,) = torch.autograd.grad(scale, list(temperature.parameters()))
    assert gradient.shape == (1,)
    assert bool(gradient.any()) is inside

    temperature.project()
    (gradient,) = torch.autograd.grad(temperature.logit_scale(), list(temperature.parameters()))
    assert gradient.any()  # it can come back
    assert temperature.logit_scale().item() == pytest.approx(1 / used, rel=1e-5)


def test_without_project_back_a_temperature_stays_outside():
    temperature = Temperature(TemperatureConfig(kind="parameter", value=0.001, smallest=0.01, project_back=False))
    temperature.project()
    assert temperature.temperature.item() == pytest.approx(0.001)


def test_a_constant_temperature_is_not_a_parameter():
    model = random_model(run_config(temperature=TemperatureConfig(kind="constant", value=0.02)))
    assert model.logit_scale().item() == pytest.approx(50)
    assert not [name for name in model.state_dict() if "temperature" in name]


def test_only_siglip_has_a_bias():
    assert random_model(run_config()).logit_bias is None
    bias = random_model(run_config(objective=ClipObjectiveConfig(loss="siglip", siglip_bias=-7.0))).logit_bias
    assert bias.shape == (1,)
    assert bias.item() == -7


def train(model, num_steps=2):
    model.train()
    optimizer = build_optimizer(model, OptimizerConfig(peak_lr=0.1))
    for _ in range(num_steps):
        optimizer.zero_grad()
        found = embed(model)
        (found["image"] * found["text"].roll(1, 0)).sum().backward()
        optimizer.step()


@pytest.mark.parametrize("tower", ["image", "text"])
def test_fact_17_a_locked_tower_keeps_its_weights_while_its_projection_moves(tower):
    changes = {"image": vit(trainable=False)} if tower == "image" else {"words": text(trainable=False)}
    model = random_model(run_config(**changes))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    train(model)
    for name, tensor in model.state_dict().items():
        is_locked = name.startswith(f"{tower}.")
        assert torch.equal(tensor, before[name]) is is_locked or name == "temperature.log_scale", name


def test_a_locked_tower_runs_without_graph_and_in_evaluation_mode():
    model = random_model(run_config(vit(trainable=False, patch_dropout=0.5, attention_dropout=0.5)))
    model.train()
    assert model.training
    assert model.text.training
    assert not model.image.training
    features = []
    model.image.register_forward_hook(lambda module, inputs, output: features.append(output))
    first, second = embed(model)["image"], embed(model)["image"]
    assert torch.equal(first, second)
    assert first.requires_grad
    assert not features[0].requires_grad


@pytest.mark.parametrize("tower", ["image", "text"])
def test_only_the_last_blocks_and_the_final_norm_learn(tower):
    changes = {"num_trainable_layers": 1}
    config = run_config(**({"image": vit(**changes)} if tower == "image" else {"words": text(**changes)}))
    learned = {name for name, p in getattr(random_model(config), tower).named_parameters() if p.requires_grad}
    assert {name.split(".")[1] for name in learned} == {"layers", "norm_after"}
    assert {name.split(".")[2] for name in learned if "layers" in name} == {"1"}


@pytest.mark.parametrize("number", [0, 3])
def test_an_impossible_number_of_learning_layers_is_refused(number):
    with pytest.raises(ConfigError, match=f"model.image.num_trainable_layers={number}"):
        random_model(run_config(vit(num_trainable_layers=number)))


def test_frozen_projections_keep_their_weights():
    model = random_model(run_config(projection=ProjectionConfig(dim=20, text_trainable=False)))
    before = model.text_projection.linear.weight.clone()
    train(model)
    assert torch.equal(model.text_projection.linear.weight, before)


def test_the_residual_projection_is_its_formula():
    model = random_model(run_config(projection=ProjectionConfig(kind="residual", dim=20, normalize=False)))
    projection, x = model.image_projection, torch.randn(4, 24)
    first = projection.linear(x)
    expected = projection.norm(first + projection.inner(nn.functional.gelu(first)))
    torch.testing.assert_close(projection(x), expected)
    assert (embed(model)["image"].norm(dim=1) - 1).abs().max() > 0.1


def test_patch_dropout_keeps_its_share_of_patches_and_all_of_them_in_evaluation():
    model = random_model(run_config(vit(patch_dropout=0.5))).train()
    seen = []
    model.image.encoder.layers[0].register_forward_hook(lambda module, inputs, output: seen.append(len(output)))
    torch.manual_seed(0)
    first, second = embed(model)["image"], embed(model)["image"]
    assert not torch.equal(first, second)
    torch.manual_seed(0)
    assert torch.equal(embed(model)["image"], first)  # so a microbatch can be replayed
    model.eval()
    embed(model)
    assert seen == [3 * (1 + 8)] * 3 + [3 * (1 + 16)]
    plain = random_model(run_config())
    torch.testing.assert_close(embed(model)["image"], embed(plain)["image"])


def test_every_parameter_gets_a_gradient():
    """One without would stop distributed training in its second step."""
    model = random_model(run_config()).train()
    found = embed(model)
    (model.logit_scale() * found["image"] * found["text"].roll(1, 0)).sum().backward()
    assert [name for name, p in model.named_parameters() if p.grad is None] == []


def test_fact_34_parameters_that_decay():
    decays = decayed_names(
        random_model(run_config(objective=ClipObjectiveConfig(loss="siglip"))), OptimizerConfig(peak_lr=1)
    )
    left_out = {"log_scale", "logit_bias", "class_token", "position_embedding"}
    assert {name for name, is_decayed in decays.items() if name.split(".")[-1] in left_out and is_decayed} == set()
    assert {name for name, is_decayed in decays.items() if is_decayed and "layers" not in name} == {
        "image.encoder.patch.weight",
        "text.encoder.token.weight",
        "image_projection.linear.weight",
        "text_projection.linear.weight",
    }


def test_a_model_built_without_memory_takes_the_weights():
    config = run_config()
    model = random_model(config)
    with torch.device("meta"):
        empty = RECIPE.build_model(config)
    to_device(empty, "cpu")
    empty.load_state_dict(model.state_dict())
    for ours, theirs in zip(embed(empty.eval()).values(), embed(model).values(), strict=True):
        assert torch.equal(ours, theirs)


def test_equal_seeds_give_equal_weights_and_unlike_blocks():
    first, second = (pretrainkit.build_model(run_config()).state_dict() for _ in range(2))
    for name, tensor in first.items():
        assert torch.equal(tensor, second[name])
    assert not torch.equal(
        first["image.encoder.layers.0.attention.qkv.weight"], first["image.encoder.layers.1.attention.qkv.weight"]
    )
    deviation = first["text.encoder.layers.0.feed_forward.down.weight"].std().item()
    assert deviation == pytest.approx(1 / math.sqrt(16 * 2 * 2), rel=0.15)


@pytest.mark.parametrize(("preset", "millions"), [("vit-b-32", 151.3), ("vit-b-16", 149.6)])
def test_published_sizes(preset, millions):
    """151 M and 150 M (section 20.2)."""
    model = pretrainkit.build_model(PRESETS[preset](), device="meta")
    assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(millions, abs=0.05)
    assert len(model.blocks()) == 24


def test_broken_shapes_are_refused():
    with pytest.raises(ConfigError, match="patch_size=7"):
        random_model(run_config(vit(patch_size=7)))
    with pytest.raises(ConfigError, match=r"model\.text\.num_heads=3"):
        random_model(run_config(words=text(num_heads=3)))
