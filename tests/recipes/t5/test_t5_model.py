"""The model: sizes, initial weights, who sees whom, and that all ways to compute it agree."""

import math

import pytest
import torch

from pretrainkit.recipes.t5.inputs import read_batch
from pretrainkit.recipes.t5.model import T5, Attention, FeedForward, build
from pretrainkit.recipes.t5.presets import FAMILIES, PRESETS, model_of, tiny
from support.t5_batches import VOCAB_SIZE, examples, model_config, packed_batch, random_model, row_batch


def logits(model, batch, layout=None):
    inputs, targets = read_batch(batch, model.config.kind, layout=layout)
    return model(inputs), targets


def num_parameters(config):
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in build(config).parameters())


SIZES = [(family, size) for family, members in FAMILIES.items() for size in members.sizes]


@pytest.mark.parametrize(("family", "size"), SIZES)
def test_fact_1_sizes_have_their_exact_numbers_of_parameters(family, size):
    members = FAMILIES[family]
    found = num_parameters(model_of(members, members.sizes[size]))
    assert found == members.sizes[size].num_parameters
    assert PRESETS[f"{family}-{size}"]().model == model_of(members, members.sizes[size])
    assert f"{found:,}" in PRESETS[f"{family}-{size}"].__doc__


def test_umt5_sizes_are_those_of_mt5_with_more_words_and_a_table_per_layer():
    for name, size in FAMILIES["umt5"].sizes.items():
        mt5 = FAMILIES["mt5"].sizes[name]
        tables = 32 * size.num_heads * (size.num_encoder_layers + size.num_decoder_layers - 2)
        assert size.num_parameters - mt5.num_parameters == 2 * (256_384 - 250_112) * size.hidden_size + tables


def test_tiny_has_the_size_of_the_table():
    assert num_parameters(tiny().model) == 518_240


def test_fact_2_attention_is_not_always_as_wide_as_the_model():
    inner = {name: PRESETS[name]().model for name in PRESETS}
    assert inner["1.0-3b"].num_heads * inner["1.0-3b"].head_size == 4096
    assert inner["1.0-11b"].num_heads * inner["1.0-11b"].head_size == 16_384
    assert inner["1.1-small"].num_heads * inner["1.1-small"].head_size == 384 < inner["1.1-small"].hidden_size
    assert all(inner[f"{f}-{s}"].head_size == 64 for f in ("1.1", "mt5") for s in FAMILIES[f].sizes)


def test_a_model_on_meta_can_be_initialized_later():
    with torch.device("meta"):
        model = build(model_config())
    torch.manual_seed(0)
    model.to_empty(device="cpu").initialise()
    torch.manual_seed(0)
    expected = build(model_config())
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), expected.parameters(), strict=True))
    assert len(model.blocks()) == 4


@pytest.fixture(scope="module")
def wide():
    torch.manual_seed(0)
    return build(model_config(vocab_size=4096, hidden_size=256, num_heads=16, head_size=32, intermediate_size=512))


def test_fact_10_initial_deviations(wide):
    """Section 2.9, in order: embedding, query, key and value, out, up, down, logits; all layers of a kind together."""
    attentions = [module for module in wide.modules() if isinstance(module, Attention)]
    feed_forwards = [module for module in wide.modules() if isinstance(module, FeedForward)]

    def deviation(weights):
        return torch.cat([weight.detach().flatten() for weight in weights]).std().item()

    assert deviation([wide.embedding.weight]) == pytest.approx(1, rel=0.02)
    assert deviation([a.query.weight for a in attentions]) == pytest.approx((256 * 32) ** -0.5, rel=0.02)
    assert deviation([a.key.weight for a in attentions]) == pytest.approx(256**-0.5, rel=0.02)
    assert deviation([a.value.weight for a in attentions]) == pytest.approx(256**-0.5, rel=0.02)
    assert deviation([a.out.weight for a in attentions]) == pytest.approx(512**-0.5, rel=0.02)
    assert deviation([up.weight for f in feed_forwards for up in f.up]) == pytest.approx(256**-0.5, rel=0.02)
    assert deviation([f.down.weight for f in feed_forwards]) == pytest.approx(512**-0.5, rel=0.02)
    assert deviation([wide.logits.weight]) == pytest.approx(256**-0.5, rel=0.02)
    assert all(norm.eq(1).all() for name, norm in wide.named_parameters() if name.endswith("norm.weight"))


def test_fact_10_limits_of_initial_weights(wide):
    for f in (module for module in wide.modules() if isinstance(module, FeedForward)):
        assert max(up.weight.abs().max() for up in f.up) <= 2.2738 * 256**-0.5
        assert f.down.weight.abs().max() <= 2.2738 * 512**-0.5
    assert wide.logits.weight.abs().max() <= 2.2738 * 256**-0.5
    limit = math.sqrt(6 / (16 + 32))
    tables = torch.cat([stack.relative_bias.weight.flatten() for stack in (wide.encoder, wide.decoder)])
    assert tables.abs().max() <= limit
    assert tables.std().item() == pytest.approx(math.sqrt(2 / (16 + 32)), rel=0.05)  # 1024 numbers only


def test_transformers_initialiser_is_there_for_comparison():
    torch.manual_seed(0)
    model = build(model_config(hidden_size=128, vocab_size=512, init_style="hf"))
    assert model.logits.weight.std().item() == pytest.approx(1, rel=0.02)
    assert model.encoder.relative_bias.weight.std().item() == pytest.approx(128**-0.5, rel=0.3)


@pytest.mark.parametrize("family", ["1.0", "1.1"])
def test_fact_10_the_first_loss_is_ln_v_and_a_half(family):
    config = model_config(family, vocab_size=8192, hidden_size=64, head_size=16, intermediate_size=128)
    torch.manual_seed(0)
    model, ids = build(config), torch.randint(2, 8192, (2, 60))
    batch = {
        "encoder_input_tokens": ids,
        "decoder_input_tokens": ids.flip(1),
        "decoder_target_tokens": torch.randint(2, 8192, (2, 60)),
        "decoder_loss_weights": torch.ones(2, 60),
    }
    inputs, targets = read_batch(batch)
    loss = model(inputs, targets.token_K).loss.nll_K.mean().item()
    # 1.0 has the embeddings of its own inputs as logits, so its spread is a little wider.
    assert math.log(8192) + 0.2 < loss < math.log(8192) + 1.2


@pytest.mark.parametrize("family", ["1.0", "1.1", "umt5"])
def test_layouts_agree_in_scores_and_gradients(family):
    model, batch = random_model(model_config(family)).double(), packed_batch()
    found = []
    for layout in ("tiles", "rows"):
        inputs, targets = read_batch(batch, layout=layout)
        scores = model(inputs, targets.token_K, has_logit_sum=True)
        is_target = targets.weight_K > 0
        total = (scores.loss.nll_K + 0.1 * scores.loss.log_sum_K**2 + 0.01 * scores.logit_sum_K)[is_target].sum()
        found.append((total, torch.autograd.grad(total, list(model.parameters()))))
    torch.testing.assert_close(found[0][0], found[1][0], rtol=1e-6, atol=0)
    for ours, theirs in zip(found[0][1], found[1][1], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)  # the loss itself is float32


@pytest.mark.parametrize("family", ["1.0", "1.1", "umt5"])
def test_packed_examples_have_the_logits_they_have_alone(family):
    model, batch = random_model(model_config(family)), packed_batch()
    together, targets = logits(model, batch)
    for index, (inputs, target) in enumerate(examples(batch)):
        alone = {
            "encoder_input_tokens": inputs[None] if len(inputs) else torch.zeros(1, 1, dtype=torch.int32),
            "encoder_segment_ids": torch.full((1, max(1, len(inputs))), int(len(inputs) > 0)),
            "decoder_input_tokens": torch.nn.functional.pad(target[:-1], (1, 0))[None],
            "decoder_target_tokens": target[None],
            "decoder_segment_ids": torch.ones(1, len(target)),
            "decoder_loss_weights": torch.ones(1, len(target)),
        }
        if not len(inputs):
            continue  # read below: a stream that is empty as a whole is padding, which is read as one token
        expected, _ = logits(model, alone)
        own = targets.example_K.unique()[index]
        torch.testing.assert_close(together[targets.example_K == own], expected, rtol=1e-5, atol=1e-5)


def test_fact_31_an_example_without_input_sees_no_other_input():
    model, batch = random_model(model_config()), packed_batch()
    before, targets = logits(model, batch)
    batch["encoder_input_tokens"] = (batch["encoder_input_tokens"] + 1) * (batch["encoder_segment_ids"] > 0)
    after, _ = logits(model, batch)
    is_same = (before == after).all(1)
    second = targets.example_K.unique()[1]
    assert torch.equal(is_same, targets.example_K == second)


def test_fact_31_an_id_of_0_inside_a_row_is_a_token():
    model, batch = random_model(model_config()), row_batch()
    whole, _ = logits(model, batch)
    batch["encoder_input_tokens"][0, 3] = 0
    inputs, _ = read_batch(batch)
    assert len(inputs.encoder_ids_S) == 12 + 7 + 1
    assert not torch.equal(model(inputs)[:3], whole[:3])


@pytest.mark.parametrize("layout", ["tiles", "rows"])
@pytest.mark.parametrize("make", [row_batch, packed_batch])
def test_fact_9_padding_does_not_change_logits(layout, make):
    model = random_model(model_config())
    found = []
    for pad in (0, 5):
        values, targets = logits(model, make(pad=pad), layout)
        found.append(values[targets.weight_K > 0])
    torch.testing.assert_close(*found, rtol=0, atol=1e-5)


def test_later_targets_do_not_change_earlier_logits():
    model, batch = random_model(model_config()), row_batch()
    before, _ = logits(model, batch)
    batch["decoder_input_tokens"][1, 5] += 1
    after, _ = logits(model, batch)
    assert torch.equal(before[: 3 + 5], after[: 3 + 5])
    assert not torch.equal(before[3 + 5], after[3 + 5])


def lm_batch(num_prefix):
    """Two examples of 9 and 4 tokens in one row; the first has a prefix, on which there is no loss."""
    segment = torch.tensor([[1] * 9 + [2] * 4])
    place = torch.cat((torch.arange(9), torch.arange(4)))
    ids = (torch.arange(13) * 7 % (VOCAB_SIZE - 2) + 2)[None]
    is_prefix = (segment == 1) & (place <= num_prefix)
    return {
        "decoder_input_tokens": torch.where(place == 0, 0, ids.roll(1)),
        "decoder_target_tokens": ids,
        "decoder_segment_ids": segment,
        "decoder_loss_weights": ((segment == 2) | (place >= num_prefix)).float(),
        "decoder_causal_attention": is_prefix.int(),
    }


def test_prefix_language_models_see_their_whole_prefix():
    model, batch = random_model(model_config("lm")), lm_batch(4)
    before, targets = logits(model, batch)
    assert targets.weight_K.sum() == len(targets.token_K) == 5 + 4
    batch["decoder_input_tokens"][0, 4] += 1  # the last token of the prefix
    after, _ = logits(model, batch)
    assert not torch.isclose(before[:5], after[:5]).all(1).any()
    assert torch.equal(before[5:], after[5:])
    rows, row_targets = logits(model, batch, "rows")
    torch.testing.assert_close(rows[row_targets.weight_K > 0], after, rtol=1e-5, atol=1e-5)
    # Before the prefix ends the first token sees it too, which a causal model does not let it.
    hidden = [model.hidden(read_batch(lm_batch(n), "decoder_only")[0])[0] for n in (0, 4)]
    assert not torch.equal(*hidden)


def test_encoder_only_models_predict_at_their_own_positions():
    model = random_model(model_config("mlm"))
    batch = {"encoder_input_tokens": row_batch()["encoder_input_tokens"]}
    batch["encoder_target_tokens"] = batch["encoder_input_tokens"] + 1
    batch["encoder_loss_weights"] = torch.zeros(3, 12)
    batch["encoder_loss_weights"][:, 0] = 1
    found, targets = logits(model, batch)
    assert found.shape == (3, VOCAB_SIZE)
    assert torch.equal(targets.token_K, batch["encoder_target_tokens"][:, 0].long())


def test_a_batch_without_any_token_has_zero_gradients_for_every_parameter():
    model = random_model(model_config())
    batch = {name: torch.zeros_like(value) for name, value in packed_batch().items()}
    inputs, targets = read_batch(batch)
    (model(inputs, targets.token_K).loss.nll_K * targets.weight_K).sum().backward()
    assert all(p.grad is not None and not p.grad.any() for p in model.parameters())


def test_fact_6_tied_logits_are_untied_ones_of_a_scaled_table():
    tied = random_model(model_config("1.0"))
    untied = T5(model_config("1.0", tied_logits=False))
    scaled = tied.embedding.weight.detach() * 32**-0.5
    untied.load_state_dict({**tied.state_dict(), "logits.weight": scaled})
    batch = row_batch()
    torch.testing.assert_close(logits(tied, batch)[0], logits(untied.eval(), batch)[0], rtol=1e-5, atol=1e-5)


def test_logits_are_float32_under_bfloat16():
    model, batch = random_model(model_config()), row_batch()
    exact, _ = logits(model, batch)
    with torch.autocast("cpu", torch.bfloat16):
        inputs, _ = read_batch(batch)
        hidden = model.hidden(inputs)
        found = model.head(hidden, None)
    assert hidden.dtype == torch.bfloat16
    assert found.dtype == torch.float32
    assert torch.equal(found, hidden.float() @ model.logits.weight.t())
    torch.testing.assert_close(found, exact, rtol=0, atol=0.15)


def test_dropout_changes_training_only():
    model, batch = random_model(model_config(dropout=0.3)), row_batch()
    assert torch.equal(logits(model, batch)[0], logits(model, batch)[0])
    model.train()
    assert not torch.equal(logits(model, batch)[0], logits(model, batch)[0])


def test_recomputed_blocks_give_the_same_gradients():
    from pretrainkit.dist.env import World
    from pretrainkit.dist.parallelize import parallelize
    from pretrainkit.training.run import ParallelConfig

    model, batch = random_model(model_config(dropout=0.2)).train(), packed_batch()
    inputs, targets = read_batch(batch)
    found = []
    for is_recomputed in (False, True):
        if is_recomputed:
            parallelize(model, ParallelConfig(activation_checkpointing=True), World(), torch.float32)
        torch.manual_seed(3)
        loss = model(inputs, targets.token_K).loss.nll_K.sum()
        found.append(torch.autograd.grad(loss, list(model.parameters())))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_segments_that_return_are_refused():
    batch = packed_batch()
    batch["encoder_segment_ids"][0, :3] = torch.tensor([3, 1, 1])
    with pytest.raises(ValueError, match="each segment id must occur only once"):
        read_batch(batch)
