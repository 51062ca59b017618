"""Fact 34 on the model itself: which of its parameters decay."""

import pytest
import torch
from torch import nn

from pretrainkit.recipes.bert.recipe import RECIPE
from pretrainkit.training.optimizers.build import build_optimizer
from pretrainkit.training.optimizers.config import OptimizerConfig
from support.bert_batches import modern_config, run_config


def decaying(model: nn.Module, decay_mask: str) -> set[str]:
    """Names of the parameters whose group has a weight decay."""
    config = OptimizerConfig(peak_lr=1e-3, weight_decay=0.01, decay_mask=decay_mask)
    groups = build_optimizer(model, config).param_groups
    decayed = {id(p) for group in groups if group["weight_decay"] for p in group["params"]}
    return {name for name, parameter in model.named_parameters() if id(parameter) in decayed}


@pytest.mark.parametrize("config", [run_config(), modern_config()], ids=["bert", "modern"])
def test_fact_34_matrices_and_embeddings_decay_biases_and_norms_do_not(config) -> None:
    with torch.device("meta"):
        model = RECIPE.build_model(config)
    matrices = {name for name, parameter in model.named_parameters() if parameter.ndim == 2}
    assert decaying(model, "by_name") == matrices
    assert len(matrices) < len(list(model.parameters()))


def test_fact_34_in_compat_the_biases_of_query_key_and_value_decay_too() -> None:
    with torch.device("meta"):
        model = RECIPE.build_model(run_config())
    more = decaying(model, "by_ndim_compat") - decaying(model, "by_name")
    assert more == {f"layers.{layer}.attention.qkv.bias" for layer in range(2)}
    assert not decaying(model, "by_name") - decaying(model, "by_ndim_compat")
