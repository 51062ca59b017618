"""`Objective.cost` is counted between two steps, for which a GPU would wait: a few passes over small arrays."""

import sys
import tracemalloc
from collections import Counter

import numpy as np
import pytest

import pretrainkit
from pretrainkit.recipes.registry import find_recipe

WORKLOADS = {
    "bert/base": 512,
    "t5/1.1-base": 128,
    "pixel/base": 64,
    "clip/zerovl": 512,
    "fourm/b-7": 256,
    "image_tokenizer/rgb": 64,
    "glue/mrpc": 256,
}
"""Preset to the examples of a batch that one GPU is given."""
MOST_CALLS = 150
MOST_BYTES = 4 << 20
"""Bytes of temporary arrays; a pass over this many takes about a millisecond."""


def batch_of(recipe, config, num):
    """A batch as of real data: texts differ in length, rows hold several examples."""
    batch, rng = recipe.assumed_batch(config, num), np.random.default_rng(0)
    if config.recipe == "t5":
        for side, tokens in (("encoder", "encoder_input_tokens"), ("decoder", "decoder_target_tokens")):
            batch[f"{side}_segment_ids"] = np.sort(rng.integers(0, 6, batch[tokens].shape), axis=1).astype(np.int32)
    if config.recipe == "fourm":
        for side in ("encoder", "decoder"):
            shape = batch[f"{side}_segment"].shape
            batch[f"{side}_segment"] = np.sort(rng.integers(0, 3, shape), axis=1).astype(np.uint8)
            batch[f"{side}_modality"] = rng.integers(0, len(config.model.modalities), shape).astype(np.uint8)
    for name in ("lengths", "num_tokens", "encoder_length", "decoder_length"):
        if name in batch:
            batch[name] = rng.integers(1, batch[name] + 1).astype(batch[name].dtype)
    return batch


def calls_of(objective, batch):
    """Count the calls of each function, also of those in C, to measure the cost."""
    calls = Counter()

    def note(frame, event, function):
        if event == "call":
            calls[frame.f_code.co_name] += 1
        elif event == "c_call":
            calls[function.__name__] += 1

    sys.setprofile(note)
    try:
        objective.cost(batch)
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize("preset", WORKLOADS)
def test_cost_of_a_batch_is_a_few_calls_however_many_rows_and_never_sorts(preset):
    recipe = find_recipe(preset.partition("/")[0])
    config, _ = recipe.without_data(pretrainkit.load_config(preset, []))
    objective = recipe.build_objective(config)
    few, many = (batch_of(recipe, config, num) for num in (4, WORKLOADS[preset]))
    objective.cost(few)  # what is counted once a run
    calls = calls_of(objective, many)
    assert calls == calls_of(objective, few)
    assert calls.total() <= MOST_CALLS
    assert not [name for name in calls if "sort" in name or "unique" in name]
    tracemalloc.start()
    try:
        objective.cost(many)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= MOST_BYTES
