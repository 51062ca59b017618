"""A timm image encoder and a transformers text encoder from folders: trained, stopped, resumed, evaluated, exported.

Both folders are written here, with weights, and deleted once the run has started."""

import json
import os
import shutil
import signal
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

import pretrainkit as pk
from pretrainkit import api
from pretrainkit.demo.shapes import write_sets
from pretrainkit.errors import ConfigError, Interrupted
from pretrainkit.exporting.torchvision_shim import import_torchvision, import_transformers
from pretrainkit.training.checkpoints.checkpoint import read_weights
from pretrainkit.training.watch import Watcher

for package in ("PIL", "torchvision", "timm", "transformers"):
    if find_spec(package) is None:
        pytest.skip(
            f"{package} is not installed: pip install 'pretrainkit[vision]' transformers", allow_module_level=True
        )

SIDE = 24
TIMM = {"img_size": SIDE, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 3}
SETTINGS = [
    "data.train=sets/single,sets/pairs",
    "data.valid=sets/single,sets/pairs",
    f"model.image={{kind: timm, name: 'local-dir:vision', image_size: {SIDE}}}",
    "model.text={kind: huggingface, name: words}",
    "model.projection.dim=16",
    f"data.train_transforms=[{{op: random_resize_crop, size: {SIDE}}}]",
    f"data.valid_transforms=[{{op: resize, size: {SIDE}}}]",
    *("data.normalize=null", "data.text_augment={}", "data.max_length=12", "data.num_workers=0"),
    *("data.order=debias", "data.batch_size=8", "data.microbatch_size=4", "objective.mixup={beta: 0.1}"),
    *("num_steps=8", "schedule.num_warmup_steps=2", "checkpoint.every_steps=2", "evaluate.every_steps=null"),
    *("evaluate.batch_size=5", "log.every_steps=1", "precision.compute=float32", "data.num_epochs=null"),
]


def write_timm(folder: Path) -> None:
    import timm
    from safetensors.torch import save_file

    encoder = timm.create_model("vit_tiny_patch16_224", num_classes=0, **TIMM)
    published = {"input_size": [3, SIDE, SIDE], "mean": [0.4] * 3, "std": [0.3] * 3, "num_classes": 0}
    content = {"architecture": "vit_tiny_patch16_224", "model_args": TIMM, "pretrained_cfg": published}
    folder.mkdir()
    save_file(
        {name: tensor.contiguous() for name, tensor in encoder.state_dict().items()}, folder / "model.safetensors"
    )
    (folder / "config.json").write_text(json.dumps(content))


def write_bert(folder: Path) -> None:
    import transformers

    words = (
        "a small big red green blue yellow purple orange black white circle square triangle diamond cross ring at the"
    )
    words += " top bottom left right side above of on grey pink brown cyan ground is , :"
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    transformers.BertModel(transformers.BertConfig(vocab_size=60, **sizes)).save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words.split()]) + "\n")


class StopAfter(Watcher):
    """Asks this process to end after a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def stepped(self, step, num_steps) -> None:
        if step == self.step:
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """sets/, run/ (stopped after step 3 and resumed without the encoders' folders) and reference/ (never stopped)."""
    import_torchvision()
    import_transformers()
    root = tmp_path_factory.mktemp("foreign")
    write_sets(root / "sets", num_train=12, num_valid=6, side=32, seed=0)
    torch.manual_seed(0)
    write_timm(root / "vision")
    write_bert(root / "words")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        config = pk.load_config("clip/tiny", SETTINGS)
        pk.train(config, "reference", device="cpu")
        with pytest.raises(Interrupted):
            pk.train(config, "run", watcher=StopAfter(3), device="cpu")
        shutil.rmtree(root / "vision")
        (root / "words/model.safetensors").unlink()
        patch.chdir(root / "sets")
        pk.resume("../run", device="cpu")
    return root


def losses(run: Path) -> list[dict[str, float]]:
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [{name: line[name] for name in ("step", "loss", "hard_loss", "temperature", "grad_norm")} for line in lines]


def last_tensors(run: Path) -> dict[str, torch.Tensor]:
    return read_weights(max((run / "checkpoints").glob("step-*")), prefix="")


def test_stopped_and_resumed_without_the_folders_is_the_run_that_never_was(made):
    assert losses(made / "run") == losses(made / "reference")
    found, expected = last_tensors(made / "run"), last_tensors(made / "reference")
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def test_the_run_is_evaluated_without_the_folders(made):
    logged = json.loads((made / "run/summary.json").read_text())
    found = pk.evaluate(made / "run", device="cpu")
    assert found == {name.removeprefix("valid_"): value for name, value in logged.items() if name.startswith("valid_")}
    assert {"single_RSUM", "pairs_RSUM", "RSUM", "temperature"} <= set(found)


def test_transformers_gives_the_scores_of_the_run(made, tmp_path):
    """Model, image processor and tokenizer of the export together, on files and captions longer than those of training
    too."""
    from PIL import Image

    transformers = import_transformers()
    pk.export(made / "run", "huggingface", tmp_path / "hf")
    files = sorted((made / "sets/pairs/valid").iterdir())
    prompts = ["a red circle", "on pink, a small blue ring is left of a big yellow square that nobody has seen before"]
    processor = transformers.AutoProcessor.from_pretrained(tmp_path / "hf")
    model = transformers.AutoModel.from_pretrained(tmp_path / "hf").eval()
    assert isinstance(model, transformers.VisionTextDualEncoderModel)
    inputs = processor(text=prompts, images=[Image.open(file) for file in files], padding=True, return_tensors="pt")
    with torch.no_grad():
        found = model(**inputs)
    cosines = found.text_embeds @ found.image_embeds.T
    for prompt, row in zip(api.generate(made / "run", prompts, images=made / "sets/pairs/valid", top=6), cosines):
        for one in prompt["images"]:
            # transformers resizes with torchvision, whose rounding differs by at most one of 255 levels
            assert abs(one["score"] - float(row[files.index(Path(one["image"]))])) < 0.02
    again = pk.load_model(tmp_path / "hf").state_dict()
    for name, tensor in pk.load_model(made / "run").state_dict().items():
        np.testing.assert_allclose(again[name].numpy(), tensor.numpy(), rtol=1e-5, atol=1e-7, err_msg=name)


def test_an_export_is_evaluated_as_its_run(made, tmp_path):
    pk.export(made / "run", "huggingface", tmp_path / "hf")
    valid = f"{made}/sets/single,{made}/sets/pairs"
    found, expected = (pk.evaluate(made / path, valid, device="cpu") for path in (tmp_path / "hf", "run"))
    assert found == pytest.approx(expected, rel=1e-5)


def test_a_folder_that_is_not_there_is_named(made, monkeypatch):
    monkeypatch.chdir(made)
    config = pk.load_config("clip/tiny", SETTINGS)
    with pytest.raises(ConfigError, match=r"model\.image\.name=local-dir:vision"):
        pk.train(config, made / "none", device="cpu")
    assert not (made / "none").exists()
