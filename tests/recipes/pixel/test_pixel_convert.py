"""The same numbers as transformers' ViTMAE, and published checkpoints in both directions."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pretrainkit.errors import CheckpointError
from pretrainkit.recipes.pixel.batch import pack
from pretrainkit.recipes.pixel.convert import (
    from_huggingface_config,
    from_huggingface_state,
    read_huggingface,
    to_huggingface_config,
    to_huggingface_state,
    with_length,
    write_huggingface,
)
from pretrainkit.recipes.pixel.model import PixelForPretraining, build, position_table
from pretrainkit.recipes.pixel.objective import PixelObjective
from pretrainkit.recipes.pixel.presets import base
from pretrainkit.recipes.pixel.recipe import RECIPE
from pretrainkit.rendering import Renderer, RendererConfig, load_renderer, save_renderer
from pretrainkit.rendering.identity import describe
from support.pixel_batches import pictures, small_model, small_run

Reader = Callable[[PixelForPretraining], nn.Module]


def awake_model(seed: int = 0, **settings: object) -> PixelForPretraining:
    """Build a model with all parameters away from their initial values, so that a missing one is noticed."""
    torch.manual_seed(seed)
    model = build(small_model(**settings)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


@pytest.fixture
def their_model(transformers: ModuleType, tmp_path: Path) -> Callable[[PixelForPretraining], nn.Module]:
    """The same weights as transformers reads them."""

    def read(model: PixelForPretraining) -> nn.Module:
        run = small_run().model_copy(update={"model": model.config})
        write_huggingface(model.state_dict(), run, tmp_path / "theirs", model_type="vit_mae")
        return transformers.ViTMAEForPreTraining.from_pretrained(tmp_path / "theirs").eval()

    return read


_NEW_NAMES = {
    "vit.layers.": "vit.encoder.layer.",
    "attention.q_proj": "attention.attention.query",
    "attention.k_proj": "attention.attention.key",
    "attention.v_proj": "attention.attention.value",
    "attention.o_proj": "attention.output.dense",
    "mlp.fc1": "intermediate.dense",
    "mlp.fc2": "output.dense",
}
"""Map from names of modules in transformers 5 to those in files."""


def name_in_files(name: str) -> str:
    for new, published in _NEW_NAMES.items():
        name = name.replace(new, published)
    return name


def their_loss(theirs: nn.Module, pixels: np.ndarray, is_masked: np.ndarray, num_kept: int) -> Tensor:
    """Return the loss of the original, for texts that fill their canvas."""
    pictures_BCHW = torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255
    seen = theirs.vit(pictures_BCHW, noise=torch.from_numpy(is_masked.astype(np.float32)))
    assert seen.last_hidden_state.shape[1] == num_kept + 1
    drawn = theirs.decoder(seen.last_hidden_state, seen.ids_restore).logits
    patch = pixels.shape[1]
    target = pictures_BCHW.unflatten(3, (-1, patch)).permute(0, 3, 2, 4, 1).flatten(2)
    target = (target - target.mean(-1, keepdim=True)) / (target.var(-1, keepdim=True) + 1e-6).sqrt()
    hidden = torch.from_numpy(is_masked).float()
    return ((drawn - target).square().mean(-1) * hidden).sum() / hidden.sum()


@pytest.mark.parametrize("grey", [True, False])
def test_loss_and_gradients_equal_those_of_transformers(their_model: Reader, grey: bool) -> None:
    model = awake_model(decoder_norm_epsilon=1e-12)
    theirs = their_model(model)
    theirs.config.mask_ratio = 0.25
    pixels, num_text, _ = pictures(1, [16, 16], colors=0 if grey else 3)
    rng = np.random.default_rng(0)
    is_masked = rng.random((2, 16)).argsort(1) < 4
    objective = PixelObjective(small_run())
    batch = {k: torch.from_numpy(v) for k, v in pack(pixels, num_text, is_masked).items()}
    found = objective.losses(model, batch)["masked_patch_loss"]
    loss = found.mean()
    loss.backward()
    in_color = np.repeat(pixels[..., None], 3, -1) if grey else pixels
    expected = their_loss(theirs, in_color, is_masked, 12)
    expected.backward()
    assert float(found.weight) == 8
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=0)
    ours = to_huggingface_state(
        {name: p.grad if p.grad is not None else torch.zeros_like(p) for name, p in model.named_parameters()},
        model.config,
    )
    for name, parameter in theirs.named_parameters():
        if "pos" not in name:  # fixed tables, which transformers forgets when it loads a model
            torch.testing.assert_close(ours[name_in_files(name)], parameter.grad, rtol=1e-4, atol=1e-6, msg=name)


def masked_reference(theirs: nn.Module, pixels: np.ndarray, num_text: np.ndarray, is_masked: np.ndarray) -> Tensor:
    """The original's rule for padding: it is never attended to. Their blocks, one row at a time without it."""
    found = []
    for row, length in enumerate((num_text + 1).tolist()):
        picture = torch.from_numpy(np.repeat(pixels[row, ..., None], 3, -1)).permute(2, 0, 1).float()[None] / 255
        x = theirs.vit.embeddings.patch_embeddings.projection(picture).flatten(2).transpose(1, 2)
        table = theirs.vit.embeddings.position_embeddings
        x = (x + table[:, 1:])[0, :length]
        hidden = torch.from_numpy(is_masked[row, :length])
        first = theirs.vit.embeddings.cls_token[0] + table[0, :1]
        x = torch.cat((first, x[~hidden]))[None]
        for layer in theirs.vit.layers:
            x = layer(x)
        x = theirs.vit.layernorm(x)
        y = theirs.decoder.decoder_embed(x)[0]
        all_patches = theirs.decoder.mask_token[0].repeat(1 + length, 1)
        all_patches[torch.cat((torch.tensor([True]), ~hidden))] = y
        y = (all_patches + theirs.decoder.decoder_pos_embed[0, : 1 + length])[None]
        for layer in theirs.decoder.decoder_layers:
            y = layer(y)
        drawn = theirs.decoder.decoder_pred(theirs.decoder.decoder_norm(y))[0, 1:]
        found.append(drawn[hidden])
    return torch.cat(found)


def test_short_texts_equal_blocks_of_transformers_without_padding(their_model: Reader) -> None:
    model = awake_model(3, decoder_norm_epsilon=1e-12)
    theirs = their_model(model)
    pixels, num_text, is_masked = pictures(2, [5, 16, 2, 9])
    batch = {k: torch.from_numpy(v) for k, v in pack(pixels, num_text, is_masked).items()}
    with torch.no_grad():
        ours = model(batch, 16)
        expected = masked_reference(theirs, pixels, num_text, is_masked)
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)


def test_base_has_the_published_names_and_sizes() -> None:
    with torch.device("meta"):
        model = build(base().model)
    state = to_huggingface_state(model.state_dict(), model.config)
    assert len(state) == 334
    assert sum(tensor.numel() for tensor in state.values()) == 112_334_080
    assert sum(t.numel() for name, t in state.items() if name.startswith("vit.")) == 86_054_400
    assert sum(t.numel() for name, t in state.items() if name.startswith("vit.embeddings.")) == 998_400
    assert sum(t.numel() for name, t in state.items() if name.startswith("decoder.")) == 26_279_680
    assert sum(p.numel() for p in model.parameters() if p.requires_grad) == 111_655_680
    assert {name: tuple(state[name].shape) for name in _PUBLISHED} == _PUBLISHED


_PUBLISHED = {
    "vit.embeddings.cls_token": (1, 1, 768),
    "vit.embeddings.position_embeddings": (1, 530, 768),
    "vit.embeddings.patch_embeddings.projection.weight": (768, 3, 16, 16),
    "vit.encoder.layer.11.attention.attention.query.weight": (768, 768),
    "vit.encoder.layer.0.intermediate.dense.weight": (3072, 768),
    "vit.encoder.layer.0.layernorm_before.bias": (768,),
    "vit.layernorm.weight": (768,),
    "decoder.mask_token": (1, 1, 512),
    "decoder.decoder_pos_embed": (1, 530, 512),
    "decoder.decoder_embed.weight": (512, 768),
    "decoder.decoder_layers.7.output.dense.weight": (512, 2048),
    "decoder.decoder_norm.bias": (512,),
    "decoder.decoder_pred.weight": (768, 512),
}


@pytest.mark.parametrize("model_type", ["pixel", "vit_mae"])
def test_a_folder_comes_back_as_it_went(tmp_path: Path, model_type: str) -> None:
    model = awake_model(decoder_norm_epsilon=1e-5 if model_type == "pixel" else 1e-12)
    run = small_run().model_copy(update={"model": model.config})
    write_huggingface(model.state_dict(), run, tmp_path / "out", model_type=model_type)
    config, objective, state = read_huggingface(tmp_path / "out")
    assert config == model.config
    assert objective == {"mask_ratio": run.objective.mask_ratio, "normalize_target": True}
    assert state.keys() == model.state_dict().keys()
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())


def test_an_export_brings_its_renderer_with_all_fonts(latin_font: str, tmp_path: Path) -> None:
    pytest.importorskip("freetype", reason="needs the package freetype-py to draw text")
    (tmp_path / "further.ttf").write_bytes(Path(latin_font).read_bytes() + b"more")
    renderer = Renderer(RendererConfig(font_file=latin_font, fallback_fonts=(str(tmp_path / "further.ttf"),)))
    save_renderer(renderer, tmp_path / "kept")
    write_huggingface(awake_model().state_dict(), small_run(), tmp_path / "out", renderer=tmp_path / "kept")
    assert describe(load_renderer(tmp_path / "out")) == describe(renderer)


@pytest.mark.parametrize("backend", ["pil", "torchvision"])
def test_the_image_processor_of_an_export_gives_the_pixels_that_are_read(
    backend: str, transformers: ModuleType, latin_font: str, tmp_path: Path
) -> None:
    """Rendered text as a picture, in colour or grey, becomes the input of ViTMAE: in its width, in [0, 1]."""
    pytest.importorskip("freetype", reason="needs the package freetype-py to draw text")
    pytest.importorskip("torchvision" if backend == "torchvision" else "PIL")
    from PIL import Image

    RECIPE.export_huggingface(small_run(), awake_model(), None, tmp_path / "out")
    drawn = [
        Renderer(RendererConfig(font_file=latin_font, max_seq_length=9, **color))("some words").pixel_values
        for color in ({}, {"rgb": True, "font_color": "red"})
    ]
    processor = transformers.AutoImageProcessor.from_pretrained(tmp_path / "out", backend=backend)
    assert [one.shape for one in drawn] == [(16, 144), (16, 144, 3)]
    for one in drawn:
        found = processor(images=Image.fromarray(one), return_tensors="pt")["pixel_values"]
        expected = torch.from_numpy(one.copy()).view(16, 144, -1).permute(2, 0, 1).expand(1, 3, -1, -1).float() / 255
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-7)


def test_a_folder_that_transformers_wrote_is_read(their_model: Reader, tmp_path: Path) -> None:
    model = awake_model(decoder_norm_epsilon=1e-12)
    their_model(model).save_pretrained(tmp_path / "saved")
    config, _, state = read_huggingface(tmp_path / "saved")
    assert config == model.config
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())


def test_an_import_tells_that_its_image_processor_normalizes(
    their_model: Reader, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The processors of ViTMAE do: transformers gives the model other pixels than this recipe."""
    their_model(awake_model(decoder_norm_epsilon=1e-12)).save_pretrained(tmp_path)
    for normalizes in (False, True):
        transformers = pytest.importorskip("transformers")
        transformers.ViTImageProcessor(do_normalize=normalizes).save_pretrained(tmp_path)
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            read_huggingface(tmp_path)
        assert ("normalizes colors, which this recipe does not" in caplog.text) == normalizes


def test_a_pickled_file_of_tensors_is_read(tmp_path: Path) -> None:
    model = awake_model()
    write_huggingface(model.state_dict(), small_run(), tmp_path / "out")
    (tmp_path / "out" / "model.safetensors").unlink()
    torch.save(to_huggingface_state(model.state_dict(), model.config), tmp_path / "out" / "pytorch_model.bin")
    _, state = RECIPE.import_huggingface(tmp_path / "out")
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())


def test_published_config_is_pixel_base() -> None:
    published = to_huggingface_config(base())
    assert published["image_size"] == [16, 8464]
    config, objective = from_huggingface_config({"model_type": "pixel"})
    assert config == base().model
    assert objective == {"mask_ratio": 0.25, "normalize_target": True}
    with pytest.raises(CheckpointError, match="num_channels 1"):
        from_huggingface_config({"model_type": "pixel", "num_channels": 1})


def test_a_model_with_interpolated_positions_is_refused() -> None:
    """The original interpolates the table of such a model for texts of any length, also those that fit."""
    values = {"model_type": "pixel", "interpolate_pos_encoding": False}
    assert from_huggingface_config(values)[0] == base().model
    with pytest.raises(CheckpointError, match="interpolate_pos_encoding True; this recipe only supports False"):
        from_huggingface_config(values | {"interpolate_pos_encoding": True})


def test_tensors_that_are_missing_or_left_over_are_refused() -> None:
    model = awake_model()
    state = to_huggingface_state(model.state_dict(), model.config)
    with pytest.raises(CheckpointError, match="are not part of this model"):
        from_huggingface_state(state | {"classifier.weight": torch.zeros(1)}, model.config)
    del state["decoder.mask_token"]
    with pytest.raises(CheckpointError, match="missing"):
        from_huggingface_state(state, model.config)


def test_a_shortened_model_keeps_its_grid_through_a_folder(tmp_path: Path) -> None:
    model = awake_model()
    config, state = with_length(model.state_dict(), model.config, 9)
    short = small_run().model_copy(update={"model": config})
    write_huggingface(state, short, tmp_path / "out")
    values = json.loads((tmp_path / "out" / "config.json").read_text())
    assert values["image_size"] == [4, 36]
    read, _, _ = read_huggingface(tmp_path / "out")
    assert (read.max_patches, read.grid_width) == (9, 4)


def test_longer_tables_keep_their_rows_and_continue_by_the_formula() -> None:
    model = awake_model()
    config, longer = with_length(model.state_dict(), model.config, 25)
    table = longer["encoder.position_embedding"]
    assert torch.equal(table[:17], model.state_dict()["encoder.position_embedding"])
    assert torch.equal(table, position_table(25, 16, 4))
    again = build(config)
    again.load_state_dict(longer)
    batch = pack(*pictures(0, [25, 7], num_patches=25))
    outputs = again({k: torch.from_numpy(v) for k, v in batch.items()}, 25)
    assert outputs.isfinite().all()


def test_difference_from_transformers_is_rounding(transformers: ModuleType, tmp_path: Path) -> None:
    model = awake_model()
    run = small_run()
    RECIPE.export_huggingface(run, model, None, tmp_path / "out")
    assert RECIPE.difference_from_huggingface(run, model, tmp_path / "out") < 1e-5
