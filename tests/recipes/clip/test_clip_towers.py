"""Towers of timm and transformers, from tiny configurations built here."""

import ast
import contextlib
import io
import json
import re
import subprocess
import sys

import pytest
import torch
from torch import nn

import pretrainkit
from pretrainkit.dist.devices import to_device
from pretrainkit.errors import ConfigError
from pretrainkit.nn.foreign import takes_mask_of_pairs
from pretrainkit.recipes.clip.architecture import bind_model
from pretrainkit.recipes.clip.config import HuggingFaceTextConfig, TimmConfig
from pretrainkit.recipes.clip.foreign_towers import HuggingFaceTower, encoder_from
from pretrainkit.recipes.clip.model import build_image_tower, build_text_tower
from pretrainkit.recipes.clip.presets import PRESETS
from pretrainkit.recipes.clip.recipe import RECIPE
from pretrainkit.training.optimizers.build import decayed_names
from pretrainkit.training.optimizers.config import OptimizerConfig
from support.clip_models import captions, images, random_model, run_config, text, tiny_bert, tiny_timm, vit
from support.remedies import followed


def learned(tower):
    return {name for name, parameter in tower.named_parameters() if parameter.requires_grad}


def test_fact_15_the_default_model_of_zerovl(timm, transformers):
    model = pretrainkit.build_model(PRESETS["zerovl"](), device="meta")
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    assert sum(sizes.values()) == 195_476_736
    assert sum(size for name, size in sizes.items() if name.startswith("image.")) == 85_798_656
    assert sum(size for name, size in sizes.items() if name.startswith("text.")) == 108_891_648
    assert not [name for name in model.state_dict() if "pooler" in name or "temperature" in name]
    assert len(model.blocks()) == 24


def test_timm_reads_the_class_token_after_the_norm(timm):
    tower = build_image_tower(tiny_timm()).eval()
    pixels = torch.randn(2, 3, 32, 32)
    before = []
    tower.encoder.norm.register_forward_pre_hook(lambda module, inputs: before.append(inputs[0]))
    found = tower(pixels)
    assert found.shape == (2, tower.width)
    torch.testing.assert_close(found, nn.functional.layer_norm(before[0][:, 0], (24,), eps=1e-6))
    assert tower.mean_and_deviation == ((0.5,) * 3, (0.5,) * 3)
    all_tokens = {"patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 3, "global_pool": ""}
    other = build_image_tower(tiny_timm(options=all_tokens)).eval()
    other.load_state_dict(tower.state_dict())
    torch.testing.assert_close(other(pixels), tower(pixels))


def test_convolutional_encoders_take_their_own_normalization_and_no_image_size(timm):
    tower = build_image_tower(tiny_timm(name="resnet10t", options={}, image_size=64))
    assert tower(torch.randn(2, 3, 64, 64)).shape == (2, tower.width)
    model = random_model(run_config(tiny_timm(name="resnet10t", options={}), text(), normalize=None))
    assert model.mean_and_deviation == tower.mean_and_deviation
    assert tower.mean_and_deviation[0] == pytest.approx((0.485, 0.456, 0.406))


def test_patch_dropout_depends_on_the_arguments_of_the_constructor(timm):
    tower = build_image_tower(tiny_timm(patch_dropout=0.5)).train()
    pixels = torch.randn(2, 3, 32, 32)
    assert not torch.equal(tower(pixels), tower(pixels))
    tower.eval()
    assert torch.equal(tower(pixels), tower(pixels))
    with pytest.raises(ConfigError, match=r"patch_dropout=0\.5, but resnet10t"):
        build_image_tower(tiny_timm(name="resnet10t", options={}, patch_dropout=0.5))


def test_unknown_encoders_and_options_are_named(timm):
    with pytest.raises(ConfigError, match="nothing_like_it") as error:
        build_image_tower(tiny_timm(name="nothing_like_it"))
    advice = followed(error.value, "recipes/clip/foreign_towers.py: timm cannot build model.image.name")
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(re.search(r"python -c '(.+?)';", advice)[1], {})
    assert tiny_timm().name in ast.literal_eval(printed.getvalue())
    with pytest.raises(ConfigError, match="depht"):
        build_image_tower(tiny_timm(options={"depht": 2}))


def test_towers_without_their_weights_start_from_their_config_as_advised(timm, transformers, tmp_path):
    (tmp_path / "vision").mkdir()
    content = {"architecture": "vit_tiny_patch16_224", "model_args": tiny_timm().options, "pretrained_cfg": {}}
    (tmp_path / "vision" / "config.json").write_text(json.dumps(content))
    vision = tiny_timm(name=f"local-dir:{tmp_path}/vision", options={}, pretrained=True)
    with pytest.raises(ConfigError, match=r"model\.image\.pretrained=false"):
        build_image_tower(vision)
    assert build_image_tower(vision.model_copy(update={"pretrained": False})).width == 24
    words = tiny_bert(tmp_path / "bert").model_copy(update={"pretrained": True})
    with pytest.raises(ConfigError) as error:
        build_text_tower(words)
    advice = followed(error.value, "recipes/clip/foreign_towers.py: transformers cannot load the weights")
    assert "model.text.pretrained=false" in advice
    assert build_text_tower(words.model_copy(update={"pretrained": False})).width == 16


def test_images_of_a_size_that_timm_refuses_are_one_message(timm):
    tower = build_image_tower(tiny_timm())
    pixels = torch.zeros(1, 3, 40, 40)
    with pytest.raises(ConfigError, match=r"40 x 40 pixels.*vit_tiny(.|\n)*model\.image\.image_size=40") as error:
        tower(pixels)
    assert "data.train_transforms" in followed(error.value, "recipes/clip/foreign_towers.py: images are … x … pixels")
    assert build_image_tower(tiny_timm(image_size=40))(pixels).shape == (1, 24)
    assert tower(pixels[..., :32, :32]).shape == (1, 24)


def test_partial_freezing_of_timm(timm):
    names = learned(build_image_tower(tiny_timm(num_trainable_layers=1)))
    assert {name.split(".")[1] for name in names} == {"blocks", "norm"}
    assert {name.split(".")[2] for name in names if "blocks" in name} == {"1"}
    assert not learned(build_image_tower(tiny_timm(trainable=False)))


@pytest.mark.parametrize("freezes", [False, True])
def test_batch_norm_keeps_its_statistics_if_configured(timm, freezes):
    tower = build_image_tower(tiny_timm(name="resnet10t", options={}, freeze_batch_norm=freezes))
    before = {name: tensor.clone() for name, tensor in tower.named_buffers()}
    tower.train()
    tower(torch.randn(2, 3, 64, 64))
    unchanged = [torch.equal(tensor, before[name]) for name, tensor in tower.named_buffers()]
    assert all(unchanged) is freezes
    assert tower.training


@pytest.mark.parametrize("name", ["swin_tiny_patch4_window7_224", "eva02_tiny_patch14_224"])
def test_tables_outside_the_state_dict_survive_building_without_memory(timm, name):
    """These are tables of relative positions, and of rotations."""
    config = tiny_timm(name=name, options={"depths": (1, 1), "embed_dim": 24, "num_heads": (1, 2)}, image_size=None)
    if name.startswith("eva"):
        config = tiny_timm(name=name, options={"depth": 1}, image_size=56)
    tower = build_image_tower(config).eval()
    with torch.device("meta"):
        empty = build_image_tower(config).eval()
    assert all(parameter.is_meta for parameter in empty.parameters())
    to_device(empty, "cpu")
    empty.load_state_dict(tower.state_dict())
    size = 56 if name.startswith("eva") else 224
    pixels = torch.randn(1, 3, size, size)
    assert torch.equal(empty(pixels), tower(pixels))


@pytest.fixture
def timm_folder(timm, tmp_path):
    """Write a folder as timm saves encoders: config.json with the arguments of the constructor, and weights."""
    from safetensors.torch import save_file

    arguments = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 3, "num_classes": 7}
    encoder = timm.create_model("vit_tiny_patch16_224", **arguments)
    published = {"input_size": [3, 32, 32], "mean": [0.4] * 3, "std": [0.3] * 3, "num_classes": 7, "classifier": "head"}
    content = {"architecture": "vit_tiny_patch16_224", "model_args": arguments, "pretrained_cfg": published}
    (tmp_path / "vision").mkdir()
    (tmp_path / "vision/config.json").write_text(json.dumps(content))
    tensors = {name: tensor.contiguous() for name, tensor in encoder.state_dict().items()}
    save_file(tensors, tmp_path / "vision/model.safetensors")
    return tmp_path / "vision"


def test_an_encoder_of_timm_comes_from_a_folder_with_its_weights(timm_folder):
    from safetensors.torch import load_file

    tower = build_image_tower(TimmConfig(name=f"local-dir:{timm_folder}"))
    assert tower.mean_and_deviation == ((0.4,) * 3, (0.3,) * 3)
    weights = load_file(timm_folder / "model.safetensors")
    found = tower.encoder.state_dict()
    assert found.keys() == {name for name in weights if not name.startswith("head.")}
    assert all(torch.equal(found[name], weights[name]) for name in found)


def test_a_bound_config_needs_the_folder_of_timm_no_more(timm_folder, monkeypatch):
    monkeypatch.chdir(timm_folder.parent)
    config = bind_model(run_config(TimmConfig(name="local-dir:vision"), text()))
    assert config.model.image.name == f"local-dir:{timm_folder}"
    assert bind_model(config) is config
    tower = build_image_tower(config.model.image).eval()
    timm_folder.rename(timm_folder.with_name("gone"))
    with torch.device("meta"):
        empty = build_image_tower(config.model.image).eval()
    assert empty.mean_and_deviation == tower.mean_and_deviation
    to_device(empty, "cpu").load_state_dict(tower.state_dict())
    pixels = torch.randn(1, 3, 32, 32)
    assert torch.equal(empty(pixels), tower(pixels))
    with pytest.raises(ConfigError, match=r"model\.image\.name=local-dir:vision"):
        bind_model(run_config(TimmConfig(name="local-dir:vision"), text()))


def small(kind):
    import transformers

    sizes = {"vocab_size": 60, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    return {
        "bert": lambda: transformers.BertConfig(hidden_size=16, **sizes),
        "distilbert": lambda: transformers.DistilBertConfig(
            vocab_size=60, dim=16, n_layers=2, n_heads=2, hidden_dim=24
        ),
        "roberta": lambda: transformers.RobertaConfig(hidden_size=16, **sizes),
        "t5": lambda: transformers.T5Config(vocab_size=60, d_model=16, num_layers=2, num_heads=2, d_kv=8, d_ff=24),
    }[kind]()


@pytest.mark.parametrize("kind", ["bert", "distilbert", "roberta", "t5"])
def test_text_encoders_of_transformers(transformers, tmp_path, kind):
    small(kind).save_pretrained(tmp_path)
    config = tiny_bert(tmp_path / "bert").model_copy(update={"name": str(tmp_path)})
    tower = build_text_tower(config).eval()
    assert len(tower.blocks()) == 2
    assert tower.width == 16
    assert not [name for name in tower.state_dict() if "pooler" in name]
    ids, num_tokens = captions()
    found = tower(ids, num_tokens)
    expected = tower.encoder(input_ids=ids[:1, :4].long()).last_hidden_state[:, 0]
    torch.testing.assert_close(found[:1], expected, rtol=1e-4, atol=1e-5)  # padding has no influence
    found.square().sum().backward()
    assert [name for name, p in tower.named_parameters() if p.grad is None] == []

    tower.encoder.save_pretrained(tmp_path)
    again = build_text_tower(config.model_copy(update={"pretrained": True})).eval()
    assert torch.equal(again(ids, num_tokens), found)
    with torch.device("meta"):
        empty = build_text_tower(config).eval()
    to_device(empty, "cpu")
    empty.load_state_dict(tower.state_dict())
    assert torch.equal(empty(ids, num_tokens), found)


def test_a_bound_config_needs_the_folder_no_more(transformers, tmp_path):
    words = tiny_bert(tmp_path / "bert")
    config = bind_model(run_config(vit(), words))
    assert config.model.text.architecture["model_type"] == "bert"
    gone = config.model.text.model_copy(update={"name": str(tmp_path / "gone")})
    assert build_text_tower(gone).width == 16
    assert bind_model(config) is config
    with pytest.raises(ConfigError, match="gone"):
        build_text_tower(words.model_copy(update={"name": str(tmp_path / "gone")}))


def test_partial_freezing_of_transformers(transformers, tmp_path):
    names = learned(build_text_tower(tiny_bert(tmp_path).model_copy(update={"num_trainable_layers": 1})))
    assert {".".join(name.split(".")[1:4]) for name in names} == {"encoder.layer.1"}


def test_a_pair_of_timm_and_transformers_trains(timm, transformers, tmp_path):
    config = run_config(tiny_timm(), tiny_bert(tmp_path), normalize=None)
    model = RECIPE.build_model(config).train()
    ids, num_tokens = captions()
    found = model(images(), ids, num_tokens)
    loss = nn.functional.cross_entropy(model.logit_scale() * found["image"] @ found["text"].T, torch.arange(3))
    loss.backward()
    assert [name for name, p in model.named_parameters() if p.grad is None] == []
    decays = decayed_names(model, OptimizerConfig(peak_lr=1))
    assert not decays["image.encoder.cls_token"]
    assert not decays["image.encoder.pos_embed"]
    assert not decays["text.encoder.embeddings.LayerNorm.weight"]
    assert decays["text.encoder.embeddings.word_embeddings.weight"]


def test_the_shim_declares_nothing_where_the_plain_import_works(timm):
    """It runs in a new process, beside a replacement for a torchvision that loads."""
    code = """
import sys, types
sys.modules["torchvision"] = types.ModuleType("torchvision")
import torch
from pretrainkit.exporting import torchvision_shim
assert torchvision_shim.import_torchvision() is sys.modules["torchvision"]
assert "nms" not in dir(torch.ops.torchvision)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_the_shim_lets_other_errors_pass():
    """Only the two operators are declared: whatever else is wrong with torchvision shows."""
    code = """
import sys
class Broken:
    def find_spec(self, name, path=None, target=None):
        if name == "torchvision":
            raise RuntimeError("another fault")
sys.meta_path.insert(0, Broken())
from pretrainkit.exporting import torchvision_shim
try:
    torchvision_shim.import_torchvision()
except RuntimeError as error:
    assert str(error) == "another fault"
else:
    raise SystemExit("no error")
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_our_own_towers_load_neither_timm_nor_transformers():
    code = """
import sys
from pretrainkit.recipes.clip.presets import tiny
from pretrainkit.recipes.clip.recipe import RECIPE
config = tiny()
text = config.model.text.model_copy(update={"vocab_size": 50})
RECIPE.build_model(config.model_copy(update={"model": config.model.model_copy(update={"text": text})}))
loaded = {"timm", "torchvision", "transformers"} & sys.modules.keys()
assert not loaded, loaded
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


SMALL = {
    **dict.fromkeys(("hidden_size", "dim", "d_model", "embedding_size", "emb_dim", "input_embedding_size"), 16),
    **dict.fromkeys(("num_hidden_layers", "n_layers", "num_layers", "num_attention_heads", "n_heads", "num_heads"), 2),
    **dict.fromkeys(("intermediate_size", "hidden_dim", "d_ff"), 24),
    "d_kv": 8,
    "vocab_size": 60,
    "pad_token_id": 0,
    "intra_bottleneck_size": 16,
    "true_hidden_size": 16,
}
TAKING_PAIRS = {"albert", "bert", "distilbert", "electra", "mobilebert", "mt5", "roberta", "t5", "xlm-roberta"}
OTHERS = {"clip_text_model", "deberta-v2", "esm", "modernbert", "mpnet", "rembert", "roformer"}


@pytest.mark.parametrize("kind", sorted(TAKING_PAIRS | OTHERS))
def test_a_mask_of_pairs_equals_a_mask_of_tokens(transformers, kind):
    known = transformers.AutoConfig.for_model(kind)
    encoder = encoder_from({"model_type": kind} | {k: v for k, v in SMALL.items() if hasattr(known, k)}).eval()
    assert takes_mask_of_pairs(encoder) is (kind in TAKING_PAIRS)
    if kind in TAKING_PAIRS:
        ids = torch.randint(3, 60, (3, 7), generator=torch.Generator().manual_seed(0))
        is_real = torch.arange(7) < torch.tensor([[7], [3], [1]])
        pairs = is_real[:, None, None].expand(-1, 1, 7, -1)
        found, expected = (
            encoder(input_ids=ids, attention_mask=mask).last_hidden_state for mask in (pairs, is_real.long())
        )
        torch.testing.assert_close(found[is_real], expected[is_real])


def test_the_first_deberta_computes_in_float32(transformers):
    """Its attention fails under autocast."""
    known = transformers.AutoConfig.for_model("deberta")
    architecture = {"model_type": "deberta"} | {k: v for k, v in SMALL.items() if hasattr(known, k)}
    tower = HuggingFaceTower(HuggingFaceTextConfig(name="none", architecture=architecture, pretrained=False)).eval()
    ids, num_tokens = torch.randint(3, 60, (2, 7), generator=torch.Generator().manual_seed(0)), torch.tensor([7, 3])
    expected = tower(ids, num_tokens)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(tower(ids, num_tokens), expected)
