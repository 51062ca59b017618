"""A microbatch without examples, as packed training gives to a rank whose last examples already had room."""

import numpy as np
import pytest
import torch

from pretrainkit.recipes.bert.batch import Examples, packed
from pretrainkit.recipes.bert.inputs import read_batch
from pretrainkit.recipes.bert.objective import BertObjective
from pretrainkit.recipes.bert.recipe import RECIPE
from pretrainkit.tokenizers.special import SpecialIds
from support.bert_batches import WIDTH, modern_config, run_config

CONFIGS = {"bert": run_config(), "modern": modern_config()}


def empty_batch(*, sentence_order: bool) -> dict[str, torch.Tensor]:
    nothing = np.zeros(0, np.int64)
    ids = nothing.astype(np.int32)
    examples = Examples(ids, np.zeros(1, np.int64), nothing, nothing.astype(bool), nothing, nothing, ids)
    special = SpecialIds(unk=256, cls=257, sep=258, mask=259, pad=260)
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
