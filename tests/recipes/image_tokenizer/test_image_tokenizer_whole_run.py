"""Whole runs on generated images: training, exact resume, two processes as one, tokens for the recipe fourm."""

import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import pretrainkit
from pretrainkit.api import decode_tokens, open_image_tokenizer, tokenize_images
from pretrainkit.cli.main import app
from pretrainkit.errors import DataError, InputError
from pretrainkit.recipes.image_tokenizer import original
from pretrainkit.recipes.image_tokenizer.source import open_source
from pretrainkit.training.checkpoints.checkpoint import read_weights
from support.tokenizer_data import write_images
from support.whole_runs import (
    assert_exports_are_the_run,
    assert_resumes_exactly,
    assert_two_processes_train_as_one,
    weights,
)

pytestmark = pytest.mark.slow

STEPS = 4
SETTINGS = (
    "model.image_size=16",
    "model.encoder.hidden_size=16",
    "model.encoder.num_layers=1",
    "model.encoder.num_heads=2",
    "model.decoder.hidden_size=16",
    "model.decoder.num_layers=1",
    "model.decoder.num_heads=2",
    "model.quantizer.size=16",
    "model.quantizer.width=4",
    "data.batch_size=8",
    "data.microbatch_size=4",
    "data.num_workers=0",
    f"num_steps={STEPS}",
    "schedule.num_warmup_steps=0",
    "checkpoint.every_steps=2",
    "checkpoint.keep_last=9",
    "checkpoint.asynchronous=false",
    "precision.compute=float32",
    "optimizer.epsilon=1e-4",  # key biases have no gradient but rounding, which Adam would make large
    "evaluate.every_steps=2",
    "evaluate.num_examples=6",
    "evaluate.batch_size=4",
    "log.every_steps=1",
)

PUBLISHED = ("hidden_size=32", "num_layers=2", "num_heads=2")


def train(folder: Path, out: Path, *more: str) -> Path:
    data = [f"data.train={folder / 'train'}", f"data.valid={folder / 'valid'}"]
    replaced = tuple(f"{path}." for path, _, value in (word.partition("=") for word in more) if value.startswith("{"))
    settings = [word for word in SETTINGS if not word.startswith(replaced)] if replaced else SETTINGS
    pretrainkit.train(pretrainkit.load_config("image_tokenizer/tiny", [*settings, *data, *more]), out)
    return out


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    write_images(folder / "train", 16, 0)
    write_images(folder / "valid", 6, 1)
    rng = np.random.default_rng(0)
    for split, num in (("train", 16), ("valid", 6)):
        (folder / split / "seen" / "0000").mkdir(parents=True)
        for index in range(num):
            values = rng.standard_normal((6, 2, 2)).astype(np.float32)
            np.save(folder / split / "seen" / "0000" / f"{index:05d}.npy", values)
    return folder


@pytest.fixture(scope="module")
def run(images: Path) -> Path:
    """The folder of a run that was never interrupted."""
    return train(images, images / "whole")


def test_a_run_resumed_in_the_middle_ends_with_the_same_weights_and_codes(run: Path, tmp_path: Path) -> None:
    assert_resumes_exactly(run, tmp_path / "copy")


def test_an_export_is_the_run(run: Path, tmp_path: Path) -> None:
    assert_exports_are_the_run(run, tmp_path, "image_tokenizer", "safetensors")


def test_a_published_file_is_the_run(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such files name the size of their encoder and decoder; the smallest, of 50 million weights, is smaller here."""
    monkeypatch.setitem(original._VITS, "s", (32, 2, 2))
    sizes = [f"model.{part}.{name}" for part in ("encoder", "decoder") for name in PUBLISHED]
    run = train(images, tmp_path / "run", *sizes, "num_steps=1", "data.batch_size=4", "data.microbatch_size=null")
    assert_exports_are_the_run(run, tmp_path, "image_tokenizer", "4m-tokenizer", name="export.safetensors")


def test_everything_is_trained_and_codes_are_in_the_checkpoint(run: Path) -> None:
    first, last = weights(run, 2), weights(run)
    assert {"quantizer.codes_KD", "quantizer.use_K"} <= last.keys()
    same = {name for name, tensor in last.items() if torch.equal(tensor, first[name])}
    assert same == {"quantizer.is_ready"}


def test_a_run_reports_the_loss_of_images_and_the_use_of_codes(run: Path) -> None:
    lines = [json.loads(line) for line in (run / "eval.jsonl").read_text().splitlines()]
    found = lines[-1]
    assert {"mae", "mse", "psnr", "ssim", "codebook_usage", "codebook_perplexity", "loss"} <= found.keys()
    assert 0 < found["codebook_usage"] <= 1 <= found["codebook_perplexity"] <= 16 * found["codebook_usage"]
    assert pretrainkit.evaluate(run)["psnr"] == pytest.approx(found["psnr"], rel=1e-4)
    summary = json.loads((run / "summary.json").read_text())
    assert summary["mean_image_psnr"] > 0
    samples = json.loads((run / "samples.json").read_text())
    assert all(set(sample) == {"input", "reconstruction"} for sample in samples)
    assert all(cell[0]["image"].startswith("data:image/") for sample in samples for cell in sample.values())


def test_two_processes_train_as_one(run: Path, tmp_path: Path) -> None:
    assert_two_processes_train_as_one(run, tmp_path, "data.microbatch_size=2")


MORE = {
    "depth": ("model.domain=depth", "objective.reconstruction=smooth_l1", "model.quantizer.distance=euclidean"),
    "classes": (
        "model.domain={name: semseg, kind: classes, num_channels: 4, num_classes: 5}",
        "objective.reconstruction=cross_entropy",
        "model.quantizer={kind: fsq, levels: [4, 4]}",
    ),
    "diffusion": (
        "model.decoder={kind: unet, width: 8, multipliers: [1], num_blocks: 1}",
        "objective.reconstruction=mse",
        "model.num_sampling_steps=2",
        "data.min_image_size=8",
        "data.image_size_step=8",
        "model.quantizer={kind: memcodes, size: 8, width: 4, num_heads: 2}",
    ),
}


@pytest.mark.parametrize("name", MORE)
def test_other_domains_quantizers_and_decoders_train_and_resume(images: Path, tmp_path: Path, name: str) -> None:
    whole = train(images, tmp_path / "whole", *MORE[name], "num_steps=2", "checkpoint.every_steps=1")
    for folder in (whole / "checkpoints").glob("step-*2"):
        expected = read_weights(folder)
        shutil.rmtree(folder)
    pretrainkit.resume(whole)
    again = weights(whole, 2)
    assert all(torch.equal(tensor, again[name]) for name, tensor in expected.items())
    assert json.loads((whole / "samples.json").read_text())


_CONV = "{kind: conv, width: 8, multipliers: [1, 1, 1, 2], num_blocks: 1, has_attention: false}"
_UVIT = (
    "{kind: uvit, hidden_size: 16, patch_size: 4, num_layers: 1, num_heads: 2, widths: [8], num_blocks: 1}",
    "objective.reconstruction=mse",
    "model.num_sampling_steps=2",
)
KINDS = {
    **MORE,
    "convolutions": (f"model.encoder={_CONV}", f"model.decoder={_CONV}"),
    "transformer that takes noise away": (f"model.decoder={_UVIT[0]}", *_UVIT[1:]),
    "average": ("ema_decay=0.9",),
    "perceptrons on features": (
        "model.domain={name: seen, kind: features, num_channels: 6}",
        *(f"model.{part}={{kind: mlp, width: 8, num_blocks: 1}}" for part in ("encoder", "decoder")),
        "objective.reconstruction=mse",
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_an_export_of_another_kind_is_the_run(images: Path, tmp_path: Path, kind: str) -> None:
    short = ("num_steps=2", "data.batch_size=4", "data.microbatch_size=null", "evaluate.every_steps=null")
    run = train(images, tmp_path / "run", *KINDS[kind], *short)
    assert_exports_are_the_run(run, tmp_path, "image_tokenizer", "safetensors")


def test_sizes_differ_from_step_to_step_and_never_between_ranks(images: Path) -> None:
    config = pretrainkit.load_config(
        "image_tokenizer/tiny",
        [*SETTINGS, f"data.train={images / 'train'}", "data.min_image_size=8", "data.image_size_step=8"],
    )
    from pretrainkit.recipes.image_tokenizer.source import open_source

    source, again = open_source(config, "train"), open_source(config, "train")
    sizes = [len(source.of_step(step)["image_size"]) for step in range(40)]
    assert set(sizes) == {8, 16}
    assert sizes == [len(again.of_step(step)["image_size"]) for step in range(40)]
    assert open_source(config.model_copy(update={"data": config.data.model_copy(update={"valid": config.data.train})}),
                       "valid").of_step(0) == {}  # fmt: skip


def test_evaluation_and_tokens_see_the_whole_photograph_resized_by_pillow(run: Path, tmp_path: Path) -> None:
    """Training may decode a JPEG at a part of its size."""
    place = tmp_path / "rgb" / "0000"
    place.mkdir(parents=True)
    small = np.random.default_rng(0).integers(0, 256, (40, 60, 3), np.uint8)
    Image.fromarray(small).resize((600, 400), Image.Resampling.BICUBIC).save(place / "00000.jpg", quality=90)
    config = pretrainkit.load_config(
        "image_tokenizer/tiny", [*SETTINGS, f"data.train={tmp_path}", f"data.valid={tmp_path}"]
    )
    opened = Image.open(place / "00000.jpg").crop((100, 0, 500, 400))
    expected = np.asarray(opened.resize((16, 16), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
    np.testing.assert_array_equal(open_source(config, "valid").read(0, 0, 0), expected)
    tokenize_images(run, tmp_path)
    tokens = np.load(tmp_path / "tok_rgb@16" / "0000" / "00000.npy")
    np.testing.assert_array_equal(tokens[0], open_image_tokenizer(run).encode(expected[None])[0])


def test_tokens_are_written_beside_the_images_and_fourm_reads_them(run: Path, images: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(images / "valid", data)
    manifest = tokenize_images(run, data, num_parts=3, min_scale=0.5)
    assert (manifest["written"], manifest["kept"], manifest["tokens"]) == (6, 0, 4)
    tokens = np.load(data / "tok_rgb@16" / "0000" / "00002.npy")
    parts = np.load(data / "crop_settings" / "0000" / "00002.npy")
    assert (tokens.dtype, tokens.shape, parts.shape) == (np.int16, (3, 4), (3, 5))
    assert parts[0].tolist() == [0, 2, 20, 20, 0]
    assert tokenize_images(run, data, num_parts=3, min_scale=0.5)["kept"] == 6

    from pretrainkit.data.aligned_crops import stored_part
    from pretrainkit.recipes.fourm.modality import Modality, published
    from pretrainkit.recipes.fourm.readers import Request, reader_of

    modality = Modality(**{**published("tok_rgb@16").model_dump(), "patch_size": 8, "vocab_size": 16})
    part = stored_part(parts, 1, (20, 24), "parts")
    request = Request(modality, part, np.random.default_rng(0), True, None, "tokens")
    content = (data / "tok_rgb@16" / "0000" / "00002.npy").read_bytes()
    np.testing.assert_array_equal(reader_of(modality).read(content, request), tokens[1])


def test_fourm_trains_on_the_tokens(run: Path, images: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(images / "valid", data)
    tokenize_images(run, data, num_parts=2)
    image = "image_size: 16, patch_size: 8"
    modalities = (
        f"[{{name: rgb@16, kind: pixels, is_target: false, {image}, num_channels: 3, folder: rgb, reader: rgb}},"
        f" {{name: tok_rgb@16, kind: image, {image}, vocab_size: 16, reader: tokens}}]"
    )
    settings = [
        f"model.modalities={modalities}",
        "model.hidden_size=16",
        "model.num_heads=2",
        "model.num_encoder_layers=1",
        "model.num_decoder_layers=1",
        "model.intermediate_size=42",
        "masking.num_input_tokens=4",
        "masking.num_target_tokens=4",
        "data.batch_size=4",
        "data.num_workers=0",
        f"data.train={data}",
        "num_steps=2",
        "schedule.num_warmup_steps=0",
        "precision.compute=float32",
    ]
    metrics = pretrainkit.train(pretrainkit.load_config("fourm/tiny", settings), tmp_path / "fourm")
    assert 0 < metrics["tok_rgb@16_loss"] < 4


def test_tokens_of_archives_are_those_of_folders(run: Path, images: Path, tmp_path: Path) -> None:
    import tarfile

    plain, packed = tmp_path / "plain", tmp_path / "packed" / "rgb"
    shutil.copytree(images / "valid" / "rgb", plain / "rgb")
    packed.mkdir(parents=True)
    files = sorted((plain / "rgb" / "0000").iterdir())
    for number in range(2):
        with tarfile.open(packed / f"{number}.tar", "w") as archive:
            for file in files[3 * number : 3 * number + 3]:
                archive.add(file, file.name)
    tokenize_images(run, plain, num_parts=2)
    pattern = f"{packed.parent}/[rgb]/{{0..1}}.tar"
    for number in range(2):
        assert tokenize_images(run, pattern, num_parts=2, shard=(number, 2))["written"] == 1
    assert tokenize_images(run, pattern, num_parts=2)["kept"] == 2
    with tarfile.open(packed.parent / "tok_rgb@16" / "1.tar") as archive:
        member = archive.extractfile(archive.getmembers()[0])
        assert member is not None
        found = np.load(io.BytesIO(member.read()))
    np.testing.assert_array_equal(found, np.load(plain / "tok_rgb@16" / "0000" / "00003.npy"))


def test_tokens_of_another_tokenizer_or_other_parts_are_refused(run: Path, images: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(images / "valid", data)
    first = CliRunner().invoke(app, ["corpus", "tokenize-images", str(run), str(data), "--shard", "1/2"])
    assert first.exit_code == 0, first.output
    assert "3 written, 0 kept" in first.output
    with pytest.raises(DataError, match="has 1 crops of each image, but --crops is 2"):
        tokenize_images(run, data, num_parts=2)
    early = next((run / "checkpoints").glob("step-*2"))
    with pytest.raises(DataError, match="created with other settings: tokenizer"):
        tokenize_images(early, data)
    with pytest.raises(DataError, match="has 1 crops of each image, but --crops is 2"):
        tokenize_images(early, data, num_parts=2, out="other")
    with pytest.raises(DataError, match="has no folder nothing"):
        tokenize_images(run, data, folder="nothing")
    with pytest.raises(InputError, match="invalid --shard 2/2"):
        tokenize_images(run, data, shard=(2, 2))


def test_ids_become_images(run: Path, images: Path, tmp_path: Path) -> None:
    pretrainkit.export(run, "safetensors", tmp_path / "export")
    codec = open_image_tokenizer(run, device="cpu")
    given = np.asarray(Image.open(images / "valid/rgb/0000/00000.png").resize((16, 16)))
    ids = codec.encode(given.transpose(2, 0, 1)[None])
    assert ids.shape == (1, codec.num_tokens) == (1, 4)
    made = decode_tokens(tmp_path / "export", ids, device="cpu")
    assert (made.dtype, made.shape) == (np.uint8, (1, 16, 16, 3))
    np.testing.assert_array_equal(made, codec.decode(ids))
    assert codec.pictures(ids).shape == (1, 3, 16, 16)
    for wrong in (ids + 16, ids[:, :3], ids[0], ids.astype(np.float32)):
        with pytest.raises(DataError):
            codec.decode(wrong)


def test_a_decoder_can_be_trained_on_a_finished_encoder(run: Path, images: Path, tmp_path: Path) -> None:
    more = ["model.is_encoder_frozen=true", "model.decoder={kind: unet, width: 8, multipliers: [1], num_blocks: 1}"]
    more += ["objective.reconstruction=mse", "num_steps=1", "model.num_sampling_steps=1", f"init_from={run}"]
    out = train(images, tmp_path / "next", *more, r"init.rename=[{pattern: decoder\..*}]", "init.unexpected=ignore")
    before, after = weights(run), weights(out, 1)
    same = [name for name in after if not name.startswith("decoder.")]
    assert "quantizer.codes_KD" in same
    assert all(torch.equal(after[name], before[name]) for name in same)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("model.domain.folder=nothing",), "has no folder nothing"),
        (
            ("model.domain={name: semseg, kind: classes, num_channels: 4, num_classes: 2}",
             "objective.reconstruction=cross_entropy"), "num_classes=",
        ),
        (("data.valid=",), "nothing to evaluate on|data.valid"),
    ],
)  # fmt: skip
def test_data_that_do_not_fit_are_refused_before_training(images: Path, tmp_path: Path, more, message: str) -> None:
    if more[0] == "data.valid=":
        more = (f"data.valid={images / 'train'}",)
        message = "that is also in data.train"
    with pytest.raises(DataError, match=message):
        train(images, tmp_path / "none", *more)
