"""The model: sizes, initial weights, and what padding and neighbours must not change."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from pretrainkit.nn.attention import PaddedLayout
from pretrainkit.recipes.bert.inputs import BertInputs, read_batch
from pretrainkit.recipes.bert.model import build
from pretrainkit.recipes.bert.objective import BertObjective
from pretrainkit.recipes.bert.presets import PRESETS
from pretrainkit.recipes.bert.recipe import RECIPE
from support.bert_batches import WIDTH, modern_config, packed_batch, row_batch, run_config

LENGTHS = st.lists(st.integers(3, WIDTH), min_size=1, max_size=5)
CONFIGS = {"bert": run_config(), "modern": modern_config()}


def build_seeded(config):
    torch.manual_seed(0)
    model = RECIPE.build_model(config)
    for parameter in model.parameters():  # larger than at the start, so that mistakes show
        torch.nn.init.normal_(parameter, std=0.3) if parameter.ndim > 1 else None
    return model.eval()


def states(model, batch):
    """(T, D) of the real tokens after every block, and the logits of both heads."""
    inputs, _ = read_batch(batch, WIDTH)
    outputs = model(inputs)
    return [*model.encode(inputs), outputs.logits_KV, outputs.sentence_order_B2]


@pytest.mark.parametrize(
    ("name", "num_parameters"),
    [("base", 111_341_442), ("large", 337_872_258), ("modern-base", 135_628_672), ("recipe-b", 111_341_442)],
)
def test_parameter_counts(name, num_parameters):
    """Fact 29."""
    with torch.device("meta"):
        model = RECIPE.build_model(PRESETS[name]())
    assert sum(parameter.numel() for parameter in model.parameters()) == num_parameters


def test_encoder_and_pooler_alone_have_the_counts_of_the_spec():
    for name, expected in (("base", 110_715_648), ("large", 336_786_432)):
        with torch.device("meta"):
            model = RECIPE.build_model(PRESETS[name]())
        heads = [*model.masked_lm.parameters(), *model.sentence_order.classifier.parameters()]
        assert sum(p.numel() for p in model.parameters()) - sum(p.numel() for p in heads) == expected


def test_initial_weights():
    """Fact 31: kernels and embeddings with deviation 0.0176, zero biases, norms as identity."""
    torch.manual_seed(0)
    model = RECIPE.build_model(
        PRESETS["tiny"]().model_copy(
            update={"model": CONFIGS["bert"].model.model_copy(update={"hidden_size": 256, "intermediate_size": 512})}
        )
    )
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            assert not parameter.any(), name
        elif "norm" in name:
            assert torch.equal(parameter, torch.ones_like(parameter)), name
        elif parameter.numel() > 50_000:
            assert parameter.std().item() == pytest.approx(0.0176, abs=3e-4), name


def test_modern_output_layers_start_smaller():
    config = modern_config(hidden_size=256, intermediate_size=512)
    torch.manual_seed(0)
    model = RECIPE.build_model(config)
    assert model.layers[1].attention.qkv.weight.std().item() == pytest.approx(0.0176, abs=3e-4)
    for module in (model.layers[1].attention.out, model.layers[3].feed_forward.down, model.masked_lm.dense):
        assert module.weight.std().item() == pytest.approx(0.0176 / 8**0.5, abs=3e-4)


def test_initial_losses_are_those_of_guessing():
    """Fact 31: about ln V and ln 2."""
    config = run_config().model_copy(update={"model": run_config().model.model_copy(update={"vocab_size": 32_128})})
    torch.manual_seed(0)
    model = RECIPE.build_model(config)
    batch = row_batch([WIDTH] * 16, vocab_size=32_128)
    means = {name: term.mean().item() for name, term in BertObjective(config).losses(model, batch).items()}
    assert means["masked_lm_loss"] == pytest.approx(10.38, abs=0.05)
    assert means["next_sentence_loss"] == pytest.approx(0.693, abs=0.01)


@pytest.mark.parametrize("arch", CONFIGS)
@settings(max_examples=10, deadline=None)
@given(lengths=LENGTHS, seed=st.integers(0, 99))
def test_packed_equals_rows(arch, lengths, seed):
    model, rows = build_seeded(CONFIGS[arch]), row_batch(lengths, seed)
    packed = packed_batch(rows, room=0)
    for ours, theirs in zip(states(model, rows), states(model, packed), strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)


@pytest.mark.parametrize("arch", CONFIGS)
def test_the_content_of_padding_changes_nothing(arch):
    model, batch = build_seeded(CONFIGS[arch]), row_batch([5, WIDTH, 9])
    before = states(model, batch)
    is_padding = ~batch["input_mask"]
    batch["input_ids"][is_padding] = torch.randint(300, (int(is_padding.sum()),), dtype=torch.int32)
    batch["token_type_ids"][is_padding] = 1
    for old, new in zip(before, states(model, batch), strict=True):
        assert old is new is None or torch.equal(old, new)


@pytest.mark.parametrize("arch", CONFIGS)
def test_examples_do_not_see_each_other(arch):
    model, batch = build_seeded(CONFIGS[arch]), row_batch([7, 9, 4])
    before = model.encode(read_batch(batch, WIDTH)[0])[-1]
    batch["input_ids"][1] = 17
    after = model.encode(read_batch(batch, WIDTH)[0])[-1]
    assert torch.equal(before[:7], after[:7])
    assert torch.equal(before[16:], after[16:])
    assert not torch.allclose(before[7:16], after[7:16])


@pytest.mark.parametrize("arch", CONFIGS)
def test_rows_kept_padded_as_on_a_gpu_give_the_same(arch):
    """There rows stay rows: the same numbers at real tokens."""
    model, batch = build_seeded(CONFIGS[arch]), row_batch([5, WIDTH, 9])
    num_rows, is_real = 3, batch["input_mask"]
    rows = BertInputs(
        ids_T=batch["input_ids"].flatten(),
        type_ids_T=batch["token_type_ids"].flatten(),
        positions_T=torch.arange(WIDTH).repeat(num_rows),
        layout=PaddedLayout(num_rows, WIDTH, is_real),
        first_B=torch.arange(num_rows) * WIDTH,
        predicted_K=torch.zeros(0, dtype=torch.long),
    )
    padded = model.encode(rows)[-1][is_real.flatten()]
    torch.testing.assert_close(padded, model.encode(read_batch(batch, WIDTH)[0])[-1], rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("arch", CONFIGS)
def test_last_block_without_unread_tokens_gives_the_same_loss_and_gradient(arch):
    """`forward` computes the last block at predicted and first tokens only; `encode` everywhere."""
    model, batch = build_seeded(CONFIGS[arch]), row_batch([5, WIDTH, 9])
    inputs, targets = read_batch(batch, WIDTH)
    gradients = []
    for is_whole in (False, True):
        model.zero_grad()
        if is_whole:
            x = model.encode(inputs)[-1]
            head = model.masked_lm
            logits = head.norm(head.activation(head.dense(x[inputs.predicted_K]))) @ model.embeddings.word.weight.t()
            loss = F.cross_entropy(logits + head.decoder_bias, targets.token_K, reduction="sum")
            if model.sentence_order is not None:
                loss = loss + model.sentence_order(x[inputs.first_B]).logsumexp(1).sum()
        else:
            outputs = model(inputs, targets.token_K)
            loss = outputs.masked_lm.nll_K.sum()
            if outputs.sentence_order_B2 is not None:
                loss = loss + outputs.sentence_order_B2.logsumexp(1).sum()
        loss.backward()
        gradients.append([loss.detach(), *(parameter.grad.clone() for parameter in model.parameters())])
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)


def test_a_hole_inside_a_row_stays_a_token():
    """Sabertooth's random pad tokens: positions behind the hole do not shift."""
    batch = row_batch([9])
    batch["input_mask"][0, 4] = False
    inputs, _ = read_batch(batch, WIDTH)
    assert inputs.positions_T.tolist() == list(range(9))


def test_gradient_of_the_shared_table_is_the_sum_of_both_uses():
    """The sparse lookup gradient must be added to the head's dense one."""
    config = CONFIGS["bert"]
    model, batch = build_seeded(config), row_batch([5, 9])
    inputs, targets = read_batch(batch, WIDTH)
    table = model.embeddings.word.weight
    model(inputs, targets.token_K).masked_lm.nll_K.sum().backward()
    assert not table.grad.is_sparse
    step, row = 1e-3, int(inputs.ids_T[1])
    direction = torch.zeros_like(table)
    direction[row], direction[targets.token_K[0]] = torch.randn(32), torch.randn(32)
    with torch.no_grad():
        losses = []
        for sign in (1, -1):
            table += sign * step * direction
            losses.append(model(inputs, targets.token_K).masked_lm.nll_K.double().sum())
            table -= sign * step * direction
    slope = (losses[0] - losses[1]) / (2 * step)
    assert (table.grad * direction).sum().item() == pytest.approx(slope.item(), rel=2e-2, abs=2e-2)


def test_model_without_vocabulary_size_is_refused():
    with pytest.raises(ValueError, match="vocab_size is unknown"):
        build(PRESETS["tiny"]().model, has_sentence_order=True)


def test_blocks_are_all_layers_and_weights_do_not_depend_on_the_device_context():
    config = CONFIGS["bert"]
    torch.manual_seed(1)
    first = RECIPE.build_model(config)
    torch.manual_seed(1)
    with torch.device("cpu"):
        second = RECIPE.build_model(config)
    assert first.blocks() == list(first.layers)
    assert len(first.blocks()) == config.model.num_layers
    for one, other in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(one, other)


def test_training_uses_dropout_and_evaluation_does_not():
    config = CONFIGS["bert"]
    config = config.model_copy(update={"model": config.model.model_copy(update={"hidden_dropout": 0.5})})
    model, batch = build_seeded(config), row_batch([9, 12])
    inputs, _ = read_batch(batch, WIDTH)
    assert torch.equal(model(inputs).logits_KV, model(inputs).logits_KV)
    model.train()
    assert not torch.equal(model(inputs).logits_KV, model(inputs).logits_KV)


@pytest.mark.parametrize("arch", CONFIGS)
def test_blocks_compile_as_whole_graphs(arch):
    """Traced only (no code generation, which takes a minute): no break in the graph, the same losses."""
    model, batch = build_seeded(CONFIGS[arch]), row_batch([5, 9])
    inputs, targets = read_batch(batch, WIDTH)
    expected = model(inputs, targets.token_K).masked_lm.nll_K
    for block in model.blocks()[-2:]:
        block.compile(fullgraph=True, backend="eager")
    torch.testing.assert_close(model(inputs, targets.token_K).masked_lm.nll_K, expected, rtol=1e-4, atol=1e-4)
