"""A label for each word of rendered text: training, exact resume, answers, words that do not fit."""

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

TAGS = {"mwm": "NOUN", "lil": "VERB", "o": "PUNCT"}


def write_sentences(path: Path, num: int) -> Path:
    """Words of broad letters are nouns, of narrow ones verbs."""
    rng = random.Random(path.name)
    lines = []
    for _ in range(num):
        words = [rng.choice(list(TAGS)) for _ in range(rng.randint(1, 6))]
        lines += [f"{n}\t{word}\t_\t{TAGS[word]}" + "\t_" * 6 for n, word in enumerate(words, 1)] + [""]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An encoder, sentences, and `run`, a fine-tuning that was never interrupted."""
    place = tmp_path_factory.mktemp("words")
    write_encoder(place)
    write_sentences(place / "train.conllu", 96)
    write_sentences(place / "valid.conllu", 16)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PRETRAINKIT_CACHE", str(place / "cache"))
        finetune(place, place / "run")
        yield place


def finetune(place: Path, out: Path, *more: str) -> dict:
    data = [f"data.train={place}/train.conllu", f"data.valid={place}/valid.conllu"]
    config = api.load_config("glue/tags", [f"init_from={place}/encoder", *data, *SHORT, *more])
    return api.train(config, out, device="cpu")


def test_it_learns_the_look_of_words(folder: Path, tmp_path: Path) -> None:
    more = ["num_steps=60", "checkpoint.every_steps=60", "data.num_epochs=9", "optimizer.peak_lr=5e-3"]
    assert finetune(folder, tmp_path / "run", *more)["valid_accuracy"] > 90


def test_tagging_resumes_exactly(folder: Path, tmp_path: Path) -> None:
    require_exact_resume(folder / "run", tmp_path / "half")


@pytest.mark.parametrize("format", ["huggingface", "safetensors"])
def test_an_export_is_the_run(folder: Path, tmp_path: Path, format: str) -> None:
    assert_exports_are_the_run(folder / "run", tmp_path, "glue", format)


def test_a_label_is_at_the_first_patch_of_its_word(folder: Path) -> None:
    opened = api.open_model(folder / "run")
    source = opened.recipe.open_data(opened.config, "valid")
    batch = source.build(records_of(source, np.arange(4)))
    begins = batch["word_begins"]
    assert len(begins) == len(batch["label"]) == batch["num_words"].sum()
    assert set(batch["cu_seqlens"][:-1] + 1) <= set(begins.tolist())
    assert not set(batch["cu_seqlens"].tolist()) & set(begins.tolist())
    inked = batch["patches"][begins].min(1) < 255
    assert inked.all()


def test_every_word_gets_an_answer_or_is_marked_as_cut(folder: Path, tmp_path: Path) -> None:
    rows = [{"words": ["mwm", "o"] * num} for num in (1, 4, 20)]
    (tmp_path / "long.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    out = api.predict(folder / "run", tmp_path / "out.jsonl", input=tmp_path / "long.jsonl", device="cpu")
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(lines) == 3
    for line in lines:
        is_read = [tag is not None for tag in line["tags"]]
        assert is_read == sorted(is_read, reverse=True)
        assert any(is_read)
    assert any(None in line["tags"] for line in lines)
