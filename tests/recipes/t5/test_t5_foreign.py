"""Checkpoints of T5X and Mesh TensorFlow become models with the same logits, for every family."""

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import pretrainkit
from pretrainkit.api import difference_from_huggingface
from pretrainkit.cli.main import app_of
from pretrainkit.errors import CheckpointError, InputError
from pretrainkit.exporting.safetensors import write_tensors
from pretrainkit.recipes.t5.inputs import read_batch
from pretrainkit.recipes.t5.model import build
from pretrainkit.recipes.t5.original import names, read_foreign, to_original
from pretrainkit.tasks.vocabulary import ByteVocabulary
from pretrainkit.tasks.vocabulary_folder import open_vocabulary, save_vocabulary
from support.t5_batches import model_config, random_model, row_batch
from support.t5_foreign_files import bfloat16_bits, logits, mesh_names, write_bundle, write_t5x

pytestmark = pytest.mark.slow

FAMILIES = ["1.0", "1.1", "umt5"]


def their_arrays(config):
    state = to_original(random_model(config).state_dict(), config)
    return {name: array.numpy() for name, array in state.items()}


def scanned(arrays):
    """The layers of each stack in one array along dim 1."""
    found = {}
    for name, array in arrays.items():
        stack, _, rest = name.partition("/")
        if rest.startswith("layers_0/"):
            inner = rest.removeprefix("layers_0/")
            found[f"{stack}/{stack}/{inner}"] = np.stack([array, arrays[f"{stack}/layers_1/{inner}"]], axis=1)
        elif not rest.startswith("layers_"):
            found[name] = array
    return found


def assert_same_logits(found, arrays, config, atol=2e-5):
    model = build(found.model).eval()
    model.load_state_dict(found.state)
    batch = row_batch()
    inputs, _ = read_batch(batch)
    with torch.no_grad():
        ours = model(inputs).numpy()
    expected = []
    for row in range(3):
        source, target, real = (
            batch[name][row].numpy()
            for name in ("encoder_input_tokens", "decoder_input_tokens", "decoder_target_tokens")
        )
        settings = {"is_gated": len(config.activations) == 2, "is_tied": config.tied_logits}
        expected.append(logits(arrays, source[source > 0], target[real > 0], **settings))
    np.testing.assert_allclose(ours, np.concatenate(expected), rtol=0, atol=atol)


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_folder_of_t5x_gives_their_logits(tmp_path, family, version):
    config = model_config(family)
    arrays = their_arrays(config)
    write_t5x(tmp_path / "checkpoint_1000", arrays, version=version)
    found = read_foreign(tmp_path, "t5x")
    assert found.model == config.model_copy(update={"init_style": found.model.init_style})
    assert found.step == 1000
    if version == 2:
        cut = lambda array: (bfloat16_bits(array).astype(np.uint32) << 16).view(np.float32)  # noqa: E731
        arrays = {name: cut(array) if array.ndim == 2 else array for name, array in arrays.items()}
    assert_same_logits(found, arrays, config)


def test_stacked_layers_give_their_logits_under_their_names(tmp_path):
    config = model_config("umt5")
    arrays = their_arrays(config)
    write_t5x(tmp_path / "one", scanned(arrays))
    found = read_foreign(tmp_path / "one", "t5x")
    assert_same_logits(found, arrays, config)
    assert found.names["decoder.layers.1.feed_forward.down.weight"] == "target/decoder/decoder/mlp/wo/kernel"


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("where", ["folder", "prefix", "file"])
def test_a_checkpoint_of_mesh_tensorflow_gives_their_logits(tmp_path, family, where):
    config = model_config(family)
    arrays, t5x = their_arrays(config), names(config)
    theirs = {mesh_names(config)[ours]: arrays[name] for ours, name in t5x.items()}
    slots = {f"{name}_slot_v": np.zeros(2, np.float32) for name in theirs}
    prefix = tmp_path / "mesh" / "model.ckpt-1000700"
    write_bundle(prefix, {**theirs, **slots, "global_step": np.array(1000700)})
    path = {"folder": prefix.parent, "prefix": prefix, "file": prefix.with_name(f"{prefix.name}.index")}[where]
    found = read_foreign(path, "mesh_tf", config.model_copy(update={"vocab_size": None}))
    assert found.step == 1000700
    assert set(found.names.values()) == set(theirs)
    assert_same_logits(found, arrays, config)


def test_other_variables_and_other_architectures_are_refused(tmp_path):
    config = model_config()
    arrays = their_arrays(config)
    write_bundle(tmp_path / "model.ckpt-1", {"shared/embedding": arrays["token_embedder/embedding"], "x/y": np.ones(1)})
    with pytest.raises(CheckpointError, match="1 variables do not belong to a T5, such as x/y"):
        read_foreign(tmp_path, "mesh_tf")
    write_t5x(tmp_path / "a", arrays)
    with pytest.raises(CheckpointError, match=r"num_encoder_layers: 2 in the checkpoint, 3 in the config"):
        read_foreign(tmp_path / "a", "t5x", model_config(num_encoder_layers=3))
    del arrays["decoder/layers_1/mlp/wo/kernel"]
    write_t5x(tmp_path / "b", arrays)
    with pytest.raises(CheckpointError, match="1 tensors of the model are missing: decoder/layers_1/mlp/wo"):
        read_foreign(tmp_path / "b", "t5x")


def test_missing_files_of_a_folder_are_named(tmp_path):
    write_t5x(tmp_path / "a", their_arrays(model_config()))
    for file in (tmp_path / "a" / "target.decoder.logits_dense.kernel").iterdir():
        file.unlink()
    with pytest.raises(CheckpointError, match=r"target/decoder/logits_dense/kernel .* has no .zarray"):
        read_foreign(tmp_path / "a", "t5x")
    with pytest.raises(CheckpointError, match="is not a T5X checkpoint"):
        read_foreign(tmp_path / "nowhere", "t5x")


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_import_and_export_restore_the_weights(tmp_path, suffix):
    config = model_config("1.0")
    arrays = their_arrays(config)
    write_t5x(tmp_path / "theirs", arrays)
    pretrainkit.import_model(tmp_path / "theirs", None, tmp_path / "ours", format="t5x")
    pretrainkit.export(tmp_path / "ours", "t5x", tmp_path / f"tree{suffix}")
    again = read_foreign(tmp_path / f"tree{suffix}", "t5x")
    assert_same_logits(again, arrays, config)
    write_tensors(tmp_path / "x.safetensors", {"encoder/layers_0/mlp/wo/kernel": torch.ones(2, 2)})
    with pytest.raises(CheckpointError, match="not the parameters of a T5"):
        read_foreign(tmp_path / "x.safetensors", "t5x")
    with pytest.raises(InputError, match="exists"):
        pretrainkit.export(tmp_path / "ours", "t5x", tmp_path / f"tree{suffix}")


def test_the_command_shows_every_name_and_writes_nothing_in_a_dry_run(tmp_path):
    write_t5x(tmp_path / "theirs", their_arrays(model_config()))
    done = CliRunner().invoke(
        app_of("import"), [str(tmp_path / "theirs"), "--recipe", "t5", "--format", "t5x", "--dry-run"]
    )
    assert done.exit_code == 0, done.output
    assert "target/decoder/layers_1/encoder_decoder_attention/out/kernel" in done.output
    assert "decoder.layers.1.cross_attention.out.weight [32, 24]" in done.output
    assert "step 1,000" in done.output
    assert [path.name for path in tmp_path.iterdir()] == ["theirs"]


@pytest.mark.parametrize("family", FAMILIES)
def test_an_import_can_be_compared_with_transformers(transformers, tmp_path, family):
    write_t5x(tmp_path / "theirs", their_arrays(model_config(family)))
    pretrainkit.import_model(tmp_path / "theirs", "t5", tmp_path / "ours", format="t5x")
    assert difference_from_huggingface(tmp_path / "ours") < 1e-4


@pytest.mark.parametrize("is_folder", [False, True])
def test_a_byt5_is_imported_with_its_bytes(tmp_path, is_folder):
    config = model_config(vocab_size=384)
    write_tensors(tmp_path / "t5x.safetensors", to_original(random_model(config).state_dict(), config))
    tokenizer = tmp_path / "byt5" if is_folder else "bytes"
    if is_folder:
        save_vocabulary(ByteVocabulary(), tokenizer)
    pretrainkit.import_model(tmp_path / "t5x.safetensors", "t5", tmp_path / "ours", format="t5x", tokenizer=tokenizer)
    assert open_vocabulary(tmp_path / "ours") == ByteVocabulary()
