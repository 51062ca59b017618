"""Answers in rendered contexts: training on windows, exact resume, answers that are spans of their context."""

import json
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from pretrainkit import api
from pretrainkit.recipes.glue.answers import records_of
from support.pixel_encoders import SHORT, require_exact_resume, write_encoder
from support.whole_runs import assert_exports_are_the_run

pytest.importorskip("freetype", reason="needs the package freetype-py to draw text")

SPANS = ("data.spans.stride=4", "data.spans.max_question_length=6", "evaluate.num_examples=4")


def write_questions(path: Path, num: int, num_words: int) -> Path:
    """The answer to each is the one word of broad letters."""
    rng = random.Random(path.name)
    rows = []
    for number in range(num):
        words = [rng.choice(["lil", "till", "if"]) for _ in range(num_words)]
        place = rng.randrange(num_words)
        words[place] = "mwm"
        start = len(" ".join(words[:place])) + (place > 0)
        answers = {"text": ["mwm"], "answer_start": [start]}
        rows.append({"id": str(number), "question": "mwm?", "context": " ".join(words), "answers": answers})
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An encoder, questions, and `run`, a fine-tuning that was never interrupted."""
    place = tmp_path_factory.mktemp("questions")
    write_encoder(place)
    write_questions(place / "train.jsonl", 24, 24)
    write_questions(place / "valid.jsonl", 4, 24)
    data = [f"data.train={place}/train.jsonl", f"data.valid={place}/valid.jsonl"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PRETRAINKIT_CACHE", str(place / "cache"))
        api.train(
            api.load_config("glue/qa", [f"init_from={place}/encoder", *data, *SHORT, *SPANS]),
            place / "run",
            device="cpu",
        )
        yield place


def test_questions_resume_exactly(folder: Path, tmp_path: Path) -> None:
    require_exact_resume(folder / "run", tmp_path / "half")


@pytest.mark.parametrize("format", ["huggingface", "safetensors"])
def test_an_export_is_the_run(folder: Path, tmp_path: Path, format: str) -> None:
    assert_exports_are_the_run(folder / "run", tmp_path, "glue", format)


def test_windows_without_the_answer_point_at_the_class_token(folder: Path) -> None:
    opened = api.open_model(folder / "run")
    source = opened.recipe.open_data(opened.config, "train")
    num = sum(source.sizes)
    assert num > 24
    batch = source.build(records_of(source, np.arange(num)))
    first, last, length = batch["first_slot"], batch["last_slot"], batch["lengths"]
    assert ((first == 0) == (last == 0)).all()
    assert (first == 0).any()
    assert (first > 0).sum() >= 24
    assert (first <= last).all()
    assert (last < length).all()


def test_answers_are_whole_words_of_their_context(folder: Path, tmp_path: Path) -> None:
    out = api.predict(folder / "run", tmp_path / "answers.jsonl", input=folder / "valid.jsonl", device="cpu")
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    rows = [json.loads(line) for line in (folder / "valid.jsonl").read_text().splitlines()]
    assert len(lines) == 4
    for line, row in zip(lines, rows, strict=True):
        assert line["candidates"]
        for one in line["candidates"]:
            assert row["context"][one["begin"] : one["end"]] == one["text"]
            assert set(one["text"].split()) <= set(row["context"].split())
