<<<<<<< HEAD
"""A rank that has no example left takes part in the step without changing it."""
=======
"""A microbatch without examples, as packed training gives to a rank whose last examples already had room."""
>>>>>>> h/rev2

import numpy as np
import pytest
import torch
<<<<<<< HEAD
from bert_batches import modern_config, run_config

from pretrainkit.recipes.bert.config import BertRun
from pretrainkit.recipes.bert.model import build
from pretrainkit.recipes.bert.objective import BertObjective


@pytest.mark.parametrize("config", [run_config(), modern_config()], ids=["bert", "modern"])
def test_a_microbatch_without_examples_adds_nothing_to_loss_and_gradient(config: BertRun) -> None:
    room = 40  # more than one example may have
    batch = {
        "input_ids": np.full(room, 260, np.int32),
        "token_type_ids": np.zeros(room, np.int32),
        "positions": np.zeros(room, np.int32),
        "cu_seqlens": np.zeros(1, np.int32),
        "lengths": np.zeros(0, np.int32),
        "masked_lm_positions": np.zeros(8, np.int32),
        "masked_lm_ids": np.zeros(8, np.int32),
        "masked_lm_weights": np.zeros(8, np.float32),
    }
    if config.objective.sentence_order:
        batch["next_sentence_label"] = np.zeros(0, np.int64)
    model = build(config.model, has_sentence_order=config.objective.sentence_order)
    terms = BertObjective(config).losses(model, {name: torch.from_numpy(array) for name, array in batch.items()})
    assert {float(part.detach()) for term in terms.values() for part in term} == {0.0}
    sum(term.total for term in terms.values()).backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    assert all(gradient is not None for gradient in gradients)  # DDP waits for every one
    assert all((gradient == 0).all() for gradient in gradients if gradient is not None)
=======
from bert_batches import WIDTH, modern_config, run_config

from pretrainkit.recipes.bert.batch import Examples, Special, packed
from pretrainkit.recipes.bert.inputs import read_batch
from pretrainkit.recipes.bert.objective import BertObjective
from pretrainkit.recipes.bert.recipe import RECIPE

CONFIGS = {"bert": run_config(), "modern": modern_config()}


def empty_batch(*, sentence_order: bool) -> dict[str, torch.Tensor]:
    nothing = np.zeros(0, np.int64)
    ids = nothing.astype(np.int32)
    examples = Examples(ids, np.zeros(1, np.int64), nothing, nothing.astype(bool), nothing, nothing, ids)
    special = Special(cls=257, sep=258, mask=259, pad=260)
    batch = packed(examples, special, sentence_order=sentence_order, capacity=64, masking_rate=0.15)
    return {name: torch.from_numpy(array) for name, array in batch.items()}


@pytest.mark.parametrize("arch", CONFIGS)
def test_an_empty_microbatch_weighs_nothing_and_gives_every_parameter_a_zero_gradient(arch):
    """None in place of zero would leave DDP waiting for that parameter on this rank alone."""
    config = CONFIGS[arch]
    objective, model = BertObjective(config), RECIPE.build_model(config)
    batch = empty_batch(sentence_order=arch == "bert")
    terms = objective.losses(model, batch)
    assert terms.keys() == objective.scales.keys() == objective.weights(batch).keys()
    assert all(term.total == 0 and term.weight == 0 for term in terms.values())
    torch.stack([term.total for term in terms.values()]).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert not parameter.grad.any(), name


@pytest.mark.parametrize("arch", CONFIGS)
def test_an_empty_microbatch_has_metrics_without_weight(arch):
    config = CONFIGS[arch]
    batch = empty_batch(sentence_order=arch == "bert")
    found = BertObjective(config).metrics(RECIPE.build_model(config), batch)
    assert all(term.total == 0 and term.weight == 0 for term in found.values())


def test_its_inputs_are_one_example_of_padding_that_is_not_counted():
    inputs, targets = read_batch(empty_batch(sentence_order=True), WIDTH)
    assert (inputs.ids_T == 260).all()
    assert inputs.layout.lengths == (WIDTH,)
    assert len(inputs.first_B) == 0
    assert not targets.weight_K.any()
>>>>>>> h/rev2
