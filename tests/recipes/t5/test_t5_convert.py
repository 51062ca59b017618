"""Parity with transformers, both ways."""

import json
from dataclasses import replace

import pytest
import torch

from pretrainkit.api import import_model
from pretrainkit.errors import CheckpointError, InputError
from pretrainkit.exporting.class_names import class_names
from pretrainkit.exporting.safetensors import read_tensors, write_tensors
from pretrainkit.nn import activations
from pretrainkit.recipes.t5.convert import (
    from_huggingface_config,
    from_huggingface_state,
    read_huggingface,
    to_huggingface_config,
    to_huggingface_state,
    write_huggingface,
)
from pretrainkit.recipes.t5.inputs import read_batch
from pretrainkit.recipes.t5.model import T5
from pretrainkit.recipes.t5.presets import FAMILIES, PRESETS, model_of
from support.t5_batches import examples, model_config, packed_batch, random_model, row_batch


def config_of(family):
    """mt5 is 1.1 with its own vocabulary size, which identifies it."""
    return model_config("1.1", vocab_size=250_112, hidden_size=16) if family == "mt5" else model_config(family)


def their_logits(theirs, inputs, targets):
    with torch.no_grad():
        return theirs(
            input_ids=inputs.long(),
            attention_mask=(inputs != 0).long(),
            decoder_input_ids=torch.nn.functional.pad(targets.long()[:, :-1], (1, 0)),
        ).logits


def our_logits(model, batch):
    inputs, targets = read_batch(batch)
    with torch.no_grad():
        return model(inputs), targets


@pytest.mark.parametrize("family", ["1.0", "1.1", "mt5", "umt5"])
def test_fact_4_logits_equal_those_of_transformers_and_come_back(transformers, tmp_path, family):
    config = config_of(family)
    model, batch = random_model(config), row_batch()
    write_huggingface(model.state_dict(), config, tmp_path / "hf")
    # With other attention, transformers 5.17 lets the decoder of umT5 read later targets.
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "hf", attn_implementation="eager").eval()
    assert type(theirs).__name__ == to_huggingface_config(config)["architectures"][0]
    expected = their_logits(theirs, batch["encoder_input_tokens"], batch["decoder_target_tokens"])
    if family == "umt5" and theirs.config.tie_word_embeddings:
        # transformers 5 sets the flag itself and then scales the logits of umT5, though it leaves them untied.
        expected = expected * config.hidden_size**0.5
    found, _ = our_logits(model, batch)
    torch.testing.assert_close(found, expected[batch["decoder_target_tokens"] != 0], rtol=0, atol=1e-5)

    theirs.save_pretrained(tmp_path / "theirs")
    config_back, state = read_huggingface(tmp_path / "theirs")
    assert config_back == config
    assert state.keys() == model.state_dict().keys()
    assert all(torch.equal(state[name], tensor) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("family", ["1.0", "1.1"])
def test_packed_rows_have_the_logits_that_transformers_gives_to_each_example(transformers, tmp_path, family):
    config = config_of(family)
    model, batch = random_model(config), packed_batch()
    write_huggingface(model.state_dict(), config, tmp_path / "hf")
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "hf").eval()
    found, targets = our_logits(model, batch)
    numbers = targets.example_K.unique()
    compared = 0
    for number, (inputs, target) in zip(numbers, examples(batch), strict=True):
        if len(inputs):
            expected = their_logits(theirs, inputs[None], target[None])[0]
            torch.testing.assert_close(found[targets.example_K == number], expected, rtol=0, atol=1e-5)
            compared += 1
    assert compared == 4


def test_fact_7_the_exact_gelu_is_another_model(transformers, tmp_path, monkeypatch):
    config = model_config()
    model, batch = random_model(config), row_batch()
    write_huggingface(model.state_dict(), config, tmp_path / "hf")
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "hf").eval()
    expected = their_logits(theirs, batch["encoder_input_tokens"], batch["decoder_target_tokens"])
    monkeypatch.setitem(activations.ACTIVATIONS, "gelu_tanh", torch.nn.functional.gelu)
    found, _ = our_logits(model, batch)
    assert (found - expected[batch["decoder_target_tokens"] != 0]).abs().max() > 1e-4


def test_fact_5_untied_exports_have_table_and_logits_and_tied_ones_the_table_only(tmp_path):
    for family, names in (("1.1", {"shared.weight", "lm_head.weight"}), ("1.0", {"shared.weight"})):
        config = model_config(family)
        write_huggingface(random_model(config).state_dict(), config, tmp_path / family)
        tensors = read_tensors(tmp_path / family)
        assert {name for name in tensors if name.split(".")[0] in ("shared", "lm_head")} == names
        assert not any("embed_tokens" in name for name in tensors)
        values = json.loads((tmp_path / family / "config.json").read_text())
        assert values["tie_word_embeddings"] == (family == "1.0")


def test_config_has_the_fields_of_the_original():
    values = to_huggingface_config(model_of(FAMILIES["1.1"], FAMILIES["1.1"].sizes["small"]))
    expected = {
        "model_type": "t5",
        "architectures": ["T5ForConditionalGeneration"],
        "vocab_size": 32128,
        "d_model": 512,
        "d_kv": 64,
        "d_ff": 1024,
        "num_layers": 8,
        "num_decoder_layers": 8,
        "num_heads": 6,
        "relative_attention_num_buckets": 32,
        "relative_attention_max_distance": 128,
        "dropout_rate": 0.0,
        "layer_norm_epsilon": 1e-6,
        "feed_forward_proj": "gated-gelu",
        "tie_word_embeddings": False,
        "decoder_start_token_id": 0,
        "pad_token_id": 0,
        "eos_token_id": 1,
        "is_encoder_decoder": True,
    }
    assert expected.items() <= values.items()


@pytest.mark.parametrize("name", [name for name in PRESETS if name != "mini"])
def test_the_config_of_every_preset_comes_back(name):
    model = PRESETS[name]().model
    values = json.loads(json.dumps(to_huggingface_config(model)))
    assert from_huggingface_config(values) == model
    # What transformers 5 makes of the flag does not matter where the weights are known.
    assert from_huggingface_config(values | {"tie_word_embeddings": True}, has_logits=not model.tied_logits) == model


def test_copies_of_the_table_are_dropped_and_others_refused():
    config = model_config("1.0")
    state = random_model(config).state_dict()
    theirs = to_huggingface_state(state, config)
    copies = {f"{stack}.embed_tokens.weight": theirs["shared.weight"] for stack in ("encoder", "decoder")}
    only_copies = {**theirs, **copies, "lm_head.weight": theirs["shared.weight"].clone()}
    assert from_huggingface_state(only_copies, config).keys() == state.keys()
    del only_copies["shared.weight"]
    assert torch.equal(from_huggingface_state(only_copies, config)["embedding.weight"], state["embedding.weight"])
    with pytest.raises(CheckpointError, match=r"decoder\.embed_tokens\.weight differs"):
        from_huggingface_state(theirs | {"decoder.embed_tokens.weight": theirs["shared.weight"] + 1}, config)


@pytest.mark.parametrize("change", ["missing", "left over"])
def test_other_weights_are_refused(change):
    config = model_config()
    state = to_huggingface_state(random_model(config).state_dict(), config)
    if change == "missing":
        del state["decoder.block.1.layer.2.DenseReluDense.wo.weight"]
    else:
        state["encoder.block.2.layer.0.SelfAttention.q.weight"] = torch.zeros(1)
    with pytest.raises(CheckpointError, match="tensors are missing" if change == "missing" else "have no place"):
        from_huggingface_state(state, config)


def test_a_tied_checkpoint_that_stores_its_head_is_read_as_tied(tmp_path):
    config = model_config("1.0")
    model = random_model(config)
    write_huggingface(model.state_dict(), config, tmp_path / "hf")
    tensors = read_tensors(tmp_path / "hf")
    write_tensors(tmp_path / "hf/model.safetensors", tensors | {"lm_head.weight": tensors["shared.weight"].clone()})
    assert read_huggingface(tmp_path / "hf")[0] == config


def created_by_transformers(transformers, family, folder, **settings):
    """A model that transformers creates and saves; random, with large biases and norms."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 200, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
    config = getattr(transformers, family)(**sizes, **settings)
    theirs = transformers.AutoModelForSeq2SeqLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    theirs.save_pretrained(folder)
    return theirs


@pytest.mark.parametrize("family", ["T5Config", "MT5Config", "UMT5Config"])
@pytest.mark.parametrize("is_scaled", [True, False])
@pytest.mark.parametrize("is_separate", [True, False])
def test_logits_are_scaled_where_transformers_scales_them(transformers, tmp_path, family, is_scaled, is_separate):
    """transformers 5 ties all models that it creates. `tie_word_embeddings=False` then only turns the scaling off, and
    the models of mT5 are never scaled. Before, such files were read as if their logits were scaled."""
    theirs = created_by_transformers(transformers, family, tmp_path / "hf", tie_word_embeddings=is_scaled)
    if is_separate and family != "UMT5Config":  # which transformers 5 scales by mistake; see fact 4
        tensors = read_tensors(tmp_path / "hf")
        tensors["lm_head.weight"] = torch.randn_like(tensors["shared.weight"])
        write_tensors(tmp_path / "hf/model.safetensors", tensors)
        theirs = type(theirs).from_pretrained(tmp_path / "hf", attn_implementation="eager").eval()
        assert not torch.equal(theirs.lm_head.weight, theirs.shared.weight)
    config, state = read_huggingface(tmp_path / "hf")
    model, batch = T5(config).eval(), row_batch()
    model.load_state_dict(state)
    expected = their_logits(theirs, batch["encoder_input_tokens"], batch["decoder_target_tokens"])
    found, _ = our_logits(model, batch)
    torch.testing.assert_close(found, expected[batch["decoder_target_tokens"] != 0], rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("name", ["decoder_start_token_id", "pad_token_id"])
def test_targets_that_begin_or_end_with_another_id_are_refused(name):
    values = to_huggingface_config(model_config())
    assert from_huggingface_config(values | {name: None}) == from_huggingface_config(values)
    with pytest.raises(CheckpointError, match=f"{name} 5; this recipe only supports 0\n  use a model with {name} 0$"):
        from_huggingface_config(values | {name: 5})


def test_advice_on_other_kinds_of_classes_does_not_name_an_encoder_that_nothing_can_read_alone():
    """The other recipes cannot read the encoder of an exported classifier of t5 or pixel."""
    values = {"problem_type": "multi_label_classification"}
    with pytest.raises(CheckpointError, match=r"per example; or read only its encoder: init.recipe=huggingface$"):
        class_names(values, 3)
    with pytest.raises(CheckpointError, match=r"per example, or the model it was trained from$"):
        class_names(values, 3, has_encoder=False)


@pytest.mark.parametrize("head", ["T5ForSequenceClassification", "T5ForTokenClassification"])
@pytest.mark.parametrize("recipe", ["t5", None])
def test_a_classifier_of_transformers_is_named_with_the_fix(transformers, tmp_path, head, recipe):
    """Its head reads the decoder, or each token; ours the mean over the encoder."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 32, "d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2}
    getattr(transformers, head)(transformers.T5Config(**sizes)).save_pretrained(tmp_path / "theirs")
    with pytest.raises(CheckpointError, match=rf"is a {head}.*\n  use the .*it was trained from"):
        import_model(tmp_path / "theirs", recipe, tmp_path / "ours")
    assert not (tmp_path / "ours").exists()


def test_models_without_a_hugging_face_form_are_refused(tmp_path):
    for config, message in ((model_config("lm"), "decoder_only"), (model_config(activations=("linear",)), "linear")):
        with pytest.raises(InputError, match=message):
            write_huggingface(T5(config).state_dict(), config, tmp_path / "hf")
    assert not (tmp_path / "hf").exists()


def test_other_configs_are_refused():
    values = to_huggingface_config(model_config())
    with pytest.raises(CheckpointError, match="model_type 'bart'"):
        from_huggingface_config(values | {"model_type": "bart"})
    with pytest.raises(CheckpointError, match="feed_forward_proj 'gated-mish'"):
        from_huggingface_config(values | {"feed_forward_proj": "gated-mish"})


def test_families_keep_their_sizes():
    """A size that changed here would still pass where the count is computed from it."""
    family = FAMILIES["1.1"]
    assert replace(family.sizes["base"], num_parameters=0) == replace(FAMILIES["mt5"].sizes["base"], num_parameters=0)
