"""The T5 demo reports its true rows and baseline, and transformers has equal answers."""

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest
import torch

from pretrainkit import api
from pretrainkit.cli.main import main
from pretrainkit.demo import t5 as demo
from pretrainkit.demo.t5 import MAX_CHARACTERS, MIN_CHARACTERS, NUM_PARTS, part_of, write_rows
from pretrainkit.exporting.native import write_native
from pretrainkit.recipes.registry import find_recipe
from pretrainkit.tasks.task import REGISTRY
from support.t5_batches import random_model

LETTERS = "abcdefghijklmnopqrstuvwxyz"
VOCAB_SIZE, FIRST_PIECE = 310, 259
"""Control pieces and bytes come before the pieces."""


def documents(num_parts=NUM_PARTS + 2, num_paragraphs=60):
    """(name, text) of a package each, the first ones with more paragraphs; every text ends with what is too short and
    a paragraph that all have."""
    for number in range(num_parts):
        name = "reference/x" if number == 0 else f"library/package{number}/module"
        paragraphs = [
            f"Of {name}: the function {LETTERS[number]}{index} gives back what its caller has asked for, or fails."
            for index in range(num_paragraphs - 4 * number)
        ]
        yield name, "\n".join([*paragraphs, "Too short.", "A paragraph that is in every document, " + "again " * 8])


def rows_of(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_parts_are_the_modules_and_packages():
    assert part_of("reference/assert") == "reference"
    assert part_of("library/asyncio/base_events") == "asyncio"
    assert part_of("library/turtle") == "turtle"


def test_no_paragraph_is_in_both_splits_or_twice(tmp_path):
    write_rows(tmp_path / "task", documents())
    train, held_out = (rows_of(tmp_path / "task" / f"{name}.jsonl") for name in ("train", "validation"))
    paragraphs = [row["paragraph"] for row in train + held_out]
    assert len(set(paragraphs)) == len(paragraphs)
    assert all(MIN_CHARACTERS <= len(paragraph) <= MAX_CHARACTERS for paragraph in paragraphs)


def test_the_baseline_is_the_score_of_the_most_common_part(tmp_path):
    rows = write_rows(tmp_path / "task", documents())
    train, held_out = (rows_of(tmp_path / "task" / f"{name}.jsonl") for name in ("train", "validation"))
    assert (rows.num_train, rows.num_held_out) == (len(train), len(held_out))
    assert set(rows.parts) == {row["part"] for row in train}
    assert len(rows.parts) == NUM_PARTS
    commonest = Counter(row["part"] for row in train).most_common(1)[0][0]
    expected = 100 * sum(row["part"] == commonest for row in held_out) / len(held_out)
    assert rows.majority_percent == pytest.approx(expected)


def test_held_out_rows_stay_held_out_when_others_change(tmp_path):
    write_rows(tmp_path / "all", documents())
    write_rows(tmp_path / "fewer", documents(num_paragraphs=50))
    held_out = {row["paragraph"] for row in rows_of(tmp_path / "all" / "validation.jsonl")}
    assert not held_out & {row["paragraph"] for row in rows_of(tmp_path / "fewer" / "train.jsonl")}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A demo's folder with tokenizer/, task/ and the module of its task."""
    rows = write_rows(tmp_path / "task", documents())
    texts = [row["paragraph"] for row in rows_of(tmp_path / "task" / "train.jsonl")] + [f"part of python: {rows.parts}"]
    (tmp_path / "text.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    for words in (
        ["corpus", "count-words", tmp_path / "text.txt", "--out", tmp_path / "words.tsv", "--workers", 1],
        [
            *("tokenizer", "train", tmp_path / "words.tsv", "--layout", "t5", "--vocab-size", VOCAB_SIZE),
            *("--out", tmp_path / "tokenizer"),
        ],
    ):
        monkeypatch.setattr("sys.argv", ["pretrainkit", *map(str, words)])
        with pytest.raises(SystemExit, match="0"):
            main()
    shutil.copyfile(demo.MODULE, tmp_path / demo.MODULE.name)
    yield tmp_path
    if demo.TASK in REGISTRY.names():
        REGISTRY.remove(demo.TASK)


def test_transformers_gives_our_answers(transformers, folder, tmp_path):
    module = str(folder / demo.MODULE.name)
    settings = [f"data.task={demo.TASK}", f"data.modules=[{module}]", "precision.compute=float32"]
    config = find_recipe("t5").bind(api.load_config("t5/micro", settings))
    model = random_model(config.model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)  # until answers differ from row to row
        model.logits.weight[FIRST_PIECE:VOCAB_SIZE] *= 2  # words, rather than bytes and sentinels
        model.logits.weight[:FIRST_PIECE] = model.logits.weight[VOCAB_SIZE:] = 0
    write_native(config, model, folder / "tokenizer", tmp_path / "model")
    api.export(tmp_path / "model", "huggingface", tmp_path / "export")
    answers, limit = tmp_path / "answers.jsonl", {"max_length": demo.TARGET_LENGTH}
    api.infer(tmp_path / "model", answers, task=demo.TASK, split="validation", decoding=limit)
    asked = rows_of(answers)[:6]
    texts = [row["inputs"]["inputs_pretokenized"] for row in asked]
    found = demo.ask_transformers(tmp_path / "export", folder / "tokenizer", texts)
    assert found == [row["prediction"] for row in asked]
    assert len(set(found)) > 3
