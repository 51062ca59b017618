"""Files of published tokenizers, both ways (sections 10.1 and 10.7)."""

import pytest
import torch
from safetensors import safe_open

from pretrainkit.dist.devices import to_device
from pretrainkit.errors import CheckpointError, DataError, InputError
from pretrainkit.exporting.safetensors import write_tensors
from pretrainkit.recipes.image_tokenizer.model import build
from pretrainkit.recipes.image_tokenizer.model_config import (
    ConvCoderConfig,
    FiniteScalarConfig,
    UNetConfig,
    UViTConfig,
)
from pretrainkit.recipes.image_tokenizer.original import (
    config_of,
    from_original,
    model_of,
    original_name,
    to_original,
)
from pretrainkit.recipes.image_tokenizer.presets import PRESETS
from pretrainkit.recipes.image_tokenizer.recipe import RECIPE
from support.remedies import followed
from support.tokenizer_data import CODER, model


def write_original(path, tokenizer):
    RECIPE.export_file(PRESETS["rgb"](), tokenizer, None, "4m-tokenizer", path, name="")


def read_original(path, model=None):
    found = RECIPE.import_file(path, "4m-tokenizer", None if model is None else PRESETS["rgb"]().changed(model=model))
    return found.config.model, found.state


PUBLISHED = [name for name in PRESETS if not name.startswith("tiny")]
NAMES = {
    "encoder.patch.weight": "encoder.proj.weight",
    "encoder.layers.3.attention.qkv.bias": "encoder.blocks.3.attn.qkv.bias",
    "encoder.layers.11.feed_forward.down.weight": "encoder.blocks.11.mlp.fc2.weight",
    "encoder.last_mlp.up.weight": "encoder.post_mlp.fc1.weight",
    "encoder.last_mlp.norm.bias": "encoder.norm_mlp.bias",
    "to_latents.weight": "quant_proj.weight",
    "quantizer.codes_KD": "quantize._codebook.embed",
    "quantizer.use_K": "quantize._codebook.cluster_size",
    "decoder.time_1.weight": "decoder.time_embed.0.weight",
    "decoder.down.0.0.weight": "decoder.input_blocks.0.0.weight",
    "decoder.down.4.0.bias": "decoder.input_blocks.4.0.op.bias",
    "decoder.down.5.0.skip.weight": "decoder.input_blocks.5.0.skip_connection.weight",
    "decoder.middle.1.qkv.weight": "decoder.middle_block.1.qkv.weight",
    "decoder.up.0.1.out.weight": "decoder.output_blocks.0.1.proj_out.weight",
    "decoder.up.3.2.convolution.weight": "decoder.output_blocks.3.2.conv.weight",
    "decoder.out.weight": "decoder.out.2.weight",
}
"""Names of tensors of image_tokenizer/rgb."""
NAMES_UVIT = {
    "decoder.patch.weight": "decoder.conv_in.weight",
    "decoder.down.1.0.skip.weight": "decoder.down_blocks.1.resnets.0.conv_shortcut.weight",
    "decoder.halves.0.weight": "decoder.down_blocks.0.downsamplers.0.conv.weight",
    "decoder.doubles.0.convolution.bias": "decoder.up_blocks.0.upsamplers.0.conv.bias",
    "decoder.up.1.2.time.weight": "decoder.up_blocks.1.resnets.2.time_emb_proj.weight",
    "decoder.halve_middle.weight": "decoder.downsample_mid.conv.weight",
    "decoder.double_middle.convolution.weight": "decoder.upsample_mid.conv.weight",
    "decoder.layers.4.gate.weight": "decoder.mid_block.mid_block.4.adaLN_gate.weight",
    "decoder.mask_token": "decoder.mid_block.mask_token",
    "decoder.pixels.weight": "decoder.conv_out.weight",
}


@pytest.mark.parametrize(("preset", "names"), [("rgb", NAMES), ("rgb-uvit", NAMES_UVIT)])
def test_tensors_have_the_published_names(preset: str, names) -> None:
    config = PRESETS[preset]().model
    with torch.device("meta"):
        own = build(config).state_dict()
    for ours, theirs in names.items():
        assert ours in own
        assert original_name(ours, config) == theirs


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_tensor_has_one_name_there(name: str) -> None:
    config = PRESETS[name]().model
    with torch.device("meta"):
        own = build(config).state_dict()
    assert len({original_name(ours, config) for ours in own}) == len(own)


@pytest.mark.parametrize("name", PUBLISHED)
def test_configs_are_restored_except_for_settings_that_the_original_lacks(name: str) -> None:
    config = PRESETS[name]().model
    found = model_of(config_of(config))
    assert found.model_copy(update={"domain": config.domain}) == config
    assert (found.domain.num_channels, found.domain.num_classes) == (
        config.domain.num_channels, config.domain.num_classes
    )  # fmt: skip


def test_configs_have_the_published_keys() -> None:
    values = config_of(PRESETS["rgb"]().model)
    assert values["enc_type"] == "vit_b_enc"
    assert values["dec_type"] == "unet_patched"
    assert (values["quant_type"], values["codebook_size"], values["latent_dim"]) == ("lucid", 16384, 32)
    assert (values["beta_schedule"], values["prediction_type"]) == ("linear", "sample")
    assert config_of(PRESETS["dinov2-global"]().model)["enc_type"] == "BottleneckMLP/B_6-Wi_1024"
    assert config_of(PRESETS["rgb-uvit"]().model)["beta_schedule"] == "shifted_cosine:0.5"


@pytest.mark.parametrize("decoder", [None, UNetConfig(width=8, multipliers=(1, 2), num_blocks=1, attention_at=(2,)),
                                     UViTConfig(widths=(8, 16), num_blocks=1, hidden_size=16, num_layers=2,
                                                num_heads=2, halves_before_middle=False)])  # fmt: skip
def test_weights_come_back(decoder) -> None:
    config = model() if decoder is None else model(decoder=decoder)
    tokenizer = build(config)
    theirs = to_original(tokenizer)
    assert theirs["encoder.pos_emb"].shape == (1, 16, 2, 2)
    assert theirs["quantize._codebook.initted"].tolist() == [1.0]
    assert ("post_quant_proj.weight" in theirs) == (decoder is None)
    back = from_original(theirs, config)
    own = tokenizer.state_dict()
    assert back.keys() == own.keys()
    assert all(torch.equal(back[name], tensor) for name, tensor in own.items())


def test_a_file_describes_itself(tmp_path) -> None:
    config = model(
        encoder=PRESETS["rgb"]().model.encoder.model_copy(update={"hidden_size": 512, "num_layers": 8, "num_heads": 8}),
        decoder=PRESETS["rgb"]().model.encoder.model_copy(update={"hidden_size": 512, "num_layers": 8, "num_heads": 8}),
    )
    with torch.device("meta"):
        tokenizer = build(config)
    tokenizer = to_device(tokenizer, "cpu")
    for tensor in tokenizer.state_dict().values():
        tensor.zero_()
    write_original(tmp_path / "model.safetensors", tokenizer)
    with safe_open(tmp_path / "model.safetensors", framework="pt") as file:
        assert file.metadata()["enc_type"] == "vit_s_enc"
    found, state = read_original(tmp_path / "model.safetensors")
    assert found == config
    assert state.keys() == tokenizer.state_dict().keys()


def test_models_that_the_original_lacks_are_refused() -> None:
    with pytest.raises(InputError, match="no quantizer 'fsq'"):
        config_of(PRESETS["rgb"]().model.model_copy(update={"quantizer": FiniteScalarConfig(levels=(4, 4))}))
    with pytest.raises(InputError, match="no encoder like"):
        config_of(model())
    conv = ConvCoderConfig(width=8, multipliers=(1, 1, 1, 1), has_attention=False)
    with pytest.raises(CheckpointError, match="no encoder of kind 'conv'"):
        to_original(build(model(encoder=conv, decoder=conv)))


def test_files_without_a_description_take_the_config_as_advised(tmp_path) -> None:
    tokenizer = build(model())
    write_tensors(tmp_path / "model.safetensors", to_original(tokenizer), {"enc_type": "resnet"})
    with pytest.raises(CheckpointError) as error:
        read_original(tmp_path / "model.safetensors")
    followed(error.value, "recipes/image_tokenizer/original.py: the config names …, which is not supported")
    deeper = model(encoder=CODER.model_copy(update={"num_layers": CODER.num_layers + 1}))
    with pytest.raises(CheckpointError) as error:
        read_original(tmp_path / "model.safetensors", deeper)
    followed(error.value, "recipes/image_tokenizer/original.py: the file does not match the config")
    assert read_original(tmp_path / "model.safetensors", model())[0] == model()


_MLP = "BottleneckMLP/B_6-Wi_1024"
VECTORS = {"n_channels": 768, "patch_proj": False, "image_size": 224, "enc_type": _MLP, "dec_type": _MLP}
VECTORS |= {"quant_type": "memcodes", "num_codebooks": 16, "latent_dim": 512}


def test_vectors_have_one_position_whatever_the_size_of_the_image() -> None:
    config = model_of(VECTORS)
    assert config.domain.name == "DINOv2-B14-global"
    assert config.num_tokens == 16
    maps = model_of(VECTORS | {"enc_type": "vit_b_enc", "dec_type": "vit_b_dec", "patch_size": 14})
    assert (maps.domain.name, maps.grid) == ("DINOv2-B14", 16)


def test_positions_are_those_of_the_size_in_the_file(tmp_path) -> None:
    config = model(encoder=CODER.model_copy(update={"position_grid": 4}))
    tokenizer = build(config).eval()
    theirs = to_original(tokenizer)
    assert theirs["encoder.pos_emb"].shape == (1, 16, 4, 4)
    assert theirs["decoder.pos_emb"].shape == (1, 16, 2, 2)
    latents_BDhw = torch.randn(1, 3, 16, 16)
    patches_BDhw = tokenizer.encoder.patch(latents_BDhw)
    between = torch.nn.functional.interpolate(theirs["encoder.pos_emb"], (2, 2), mode="bicubic", align_corners=False)
    expected_TD = (patches_BDhw + between).flatten(2)[0].T
    seen: list[torch.Tensor] = []
    tokenizer.encoder.layers[0].register_forward_pre_hook(lambda _, arguments: seen.append(arguments[0]))
    tokenizer.encoder(latents_BDhw)
    torch.testing.assert_close(seen[0], expected_TD)
    write_tensors(tmp_path / "model.safetensors", theirs)
    assert read_original(tmp_path / "model.safetensors", config)[0] == config
    with pytest.raises(CheckpointError, match=r"encoder\.pos_emb has positions of 4 x 4 patches") as error:
        read_original(tmp_path / "model.safetensors", model())
    advice = followed(error.value, "recipes/image_tokenizer/original.py: … has positions of")
    assert "set model.encoder.position_grid=4" in advice


def test_sizes_of_position_tables_are_read_and_written() -> None:
    values = {"enc_type": "vit_b_enc", "dec_type": "vit_b_dec", "image_size": 224}
    config = model_of(values | {"image_size_enc": 448, "image_size_dec": 224})
    assert config.encoder.position_grid == 28
    assert config.decoder.position_grid is None
    assert config_of(config)["image_size_enc"] == 448
    assert model_of(config_of(config)) == config


def test_learned_positions_are_refused(tmp_path) -> None:
    theirs = to_original(build(model()))
    rounded = {name: tensor.bfloat16() for name, tensor in theirs.items()}
    write_tensors(tmp_path / "rounded.safetensors", rounded)
    assert read_original(tmp_path / "rounded.safetensors", model())[0] == model()
    theirs["encoder.pos_emb"] = theirs["encoder.pos_emb"] + 0.1
    write_tensors(tmp_path / "learned.safetensors", theirs)
    with pytest.raises(CheckpointError, match="it was learned, which is not supported"):
        read_original(tmp_path / "learned.safetensors", model())


def test_a_layer_of_uvit_has_both_its_names(tmp_path) -> None:
    decoder = UViTConfig(widths=(8, 16), num_blocks=1, hidden_size=16, num_layers=1, num_heads=2)
    config = model(image_size=16, patch_size=8, decoder=decoder)
    tokenizer = build(config)
    both = to_original(tokenizer)
    names = [f"decoder.downsample_mid.{name}.weight" for name in ("conv", "Conv2d_0")]
    assert torch.equal(both[names[0]], both[names[1]])
    # save_pretrained writes a shared tensor once, under its first name in the alphabet.
    once = {name: tensor for name, tensor in both.items() if "downsample_mid.conv." not in name}
    for state in (both, once):
        back = from_original(state, config)
        assert all(torch.equal(back[name], tensor) for name, tensor in tokenizer.state_dict().items())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"beta_schedule": "scaled_linear"}, "beta_schedule=scaled_linear, which is not supported"),
        ({"prediction_type": "x0"}, "prediction_type=x0, which is not supported"),
        ({"code_replacement_policy": "none"}, "code_replacement_policy=none, which is not supported"),
    ],
)
def test_unknown_values_of_a_config_are_named(change, message: str) -> None:
    with pytest.raises(CheckpointError, match=message) as error:
        model_of({"enc_type": "vit_s_enc", "dec_type": "unet_patched"} | change)
    followed(error.value, "recipes/image_tokenizer/original.py: the config has …=…, which is not supported")


def test_a_value_of_another_type_is_named_with_its_file(tmp_path) -> None:
    write_tensors(tmp_path / "model.safetensors", to_original(build(model())), {"enc_type": "vit_s_enc",
                                                                                "codebook_size": "8-8"})  # fmt: skip
    with pytest.raises(DataError, match=r"(?s)model\.safetensors is damaged, .*8-8.*--config"):
        read_original(tmp_path / "model.safetensors")
