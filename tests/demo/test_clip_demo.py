"""The CLIP demo reports true results: its captions are whole, and transformers retrieves the same images."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("PIL")

from pretrainkit import api
from pretrainkit.cli.main import main
from pretrainkit.demo import clip as demo
from pretrainkit.demo.shapes import draw_scene, write_sets
from pretrainkit.exporting.native import write_native
from pretrainkit.recipes.clip.captions import CaptionTokenizer
from pretrainkit.recipes.clip.presets import tiny


def run(monkeypatch, *words: object) -> None:
    monkeypatch.setattr("sys.argv", ["pretrainkit", *map(str, words)])
    with pytest.raises(SystemExit, match="0"):
        main()


@pytest.fixture
def tokenizer(tmp_path, monkeypatch):
    """The one of the demo."""
    rng = np.random.default_rng(0)
    captions = [text for number in (1, 2) for _ in range(500) for text in draw_scene(rng, number).captions()]
    (tmp_path / "captions.txt").write_text("\n".join(captions) + "\n")
    run(monkeypatch, "corpus", "count-words", tmp_path / "captions.txt", "--out", tmp_path / "words.tsv")
    settings = demo.TOKENIZER_SETTINGS
    run(monkeypatch, "tokenizer", "train", tmp_path / "words.tsv", *settings, "--out", tmp_path / "tokenizer")
    return tmp_path / "tokenizer"


def test_no_caption_of_the_demo_is_cut(tokenizer):
    rng = np.random.default_rng(1)
    captions = [text for number in (1, 2) for _ in range(500) for text in draw_scene(rng, number).captions()]
    encoded = CaptionTokenizer(tokenizer).encode([*captions, *demo.PROMPTS], max_length=100)
    assert encoded["num_tokens"].max() <= tiny().data.max_length


def test_transformers_finds_the_image_that_we_find(transformers, tokenizer, tmp_path):
    """In a fresh process, in which nothing has fixed torchvision beside a CPU-only torch."""
    write_sets(tmp_path / "sets", num_train=1, num_valid=8, side=32, seed=0)
    images = tmp_path / "sets/single/valid"
    settings = [f"data.tokenizer={tokenizer}", "model.image.image_size=32"]
    sizes = "data.{}_transforms=[{{op: resize, size: 32}}]"
    config = api.load_config("clip/tiny", [*settings, sizes.format("train"), sizes.format("valid")])
    config = config.model_copy(update={"model": config.model.model_copy(update={"text": _with_vocabulary(config)})})
    write_native(config, api.build_model(config), tokenizer, tmp_path / "model")
    api.export(tmp_path / "model", "huggingface", tmp_path / "export")
    code = (
        "import sys; from pathlib import Path; from pretrainkit.demo.clip import ask_transformers as ask; "
        "print(ask(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]))"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "export"), str(images), demo.PROMPTS[0]]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    best = api.generate(tmp_path / "model", demo.PROMPTS[:1], images=images, top=1)[0]["images"][0]["image"]
    assert done.stdout.split()[-1] == best.rpartition("/")[2]


def _with_vocabulary(config):
    size = CaptionTokenizer(Path(config.data.tokenizer)).vocab_size
    return config.model.text.model_copy(update={"vocab_size": size})
