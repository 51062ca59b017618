"""Image processors and tokenizers beside CLIP models of transformers: the pixels and tokens of both libraries from the
same files, and settings that change them are read, exported or refused."""

import json
from functools import partial

import numpy as np
import pytest
import torch

from pretrainkit.api import export, open_model
from pretrainkit.errors import CheckpointError
from pretrainkit.images.ops import Resize
from pretrainkit.images.transforms import compose
from pretrainkit.recipes.clip.captions import CaptionTokenizer
from pretrainkit.recipes.clip.config import ProjectionConfig
from pretrainkit.recipes.clip.recipe import RECIPE
from support.clip_models import make_tokenizer, random_model, run_config, text, tiny_timm

Image = pytest.importorskip("PIL.Image")
LONG = ["a red cat", "dog", "a blue dog and a red cat and a blue dog and a red cat"]
SIDES = ("padding_side", "truncation_side")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return make_tokenizer(tmp_path_factory.mktemp("tokenizer") / "wordpiece")


@pytest.fixture
def folder(tokenizer, transformers, tmp_path):
    """A CLIPModel as transformers has it, without an image processor."""
    config = run_config()
    RECIPE.export_huggingface(config, random_model(config), tokenizer, tmp_path / "hf")
    (tmp_path / "hf/preprocessor_config.json").unlink()
    return tmp_path / "hf"


def changed(path, **changes):
    """Change fields of a JSON file; None removes one."""
    values = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({name: value for name, value in values.items() if value is not None}))


def pictures():
    rng = np.random.default_rng(0)
    few = [Image.fromarray(rng.integers(0, 256, (9, 9, 3), np.uint8)) for _ in range(3)]
    return [one.resize(size, Image.Resampling.BICUBIC) for one, size in zip(few, ((70, 50), (44, 90), (32, 32)))]


SQUARE = {"height": 32, "width": 32}
CLIP = {"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 32}, "crop_size": SQUARE}
CLIP |= {"image_mean": [0.4, 0.5, 0.6], "image_std": [0.2, 0.3, 0.25]}


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize(
    "settings",
    [
        CLIP,
        CLIP | {"resample": 2},
        CLIP | {"size": {"shortest_edge": 40}},
        CLIP | {"do_normalize": False},
        CLIP | {"rescale_factor": 1 / 127.5},
        CLIP | {"do_resize": False},
        CLIP | {"image_mean": None, "image_std": None},
        {"image_processor_type": "CLIPImageProcessorFast", "size": SQUARE, "do_center_crop": False},
        {"image_processor_type": "ViTImageProcessor", "size": SQUARE},
        {"image_processor_type": "SiglipImageProcessor", "size": SQUARE},
        {"image_processor_type": "BitImageProcessor", "size": {"shortest_edge": 32}, "crop_size": SQUARE},
        {"feature_extractor_type": "CLIPFeatureExtractor", "size": 32, "crop_size": 32},
    ],
)
def test_pixels_are_those_of_the_processor_of_transformers(settings, version, folder, transformers):
    """transformers 5 writes the settings in another file, which was not read, and neither were those of the scale."""
    settings = {name: value for name, value in settings.items() if value is not None}
    path = folder / ("preprocessor_config.json" if version == 4 else "processor_config.json")
    path.write_text(json.dumps(settings if version == 4 else {"image_processor": settings}))
    theirs = transformers.AutoImageProcessor.from_pretrained(folder, backend="pil")
    expected = theirs(images=pictures(), return_tensors="pt")["pixel_values"]
    opened = open_model(folder)
    transform = compose(opened.config.data.valid_transforms, is_exact=True)
    found = torch.stack([torch.from_numpy(transform(np.asarray(one), None).copy()) for one in pictures()])
    level = 1 / 255 / min(opened.model.mean_and_deviation[1])
    torch.testing.assert_close(opened.model.normalized(found.permute(0, 3, 1, 2)), expected, rtol=0, atol=0.01 * level)


def test_an_image_processor_that_is_missing_is_that_of_the_model(timm, folder, transformers, tokenizer, tmp_path):
    assert open_model(folder).config.data.normalize[0] == pytest.approx(transformers.image_utils.OPENAI_CLIP_MEAN)
    (siglip(tokenizer, tmp_path / "siglip") / "preprocessor_config.json").unlink()
    assert open_model(tmp_path / "siglip").config.data.normalize == ((0.5,) * 3, (0.5,) * 3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"image_processor_type": "ConvNextImageProcessor"},
            "is a ConvNextImageProcessor, .* not support\n.*CLIPImage",
        ),
        ({"size": {"shortest_edge": 32, "longest_edge": 40}}, "longest_edge.*\n.*shortest_edge alone"),
        ({"do_resize": False, "do_center_crop": False}, "do_resize False and do_center_crop False.*\n  set do_resize"),
    ],
)
def test_image_processors_with_other_pixels_are_refused(settings, message, folder):
    (folder / "preprocessor_config.json").write_text(json.dumps(CLIP | settings))
    with pytest.raises(CheckpointError, match=message):
        open_model(folder)


@pytest.mark.parametrize("side", SIDES)
def test_captions_that_are_filled_or_cut_at_their_beginning_are_refused(side, folder):
    open_model(folder)
    changed(folder / "tokenizer_config.json", **{side: "left"})
    with pytest.raises(CheckpointError, match=f"has {side} 'left'.*\n.*set {side} to 'right'"):
        open_model(folder)


@pytest.mark.parametrize("end", [2, 7, 3])
def test_an_end_token_that_the_tokenizer_does_not_write_is_refused(end, folder, transformers):
    """With 2, transformers reads the highest id, with another id its first place or, without one, the first token."""
    values = json.loads((folder / "config.json").read_text())["text_config"]
    changed(folder / "config.json", text_config={**values, "eos_token_id": end})
    ids = CaptionTokenizer(folder).encode(LONG, 12)
    input_ids, num_tokens = (torch.from_numpy(ids[name]).long() for name in ("input_ids", "num_tokens"))
    if end == 3:
        opened = open_model(folder).model
        with torch.no_grad():
            theirs = transformers.CLIPModel.from_pretrained(folder).get_text_features(input_ids).pooler_output
            own = opened(None, input_ids, num_tokens)["text"]
        torch.testing.assert_close(own, torch.nn.functional.normalize(theirs, dim=-1), rtol=0, atol=1e-5)
        return
    with pytest.raises(CheckpointError, match=f"eos_token_id (is )?{end}, .*ends captions with 3\n.*eos_token_id"):
        open_model(folder)


@pytest.mark.parametrize("tower", ["text", "vision"])
def test_settings_of_the_first_versions_of_transformers_count_as_there(tower, folder, transformers):
    """They were ignored."""
    values = json.loads((folder / "config.json").read_text())
    own = {**values[f"{tower}_config"], "layer_norm_eps": 0.1}
    changed(folder / "config.json", **{f"{tower}_config_dict": own})
    theirs = transformers.CLIPModel.from_pretrained(folder).eval()
    assert getattr(theirs.config, f"{tower}_config").layer_norm_eps == 0.1
    config = open_model(folder).config.model
    assert {"text": config.text, "vision": config.image}[tower].layer_norm_epsilon == 0.1


def siglip(tokenizer, out):
    config = run_config(
        tiny_timm(name="vit_base_patch16_siglip_224", options={**tiny_timm().options, "act_layer": "gelu_tanh"}),
        text(pool="last", causal=False, activation="gelu_tanh"),
        projection=ProjectionConfig(kind="text_only", dim=24),
        pad_captions="max_length",
        max_length=12,
        valid_transforms=(Resize(size=32),),
    )
    RECIPE.export_huggingface(config, random_model(config), tokenizer, out)
    return out


@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_a_whole_export_has_our_embeddings(kind, timm, transformers, tokenizer, tmp_path):
    """The processor of an export of SigLIP gave a mask of tokens, and exports filled captions at the side of their
    origin, so that the embeddings were others."""
    origin = tmp_path / "tokenizer"
    origin.mkdir()
    for path in tokenizer.iterdir():
        (origin / path.name).write_bytes(path.read_bytes())
    changed(origin / "tokenizer_config.json", **dict.fromkeys(SIDES, "left"))
    if kind == "siglip":
        siglip(origin, tmp_path / "first")
    else:
        config = run_config(max_length=12, valid_transforms=(Resize(size=32),))
        RECIPE.export_huggingface(config, random_model(config), origin, tmp_path / "first")
    opened = open_model(tmp_path / "first")
    folder = export(tmp_path / "first", "huggingface", tmp_path / "hf")
    model = transformers.AutoModel.from_pretrained(folder).eval()
    read = partial(transformers.AutoProcessor.from_pretrained(folder), return_tensors="pt", truncation=True)
    inputs = read(text=LONG, images=pictures(), padding="max_length" if kind == "siglip" else True)
    columns = 12 if kind == "siglip" else None
    ids = CaptionTokenizer(tokenizer).encode(LONG, 12, num_columns=columns)
    input_ids, num_tokens = (torch.from_numpy(ids[name]).long() for name in ("input_ids", "num_tokens"))
    assert torch.equal(inputs["input_ids"], input_ids)
    with torch.no_grad():
        own, theirs = opened.model(None, input_ids, num_tokens)["text"], model(**inputs).text_embeds
    torch.testing.assert_close(own, theirs, rtol=0, atol=1e-5)
