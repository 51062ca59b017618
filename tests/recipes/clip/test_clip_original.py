"""Checkpoints in ZeroVL's layout, read and written."""

import logging
import math
import re
import sys

import pytest
import torch
from typer.testing import CliRunner

from pretrainkit.api import import_model, open_model
from pretrainkit.cli.main import app, main
from pretrainkit.config.yaml import dump_yaml
from pretrainkit.errors import CheckpointError, ConfigError, InputError
from pretrainkit.exporting.native import write_native
from pretrainkit.recipes.clip.config import ClipObjectiveConfig, TemperatureConfig
from pretrainkit.recipes.clip.original import import_original, interpolate_positions, to_original
from pretrainkit.recipes.clip.presets import PRESETS
from pretrainkit.recipes.clip.recipe import RECIPE
from pretrainkit.running.initial import load_initial
from support.clip_models import captions, images, random_model, run_config, tiny_bert, tiny_timm, vit
from support.remedies import followed

LEFTOVERS = {
    "image_encoder.model.model.pre_logits.fc.weight": torch.ones(2, 2),
    "text_encoder.model.model.embeddings.position_ids": torch.arange(4),
}


@pytest.fixture
def config(timm, transformers, tmp_path):
    temperature = TemperatureConfig(kind="parameter", value=0.03, smallest=0.001)
    return run_config(tiny_timm(), tiny_bert(tmp_path / "bert"), temperature=temperature)


def save(path, tensors, **more):
    torch.save({"state_dict": tensors, "meta": {"epoch": 3, "time": "now"}, "optimizer": {}, **more}, path)
    return path


def embed(model):
    return model(images(), *captions())


def test_fact_15_names_and_shapes_of_the_published_layout(timm, transformers):
    with torch.device("meta"):
        model = RECIPE.build_model(PRESETS["zerovl-14m"]())
    shapes = {name: tuple(tensor.shape) for name, tensor in to_original(model).items()}
    expected = {
        "image_encoder.model.model.cls_token": (1, 1, 768),
        "image_encoder.model.model.pos_embed": (1, 197, 768),
        "image_encoder.model.model.patch_embed.proj.weight": (768, 3, 16, 16),
        "image_encoder.model.model.blocks.11.attn.qkv.weight": (2304, 768),
        "image_encoder.model.model.blocks.0.mlp.fc1.weight": (3072, 768),
        "image_encoder.model.model.norm.bias": (768,),
        "text_encoder.model.model.embeddings.word_embeddings.weight": (30522, 768),
        "text_encoder.model.model.encoder.layer.11.attention.self.query.weight": (768, 768),
        "text_encoder.model.model.encoder.layer.0.output.LayerNorm.weight": (768,),
        "image_projection.linear.weight": (512, 768),
        "text_projection.linear.weight": (512, 768),
        "loss.temperature": (),
    }
    assert {name: shapes[name] for name in expected} == expected
    assert sum(torch.Size(shape).numel() for shape in shapes.values()) == 195_476_736 + 1
    assert not [name for name in shapes if "pooler" in name]


@pytest.mark.parametrize("prefix", ["", "module."])
def test_fact_37_a_checkpoint_loads_and_leftovers_are_reported(config, tmp_path, caplog, prefix):
    model = random_model(config)
    tensors = {prefix + name: tensor for name, tensor in (to_original(model) | LEFTOVERS).items()}
    path = save(tmp_path / "zerovl.pth", tensors)
    with caplog.at_level(logging.WARNING):
        found, state = import_original(path, config)
    assert "pre_logits.fc.weight" in caplog.text
    assert "position_ids" in caplog.text
    assert state.keys() == model.state_dict().keys()
    for name, tensor in model.state_dict().items():
        assert torch.equal(state[name], tensor), name
    assert found.model.temperature.kind == "parameter"


def test_the_command_writes_a_folder_that_opens_as_the_same_model(config, tmp_path, monkeypatch):
    model = random_model(config)
    path = save(tmp_path / "zerovl.pth", to_original(model))
    (tmp_path / "towers.yaml").write_text(dump_yaml(config.model_dump(mode="json")))
    command = ["import", str(path), "--recipe", "clip", "--format", "zerovl", "--out", str(tmp_path / "out")]
    monkeypatch.setattr(sys, "argv", ["pretrainkit", *command, "--config", str(tmp_path / "towers.yaml")])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 0
    opened = open_model(tmp_path / "out")
    with torch.no_grad():
        for ours, theirs in zip(embed(opened.model).values(), embed(model).values(), strict=True):
            assert torch.equal(ours, theirs)
    assert not opened.config.model.image.pretrained


def test_without_a_temperature_in_the_file_it_is_a_constant(config, tmp_path):
    tensors = to_original(random_model(config))
    del tensors["loss.temperature"]
    found, state = import_original(save(tmp_path / "zerovl.pth", tensors), config)
    assert found.model.temperature.kind == "constant"
    assert not [name for name in state if "temperature" in name]


def test_a_log_scale_becomes_a_temperature_and_back(config, tmp_path):
    temperature = TemperatureConfig(kind="log_parameter", value=0.03)
    config = config.model_copy(update={"model": config.model.model_copy(update={"temperature": temperature})})
    model = random_model(config)
    tensors = to_original(model)
    assert tensors["loss.temperature"].item() == pytest.approx(0.03)
    _, state = import_original(save(tmp_path / "zerovl.pth", tensors), config)
    torch.testing.assert_close(state["temperature.log_scale"], model.state_dict()["temperature.log_scale"])


def test_positions_are_fitted_to_a_larger_image(config, tmp_path):
    path = save(tmp_path / "zerovl.pth", to_original(random_model(config)))
    larger = config.model.image.model_copy(update={"image_size": 48})
    config = config.model_copy(update={"model": config.model.model_copy(update={"image": larger})})
    _, state = import_original(path, config)
    assert state["image.encoder.pos_embed"].shape == (1, 37, 24)


def test_interpolation_keeps_the_class_token_and_a_constant_grid():
    positions = torch.cat((torch.full((1, 1, 3), 7.0), torch.full((1, 16, 3), 2.0)), dim=1)
    found = interpolate_positions(positions, 37)
    torch.testing.assert_close(found, torch.cat((positions[:, :1], torch.full((1, 36, 3), 2.0)), dim=1))
    assert interpolate_positions(positions, 17) is positions
    with pytest.raises(CheckpointError, match="not square grids"):
        interpolate_positions(positions, 40)


def test_another_model_is_refused_with_names(config, tmp_path):
    whole = to_original(random_model(config))
    tensors = dict(whole)
    tensors["extra"] = tensors.pop("image_encoder.model.model.norm.weight")
    tensors["text_projection.linear.weight"] = torch.ones(20, 5)
    with pytest.raises(CheckpointError, match=r"image\.encoder\.norm\.weight[\s\S]*extra[\s\S]*\[20, 5\]"):
        import_original(save(tmp_path / "zerovl.pth", tensors), config)
    save(tmp_path / "zerovl.pth", whole)
    (tmp_path / "towers.yaml").write_text(dump_yaml(config.model_dump(mode="json")))
    errors = []
    for image in (vit(), tiny_timm(options=config.model.image.options | {"depth": 3})):
        with pytest.raises((InputError, CheckpointError)) as caught:
            import_original(tmp_path / "zerovl.pth", run_config(image, config.model.text))
        errors.append(caught.value)
    followed(errors[0], "recipes/clip/original.py: a checkpoint of ZeroVL has towers of")
    followed(errors[1], "recipes/clip/original.py: the checkpoint belongs to another model")
    assert all("--config clip/zerovl-14m" in str(error) for error in errors)
    command = ["import", str(tmp_path / "zerovl.pth"), "--recipe", "clip", "--format", "zerovl"]
    settings = ["--config", str(tmp_path / "towers.yaml"), "--out", str(tmp_path / "out")]
    assert CliRunner().invoke(app, [*command, *settings]).exit_code == 0


class Payload:
    def __reduce__(self):
        return (print, ("executed",))


def test_nothing_in_a_file_is_executed(config, tmp_path, capsys):
    path = save(tmp_path / "bad.pth", {}, payload=Payload())
    with pytest.raises(CheckpointError, match=r"bad\.pth cannot be read"):
        import_original(path, config)
    assert "executed" not in capsys.readouterr().out
    torch.save({"a": 1}, tmp_path / "empty.pth")
    with pytest.raises(CheckpointError, match="has no weights"):
        import_original(tmp_path / "empty.pth", config)
    with pytest.raises(CheckpointError, match="there is no file"):
        import_original(tmp_path / "missing.pth", config)


def test_settings_that_the_original_lacks_are_not_written():
    with pytest.raises(InputError, match="logit_bias"):
        to_original(random_model(run_config(objective=ClipObjectiveConfig(loss="siglip"))))


def test_unknown_formats_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"formats: huggingface, zerovl, openclip, openai"):
        import_model(tmp_path / "x.pth", "clip", tmp_path / "out", format="t5x")


# ---- runs that start from such weights ----


def with_temperature(config, **changes):
    model = config.model
    changed = model.temperature.model_copy(update=changes)
    return config.model_copy(update={"model": model.model_copy(update={"temperature": changed})})


def learned(config, path, temperature=0.0199913):
    """Weights with a learned temperature, exported from our own model or imported from the original's file."""
    model = random_model(config)
    with torch.no_grad():
        for name, parameter in model.temperature.named_parameters():
            parameter.fill_(temperature if name == "temperature" else -math.log(temperature))
    write_native(config, model, None, path)
    return path


def started(config, weights):
    """The fresh model of `config` with the values of `weights`."""
    config = config.model_copy(update={"init_from": str(weights)})
    model = random_model(config)
    load_initial(model, config)
    return model


def test_imported_weights_with_a_learned_temperature_start_a_run(config, tmp_path):
    """A run of clip/zerovl-14m starts from the published file like this."""
    model = random_model(config)
    with torch.no_grad():
        model.temperature.temperature.fill_(0.0199913)
    path = save(tmp_path / "zerovl.pth", to_original(model))
    (tmp_path / "towers.yaml").write_text(dump_yaml(config.model_dump(mode="json")))
    imported = import_model(path, "clip", tmp_path / "out", format="zerovl", config=tmp_path / "towers.yaml")
    assert started(config, imported).temperature.temperature.item() == pytest.approx(0.0199913)


@pytest.mark.parametrize("there", ["parameter", "log_parameter", "constant"])
@pytest.mark.parametrize("here", ["parameter", "log_parameter"])
def test_a_run_starts_from_the_temperature_of_the_weights_in_the_form_that_it_learns(tmp_path, caplog, there, here):
    given = with_temperature(run_config(), kind=there, value=0.0199913, smallest=0.001)
    weights = learned(given, tmp_path / "weights")
    wanted = with_temperature(run_config(), kind=here, value=0.05, smallest=0.002, largest=0.3)
    assert started(wanted, weights).logit_scale().item() == pytest.approx(1 / 0.0199913, rel=1e-5)
    assert "model.temperature.value=0.05 is not used" in caplog.text


def test_a_learned_temperature_beyond_a_limit_is_refused_and_the_advice_is_good(tmp_path):
    weights = learned(with_temperature(run_config(), smallest=0.001), tmp_path / "weights", 0.0047913)
    with pytest.raises(ConfigError, match=r"learned temperature 0\.0047913, but .*smallest is 0\.01") as error:
        started(run_config(), weights)
    limit = re.search(r"set model\.temperature\.smallest=([\d.]+)", str(error.value))
    model = started(with_temperature(run_config(), smallest=float(limit[1])), weights)
    assert model.logit_scale().item() == pytest.approx(1 / 0.0047913, rel=2e-4)


def test_a_constant_temperature_is_architecture(tmp_path):
    weights = learned(with_temperature(run_config(), kind="constant", value=0.03), tmp_path / "weights")
    with pytest.raises(
        CheckpointError, match=r"model\.temperature\.value: 0\.03 in the checkpoint, 0\.02 in the model"
    ):
        started(with_temperature(run_config(), kind="constant", value=0.02), weights)


def test_the_tag_of_an_encoder_and_rates_of_dropout_are_not_architecture(timm, tmp_path):
    options = {"patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 3}
    weights = learned(run_config(tiny_timm(name="vit_tiny_patch16_224.augreg_in21k")), tmp_path / "weights")
    for name in ("vit_tiny_patch16_224_in21k", "vit_tiny_patch16_224"):
        started(run_config(tiny_timm(name=name, options={**options, "drop_path_rate": 0.1})), weights)
    with pytest.raises(
        CheckpointError, match=r"model\.image\.name: vit_tiny.* in the checkpoint, deit_tiny.* in the model"
    ):
        started(run_config(tiny_timm(name="deit_tiny_patch16_224")), weights)
