"""The model: equal to the specification told plainly, whatever the layout; sizes, initial weights, attention rules."""

import math

import numpy as np
import pytest
import torch
from fourm_batches import CAPTION, DEPTH, MODALITIES, RGB, random_batch, small, tensors
from fourm_reference import Reference

from pretrainkit.recipes.fourm.embeddings import PIXEL_DEVIATION, PIXEL_MEAN
from pretrainkit.recipes.fourm.inputs import read_batch
from pretrainkit.recipes.fourm.model import build, drop_path_rates
from pretrainkit.recipes.fourm.model_config import SIZES, FourMModelConfig, published_model
from pretrainkit.recipes.fourm.original_names import from_original, to_original
from pretrainkit.recipes.fourm.positions import grid_table, line_table

VARIANTS = {
    "swiglu": {},
    "swiglu-qknorm": {"query_key_norm": True},
    "gelu": {"gated": False, "activation": "gelu", "biases": True},
    "causal": {"causal_targets": True},
    "together": {"separate_targets": False},
    "together, causal": {"separate_targets": False, "causal_targets": True},
    "nothing shared": {"tied_logits": False, "shared_modality_embeddings": False, "vector_bottleneck": 3},
    "registers": {"num_registers": 2},
}


def make_model(**changes):
    torch.manual_seed(0)
    model = build(small(**changes)).double()
    for parameter in model.parameters():  # norms and biases too, so that nothing is a no-op
        parameter.data.add_(torch.randn_like(parameter), alpha=0.1)
    return model.double()


def as_doubles(batch):
    return {name: value.double() if value.is_floating_point() else value for name, value in tensors(batch).items()}


def dense(batch, modalities):
    """What the original reads in the place of a batch of rows of one example."""
    found = {}
    for number, modality in enumerate(modalities):
        rows = []
        for row in range(len(batch["encoder_length"])):
            sides = {}
            for side in ("encoder", "decoder"):
                own = np.flatnonzero(batch[f"{side}_modality"][row] == number)
                own = own[own < batch[f"{side}_length"][row]]
                sides[side] = {
                    what: batch[f"{side}_{what}"][row][own] for what in ("position", "ids", "target") if f"{side}_{what}" in batch
                }
            rows.append(_dense_row(modality, sides, row, batch))
        found[modality.name] = {key: torch.stack([row[key] for row in rows]) for key in rows[0]}
    return found


def _dense_row(modality, sides, row, batch):
    given, asked = sides["encoder"], sides["decoder"]
    if modality.kind in ("pixels", "image"):
        num = modality.max_tokens
        values = torch.zeros(num, dtype=torch.int64)
        values[given["position"]] = torch.from_numpy(given["ids"]).long()
        values[asked["position"]] = torch.from_numpy(asked["target"]).long()
        input_mask, target_mask = torch.ones(num, dtype=torch.bool), torch.ones(num, dtype=torch.bool)
        input_mask[given["position"]] = False
        target_mask[asked["position"]] = False
        dam = torch.zeros(num, dtype=torch.int64)
        dam[asked["position"][:1]] = len(asked["position"])
        if modality.kind == "pixels":
            image = torch.from_numpy(batch[f"pixels/{modality.name}"][row]).double() / 255
            mean, deviation = (torch.tensor(v, dtype=torch.float64)[:, None, None] for v in (PIXEL_MEAN, PIXEL_DEVIATION))
            values = (image - mean) / deviation
    else:
        num = 2 * (modality.max_tokens + 1)
        input_mask, target_mask = torch.ones(num, dtype=torch.bool), torch.ones(num, dtype=torch.bool)
        num_given, num_asked = len(given["ids"]), len(asked["ids"])
        input_mask[:num_given] = False
        dam = torch.zeros(num, dtype=torch.int64)
        if modality.kind == "vectors":
            table = torch.from_numpy(batch[f"vectors/{modality.name}"][row]).double()
            values = torch.zeros(num, table.shape[1], dtype=torch.float64)
            values[:num_given] = table[given["ids"]] * torch.from_numpy(given["ids"] >= 0)[:, None]
        else:
            values = torch.zeros(num, dtype=torch.int64)
            values[:num_given] = torch.from_numpy(given["ids"]).long()
            if num_asked:
                stream = np.append(asked["ids"], asked["target"][-1])
                span = slice(modality.max_tokens, modality.max_tokens + len(stream))
                values[span] = torch.from_numpy(stream).long()
                target_mask[span], dam[span] = False, 1
    return {"tensor": values, "input_mask": input_mask, "target_mask": target_mask, "decoder_attention_mask": dam}


def reference(model):
    config = model.config
    state = {name: tensor.double() for name, tensor in to_original(model).items()}
    return Reference(
        state,
        {m.name: m.kind for m in config.modalities},
        {m.name: m.max_length for m in config.modalities},
        depth=2,
        heads=2,
        gated=config.gated,
        qk_norm=config.query_key_norm,
        sep_mask=config.separate_targets,
        causal_mask=config.causal_targets,
        registers=config.num_registers,
    )


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("layout", ["tiles", "rows"])
def test_losses_are_those_of_the_specification(variant, layout):
    model = make_model(**VARIANTS[variant])
    batch = random_batch(num_segments=1)
    found = model(read_batch(as_doubles(batch), model.config, layout=layout))
    expected = reference(model).losses(dense(batch, MODALITIES), 30, 28)
    for name, scores in found.items():
        torch.testing.assert_close(scores.nll_K.sum(), expected[f"sum/{name}"], rtol=1e-6, atol=1e-6, check_dtype=False)
        assert len(scores.nll_K) == expected[f"num/{name}"] > 0
