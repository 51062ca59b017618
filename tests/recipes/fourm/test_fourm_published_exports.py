"""Exports of small models with the modalities of 4M-7 and 4M-21, on data with every kind of file."""

import json
from pathlib import Path

import numpy as np
import pytest
from test_fourm_whole_run import SETTINGS

import pretrainkit
from pretrainkit.recipes.fourm.modality import MOD21, published
from support.fourm_data import write_set, write_tokenizer
from support.whole_runs import assert_exports_are_the_run

SHORT = ("num_steps=1", "checkpoint.every_steps=1", "evaluate.every_steps=null", "data.microbatch_size=null")


def write_parts(folder: Path, num: int) -> Path:
    """Write files that other tools would create from the images of `write_set`: tokens, embeddings and JSON of
    4M-21."""
    rng = np.random.default_rng(0)
    write_set(folder, num, 0)
    for index in range(num):
        for name in MOD21:
            modality = published(name)
            if modality.reader == "tokens":
                tokens = rng.integers(0, modality.vocab_size, (1, modality.max_tokens)).astype(np.int16)
                np.save(place(folder, name, index, ".npy"), tokens)
        np.save(place(folder, "crop_settings", index, ".npy"), np.array([[0, 0, 40, 40, 0]]))
        vectors = rng.standard_normal((5, 4096)).astype(np.float16)
        np.savez(place(folder, "t5_caption", index, ".npz"), emb=vectors, mask_valid=np.ones(5, bool))
        square = [[0, 0], [40, 0], [40, 40], [0, 40]]
        for name, content in {
            "metadata": {"original_width": 40 + index, "n_humans": 0, "brightness": 200.0},
            "color_palette": [{str(count): [[count, 10, 255]] * count for count in range(1, 8)}],
            "human_poses": {},
            "sam_instance": {"points": [square], "token_ids": [list(range(16))], "bbox": [[0, 0, 40, 40]]},
        }.items():
            place(folder, name, index, ".json").write_text(json.dumps(content), "utf-8")
    return folder


def place(folder: Path, modality: str, index: int, suffix: str) -> Path:
    path = folder / modality / "0000" / f"{index:05d}{suffix}"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


@pytest.fixture(scope="module", params=["b-7", "b-21"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("published")
    data = [
        f"data.train={write_parts(folder / 'train', 8)}",
        f"data.valid={write_parts(folder / 'valid', 1)}",
        f"data.tokenizer={write_tokenizer(folder / 'words', 150)}",
    ]
    pretrainkit.train(pretrainkit.load_config(f"fourm/{request.param}", [*SETTINGS, *data, *SHORT]), folder / "run")
    return folder / "run"


@pytest.mark.slow
@pytest.mark.parametrize("format", ["4m", "safetensors"])
def test_an_export_is_the_run(run: Path, tmp_path: Path, format: str) -> None:
    assert_exports_are_the_run(run, tmp_path, "fourm", format, name="export.safetensors")
