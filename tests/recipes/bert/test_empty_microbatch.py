"""A rank that has no example left takes part in the step without changing it."""

import numpy as np
import pytest
import torch
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
    assert {float(part) for term in terms.values() for part in term} == {0.0}
    sum(term.total for term in terms.values()).backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    assert all(gradient is not None for gradient in gradients)  # DDP waits for every one
    assert all((gradient == 0).all() for gradient in gradients if gradient is not None)
