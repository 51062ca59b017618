"""Parity with transformers and with the original's names, both ways."""

import json
import logging
from copy import deepcopy
from dataclasses import replace

import pytest
import torch

from pretrainkit.api import import_model
from pretrainkit.errors import CheckpointError, DataError, InputError
from pretrainkit.exporting.safetensors import read_tensors, write_tensors
from pretrainkit.recipes.bert.convert import (
    DEFAULT_SPECIAL_IDS,
    from_huggingface_config,
    from_huggingface_state,
    read_huggingface,
    to_huggingface_config,
    to_huggingface_state,
    write_huggingface,
)
from pretrainkit.recipes.bert.inputs import read_batch
from pretrainkit.recipes.bert.objective import BertObjective
from pretrainkit.recipes.bert.presets import PRESETS
from pretrainkit.recipes.bert.recipe import RECIPE
from pretrainkit.running.opened import open_model
from support.bert_batches import WIDTH, modern_config, row_batch, run_config
from support.glue_toys import write_tokenizer

LENGTHS = [5, WIDTH, 9, 17]


def random_model(config):
    torch.manual_seed(0)
    model = RECIPE.build_model(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(1.0 if parameter.ndim == 1 and parameter.std() == 0 and parameter[0] == 1 else 0.0, 0.1)
    return model.eval()


def their_inputs(batch):
    labels = torch.full(batch["input_ids"].shape, -100)
    row, slot = batch["masked_lm_weights"].nonzero(as_tuple=True)
    labels[row, batch["masked_lm_positions"][row, slot].long()] = batch["masked_lm_ids"][row, slot].long()
    return {"input_ids": batch["input_ids"].long(), "attention_mask": batch["input_mask"].long(), "labels": labels}


@pytest.mark.parametrize("activation", ["gelu_tanh", "gelu", "relu", "swish"])
def test_bert_equals_transformers(transformers, tmp_path, activation):
    """Fact 30: hidden states, logits of both heads and the total loss, to 1e-5 in float32."""
    config = run_config()
    config = config.model_copy(update={"model": config.model.model_copy(update={"activation": activation})})
    model, batch = random_model(config), row_batch(LENGTHS)
    RECIPE.export_huggingface(config, model, None, tmp_path / "hf")
    theirs = transformers.AutoModelForPreTraining.from_pretrained(tmp_path / "hf")
    assert isinstance(theirs, transformers.BertForPreTraining)

    with torch.no_grad():
        out = theirs(
            **their_inputs(batch),
            token_type_ids=batch["token_type_ids"].long(),
            next_sentence_label=batch["next_sentence_label"],
            output_hidden_states=True,
        )
        inputs, _ = read_batch(batch, WIDTH)
        states, outputs = model.encode(inputs), model(inputs)
        losses = BertObjective(config).losses(model, batch)
    is_real = batch["input_mask"]
    for ours, hidden in zip(states, out.hidden_states, strict=True):
        torch.testing.assert_close(ours, hidden[is_real], rtol=0, atol=1e-5)
    is_predicted = their_inputs(batch)["labels"] != -100
    torch.testing.assert_close(outputs.logits_KV, out.prediction_logits[is_predicted], rtol=0, atol=1e-5)
    torch.testing.assert_close(outputs.sentence_order_B2, out.seq_relationship_logits, rtol=0, atol=1e-5)
    total = losses["masked_lm_loss"].mean() + losses["next_sentence_loss"].mean()
    torch.testing.assert_close(total, out.loss, rtol=0, atol=1e-5)


def test_modern_equals_transformers(transformers, tmp_path):
    config = modern_config()
    model, batch = random_model(config), row_batch([40, 60, 9, 21], width=64)
    RECIPE.export_huggingface(config, model, None, tmp_path / "hf")
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "hf", attn_implementation="sdpa")
    assert isinstance(theirs, transformers.ModernBertForMaskedLM)
    with torch.no_grad():
        out = theirs(**their_inputs(batch), output_hidden_states=True)
        inputs, _ = read_batch(batch, 64)
        states, outputs = model.encode(inputs), model(inputs)
        loss = BertObjective(config).losses(model, batch)["masked_lm_loss"].mean()
    # transformers lists the last block's output before or after the final norm, depending on its version.
    for ours, hidden in zip(states[:-1], out.hidden_states, strict=False):
        torch.testing.assert_close(ours, hidden[batch["input_mask"]], rtol=0, atol=1e-5)
    is_predicted = their_inputs(batch)["labels"] != -100
    torch.testing.assert_close(outputs.logits_KV, out.logits[is_predicted], rtol=0, atol=1e-5)
    torch.testing.assert_close(loss, out.loss, rtol=0, atol=1e-5)


def test_bert_without_sentence_order_is_a_masked_lm(transformers, tmp_path):
    config = run_config(sentence_order=False)
    model, batch = random_model(config), row_batch(LENGTHS)
    RECIPE.export_huggingface(config, model, None, tmp_path / "hf")
    theirs = transformers.BertForMaskedLM.from_pretrained(tmp_path / "hf")
    with torch.no_grad():
        out = theirs(**their_inputs(batch), token_type_ids=batch["token_type_ids"].long())
        loss = BertObjective(config).losses(model, batch)["masked_lm_loss"].mean()
    torch.testing.assert_close(loss, out.loss, rtol=0, atol=1e-5)
    assert json.loads((tmp_path / "hf/config.json").read_text())["architectures"] == ["BertForMaskedLM"]


@pytest.mark.parametrize("kind", ["bert", "modern"])
def test_files_that_transformers_writes_are_read_back(transformers, tmp_path, kind):
    config = run_config() if kind == "bert" else modern_config()
    model = random_model(config)
    RECIPE.export_huggingface(config, model, None, tmp_path / "ours")
    auto = transformers.AutoModelForPreTraining if kind == "bert" else transformers.AutoModelForMaskedLM
    auto.from_pretrained(tmp_path / "ours").save_pretrained(tmp_path / "theirs")
    found, state = RECIPE.import_huggingface(tmp_path / "theirs")
    assert found.objective.sentence_order == (kind == "bert")
    assert found.model.model_copy(update={"scale_output_layers": True}) == config.model.model_copy(
        update={"scale_output_layers": True}
    )
    expected = model.state_dict()
    assert state.keys() == expected.keys()
    for name, tensor in state.items():
        assert torch.equal(tensor, expected[name]), name


def test_config_has_the_ids_and_names_of_the_spec():
    """Section 10.4."""
    values = to_huggingface_config(PRESETS["base"]().model)
    expected = {"model_type": "bert", "pad_token_id": 260, "bos_token_id": 257, "eos_token_id": 258}
    expected |= {"cls_token_id": 257, "sep_token_id": 258, "mask_token_id": 259}
    expected |= {"hidden_act": "gelu_new", "layer_norm_eps": 1e-12, "vocab_size": 32_128}
    assert expected.items() <= values.items()
    assert to_huggingface_config(PRESETS["base"]().model, replace(DEFAULT_SPECIAL_IDS, pad=0))["pad_token_id"] == 0
    small = PRESETS["base"]().model.model_copy(update={"vocab_size": 258})
    found = to_huggingface_config(small)
    assert (found["cls_token_id"], found["pad_token_id"], found["mask_token_id"]) == (257, None, None)


@pytest.mark.parametrize("name", ["base", "large", "modern-base"])
def test_config_of_presets_survives_a_round_trip(name):
    model = PRESETS[name]().model
    assert from_huggingface_config(json.loads(json.dumps(to_huggingface_config(model)))) == model


def test_tokenizer_files_are_copied_and_an_existing_folder_is_left_alone(tmp_path):
    (tmp_path / "tok").mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "tok" / name).write_text("{}")
    config = run_config()
    state = RECIPE.build_model(config).state_dict()
    write_huggingface(state, config.model, tmp_path / "out", tokenizer=tmp_path / "tok")
    names = ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == names
    with pytest.raises(InputError, match="exists and is not an empty folder"):
        write_huggingface(state, config.model, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "tok"]


def test_a_failed_export_leaves_nothing_behind(tmp_path):
    config = run_config()
    with pytest.raises(KeyError):
        write_huggingface({}, config.model, tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_old_names_of_norms_are_understood():
    config = run_config()
    state = RECIPE.build_model(config).state_dict()
    theirs = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for name, tensor in to_huggingface_state(state, config.model).items()
    }
    assert any(name.endswith("gamma") for name in theirs)
    back = from_huggingface_state(theirs, config.model)
    assert all(torch.equal(back[name], tensor) for name, tensor in state.items())


def test_weights_that_do_not_fit_are_named(tmp_path):
    config = run_config()
    state = to_huggingface_state(RECIPE.build_model(config).state_dict(), config.model)
    with pytest.raises(CheckpointError, match=r"1 of \d+ tensors are missing, such as cls.predictions.bias"):
        from_huggingface_state({k: v for k, v in state.items() if k != "cls.predictions.bias"}, config.model)
    with pytest.raises(CheckpointError, match=r"1 tensors have no place in this model, such as bert.extra"):
        from_huggingface_state(state | {"bert.extra": torch.zeros(1)}, config.model)
    with pytest.raises(CheckpointError, match=r"decoder.weight differs from bert.embeddings.word_embeddings.weight"):
        from_huggingface_state(state | {"cls.predictions.decoder.weight": torch.zeros(300, 32)}, config.model)
    with pytest.raises(CheckpointError, match=r"has no config\.json"):
        read_huggingface(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "gpt2"}, "model_type 'gpt2'"),
        ({"hidden_act": "mish"}, "activation 'mish'"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type 'relative_key'"),
        ({"is_decoder": True}, "is_decoder True"),
    ],
)
def test_configs_of_other_models_are_refused(change, message):
    values = to_huggingface_config(run_config().model) | change
    with pytest.raises(CheckpointError, match=message):
        from_huggingface_config(values)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_activation": "relu", "classifier_activation": None}, "classifier_activation 'gelu'"),
        ({"mlp_dropout": 0.5}, "embedding_dropout 0.0 and mlp_dropout 0.5"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 4.0}}, "rope_type 'linear'"),
        ({"rope_scaling": {"type": "dynamic", "factor": 4.0}}, "type 'dynamic'"),
        ({"sliding_window": 3}, "sliding_window 3"),
    ],
)
def test_settings_that_change_a_modernbert_of_transformers_are_refused(transformers, change, message):
    """Each of these changes the outputs there. None: the setting is missing, so that the default counts."""
    values = to_huggingface_config(modern_config().model)
    changed = {name: value for name, value in (values | change).items() if value is not None}
    # transformers changes the mappings that it is given
    plain, other = (transformers.ModernBertConfig(**deepcopy(fields)).to_dict() for fields in (values, changed))
    assert plain != other
    from_huggingface_config(values)
    with pytest.raises(CheckpointError, match=message):
        from_huggingface_config(changed)


def test_a_modern_sentence_order_head_is_left_out_with_a_warning(caplog):
    config = modern_config()
    config = config.model_copy(update={"objective": config.objective.model_copy(update={"sentence_order": True})})
    with caplog.at_level(logging.WARNING):
        to_huggingface_state(RECIPE.build_model(config).state_dict(), config.model)
    assert "no such head: sentence_order" in caplog.text


def test_tensors_in_parts_and_broken_files(tmp_path):
    write_tensors(tmp_path / "a.safetensors", {"x": torch.ones(2)})
    write_tensors(tmp_path / "b.safetensors", {"y": torch.zeros(2)})
    index = {"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert sorted(read_tensors(tmp_path)) == ["x", "y"]
    (tmp_path / "b.safetensors").write_bytes(b"torn")
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_tensors(tmp_path)
    (tmp_path / "b.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"lists the part 'b\.safetensors'"):
        read_tensors(tmp_path)


POOLINGS = {
    "Pooling (mean)": {"pooling_mode": "mean", "include_prompt": True},
    "Pooling (cls and max)": {"pooling_mode": ["cls", "max"]},
    "Pooling (mean_tokens)": {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True},
}


@pytest.mark.parametrize("expected", POOLINGS)
def test_parts_of_sentence_transformers_that_are_not_read_are_reported(tmp_path, caplog, expected):
    """Sentence-transformers saves these modules behind an encoder."""
    folder = tmp_path / "model"
    config = run_config()
    RECIPE.export_huggingface(config, random_model(config), None, folder)
    kinds = {"": "base.modules.transformer.Transformer", "1_Pooling": "models.Pooling", "2_Dense": "models.Dense"}
    modules = [{"path": path, "type": f"sentence_transformers.{kind}"} for path, kind in kinds.items()]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(POOLINGS[expected]))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 32, "do_lower_case": True}))
    with caplog.at_level(logging.WARNING):
        open_model(folder)
    assert f"only the encoder is read, without do_lower_case, {expected}, Dense\n" in caplog.text

    modules[0].pop("type")
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(DataError, match=r"modules\.json is damaged"):
        open_model(folder)


def test_a_model_of_sentence_transformers_may_have_its_encoder_in_a_subfolder(tmp_path):
    config = run_config()
    RECIPE.export_huggingface(config, random_model(config), None, tmp_path / "model" / "0_Transformer")
    with pytest.raises(DataError, match=r"pass the folder of its encoder, .*0_Transformer"):
        import_model(tmp_path / "model", None, tmp_path / "ours")
    assert not (tmp_path / "ours").exists()


@pytest.mark.parametrize("side", ["padding_side", "truncation_side"])
def test_tokenizers_that_change_the_beginning_of_texts_are_reported(tmp_path, caplog, side):
    config = run_config()
    RECIPE.export_huggingface(config, random_model(config), None, tmp_path / "model")
    for folder, value in (("right", "right"), ("left", "left")):
        write_tokenizer(tmp_path / folder)
        path = tmp_path / folder / "tokenizer_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {side: value}))
    with caplog.at_level(logging.WARNING):
        open_model(tmp_path / "model", tokenizer=tmp_path / "right")
        assert side not in caplog.text
        open_model(tmp_path / "model", tokenizer=tmp_path / "left")
    assert f"has {side} 'left', but this recipe pads and cuts texts at their end" in caplog.text


def test_a_masked_word_head_without_a_bias_is_read_as_zeros(transformers, tmp_path, caplog):
    sizes = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "pad_token_id": 0}
    ids = {"bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2, "sep_token_id": 3}
    config = transformers.ModernBertConfig(**sizes, **ids, intermediate_size=16, decoder_bias=False)
    transformers.ModernBertForMaskedLM(config).save_pretrained(tmp_path / "theirs")
    with caplog.at_level(logging.WARNING):
        _, state = read_huggingface(tmp_path / "theirs")
    assert not state["masked_lm.decoder_bias"].any()
    assert "initialized at random" not in caplog.text


def test_the_output_bias_may_have_only_its_second_name():
    config = run_config().model
    state = to_huggingface_state(random_model(run_config()).state_dict(), config)
    expected = from_huggingface_state(state, config)
    state["cls.predictions.decoder.bias"] = state.pop("cls.predictions.bias")
    found = from_huggingface_state(state, config)
    assert torch.equal(found["masked_lm.decoder_bias"], expected["masked_lm.decoder_bias"])
