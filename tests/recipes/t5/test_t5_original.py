"""T5X's names, both ways."""

import pytest
import torch

from pretrainkit.errors import CheckpointError, InputError
from pretrainkit.recipes.t5.original import from_original, read_original, to_original, write_original
from support.remedies import followed
from support.t5_batches import model_config, random_model

FAMILIES = ["1.0", "1.1", "umt5", "lm", "mlm"]


def assert_equal(found, expected):
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


@pytest.mark.parametrize("family", FAMILIES)
def test_weights_come_back(family):
    config = model_config(family)
    state = random_model(config).state_dict()
    assert_equal(from_original(to_original(state, config), config), state)


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_files_come_back(tmp_path, suffix):
    config = model_config()
    state = random_model(config).state_dict()
    write_original(tmp_path / f"t5x{suffix}", state, config)
    assert_equal(from_original(read_original(tmp_path / f"t5x{suffix}"), config), state)


def test_names_and_shapes_are_those_of_the_original():
    arrays = to_original(random_model(model_config()).state_dict(), model_config())
    expected = {
        "token_embedder/embedding": [96, 32],
        "encoder/relpos_bias/rel_embedding": [4, 32],
        "decoder/relpos_bias/rel_embedding": [4, 32],
        "encoder/encoder_norm/scale": [32],
        "decoder/decoder_norm/scale": [32],
        "decoder/logits_dense/kernel": [32, 96],
    }
    for layer in (0, 1):
        for stack, own in (("encoder", ["attention"]), ("decoder", ["self_attention", "encoder_decoder_attention"])):
            for attention in own:
                path = f"{stack}/layers_{layer}/{attention}"
                expected |= {f"{path}/{name}/kernel": [32, 24] for name in ("query", "key", "value")}
                expected[f"{path}/out/kernel"] = [24, 32]
            mlp = f"{stack}/layers_{layer}/mlp"
            expected |= {f"{mlp}/wi_0/kernel": [32, 40], f"{mlp}/wi_1/kernel": [32, 40], f"{mlp}/wo/kernel": [40, 32]}
        norms = {"encoder": ["attention", "mlp"], "decoder": ["self_attention", "cross_attention", "mlp"]}
        for stack, names in norms.items():
            for name in names:
                suffix = "layer_norm/scale"
                expected[f"{stack}/layers_{layer}/pre_{name}_{suffix}"] = [32]
    assert {name: list(array.shape) for name, array in arrays.items()} == expected


def test_a_decoder_alone_contains_its_embedding():
    config = model_config("lm")
    state = random_model(config).state_dict()
    arrays = to_original(state, config)
    assert "decoder/token_embedder/embedding" in arrays
    arrays["token_embedder/embedding"] = arrays.pop("decoder/token_embedder/embedding")  # an earlier export
    assert_equal(from_original(arrays, config), state)


def test_the_scalable_variant_is_unstacked_and_the_optimizer_left_out():
    config = model_config("umt5")
    state = random_model(config).state_dict()
    scanned = {}
    for name, array in to_original(state, config).items():
        stack, _, rest = name.partition("/")
        if rest.startswith("layers_0/"):
            inner = rest.removeprefix("layers_0/")
            other = to_original(state, config)[f"{stack}/layers_1/{inner}"]
            both = torch.stack((array, other), dim=1)
            if "attention/" in inner:  # heads have a dim of their own
                heads = (config.num_heads, config.head_size)
                both = both.unflatten(0, heads).movedim(1, 2) if "/out/" in inner else both.unflatten(2, heads)
            scanned[f"target/{stack}/{stack}/{inner}"] = both
        elif not rest.startswith("layers_"):
            scanned[f"target/{name}"] = array
    scanned["state/step"] = torch.tensor(7)
    assert_equal(from_original(scanned, config), state)
    shared = config.model_copy(update={"bias_per_layer": False})
    with pytest.raises(CheckpointError, match="bias_per_layer=true") as error:
        from_original(scanned, shared)
    advised = followed(error.value, "recipes/t5/original.py: the checkpoint has one table of")
    assert advised == "  set model.bias_per_layer=true"
    assert_equal(from_original(scanned, shared.model_copy(update={"bias_per_layer": True})), state)


@pytest.mark.parametrize("change", ["missing", "left over"])
def test_other_weights_are_refused(change):
    config = model_config()
    arrays = to_original(random_model(config).state_dict(), config)
    if change == "missing":
        del arrays["encoder/encoder_norm/scale"]
    else:
        arrays["encoder/layers_2/mlp/wo/kernel"] = torch.zeros(40, 32)
    with pytest.raises(CheckpointError, match="encoder_norm" if change == "missing" else "layers_2"):
        from_original(arrays, config)


def test_files_of_other_kinds_and_broken_ones_are_refused(tmp_path):
    config = model_config()
    with pytest.raises(InputError, match=r"t5x\.bin ends in '\.bin'"):
        write_original(tmp_path / "t5x.bin", random_model(config).state_dict(), config)
    whole = tmp_path / "whole.npz"
    write_original(whole, random_model(config).state_dict(), config)
    for name, content in (("text.npz", b"garbage"), ("cut.npz", whole.read_bytes()[:-50])):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(CheckpointError, match=r"it is not a complete \.npz file of numbers"):
            read_original(tmp_path / name)
    with pytest.raises(CheckpointError, match="No such file"):
        read_original(tmp_path / "absent.npz")
