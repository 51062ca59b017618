"""Reports, files and exit codes of `pretrainkit data` on a generated set."""

import csv
import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pytest

from pretrainkit.files.manifest import verify


def png(number: int, width: int = 20) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(number).integers(0, 256, (16, width, 3), np.uint8)).save(file, "PNG")
    return file.getvalue()


@pytest.fixture
def pairs(tmp_path) -> Path:
    """6 images with 2 captions each to train on, 2 with 1 held out."""
    folder = tmp_path / "set"
    for split, first, num, captions in (("train", 0, 6, 2), ("valid", 10, 2, 1)):
        (folder / split).mkdir(parents=True)
        with open(folder / f"{split}_anno.csv", "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["image", "image_id", "caption", "caption_id"])
            for image in range(first, first + num):
                (folder / split / f"{image}.png").write_bytes(png(image))
                writer.writerows([f"{image}.png", image, f"a dog, number {image} {n}", n] for n in range(captions))
    return folder


def test_a_sound_set_is_described_and_exits_with_0(cli, pairs):
    result = cli("data", "check", pairs, "--batch-size", 5, "--size", 18)
    assert result.code == 0
    assert "set train: 12 pairs of 6 images, 12 different captions" in result.out
    assert "set valid: 2 pairs of 2 images" in result.out
    facts = json.loads(cli("data", "check", pairs, "--batch-size", 5, "--size", 18, "--json").out)
    train = facts["sets"][0]
    assert (train["batches"], train["remainder"], train["smaller_images"], train["bad"]) == (2, 2, 6, {})
    assert train["captions_per_image"]["mean"] == 2
    assert facts["held_out"] is None


def test_bad_rows_are_named_by_reason_and_exit_with_2(cli, pairs):
    with open(pairs / "train_anno.csv", "a") as file:
        file.write('0.png,0,,77\nabsent.png,99,a caption,78\n3.png,3,"a dog, number 3 0",79\n')
    (pairs / "train" / "2.png").write_bytes(png(2)[:99])
    result = cli("data", "check", pairs, "--json")
    assert result.code == 2
    train = json.loads(result.out)["sets"][0]
    counts = {reason: entry["count"] for reason, entry in train["bad"].items()}
    assert counts == {"missing image": 1, "broken image": 2, "empty caption": 1}
    assert train["duplicate_pairs"] == 1
    shown = cli("data", "check", pairs)
    assert "bad: 1 missing image (1 caption)\n" in shown.out
    assert "set set, row 13 (absent.png): missing image" in shown.out
    assert shown.code == 2


def test_a_table_that_cannot_be_read_is_an_error_while_the_other_split_can(cli, pairs, tmp_path):
    (pairs / "train_anno.csv").write_text("image|image_id|caption|caption_id\n1.png|1|a, b|1\n")
    for verb in (("check",), ("pack", "--out", tmp_path / "out")):
        result = cli("data", verb[0], pairs, *verb[1:])
        assert result.code == 2
        assert "train_anno.csv cannot be read" in result.err
    (pairs / "train_anno.csv").unlink()
    assert cli("data", "check", pairs).code == 0


def test_a_quotation_mark_that_joins_rows_is_an_error(cli, pairs):
    head, *rows = (pairs / "train_anno.csv").read_text().splitlines()
    rows[1] = '0.png,0,"a dog, 5,1'
    rows[4] = '2.png,2,"a dog, ""big""",4'
    (pairs / "train_anno.csv").write_text("\n".join([head, *rows, ""]))
    result = cli("data", "check", pairs)
    assert result.code == 2
    assert "train_anno.csv cannot be read" in result.err


@pytest.mark.parametrize(
    ("row", "message"),
    [("1.png,5,x,0", "image 1.png has 2 different values of image_id"), ("7.png,1,x,0", "image_id 1 has 2 different")],
)
def test_ids_that_do_not_identify_images_are_refused(cli, pairs, row, message):
    """Evaluation would count an image as several ones, and data pack would lose images."""
    with open(pairs / "train_anno.csv", "a") as file:
        file.write(f"{row}\n")
    result = cli("data", "check", pairs)
    assert result.code == 2
    assert message in result.err


@pytest.mark.parametrize("num", [1, 2])
def test_an_image_with_five_captions_is_bad_once(cli, tmp_path, num):
    (tmp_path / "train").mkdir()
    lines = [f"{n // 5}.png,{n // 5},a dog,{n}" for n in range(15)] + [f"2.png,2,,{15 + n}" for n in range(num)]
    (tmp_path / "train_anno.csv").write_text("\n".join(["image,image_id,caption,caption_id", *lines]))
    for image in range(3):
        (tmp_path / "train" / f"{image}.png").write_bytes(b"none" if image < num else png(image))
    entry = json.loads(cli("data", "check", tmp_path, "--json").out)["sets"][0]["bad"]["broken image"]
    assert (entry["images"], entry["count"], len(entry["examples"])) == (num, 5 * num, num)
    images, captions = ("1 broken image", "1 empty caption") if num == 1 else ("2 broken images", "2 empty captions")
    shown = cli("data", "check", tmp_path).out
    assert f"bad: {images} ({5 * num} captions)\n" in shown
    assert f"bad: {captions}\n" in shown


def test_held_out_images_in_the_training_data_exit_with_2(cli, pairs):
    (pairs / "valid" / "10.png").rename(pairs / "valid" / "0.png")
    (pairs / "valid" / "0.png").write_bytes(png(0))
    table = (pairs / "valid_anno.csv").read_text().replace("10.png", "0.png")
    (pairs / "valid_anno.csv").write_text(table)
    result = cli("data", "check", pairs)
    assert result.code == 2
    assert "1 of the 2 images of data.valid=" in result.out


def test_caption_lengths_are_in_tokens_of_the_tokenizer(cli, pairs, tmp_path):
    captions = cli("data", "captions", pairs, "--out", tmp_path / "c.jsonl")
    assert captions.code == 0
    assert "12 captions" in captions.out
    assert cli("corpus", "count-words", tmp_path / "c.jsonl", "--out", tmp_path / "w.tsv").code == 0
    trained = cli(
        "tokenizer", "train", tmp_path / "w.tsv", "--kind", "bpe", "--vocab-size", 270, "--out", tmp_path / "t"
    )
    assert trained.code == 0, trained.err
    result = cli("data", "check", pairs, "--tokenizer", tmp_path / "t", "--max-length", 4, "--split", "train", "--json")
    train = json.loads(result.out)["sets"][0]
    assert train["cut_captions"] == 12
    assert train["caption_tokens"]["smallest"] > 4


def test_packed_tars_hold_the_same_pairs_in_shards_that_match_their_manifest(cli, pairs, tmp_path):
    out = tmp_path / "packed"
    result = cli("data", "pack", pairs, "--out", out, "--shard-size", "3KB", "--json")
    assert result.code == 0, result.err
    manifests = json.loads(result.out)
    assert (manifests["train"]["num_pairs"], manifests["train"]["num_images"]) == (12, 6)
    assert len(manifests["train"]["shards"]) > 1
    for split in ("train", "valid"):
        assert verify(out / split) == manifests[split]
    with tarfile.open(out / "train" / "00000.tar") as archive:
        assert archive.getnames()[:3] == ["000000000.png", "000000000.txt", "000000000.json"]
    before, after = (json.loads(cli("data", "check", path, "--json").out)["sets"] for path in (pairs, out))
    for name in ("pairs", "images", "different_captions", "width"):
        assert [part[name] for part in before] == [part[name] for part in after]
    again = cli("data", "pack", pairs, "--out", out)
    assert again.code == 2
    assert "exists and is not an empty folder" in again.err


def test_packing_names_bad_samples_and_leaves_nothing_behind(cli, pairs, tmp_path):
    (pairs / "train" / "2.png").unlink()
    result = cli("data", "pack", pairs, "--out", tmp_path / "packed")
    assert result.code == 2
    assert "row 4 (2.png): missing image" in result.err
    assert not (tmp_path / "packed").exists()
    assert cli("data", "pack", pairs, "--out", tmp_path / "packed", "--max-bad", 1).code == 0


def test_a_folder_that_is_not_a_set_is_refused(cli, tmp_path):
    result = cli("data", "check", tmp_path)
    assert result.code == 2
    assert "is not a set of image-text pairs" in result.err
