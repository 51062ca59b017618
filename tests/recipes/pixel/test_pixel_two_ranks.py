"""One process = two with DDP = two with FSDP2, over whole runs, pretraining and fine-tuning; and a run continues with
other ranks than it began."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import pretrainkit
from pretrainkit.training.checkpoints.checkpoint import read_weights
from support import SUPPORT
from support.two_processes import run_two

pytestmark = pytest.mark.slow

pytest.importorskip("freetype", reason="needs the package freetype-py to draw text")

STEPS = 4
SETTINGS = (
    "model.hidden_size=16",
    "model.num_layers=2",
    "model.num_heads=2",
    "model.intermediate_size=32",
    "model.decoder_hidden_size=12",
    "model.decoder_num_layers=2",
    "model.decoder_num_heads=3",
    "model.decoder_intermediate_size=24",
    "model.hidden_dropout=0",
    "model.attention_dropout=0",
    "model.max_patches=25",
    "data.max_patches=25",
    "data.min_text_patches=4",
    "data.num_workers=0",
    "data.batch_size=8",
    "data.microbatch_size=2",
    f"num_steps={STEPS}",
    "schedule.num_warmup_steps=0",
    "checkpoint.every_steps=2",
    "checkpoint.keep_last=9",
    "checkpoint.asynchronous=false",
    "precision.compute=float32",
    "log.every_steps=1",
)

TAGS = (
    "model.dropout=0",
    "data.max_seq_length=20",
    "data.batch_size=8",
    "data.microbatch_size=2",
    f"num_steps={STEPS}",
    "optimizer.peak_lr=1e-3",
    "schedule.warmup_share=0",
    "checkpoint.every_steps=2",
    "checkpoint.asynchronous=false",
    "precision.compute=float32",
    "log.every_steps=1",
)


def write_sentences(path: Path, num: int, rng: np.random.Generator) -> Path:
    """Write sentences of 1 to 5 words, so that ranks have different numbers of labels."""
    kinds = {"word": "NOUN", "tilt": "VERB", "a": "DET"}
    lines: list[str] = []
    for _ in range(num):
        words = rng.choice(list(kinds), rng.integers(1, 6))
        lines += [f"{n}\t{word}\t_\t{kinds[word]}" + "\t_" * 6 for n, word in enumerate(words, 1)] + [""]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Runs of one process, `whole`, of two, `ddp` and `fsdp2`, and of two that continue where one stopped, `half-...`;
    and fine-tunings of `whole`, `tags-...`."""
    folder = tmp_path_factory.mktemp("pixel_ranks")
    fonts = pytest.importorskip("PIL.ImageFont")
    (folder / "latin.ttf").write_bytes(fonts.load_default(12).font_bytes)
    rng = np.random.default_rng(0)
    # Short ones: rows differ in length, microbatches in weight.
    texts = [" ".join(rng.choice(["word", "sea", "tilt", "a", "moon"], rng.integers(8, 90))) for _ in range(24)]
    (folder / "train.txt").write_text("\n\n".join(texts), "utf-8")
    settings = [f"data.train={folder}/train.txt", f"data.renderer={folder}/latin.ttf", *SETTINGS]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PRETRAINKIT_CACHE", str(folder / "cache"))
        pretrainkit.train(pretrainkit.load_config("pixel/tiny", settings), folder / "whole", device="cpu")
        for strategy in ("ddp", "fsdp2"):
            shutil.copytree(folder / "whole", folder / f"half-{strategy}")
            shutil.rmtree(checkpoint(folder / f"half-{strategy}", STEPS))
        files = [f"data.{split}={write_sentences(folder / f'{split}.conllu', 12, rng)}" for split in ("train", "valid")]
        tags = [f"init_from={folder}/whole", *files, *TAGS]
        (folder / "tags.json").write_text(json.dumps(tags), "utf-8")
        pretrainkit.train(pretrainkit.load_config("glue/tags", tags), folder / "tags-whole", device="cpu")
        run_two(SUPPORT / "pixel_two_ranks.py", str(folder), *settings)
        yield folder


def checkpoint(run: Path, step: int) -> Path:
    return next((run / "checkpoints").glob(f"step-*{step}"))


def losses(run: Path, name: str = "masked_patch_loss") -> list[float]:
    """Return the losses of all logged steps."""
    lines = map(json.loads, (run / "metrics.jsonl").read_text("utf-8").splitlines())
    return [line[name] for line in lines]


@pytest.mark.parametrize("run", ["ddp", "fsdp2", "half-ddp", "half-fsdp2"])
def test_two_processes_end_in_the_weights_of_one(runs: Path, run: str) -> None:
    expected, found = (read_weights(checkpoint(runs / name, STEPS)) for name in ("whole", run))
    assert expected.keys() == found.keys()
    for name, tensor in expected.items():  # sums in another order, divided by small second moments
        torch.testing.assert_close(found[name], tensor, rtol=1e-3, atol=2e-5, msg=name)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_two_processes_have_the_losses_of_one(runs: Path, strategy: str) -> None:
    np.testing.assert_allclose(losses(runs / strategy), losses(runs / "whole"), rtol=1e-5)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_one_process_finishes_the_work_of_two(runs: Path, strategy: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(runs / strategy, run)
    shutil.rmtree(checkpoint(run, STEPS))
    pretrainkit.resume(run, ["parallel.strategy=auto"], device="cpu")
    expected, found = (read_weights(checkpoint(folder, STEPS)) for folder in (runs / "whole", run))
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-3, atol=2e-5, msg=name)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_two_processes_fine_tune_as_one_does(runs: Path, strategy: str) -> None:
    expected, found = (read_weights(checkpoint(runs / f"tags-{name}", STEPS)) for name in ("whole", strategy))
    assert expected.keys() == found.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-3, atol=2e-5, msg=name)
    alone, together = (losses(runs / f"tags-{name}", "loss") for name in ("whole", strategy))
    np.testing.assert_allclose(together, alone, rtol=1e-5)
    assert len(set(alone)) == STEPS
