"""The first random choices of T5, PIXEL and 4M and of BERT's whole words and spans for some keys, as checked in as
draws.json. BERT's of single tokens are in bert_batches.json. If they changed, an upgrade would silently change what a
resumed run is trained on."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from pretrainkit.recipes.bert.config import BertObjectiveConfig
from pretrainkit.recipes.bert.masking import Masking, choose
from pretrainkit.recipes.fourm.masking import component_of, dirichlet, log_gamma_draws
from pretrainkit.recipes.pixel.config import PixelObjectiveConfig
from pretrainkit.recipes.pixel.masking import draw_masks
from pretrainkit.recipes.t5 import spans
from pretrainkit.rng import stream_key

DRAWS = Path(__file__).with_name("draws.json")
DIGITS = 9
"""Decimal places of numbers that are not whole: logarithms and cosines differ between processors in the last ones."""
LENGTHS = np.array([40, 23, 7], np.int64)
HALF = 20


def keys() -> np.ndarray:
    return np.array([stream_key(3, "golden draws", str(number)) for number in range(3)], np.uint64)


def where(is_chosen: np.ndarray) -> list[int]:
    return np.flatnonzero(is_chosen).tolist()


def of_bert(unit: str) -> list[int]:
    """Choices in text whose words have three tokens."""
    text, begins = np.arange(LENGTHS.sum()), np.cumsum(LENGTHS) - LENGTHS
    objective = BertObjectiveConfig.model_validate({"mask_unit": unit})
    masking = Masking(objective, 0.3, 20, mask_id=1, replacement_ids=text, is_word_start=text % 3 == 0)
    return np.concatenate(choose(masking, keys(), LENGTHS + 2, LENGTHS, text, begins)).tolist()


def draws() -> dict[str, Any]:
    """Return choices by what makes them: places in all rows one after another, whole numbers, or rounded ones."""
    three = keys()
    lengths, starts = spans.paired_prefixes(three[:2], np.full(2, HALF, np.int64), HALF)
    alphas = np.array([[0.2, 1.5, 0.0, 3.0], [1.0, 1.0, 1.0, 1.0], [0.01, 40.0, 2.0, 0.5]])
    return {
        "t5 random_spans": where(spans.random_spans(three, LENGTHS, 0.15, 3.0)),
        "t5 random_spans, rolled": where(spans.random_spans(three, LENGTHS, 0.5, 2.0, random_roll=True)),
        "t5 iid": where(spans.iid(three, LENGTHS, 0.3)),
        "t5 regular": where(spans.regular(three, LENGTHS, 0.25)),
        "t5 suffix": where(spans.suffix(three, LENGTHS, 0.25)),
        "t5 paired_prefixes": [lengths.tolist(), starts.tolist()],
        "bert whole_word": of_bert("whole_word"),
        "bert span": of_bert("span"),
        "pixel": where(draw_masks(PixelObjectiveConfig(), three, LENGTHS.astype(np.int32), 64)),
        "fourm gamma": np.round(np.where(alphas > 0, log_gamma_draws(three, alphas), 0), DIGITS).tolist(),
        "fourm dirichlet": np.round(dirichlet(three, alphas), DIGITS).tolist(),
        "fourm component": component_of(three, np.array([0.2, 0.5, 0.3])).tolist(),
    }


def write() -> None:
    """Make draws.json what the code does now."""
    lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in draws().items()]
    DRAWS.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
