"""Checkpoints of Sabertooth: names and shapes of its parameters, its file format, and what is not one."""

import json
import shutil
import struct

import numpy as np
import pytest
import torch

import pretrainkit
from pretrainkit.errors import CheckpointError
from pretrainkit.formats.flax_file import flat_arrays, read_flax
from pretrainkit.recipes.bert.convert import to_huggingface_config, to_huggingface_state
from pretrainkit.recipes.bert.recipe import RECIPE
from pretrainkit.tokenizers.load import load_tokenizer
from pretrainkit.tokenizers.special import SpecialIds
from pretrainkit.tokenizers.train import TokenizerSettings, train_tokenizer
from support.bert_batches import run_config
from support.t5_foreign_files import nested


def original_arrays(state, num_layers, num_heads):
    """The original's parameters for a `BertForPreTraining`."""
    width = state["bert.pooler.dense.bias"].shape[0]
    found = {
        "bert/word_embeddings/embedding": state["bert.embeddings.word_embeddings.weight"],
        "bert/position_embeddings/embedding": state["bert.embeddings.position_embeddings.weight"],
        "bert/type_embeddings/embedding": state["bert.embeddings.token_type_embeddings.weight"],
        "predictions_output/bias": state["cls.predictions.bias"],
        "classification/kernel": state["cls.seq_relationship.weight"],
        "classification/bias": state["cls.seq_relationship.bias"],
    }
    norms = {
        "bert/embeddings_layer_norm": "bert.embeddings.LayerNorm",
        "predictions_transform_layernorm": "cls.predictions.transform.LayerNorm",
    }
    dense = {"bert/pooler": "bert.pooler.dense", "predictions_transform_dense": "cls.predictions.transform.dense"}
    for layer in range(num_layers):
        new, old = f"bert/encoder_layer_{layer}", f"bert.encoder.layer.{layer}"
        norms[f"{new}/self_attention_layer_norm"] = f"{old}.attention.output.LayerNorm"
        norms[f"{new}/output_layer_norm"] = f"{old}.output.LayerNorm"
        dense[f"{new}/feed_forward/intermediate"] = f"{old}.intermediate.dense"
        dense[f"{new}/feed_forward/output"] = f"{old}.output.dense"
        for name in ("query", "key", "value"):
            theirs = f"{old}.attention.self.{name}"
            kernel = state[f"{theirs}.weight"].t().reshape(width, num_heads, width // num_heads)
            found[f"{new}/self_attention/{name}/kernel"] = kernel
            found[f"{new}/self_attention/{name}/bias"] = state[f"{theirs}.bias"].reshape(num_heads, -1)
        out = f"{old}.attention.output.dense"
        found[f"{new}/self_attention/out/kernel"] = state[f"{out}.weight"].t().reshape(num_heads, -1, width)
        found[f"{new}/self_attention/out/bias"] = state[f"{out}.bias"]
    for new, old in norms.items():
        found |= {f"{new}/scale": state[f"{old}.weight"], f"{new}/bias": state[f"{old}.bias"]}
    for new, old in dense.items():
        found |= {f"{new}/kernel": state[f"{old}.weight"].t(), f"{new}/bias": state[f"{old}.bias"]}
    return {name: tensor.contiguous().numpy() for name, tensor in found.items()}


def packed(value):
    """MessagePack as Flax writes it."""
    if isinstance(value, dict):
        parts = [packed(key) + packed(inside) for key, inside in value.items()]
        return (bytes([0x80 | len(parts)]) if len(parts) < 16 else b"\xde" + struct.pack(">H", len(parts))) + b"".join(
            parts
        )
    if isinstance(value, str):
        raw = value.encode()
        return (bytes([0xA0 | len(raw)]) if len(raw) < 32 else bytes([0xD9, len(raw)])) + raw
    if isinstance(value, int):
        return bytes([value]) if value < 128 else b"\xce" + struct.pack(">I", value)
    if isinstance(value, bytes):
        return b"\xc6" + struct.pack(">I", len(value)) + value
    if isinstance(value, (tuple, list)):
        return bytes([0x90 | len(value)]) + b"".join(map(packed, value))
    content = packed((value.shape, value.dtype.name, value.tobytes()))
    return b"\xc9" + struct.pack(">I", len(content)) + b"\x01" + content


@pytest.fixture
def config():
    return run_config()


@pytest.fixture
def original(config, tmp_path):
    """A folder of the original, and the model whose weights are in it."""
    torch.manual_seed(3)
    model = RECIPE.build_model(config)
    state = to_huggingface_state(model.state_dict(), config.model)
    arrays = original_arrays(state, config.model.num_layers, config.model.num_heads)
    folder = tmp_path / "original"
    folder.mkdir()
    special = SpecialIds(unk=256, cls=257, sep=258, mask=259, pad=260)
    (folder / "config.json").write_text(json.dumps(to_huggingface_config(config.model, special)))
    tree = {"step": 20001, "params": nested(arrays), "opt_state": {"0": {"count": 3}}}
    (folder / "checkpoint_20000").write_bytes(packed(tree))
    (folder / "checkpoint_9000").write_bytes(b"an older one")
    return folder, model


def test_weights_of_the_original_are_read(original):
    folder, model = original
    found = pretrainkit.load_model(folder).state_dict()
    assert found.keys() == model.state_dict().keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in model.state_dict().items())


def test_shapes_are_those_of_the_original(original, config):
    arrays = flat_arrays(read_flax(original[0] / "checkpoint_20000")["params"])
    width, heads = config.model.hidden_size, config.model.num_heads
    assert len(arrays) == 5 + 16 * config.model.num_layers + 2 + 4 + 1 + 2
    assert arrays["bert/encoder_layer_1/self_attention/query/kernel"].shape == (width, heads, width // heads)
    assert arrays["bert/encoder_layer_0/self_attention/out/kernel"].shape == (heads, width // heads, width)
    assert arrays["classification/kernel"].shape == (2, width)


def test_import_writes_weights_and_no_copy_of_the_checkpoint(original, tmp_path):
    folder, model = original
    (folder / "sentencepiece.model").write_bytes(b"a model")
    pretrainkit.import_model(folder, "bert", tmp_path / "ours")
    found = pretrainkit.load_model(tmp_path / "ours").state_dict()
    assert all(torch.equal(found[name], tensor) for name, tensor in model.state_dict().items())
    assert [path.name for path in (tmp_path / "ours/tokenizer").iterdir()] == ["sentencepiece.model"]


def test_its_vocabulary_is_imported_with_the_file_that_transformers_reads(
    original, tmp_path, transformers, monkeypatch
):
    """Sabertooth copies only its SentencePiece model beside the weights."""
    monkeypatch.setenv("PRETRAINKIT_CACHE", str(tmp_path / "cache"))
    folder, _ = original
    (tmp_path / "words.tsv").write_text("the\t9\ntenor\t5\nhorn\t4\nnoon\t3\n")
    train_tokenizer([tmp_path / "words.tsv"], tmp_path / "trained", TokenizerSettings(vocab_size=272))
    shutil.copy(tmp_path / "trained" / "sentencepiece.model", folder)
    ids = load_tokenizer(folder).encode("the tenor’s horn").tolist()
    (answer,) = pretrainkit.generate(folder, ["the <mask>"])
    assert len(answer["masks"]) == 1
    pretrainkit.import_model(folder, "bert", tmp_path / "ours")
    pretrainkit.export(tmp_path / "ours", "huggingface", tmp_path / "theirs")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "theirs")
    assert theirs("the tenor’s horn")["input_ids"] == [257, *ids, 258]
    assert theirs.mask_token_id == 259


def test_checkpoints_of_2021_have_another_root(original):
    folder, model = original
    tree = read_flax(folder / "checkpoint_20000")
    (folder / "checkpoint_20000").write_bytes(packed({"target": {"params": tree["params"]}}))
    found = pretrainkit.load_model(folder).state_dict()
    assert torch.equal(found["embeddings.word.weight"], model.state_dict()["embeddings.word.weight"])


def test_a_folder_of_orbax_is_read_which_newer_versions_of_flax_write(original):
    tensorstore = pytest.importorskip("tensorstore")
    folder, model = original
    file = folder / "checkpoint_20000"
    arrays = flat_arrays(read_flax(file)["params"])
    file.unlink()
    file.mkdir()
    store = {"driver": "ocdbt", "base": {"driver": "file", "path": f"{file}/"}}
    for name, array in ({f"params/{name}": array for name, array in arrays.items()} | {"step": np.array(3)}).items():
        spec = {"driver": "zarr", "kvstore": store | {"path": f"{name.replace('/', '.')}/"}}
        spec |= {"metadata": {"dtype": array.dtype.str, "shape": list(array.shape)}}
        tensorstore.open(spec, create=True).result().write(array).result()
    found = pretrainkit.load_model(folder).state_dict()
    assert all(torch.equal(found[name], tensor) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("share", [0.0, 0.3, 0.999])
def test_a_torn_checkpoint_is_refused(original, share):
    path = original[0] / "checkpoint_20000"
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    with pytest.raises(CheckpointError, match="not a complete Flax checkpoint"):
        pretrainkit.load_model(original[0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_hidden_layers": 1}, "have no place in a model of 1 layers"),
        ({"num_hidden_layers": 3}, "has no tensor 'bert/encoder_layer_2"),
        ({"vocab_size": 7}, "word_embeddings.*its config.json implies"),
        ({"hidden_size": 64}, "word_embeddings.*its config.json implies"),
        ({"max_position_embeddings": 7}, "position_embeddings.*its config.json implies"),
        ({"intermediate_size": 7}, "intermediate/kernel.*its config.json implies"),
    ],
)
def test_a_checkpoint_of_another_size_is_refused(original, change, message):
    path = original[0] / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(CheckpointError, match=message):
        pretrainkit.load_model(original[0])


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        (b"\x81\xa1a\xc3", {"a": True}),
        (b"\xdf\x00\x00\x00\x01\xd9\x01a\xff", {"a": -1}),
        (b"\xdc\x00\x02\xcb\x3f\xf8\x00\x00\x00\x00\x00\x00\xd1\xff\x00", [1.5, -256]),
        (b"\x92\xc0\xcd\x01\x00", [None, 256]),
    ],
)
def test_values_of_messagepack_by_hand(tmp_path, raw, value):
    (tmp_path / "file").write_bytes(raw)
    assert read_flax(tmp_path / "file") == value


@pytest.mark.parametrize(
    "raw",
    [b"", b"\xc1", b"\x01\x01", b"\x81\x01\x01", b"\xd4\x02\x00", b"\xa1\xff", b"\xc7\x05\x01\x93\x01\x01\x01\x01"],
)
def test_a_file_that_is_not_a_flax_checkpoint_is_refused(tmp_path, raw):
    (tmp_path / "file").write_bytes(raw)
    with pytest.raises(CheckpointError, match="not a complete Flax checkpoint"):
        read_flax(tmp_path / "file")


def test_a_folder_with_safetensors_is_read_as_that_of_transformers(original, tmp_path):
    folder, _ = original
    shutil.copytree(folder, tmp_path / "both")
    (tmp_path / "both/model.safetensors").write_bytes(b"torn")
    with pytest.raises(CheckpointError, match="safetensors"):
        pretrainkit.load_model(tmp_path / "both")


def test_arrays_are_collected_at_any_depth():
    assert list(flat_arrays({"a": {"b": np.zeros(1), "c": {"d": np.zeros(1)}}, "e": 3})) == ["a/b", "a/c/d"]
