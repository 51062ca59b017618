"""Weights that others saved: read as tensors, in parts, and never executed."""

import json
import os

import pytest
import torch

from pretrainkit.errors import CheckpointError
from pretrainkit.exporting.published_files import read_pickle, read_published, read_saved
from support.command_line import refused


class Hostile:
    """Creates a folder when it is unpickled."""

    def __init__(self, folder):
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self.folder),)


def test_weights_of_transformers_may_be_pickled_also_in_parts(tmp_path):
    whole = {"a": torch.arange(3.0), "b": torch.ones(2, 2)}
    (tmp_path / "one").mkdir()
    torch.save(whole, tmp_path / "one" / "pytorch_model.bin")
    (tmp_path / "two").mkdir()
    for part, name in enumerate(whole, 1):
        torch.save({name: whole[name]}, tmp_path / "two" / f"pytorch_model-0000{part}-of-00002.bin")
    places = {name: f"pytorch_model-0000{part}-of-00002.bin" for part, name in enumerate(whole, 1)}
    (tmp_path / "two" / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": places}))
    for folder in ("one", "two"):
        tensors = read_saved(tmp_path / folder)
        assert tensors.keys() == whole.keys()
        assert all(torch.equal(tensors[name], whole[name]) for name in whole)
    (tmp_path / "two" / places["b"]).unlink()
    with pytest.raises(CheckpointError, match=r"lists the part .*00002-of-00002\.bin"):
        read_saved(tmp_path / "two")
    places["b"] = "../one/pytorch_model.bin"
    (tmp_path / "two" / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": places}))
    with pytest.raises(CheckpointError, match="which is not in"):
        read_saved(tmp_path / "two")


def test_a_folder_with_pickled_weights_alone_is_imported(transformers, tmp_path):
    from pretrainkit import api

    config = transformers.BertConfig(
        vocab_size=30, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24
    )
    theirs = transformers.BertForPreTraining(config)
    theirs.save_pretrained(tmp_path / "bert")
    (tmp_path / "bert" / "model.safetensors").unlink()
    old = {name.replace("LayerNorm.weight", "LayerNorm.gamma"): value for name, value in theirs.state_dict().items()}
    torch.save(old, tmp_path / "bert" / "pytorch_model.bin")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{number}" for number in range(25))]
    (tmp_path / "bert" / "vocab.txt").write_text("\n".join(words))
    api.import_model(tmp_path / "bert", None, tmp_path / "ours")
    api.export(tmp_path / "ours", "huggingface", tmp_path / "back")
    again = transformers.BertForPreTraining.from_pretrained(tmp_path / "back")
    state = again.state_dict()
    assert all(torch.equal(state[name], value) for name, value in theirs.state_dict().items())


def test_a_file_that_calls_code_is_refused_with_its_name_and_not_run(tmp_path):
    trap = tmp_path / "created by the file"
    torch.save({"state_dict": {"a": Hostile(trap)}}, tmp_path / "file.pt")
    with pytest.raises(CheckpointError, match=r"without executing code in it: it calls posix\.mkdir") as caught:
        read_pickle(tmp_path / "file.pt", ("state_dict",), "a model")
    assert "weights_only" not in str(caught.value)
    for format in ("openai", "openclip", "zerovl", "4m", "4m-tokenizer"):
        told = refused("import", tmp_path / "file.pt", "--format", format, "--out", tmp_path / "ours")
        assert "cannot be read without executing code" in told
    (tmp_path / "file.pt").write_bytes(b"no archive")
    with pytest.raises(CheckpointError, match="it is damaged, or holds more than tensors"):
        read_pickle(tmp_path / "file.pt", ("state_dict",), "a model")
    assert not trap.exists()


def test_a_shared_tensor_has_all_its_names(tmp_path):
    """`save_pretrained` of the hub writes it once, and its other names into the header."""
    from safetensors.torch import save_file

    metadata = {"format": "pt", "encoder.emb": "decoder.emb"}
    save_file({"decoder.emb": torch.arange(3.0), "a": torch.ones(2)}, tmp_path / "model.safetensors", metadata)
    (tmp_path / "config.json").write_text(json.dumps({"dim": 3}))
    tensors, config = read_published(tmp_path, "dim", needs_config=True)
    assert config == {"dim": 3}
    assert tensors.keys() == {"a", "decoder.emb", "encoder.emb"}
    assert torch.equal(tensors["encoder.emb"], torch.arange(3.0))
