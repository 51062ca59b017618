"""Published weights: names and shapes, import and export of files, and the encoder alone (facts 15, 16, 18, 40)."""

import argparse
import json

import numpy as np
import pytest
import torch
from safetensors import safe_open

from pretrainkit.errors import CheckpointError, DataError, InputError
from pretrainkit.exporting.safetensors import write_tensors
from pretrainkit.recipes.fourm.config import published_model
from pretrainkit.recipes.fourm.inputs import read_batch
from pretrainkit.recipes.fourm.modality import published
from pretrainkit.recipes.fourm.model import ImageTower, build, cut_patches
from pretrainkit.recipes.fourm.original import config_of, from_original, to_original
from pretrainkit.recipes.fourm.presets import b_7
from pretrainkit.recipes.fourm.recipe import RECIPE
from support.fourm_batches import CAPTION, DEPTH, GLOBAL, MODALITIES, RGB, random_batch, small, tensors
from support.remedies import followed

VARIANTS = {
    "swiglu": {},
    "swiglu-qknorm": {"query_key_norm": True},
    "gelu": {"gated": False, "activation": "gelu", "biases": True, "intermediate_size": 64},
    "nothing shared": {"tied_logits": False, "shared_modality_embeddings": False, "vector_bottleneck": 3},
    "registers": {"num_registers": 2},
}
PUBLISHED = tuple(published(name) for name in ("caption", "rgb@32", "t5_caption", "tok_depth@32", "tok_dinov2_global"))


def write_original(path, model):
    RECIPE.export_file(b_7(), model, None, "4m", path, name="")


def read_original(path, model=None):
    found = RECIPE.import_file(path, "4m", None if model is None else b_7().changed(model=model))
    return found.config.model, found.state


def make_model(modalities=MODALITIES, **changes):
    torch.manual_seed(0)
    model = build(small(modalities, **changes))
    for parameter in model.parameters():
        parameter.data.add_(torch.randn_like(parameter), alpha=0.1)
    return model


@pytest.mark.parametrize("variant", VARIANTS)
def test_weights_come_back_from_the_published_names(variant):
    model = make_model(**VARIANTS[variant])
    back = from_original(to_original(model), model.config)
    assert back.keys() == model.state_dict().keys()
    assert all(torch.equal(back[name], tensor) for name, tensor in model.state_dict().items())


def test_names_and_shapes_are_the_published_ones():
    found = {name: tuple(tensor.shape) for name, tensor in to_original(make_model()).items()}
    D, inner, vocabulary = 16, 21, CAPTION.vocab_size
    expected = {
        "mask_token": (1, 1, D),
        "encoder_embeddings.caption.mod_emb": (1, 1, D),
        "encoder_embeddings.caption.pos_emb": (1, 512, D),
        "encoder_embeddings.caption.token_emb.weight": (vocabulary, D),
        "encoder_embeddings.rgb@32.pos_emb": (1, 16, D),
        "encoder_embeddings.rgb@32.proj.weight": (D, 3 * 8 * 8),
        "encoder_embeddings.t5.emb_proj.weight": (D, 9),
        "encoder_embeddings.t5.emb_proj.bias": (D,),
        "encoder_embeddings.tok_global.pos_emb": (1, 4, D),
        "decoder_embeddings.tok_depth@32.token_emb.weight": (DEPTH.vocab_size, D),
        "decoder_embeddings.tok_depth@32.to_logits.weight": (DEPTH.vocab_size, D),
        "decoder_embeddings.caption.to_logits.weight": (vocabulary, D),
        "encoder.0.norm1.bias": (D,),
        "encoder.1.attn.qkv.weight": (3 * D, D),
        "encoder.1.attn.proj.weight": (D, D),
        "encoder.1.mlp.fc1.weight": (inner, D),
        "encoder.1.mlp.fc3.weight": (inner, D),
        "encoder.1.mlp.fc2.weight": (D, inner),
        "decoder.0.cross_attn.q.weight": (D, D),
        "decoder.0.cross_attn.kv.weight": (2 * D, D),
        "decoder.0.context_norm.weight": (D,),
        "decoder.1.self_attn.qkv.weight": (3 * D, D),
        "decoder_proj_context.bias": (D,),
        "decoder_norm.bias": (D,),
    }
    assert {name: found.get(name) for name in expected} == expected
    absent = ("encoder_embeddings.rgb@32.proj.bias", "decoder_embeddings.caption.to_logits.bias")
    absent += ("decoder_embeddings.rgb@32.mod_emb", "decoder_embeddings.t5.mod_emb", "encoder.0.attn.qkv.bias")
    assert not found.keys() & set(absent)


def test_norms_without_bias_have_one_of_zeros_and_modalities_are_shared():
    model = make_model()
    found = to_original(model)
    assert not any(tensor.any() for name, tensor in found.items() if name.endswith("norm1.bias"))
    shared = [found[f"{side}_embeddings.caption.mod_emb"] for side in ("encoder", "decoder")]
    assert shared[0].data_ptr() == shared[1].data_ptr()


def test_all_published_models_have_the_names_of_all_their_tensors():
    with torch.device("meta"):
        model = RECIPE.build_model(b_7())
    found = to_original(model)
    per_block = 2 * 2 + 2 + 3, 2 * 4 + 2 + 3 + 3
    tables = 7 * 4 + 7 * 3 + 3
    assert len(found) == 12 * sum(per_block) + 2 * 2 + 2 + 1 + tables


def test_files_come_back_with_their_config(tmp_path):
    model = make_model(PUBLISHED, intermediate_size=42)
    path = tmp_path / "model.safetensors"
    write_original(path, model)
    with safe_open(path, framework="pt") as file:
        header = file.metadata()
    assert header["domains_out"] == "['caption', 'tok_depth@32', 'tok_dinov2_global']"
    config, state = read_original(path)
    assert config == model.config
    assert all(torch.equal(state[name], tensor) for name, tensor in model.state_dict().items())
    (tmp_path / "plain").mkdir()
    write_tensors(tmp_path / "plain" / "model.safetensors", to_original(model))
    (tmp_path / "plain" / "config.json").write_text(json.dumps(config_of(model.config)), encoding="utf-8")
    assert read_original(tmp_path / "plain")[0] == model.config


def test_a_folder_of_the_hub_has_shared_vectors_once(tmp_path):
    """`save_pretrained` of the original writes one of two equal vectors, and the name of the other into the header."""
    model = make_model(PUBLISHED, intermediate_size=42)
    once, header = to_original(model), {"format": "pt"}
    for name in ("caption", "tok_depth@32", "tok_dinov2_global"):
        places = [f"{side}_embeddings.{name}.mod_emb" for side in ("encoder", "decoder")]
        assert torch.equal(once.pop(places[0]), once[places[1]])
        header[places[0]] = places[1]
    write_tensors(tmp_path / "model.safetensors", once, header)
    (tmp_path / "config.json").write_text(json.dumps(config_of(model.config)), encoding="utf-8")
    config, state = read_original(tmp_path)
    assert config == model.config
    assert all(torch.equal(state[name], tensor) for name, tensor in model.state_dict().items())


def test_sizes_in_a_config_are_those_of_images_without_one_in_their_name():
    names = ("rgb@448", "tok_rgb@448", "tok_dinov2_global")
    assert config_of(small(tuple(map(published, names)), intermediate_size=42))["image_size"] == 224
    assert config_of(small(tuple(map(published, names[:2])), intermediate_size=42))["image_size"] == 448


def test_a_config_without_a_size_is_named_with_its_file(tmp_path):
    model = make_model(PUBLISHED, intermediate_size=42)
    values = {name: str(value) for name, value in config_of(model.config).items() if name != "dim"}
    write_tensors(tmp_path / "model.safetensors", to_original(model), values)
    with pytest.raises(DataError, match=r"model\.safetensors is damaged, .* no entry 'dim'"):
        read_original(tmp_path / "model.safetensors")


def test_heads_apart_from_tables_are_seen(tmp_path):
    model = make_model(PUBLISHED, intermediate_size=42, tied_logits=False)
    write_original(tmp_path / "model.safetensors", model)
    assert not read_original(tmp_path / "model.safetensors")[0].tied_logits


def test_checkpoints_of_training_are_read_without_running_them(tmp_path):
    model = make_model(PUBLISHED)
    path = tmp_path / "checkpoint-final.pth"
    torch.save({"model": to_original(model), "epoch": 3, "args": argparse.Namespace(dim=16)}, path)
    state = read_original(path, model.config)[1]
    assert all(torch.equal(state[name], tensor) for name, tensor in model.state_dict().items())
    with pytest.raises(CheckpointError, match="has no model config") as error:
        read_original(path)  # with the config, as above, it can be read
    followed(error.value, "exporting/published_files.py: … has no model config")


def test_tensors_that_do_not_fit_are_refused_by_name(tmp_path):
    model = make_model()
    found = to_original(model)
    with pytest.raises(CheckpointError, match=r"does not have extra\.weight"):
        from_original({**found, "extra.weight": torch.zeros(1)}, model.config)
    with pytest.raises(CheckpointError, match="no tensor mask_token"):
        from_original({name: t for name, t in found.items() if name != "mask_token"}, model.config)
    with pytest.raises(CheckpointError, match=r"encoder_norm\.bias is not zero"):
        from_original({**found, "encoder_norm.bias": torch.ones(16)}, model.config)
    other = {**found, "decoder_embeddings.caption.to_logits.weight": torch.ones(CAPTION.vocab_size, 16)}
    with pytest.raises(CheckpointError, match="tied_logits") as error:
        from_original(other, model.config)
    advised = followed(error.value, "recipes/fourm/original.py: … differs from the table of its inputs")
    assert advised == "  set model.tied_logits=false"
    from_original(other, model.config.model_copy(update={"tied_logits": False}))
    other = {**found, "decoder_embeddings.caption.mod_emb": torch.ones(1, 1, 16)}
    with pytest.raises(CheckpointError, match="shared_modality_embeddings"):
        from_original(other, model.config)
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_original(tmp_path / "missing.safetensors")
    with pytest.raises(InputError, match="feed-forward"):
        write_original(tmp_path / "a.safetensors", make_model(PUBLISHED, intermediate_size=23))
    write_tensors(tmp_path / "b.safetensors", found, {"domains_in": "[mine]", "domains_out": "[mine]", "dim": "16"})
    with pytest.raises(CheckpointError, match="no modality 'mine'"):
        read_original(tmp_path / "b.safetensors")


def test_published_configs_are_written_as_they_are():
    config = published_model("base", tuple(published(name) for name in ("rgb@224", "caption")))
    found = config_of(config)
    assert (found["mlp_ratio"], found["act_layer"], found["gated_mlp"], found["norm_bias"]) == (
        4.0,
        "SiLU",
        True,
        False,
    )
    assert config_of(published_model("large", config.modalities))["mlp_ratio"] == 4.0


def whole_image_batch(num_rows):
    """Return a batch whose inputs are all patches of each image and nothing else."""
    batch = random_batch((RGB, DEPTH), num_rows=num_rows, num_inputs=RGB.max_tokens, num_segments=1)
    num = RGB.max_tokens
    batch["encoder_length"][:] = num
    batch["encoder_modality"][:], batch["encoder_segment"][:] = 0, 0
    batch["encoder_position"][:] = batch["encoder_ids"][:] = range(num)
    batch[f"encoder_places/{RGB.name}"] = np.arange(num_rows * num, dtype=np.int32)
    batch[f"encoder_places/{DEPTH.name}"] = np.zeros(0, np.int32)
    return tensors(batch)


def test_the_tower_is_the_encoder_on_whole_images():
    model = make_model((RGB, DEPTH))
    batch = whole_image_batch(3)
    inputs = read_batch(batch, model.config)
    embedded, _ = model.embed(inputs)
    expected = model.encode(embedded, inputs).view(3, RGB.max_tokens, -1)
    tower = ImageTower.of(model)
    torch.testing.assert_close(tower(batch[f"pixels/{RGB.name}"]), expected, rtol=1e-5, atol=1e-5)
    assert tower.features(batch[f"pixels/{RGB.name}"]).shape == (3, 16)


def test_a_tower_loads_a_whole_model_but_for_its_head():
    model = make_model((RGB, DEPTH, GLOBAL))
    tower = ImageTower(model.config, head=lambda width: torch.nn.Linear(width, 5))
    missing, unexpected = tower.load_state_dict(model.state_dict(), strict=False)
    assert set(missing) == {"head.weight", "head.bias"}
    assert not any(name.startswith(("encoder.", f"inputs.{RGB.name}")) for name in unexpected)
    pixels = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    torch.testing.assert_close(tower(pixels), tower.head(ImageTower.of(model)(pixels)))
    with pytest.raises(InputError, match="no pixels"):
        ImageTower(small((DEPTH,)))


def test_patches_have_their_channels_together():
    pixels = torch.arange(2 * 3 * 4 * 6).view(2, 3, 4, 6)
    patches = cut_patches(pixels, 2)
    assert patches.shape == (2, 2, 3, 2, 2, 3)
    assert torch.equal(patches[1, 1, 2, 0, 1], pixels[1, :, 2, 5])


@pytest.mark.parametrize("num", [1, 60])
def test_modalities_that_are_not_published_come_back_without_a_config(tmp_path, num):
    """This also works if their description is longer than the limit of parsed header values."""
    own = [DEPTH.model_copy(update={"name": f"depth_{number}@32", "folder": "depth"}) for number in range(num)]
    model = make_model((CAPTION, RGB, *own), intermediate_size=42)
    write_original(tmp_path / "model.safetensors", model)
    config, state = read_original(tmp_path / "model.safetensors")
    assert config == model.config
    assert all(torch.equal(state[name], tensor) for name, tensor in model.state_dict().items())


def test_files_for_the_original_have_no_key_that_it_does_not_know(tmp_path):
    shorter = (PUBLISHED[0].model_copy(update={"length": 32, "folder": "texts"}), *PUBLISHED[1:])
    assert "modalities" not in config_of(small(shorter, intermediate_size=42))
    smaller = published("rgb@32").model_copy(update={"patch_size": 8})
    assert "modalities" in config_of(small((PUBLISHED[0], smaller), intermediate_size=42))


def test_a_file_without_a_description_of_a_modality_takes_the_config_of_its_run(tmp_path):
    """Files of earlier versions have no description of their modalities."""
    own = DEPTH.model_copy(update={"name": "far@32"})
    model = make_model((CAPTION, own), intermediate_size=42)
    header = {name: str(value) for name, value in config_of(model.config).items() if name != "modalities"}
    write_tensors(tmp_path / "model.safetensors", to_original(model), header)
    with pytest.raises(CheckpointError, match=r"no modality 'far@32'[\s\S]*--config runs/NAME/config.yaml") as error:
        read_original(tmp_path / "model.safetensors")
    followed(error.value, "recipes/fourm/original.py: … / the file does not describe it")
    assert read_original(tmp_path / "model.safetensors", model.config)[0] == model.config


def test_headers_that_cannot_be_read_take_the_config_as_advised(tmp_path):
    model = make_model(PUBLISHED, intermediate_size=42)
    header = {name: str(value) for name, value in config_of(model.config).items()}
    path, found = tmp_path / "model.safetensors", to_original(model)
    write_tensors(path, found, header | {"new_option": "1"})
    with pytest.raises(CheckpointError) as error:
        read_original(path)
    assert "--config" in followed(error.value, "recipes/fourm/original.py: the config has …, which is not supported")
    assert read_original(path, model.config)[0] == model.config
    write_tensors(path, found, header | {"modalities": '[{"name": 3}]'})
    with pytest.raises(CheckpointError) as error:
        read_original(path)
    assert "--config" in followed(error.value, "recipes/fourm/original.py: the header has modalities that cannot be")
    assert read_original(path, model.config)[0] == model.config
