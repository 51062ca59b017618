"""Dependencies of rendered words: training, exact resume, answers."""

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from pretrainkit import api
from support.pixel_encoders import SHORT, require_exact_resume, write_encoder
from support.whole_runs import assert_exports_are_the_run

pytest.importorskip("freetype", reason="needs the package freetype-py to draw text")


def write_trees(path: Path, num: int) -> Path:
    """The first word is the root, on which all others depend: broad ones as objects, narrow ones as marks."""
    rng = random.Random(path.name)
    lines = []
    for _ in range(num):
        words = [rng.choice(["mwm", "lil"]) for _ in range(rng.randint(2, 6))]
        for number, word in enumerate(words, 1):
            relation = "root" if number == 1 else "obj:x" if word == "mwm" else "mark"
            lines.append(f"{number}\t{word}\t_\tX\t_\t_\t{int(number > 1)}\t{relation}\t_\t_")
        lines.append("")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An encoder, trees, and `run`, a fine-tuning that was never interrupted."""
    place = tmp_path_factory.mktemp("trees")
    write_encoder(place)
    write_trees(place / "train.conllu", 32)
    write_trees(place / "valid.conllu", 8)
    data = [f"data.train={place}/train.conllu", f"data.valid={place}/valid.conllu"]
    more = ["model.encoder_settings.text.pooling=cls"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PRETRAINKIT_CACHE", str(place / "cache"))
        config = api.load_config("glue/parse", [f"init_from={place}/encoder", *data, *SHORT, *more])
        api.train(config, place / "run", device="cpu")
        yield place


def test_parsing_resumes_exactly(folder: Path, tmp_path: Path) -> None:
    require_exact_resume(folder / "run", tmp_path / "half")


def test_an_export_is_the_run(folder: Path, tmp_path: Path) -> None:
    """transformers has no class for it."""
    assert_exports_are_the_run(folder / "run", tmp_path, "glue", "safetensors")


def test_every_word_has_a_head_and_a_relation(folder: Path, tmp_path: Path) -> None:
    out = api.predict(folder / "run", tmp_path / "out.jsonl", input=folder / "valid.conllu", device="cpu")
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(lines) == 8
    for line in lines:
        assert all(0 <= head <= len(line["words"]) for head in line["heads"])
        assert set(line["relations"]) <= {"root", "obj", "mark"}
