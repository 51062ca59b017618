"""Equal embeddings in transformers, both ways, with both libraries reading the folder from disk."""

import io
import json
import math
import re
from importlib.util import find_spec
from itertools import product

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from pretrainkit.api import load_config, open_model
from pretrainkit.cli.main import app
from pretrainkit.errors import CheckpointError, InputError
from pretrainkit.exporting.card import write_card
from pretrainkit.images.ops import CenterCrop, RandomCrop, Resize, ResizeShorter
from pretrainkit.recipes.clip.captions import CaptionTokenizer
from pretrainkit.recipes.clip.config import ClipObjectiveConfig, ProjectionConfig, TemperatureConfig, TimmConfig
from pretrainkit.recipes.clip.model import build_text_tower
from pretrainkit.recipes.clip.pixels import PixelReader
from pretrainkit.recipes.clip.recipe import RECIPE
from support.clip_models import (
    CAPTIONS,
    VOCAB,
    captions,
    images,
    make_tokenizer,
    random_model,
    run_config,
    text,
    tiny_bert,
    tiny_timm,
    vit,
)
from support.remedies import followed


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return make_tokenizer(tmp_path_factory.mktemp("tokenizer") / "wordpiece")


def test_import_recognizes_the_recipe_by_the_folder(transformers, tokenizer, tmp_path):
    config = run_config(vit(), text())
    model = random_model(config)
    RECIPE.export_huggingface(config, model, tokenizer, tmp_path / "export")
    assert CliRunner().invoke(app, ["import", str(tmp_path / "export"), "--out", str(tmp_path / "own")]).exit_code == 0
    opened = open_model(tmp_path / "own")
    assert opened.recipe.name == "clip"
    assert all(torch.equal(tensor, model.state_dict()[name]) for name, tensor in opened.model.state_dict().items())


def their_inputs(ids, num_tokens):
    is_real = torch.arange(ids.shape[1]) < num_tokens[:, None]
    return {"input_ids": ids.long(), "attention_mask": is_real.long()}


def export(config, model, tokenizer, out, transformers):
    RECIPE.export_huggingface(config, model, tokenizer, out)
    return transformers.AutoModel.from_pretrained(out).eval()


@torch.no_grad()
def assert_equal(ours, theirs, size=32):
    pixels, (ids, num_tokens) = images(size=size), captions()
    own = ours(pixels, ids, num_tokens)
    other = theirs(pixel_values=ours.normalized(pixels), **their_inputs(ids, num_tokens))
    torch.testing.assert_close(own["image"], other.image_embeds, rtol=0, atol=1e-5)
    torch.testing.assert_close(own["text"], other.text_embeds, rtol=0, atol=1e-5)
    torch.testing.assert_close(ours.logit_scale(), theirs.logit_scale.exp(), rtol=1e-5, atol=0)


@pytest.mark.parametrize("activation", ["gelu", "quick_gelu"])
@pytest.mark.parametrize("kind", ["constant", "parameter", "log_parameter"])
def test_own_towers_equal_clip_of_transformers(transformers, tokenizer, tmp_path, activation, kind):
    config = run_config(
        vit(activation=activation), text(activation=activation), temperature=TemperatureConfig(kind=kind, value=0.03)
    )
    model = random_model(config)
    theirs = export(config, model, tokenizer, tmp_path / "hf", transformers)
    assert isinstance(theirs, transformers.CLIPModel)
    assert_equal(model, theirs)


@pytest.mark.parametrize("eos", [3, 2])
def test_files_that_transformers_writes_are_read_back(transformers, tmp_path, eos):
    """A CLIPModel of transformers; with end token 2 it reads the token of the highest id, which is the end token
    then."""
    shared = {"num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    clip_config = transformers.CLIPConfig(
        text_config={
            **shared,
            "vocab_size": VOCAB,
            "hidden_size": 16,
            "max_position_embeddings": 12,
            "eos_token_id": eos,
        },
        vision_config={**shared, "hidden_size": 12, "image_size": 32, "patch_size": 8},
        projection_dim=10,
    )
    torch.manual_seed(0)
    theirs = transformers.CLIPModel(clip_config).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.05)
    theirs.save_pretrained(tmp_path)
    opened = open_model(tmp_path)
    assert opened.config.recipe == "clip"
    ids, num_tokens = captions(eos=3 if eos == 3 else VOCAB - 1)
    if eos == 2:
        ids[ids == VOCAB - 1] = VOCAB - 2
        ids[torch.arange(len(ids)), num_tokens.long() - 1] = VOCAB - 1
    with torch.no_grad():
        own = opened.model(images(), ids, num_tokens)
        pixels = opened.model.normalized(images())
        other = theirs(pixel_values=pixels, **their_inputs(ids, num_tokens))
    torch.testing.assert_close(own["image"], other.image_embeds, rtol=0, atol=1e-5)
    torch.testing.assert_close(own["text"], other.text_embeds, rtol=0, atol=1e-5)
    torch.testing.assert_close(opened.model.logit_scale(), theirs.logit_scale.detach().exp())


def test_there_and_back_is_the_same_to_the_bit(tokenizer, tmp_path):
    config = run_config(valid_transforms=(ResizeShorter(size=40), CenterCrop(size=32)))
    model = random_model(config)
    RECIPE.export_huggingface(config, model, tokenizer, tmp_path / "hf")
    found, state = RECIPE.import_huggingface(tmp_path / "hf")
    assert found.model.image == config.model.image
    assert found.model.text == config.model.text
    assert found.model.projection.dim == 20
    assert found.data.valid_transforms == config.data.valid_transforms
    assert found.data.normalize == config.data.normalize
    expected = model.state_dict()
    assert state.keys() == expected.keys()
    for name in expected:
        assert torch.equal(state[name], expected[name]) or name == "temperature.log_scale"


@pytest.mark.parametrize("pair", ["timm and bert", "own and bert", "timm and own"])
def test_other_towers_equal_the_dual_encoder_of_transformers(
    timm, transformers, tokenizer, tmp_path, pair, monkeypatch, capsys
):
    image = tiny_timm() if pair.startswith("timm") else vit()
    words = tiny_bert(tmp_path / "bert") if pair.endswith("bert") else text()
    config = run_config(image, words, valid_transforms=(ResizeShorter(size=40), CenterCrop(size=32)))
    model = random_model(config)
    theirs = export(config, model, tokenizer, tmp_path / "hf", transformers)
    assert isinstance(theirs, transformers.VisionTextDualEncoderModel)
    assert_equal(model, theirs)
    opened = open_model(tmp_path / "hf")
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(opened.model.state_dict()[name], tensor, rtol=1e-6, atol=1e-7)
    monkeypatch.chdir(tmp_path)
    write_card(tmp_path / "hf", config, None, name="hf")
    (snippet,) = re.findall(r"```python\n(.*?)```", (tmp_path / "hf" / "README.md").read_text(), re.DOTALL)
    Image.new("RGB", (50, 40), "red").save("photo.png")
    exec(compile(snippet, "card", "exec"), {})
    assert re.match(r"tensor\(\[\[", capsys.readouterr().out)


def test_a_pooler_of_another_library_is_refused_and_the_tower_alone_is_read_as_advised(
    timm, transformers, tokenizer, tmp_path
):
    config = run_config(tiny_timm(), tiny_bert(tmp_path / "bert"))
    theirs = export(config, random_model(config), tokenizer, tmp_path / "hf", transformers)
    torch.nn.init.normal_(theirs.text_model.pooler.dense.weight)
    theirs.save_pretrained(tmp_path / "hf")
    with pytest.raises(CheckpointError) as error:
        open_model(tmp_path / "hf")
    advice = followed(error.value, "recipes/clip/dual_layout.py: the text tower has a pooler with a tanh")
    folder = str(tmp_path / "words")
    exec(re.search(r"model\.\S+", advice)[0].replace("WORDS", folder), {"model": theirs})
    (setting,) = re.findall(r"'(model\.text=.*)'", advice)
    tower = build_text_tower(load_config("clip/tiny", [setting.replace("WORDS", folder)]).model.text)
    for name, tensor in tower.encoder.state_dict().items():
        assert torch.equal(tensor, theirs.text_model.state_dict()[name]), name


def test_the_processor_gives_the_pixels_and_ids_of_evaluation(timm, transformers, tokenizer, tmp_path):
    """Sizes, normalization and special tokens; what becomes of pictures is tested below."""
    Image = pytest.importorskip("PIL.Image")
    config = run_config(valid_transforms=(Resize(size=40), CenterCrop(size=32)), normalize=((0.4,) * 3, (0.3,) * 3))
    model = random_model(config)
    theirs = export(config, model, tokenizer, tmp_path / "hf", transformers)
    processor = transformers.AutoProcessor.from_pretrained(tmp_path / "hf")
    assert isinstance(processor, transformers.CLIPProcessor)
    grey = Image.new("RGB", (90, 50), (127, 127, 127))
    inputs = processor(text=CAPTIONS, images=[grey] * 3, padding=True, return_tensors="pt")
    assert inputs["pixel_values"].shape == (3, 3, 32, 32)
    torch.testing.assert_close(inputs["pixel_values"], torch.full((3, 3, 32, 32), (127 / 255 - 0.4) / 0.3))
    lengths = inputs["attention_mask"].sum(1)
    with torch.no_grad():
        own = model(None, inputs["input_ids"], lengths)["text"]
        other = theirs.get_text_features(inputs["input_ids"], attention_mask=inputs["attention_mask"]).pooler_output
    assert (inputs["input_ids"][torch.arange(3), lengths - 1] == 3).all()
    torch.testing.assert_close(own, torch.nn.functional.normalize(other, dim=-1), rtol=0, atol=1e-5)


def picture(width, height, seed, mode="RGB"):
    """Smooth and grained, as photographs are."""
    Image = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(seed)
    few = Image.fromarray(rng.integers(0, 256, (-(-height // 7), -(-width // 7), 3), np.uint8))
    smooth = np.asarray(few.resize((width, height), Image.Resampling.BICUBIC)).astype(int)
    grained = np.clip(smooth + rng.integers(-20, 20, smooth.shape), 0, 255)
    return Image.fromarray(grained.astype(np.uint8)).convert(mode)


def picture_files():
    """Files of odd sizes, wide, high, smaller than the crop and of exactly its size, in every opaque kind."""
    sizes = [(101, 67), (67, 101), (33, 95), (41, 40), (257, 33), (30, 21), (32, 32), (63, 32), (1, 50)]
    kinds = [("JPEG", "RGB"), ("PNG", "RGB"), ("JPEG", "L"), ("PNG", "L"), ("PNG", "P"), ("JPEG", "CMYK"), ("PNG", "1")]
    for number, (size, (format, mode)) in enumerate([*product(sizes, kinds[:2]), *product(sizes[:2], kinds[2:])]):
        file = io.BytesIO()
        picture(*size, number, mode).save(file, format, **({"quality": 85} if format == "JPEG" else {}))
        yield file.getvalue()


def levels_apart(config, model, folder, backend, transformers):
    """Yield the largest difference of a colour between a processor of transformers and our evaluation, for each
    file."""
    Image = pytest.importorskip("PIL.Image")
    processor = transformers.AutoImageProcessor.from_pretrained(folder, backend=backend)
    reader = PixelReader(config.data.valid_transforms, config.data.normalize, is_exact=True)
    deviation_311 = torch.tensor(model.mean_and_deviation[1]).view(3, 1, 1)
    for content in picture_files():
        ours = torch.empty(3, reader.size, reader.size, dtype=torch.uint8)
        reader(content, np.random.default_rng(0), ours.numpy())
        theirs = processor(images=Image.open(io.BytesIO(content)), return_tensors="pt")["pixel_values"][0]
        yield ((theirs - model.normalized(ours[None])[0]) * deviation_311 * 255).abs().max().item()


@pytest.mark.parametrize(
    "ops",
    [
        (Resize(size=32),),
        (Resize(size=37), CenterCrop(size=32)),
        (ResizeShorter(size=32), CenterCrop(size=32)),
        (ResizeShorter(size=36, interpolation="bilinear"), CenterCrop(size=32)),
    ],
)
def test_the_processor_gives_the_pixels_of_pictures(ops, transformers, tokenizer, tmp_path):
    """Pixels of Pillow are equal bit for bit, those of torchvision (its default where that is installed) to two of 255
    levels; but for crops that begin between two pixels, which transformers rounds down and torchvision, as we, to an
    even number."""
    config = run_config(valid_transforms=ops)
    model = random_model(config)
    RECIPE.export_huggingface(config, model, tokenizer, tmp_path / "hf")
    backends = {"pil": 1e-3, **({"torchvision": 2.001} if find_spec("torchvision") else {})}
    for backend, most in backends.items():
        apart = list(levels_apart(config, model, tmp_path / "hf", backend, transformers))
        is_moved = [begins_elsewhere(content, ops) for content in picture_files()]
        assert max(one for one, moved in zip(apart, is_moved, strict=True) if not moved) < most
        assert len(apart) - sum(is_moved) > 20


def begins_elsewhere(content, ops):
    """Return True if the two roundings of the position of the crop differ."""
    if not isinstance(ops[0], ResizeShorter):
        return False
    sides = pytest.importorskip("PIL.Image").open(io.BytesIO(content)).size
    longer = ops[0].size * max(sides) // min(sides)
    return (longer - ops[1].size) % 4 == 3


@pytest.mark.parametrize(("size", "crop"), [(35, 32), (21, 32)])
def test_crops_that_transformers_begins_elsewhere_are_reported(size, crop, tokenizer, transformers, tmp_path, caplog):
    """Sizes as the message advises give its pixels."""
    for resized, folder in ((size, "odd"), (size + 1, "even")):
        config = run_config(valid_transforms=(Resize(size=resized), CenterCrop(size=crop)))
        model = random_model(config)
        caplog.clear()
        RECIPE.export_huggingface(config, model, tokenizer, tmp_path / folder)
        apart = list(levels_apart(config, model, tmp_path / folder, "pil", transformers))
        if folder == "odd":
            assert min(apart) > 1
            assert f"crops of {crop} from {size} pixels are shifted by one pixel" in caplog.text
            assert "sizes in data.valid_transforms that differ by an even number" in caplog.text
        else:
            assert max(apart) < 1e-3
            assert not caplog.text


@pytest.mark.parametrize("kind", ["ours", "a list of pieces"])
def test_a_processor_cuts_captions_where_training_did(timm, transformers, tokenizer, tmp_path, kind):
    if kind != "ours":
        (tmp_path / "bare").mkdir()
        pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "red", "cat", "blue", "dog", "and"]
        (tmp_path / "bare/vocab.txt").write_text("\n".join(pieces) + "\n")
    folder = tokenizer if kind == "ours" else tmp_path / "bare"
    config = run_config(max_length=7)
    export(config, random_model(config), folder, tmp_path / "hf", transformers)
    captions = [*CAPTIONS, "a red dog " * 9]
    found = transformers.AutoProcessor.from_pretrained(tmp_path / "hf")(text=captions, padding=True)
    expected = CaptionTokenizer(folder).encode(captions, 7)
    assert found["input_ids"] == expected["input_ids"].tolist()
    assert np.array(found["attention_mask"]).sum(1).tolist() == expected["num_tokens"].tolist()
    assert RECIPE.import_huggingface(tmp_path / "hf")[0].data.max_length == 7


def test_a_timm_folder_is_exported_with_its_arguments(timm, transformers, tokenizer, tmp_path):
    """The name of the encoder alone does not determine them."""
    content = {
        "architecture": "vit_tiny_patch16_224",
        "model_args": {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 3},
        "pretrained_cfg": {"input_size": [3, 32, 32], "mean": [0.4] * 3, "std": [0.3] * 3},
    }
    config = run_config(
        TimmConfig(name="local-dir:gone", architecture=content, pretrained=False), tiny_bert(tmp_path / "bert")
    )
    model = random_model(config)
    assert_equal(model, export(config, model, tokenizer, tmp_path / "hf", transformers))


def test_transforms_that_cannot_be_exported_are_named(tokenizer, tmp_path, caplog):
    config = run_config(valid_transforms=(RandomCrop(size=32),))
    RECIPE.export_huggingface(config, random_model(config), tokenizer, tmp_path / "hf")
    assert "random_crop" in caplog.text
    assert not (tmp_path / "hf/preprocessor_config.json").exists()


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"image": vit(pool="mean")}, "model.image.pool=mean"),
        ({"words": text(pool="mean")}, "model.text.pool=mean"),
        ({"words": text(causal=False)}, "model.text.causal=false"),
        ({"projection": ProjectionConfig(kind="residual", dim=20)}, "projection.kind=residual"),
        ({"projection": ProjectionConfig(dim=20, normalize=False)}, "projection.normalize=false"),
        ({"objective": ClipObjectiveConfig(loss="siglip")}, "bias of the logits"),
    ],
)
def test_models_that_transformers_cannot_compute_are_refused(tokenizer, tmp_path, changes, named):
    config = run_config(**changes)
    with pytest.raises(InputError, match=named):
        RECIPE.export_huggingface(config, random_model(config), tokenizer, tmp_path / "hf")
    assert not (tmp_path / "hf").exists()


def test_a_pooling_of_timm_that_transformers_lacks_is_refused(timm, transformers, tokenizer, tmp_path):
    options = {"patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 3, "global_pool": ""}
    config = run_config(tiny_timm(options=options), tiny_bert(tmp_path / "bert"))
    with pytest.raises(InputError, match="image embeddings"):
        RECIPE.export_huggingface(config, random_model(config), tokenizer, tmp_path / "hf")
    assert not (tmp_path / "hf").exists()


@pytest.mark.parametrize("pool_token", [1, "mean"])
def test_another_token_than_the_first_has_no_pooler(pool_token, timm, transformers, tokenizer, tmp_path):
    words = tiny_bert(tmp_path / "bert").model_copy(update={"pool_token": pool_token})
    config = run_config(vit(), words)
    with pytest.raises(InputError, match=f"model.text.pool_token={pool_token}"):
        RECIPE.export_huggingface(config, random_model(config), tokenizer, tmp_path / "hf")


def test_a_real_pooler_is_not_read(timm, transformers, tokenizer, tmp_path):
    config = run_config(vit(), tiny_bert(tmp_path / "bert"))
    theirs = export(config, random_model(config), tokenizer, tmp_path / "hf", transformers)
    with torch.no_grad():
        theirs.text_model.pooler.dense.weight[0, 1] = 1.0
    theirs.save_pretrained(tmp_path / "other")
    with pytest.raises(CheckpointError, match="pooler"):
        RECIPE.import_huggingface(tmp_path / "other")


def test_the_clamped_temperature_is_exported(tokenizer, tmp_path):
    config = run_config(temperature=TemperatureConfig(kind="parameter", value=0.005, smallest=0.01))
    RECIPE.export_huggingface(config, random_model(config), tokenizer, tmp_path / "hf")
    found, state = RECIPE.import_huggingface(tmp_path / "hf")
    assert state["temperature.log_scale"].item() == pytest.approx(math.log(100), rel=1e-6)
    assert found.model.temperature.value == pytest.approx(0.01, rel=1e-5)
    assert json.loads((tmp_path / "hf/config.json").read_text())["text_config"]["eos_token_id"] == 3
