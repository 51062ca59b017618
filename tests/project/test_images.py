"""`pretrainkit new` for images with captions, and for aligned folders."""

import csv
import json
import re
import shutil
import subprocess
import unicodedata
from pathlib import Path

import pytest

pytest.importorskip("PIL")

from pretrainkit.data.aligned_samples import open_samples
from pretrainkit.errors import DataError, InputError
from pretrainkit.project.new import new_project
from pretrainkit.recipes.clip.config import ClipSourceConfig
from pretrainkit.recipes.clip.loose_pairs import find_loose_pairs
from pretrainkit.recipes.clip.open_pairs import open_pairs
from pretrainkit.recipes.clip.pack import pack
from support import page_data, pair_sets, remedies
from support.page_runner import run_here, within

SMALL = {
    "clip": """\
model:
  image: {hidden_size: 16, num_layers: 1, num_heads: 2, intermediate_size: 32}
  text: {hidden_size: 16, num_layers: 1, num_heads: 2, intermediate_size: 32}
""",
    "pixel": """\
model: {hidden_size: 16, num_layers: 1, num_heads: 2, intermediate_size: 32, decoder_hidden_size: 16,
  decoder_num_layers: 1, decoder_num_heads: 2, decoder_intermediate_size: 32}
""",
}


def run(project: Path, more: str = "", changes: dict[str, str] | None = None) -> None:
    """Run all commands of a project in this process, with a smaller model."""
    config = project / "config.yaml"
    text = config.read_text(encoding="utf-8")
    for old, new in (changes or {}).items():
        assert old in text
        text = text.replace(old, new)
    config.write_text(f"{text}precision: {{compute: float32}}\n{more}", encoding="utf-8")
    with within(project):
        for command in json.loads((project / "project.json").read_bytes())["commands"]:
            ended = run_here(command[1:])
            assert ended.code == 0, f"{command}\n{ended.err}"
    assert (project / "runs/first/report.html").stat().st_size > 10_000


def put_photos(folder: Path, num: int = 24) -> Path:
    folder.mkdir(parents=True)
    for number in range(num):
        (folder / f"{number:03}.png").write_bytes(pair_sets.png(number))
    return folder


def put_captions(folder: Path, num: int = 24, name: str = "captions.csv") -> Path:
    put_photos(folder, num)
    with open(folder / name, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter="\t" if name.endswith("tsv") else ",")
        writer.writerow(("file_name", "text"))
        writer.writerows((f"{number:03}.png", pair_sets.caption(number)) for number in range(num) for _ in range(2))
    return folder


@pytest.mark.slow
def test_a_folder_of_images_with_a_table_becomes_a_report(tmp_path):
    photos = put_captions(tmp_path / "photos")
    (photos / "broken.png").write_bytes(pair_sets.png(99)[:60])
    with open(photos / "captions.csv", "a", encoding="utf-8") as file:
        file.write("broken.png,a broken image\nnowhere.png,no image\n")
    (photos / "alone.png").write_bytes(pair_sets.png(100))
    project = new_project("clip", [photos], tmp_path / "made", hours=0.0005)
    left_out = {one["what"]: one["count"] for one in project.record["left_out"]}
    assert left_out == {
        "images without a caption": 1,
        "captions of images that do not exist": 1,
        "rows of photos (train): broken image": 1,
    }
    run(project.folder, SMALL["clip"])
    manifests = [json.loads((project.folder / f"data/pairs/{split}/manifest.json").read_bytes()) for split in PARTS]
    assert [one["num_images"] for one in manifests] == [19, 5]


PARTS = ("train", "valid")


def test_a_set_with_held_out_images_is_used_as_it_is(tmp_path):
    page_data.put_pairs(tmp_path / "set")
    project = new_project("clip", [tmp_path / "set"], tmp_path / "made", hours=None)
    assert "pack" not in [command[2] for command in project.record["commands"]]
    assert 'train: ["raw/set"]' in (project.folder / "config.yaml").read_text()
    assert (project.folder / "raw/set/train_anno.csv").is_file()


def test_sets_of_the_same_name_are_kept_apart(tmp_path):
    for seed, place in enumerate(("a", "b")):
        page_data.put_pairs(tmp_path / place / "set", seed)
    project = new_project("clip", [tmp_path / "a/set", tmp_path / "b/set"], tmp_path / "made", hours=None)
    assert 'train: ["raw/set", "raw/set-2"]' in (project.folder / "config.yaml").read_text()


def scripted(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the script of a project without its commands."""
    script = (folder / "run.sh").read_text().replace("\npretrainkit ", "\n: ").replace("|| pretrainkit ", "|| : ")
    return subprocess.run(["bash", "-c", script, folder / "run.sh"], capture_output=True, text=True)


@pytest.mark.parametrize("recipe", ["clip", "clip with a table", "fourm"])
def test_a_project_finds_raw_data_after_a_move_of_both_or_of_one(tmp_path, recipe):
    raw, made = tmp_path / "one/my raw", tmp_path / "one/made"
    if recipe == "fourm":
        page_data.put_rooms(raw, 4, 2)
    elif recipe == "clip":
        page_data.put_pairs(raw)
    else:
        put_captions(raw)
    words = ["new", recipe.split()[0], "my raw", "--out", "made"]
    with within(tmp_path / "one"):
        assert run_here(words).code == 0
    linked = {"fourm": "raw/train/rgb", "clip": "raw/my-raw", "clip with a table": "raw/my-raw/train"}[recipe]

    def is_readable(folder: Path) -> bool:
        return all(path.exists() for path in (folder / linked).iterdir())

    assert is_readable(made)
    (tmp_path / "one").rename(tmp_path / "two")  # both; without its script, too
    raw, made = tmp_path / "two/my raw", tmp_path / "two/made"
    assert is_readable(made)
    with within(tmp_path / "two"):
        again = run_here(words)
    assert "unchanged: config.yaml" in again.out
    (tmp_path / "deep/er").mkdir(parents=True)
    made = made.rename(tmp_path / "deep/er/made")  # only the project: its raw data is neither here nor where it was
    if recipe == "fourm":
        with pytest.raises(DataError, match=r"is a link to .*, which does not exist\n.*\(in a project: bash run.sh\)"):
            open_samples(str(made / "raw/train"), {"rgb": [".png"]}).read("rgb", 0)
    gone = scripted(made)
    assert gone.returncode == 2
    assert f"error: the raw data is no longer in {tmp_path}/one/my raw" in gone.stderr
    (command,) = re.findall(r"ln -sfn FOLDER \S+", gone.stderr)
    subprocess.run(command.replace("FOLDER", f"'{raw}'"), shell=True, check=True)
    assert scripted(made).returncode == 0
    assert is_readable(made)
    (tmp_path / "two").rename(tmp_path / "one")  # back to its old place
    assert scripted(made).returncode == 0
    assert is_readable(made)


def test_a_broken_image_of_a_set_is_left_out_by_packing(tmp_path):
    page_data.put_pairs(tmp_path / "set")
    next((tmp_path / "set/train").iterdir()).write_bytes(b"")
    project = new_project("clip", [tmp_path / "set"], tmp_path / "made", hours=None)
    with within(project.folder):
        ended = run_here(project.record["commands"][0][1:])
    assert ended.code == 0, ended.err
    assert "left out: 1 broken image" in ended.err


@pytest.mark.parametrize("name", ["captions.csv", "captions.tsv", "captions.txt"])
def test_tables_of_captions_are_recognized_by_their_columns(tmp_path, name):
    found = find_loose_pairs(str(put_captions(tmp_path / "photos", 3, name)))
    assert found.captions == {f"{n:03}.png": [pair_sets.caption(n)] * 2 for n in range(3)}


def test_a_table_of_captions_with_semicolons_is_read(tmp_path):
    photos = put_photos(tmp_path / "photos", 1)
    (photos / "captions.csv").write_text("image;caption\n000.png;one, two\n")
    assert find_loose_pairs(str(photos)).captions == {"000.png": ["one, two"]}


def test_captions_are_read_from_json_lines_and_beside_the_images(tmp_path):
    photos = put_photos(tmp_path / "photos", 4)
    rows = [{"image": "000.png", "caption": ["one", "two"]}, {"image": "deep/001.png", "caption": "three"}]
    (photos / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (photos / "002.txt").write_text("four\n\nfive\n")
    found = find_loose_pairs(str(photos))
    assert found.captions == {"000.png": ["one", "two"], "001.png": ["three"], "002.png": ["four", "five"]}
    assert [(one.count, one.examples) for one in found.left_out] == [(1, ("003.png",))]


def test_rows_after_an_incomplete_one_are_read_and_incomplete_ones_are_counted(tmp_path):
    photos = put_photos(tmp_path / "photos", 3)
    rows = [
        {"image": "000.png", "caption": "one"},
        {"image": "001.png", "caption": None},
        {"image": None, "caption": "lost"},
        {"image": "002.png", "caption": "three"},
    ]
    (photos / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = find_loose_pairs(str(photos))
    assert found.captions == {"000.png": ["one"], "002.png": ["three"]}
    assert [(one.kind, one.count, one.examples) for one in found.left_out] == [
        ("images without a caption", 1, ("001.png",)),
        ("captions of images that do not exist", 1, ("a row of rows.jsonl without an image",)),
    ]


def test_broken_lines_of_json_are_counted_with_the_place_of_the_first_ones(tmp_path):
    photos = put_photos(tmp_path / "photos", 2)
    lines = ['{"image": "000.png", "caption": "one"}', '{"image": "001.png", "capt', "", "[1]", "[" * 100_000]
    (photos / "rows.jsonl").write_text("\n".join([*lines, '{"image": "001.png", "caption": "two"}', ""]))
    project = new_project("clip", [photos], tmp_path / "project", hours=None)
    assert find_loose_pairs(str(photos)).captions == {"000.png": ["one"], "001.png": ["two"]}
    assert "rows that cannot be read" in str(project.record)
    assert "rows.jsonl:2" in str(project.record)


def test_files_of_formats_that_cannot_be_read_are_listed_with_their_captions(tmp_path):
    photos = put_photos(tmp_path / "photos", 2)
    (photos / "captions.csv").write_text("image,caption\n000.png,one\nIMG_1.HEIC,two\nlost.png,three\n")
    for name in ("IMG_1.HEIC", "IMG_2.HEIC", ".DS_Store"):
        (photos / name).write_bytes(b"unknown")
    found = find_loose_pairs(str(photos))
    assert [(part.kind, part.count, part.examples) for part in found.left_out] == [
        ("images without a caption", 1, ("001.png",)),
        ("captions of images that do not exist", 1, ("lost.png",)),
        ("files that are neither images nor captions", 2, ("IMG_1.HEIC", "IMG_2.HEIC")),
    ]
    for photo in photos.glob("*.png"):
        photo.unlink()
    with pytest.raises(DataError, match=r"has no images .*; it has IMG_1\.HEIC"):
        find_loose_pairs(str(photos))


def test_a_quotation_mark_that_is_not_closed_costs_its_row_alone_and_is_counted(tmp_path):
    photos = put_photos(tmp_path / "photos", 3)
    long = '"' + "x" * 200_000
    (photos / "captions.csv").write_text(f"image,caption\n000.png,one\n001.png,{long}\n002.png,three\n")
    (photos / "001.txt").write_text(f"a text {long}\n")
    found = find_loose_pairs(str(photos))
    assert found.captions == {"000.png": ["one"], "001.png": [f"a text {long}"], "002.png": ["three"]}
    assert [(part.kind, part.examples) for part in found.left_out] == [
        ("rows that cannot be read", ("captions.csv:3",))
    ]


def test_a_quotation_mark_does_not_join_rows_of_captions(tmp_path):
    photos = put_photos(tmp_path / "photos", 4)
    rows = ["image,caption", '000.png,"open', "001.png,two", '002.png,"a 12" ruler"', '003.png,"four\nlines"', ""]
    (photos / "captions.csv").write_text("\n".join(rows))
    found = find_loose_pairs(str(photos))
    assert found.captions == {"001.png": ["two"], "003.png": ["four\nlines"]}
    assert found.left_out[1].examples == ("captions.csv:2", "captions.csv:4")


def test_captions_of_excel_and_other_encodings(tmp_path):
    """A byte order mark is no part of a caption, and a text that is not UTF-8 is counted, not altered."""
    photos = put_photos(tmp_path / "photos", 5)
    (photos / "a.csv").write_bytes("\ufeffimage,caption\r\n000.png,café\r\n".encode())
    (photos / "b.csv").write_bytes("image,caption\r\n001.png,café\r\n".encode("latin-1"))
    (photos / "002.txt").write_bytes("\ufeffcafé\r\n".encode())
    (photos / "003.txt").write_bytes("café".encode("latin-1"))
    (photos / "004.txt").write_bytes("cafe".encode("utf-16-le"))
    found = find_loose_pairs(str(photos))
    assert found.captions == {"000.png": ["café"], "002.png": ["café"]}
    assert found.left_out[1].examples == ("b.csv:2", "003.txt", "004.txt")


def test_a_name_that_several_folders_have_is_not_guessed(tmp_path):
    for place in ("a", "b"):
        put_photos(tmp_path / "photos" / place, 1)
    put_photos(tmp_path / "photos/c/deep", 2)
    (tmp_path / "photos/captions.csv").write_text("image,caption\n000.png,one\n001.png,two\na/000.png,three\n")
    found = find_loose_pairs(str(tmp_path / "photos"))
    assert found.captions == {"a/000.png": ["three"], "c/deep/001.png": ["two"]}
    assert ("captions of images that do not exist", 1) in [(part.kind, part.count) for part in found.left_out]


def test_a_broken_table_of_a_set_is_not_replaced_by_another_one(tmp_path):
    """The captions of the held-out images would become those to train on."""
    for broken in PARTS:
        page_data.put_pairs(tmp_path / broken)
        (tmp_path / broken / f"{broken}_anno.csv").write_text("image,image_id,caption,caption_id\n1.png,1,a, b,1\n")
        with pytest.raises(DataError, match=f"{broken}_anno.csv cannot be read"):
            new_project("clip", [tmp_path / broken], tmp_path / "made", hours=None)


@pytest.mark.parametrize("is_set", [True, False])
def test_a_set_of_which_no_image_can_be_read_is_refused(tmp_path, is_set):
    """Such as arrays of sounds, or paths that are relative to another folder."""
    photos = put_captions(tmp_path / "photos")
    if is_set:
        photos = page_data.put_pairs(tmp_path / "set") or tmp_path / "set"
    for image in [*photos.rglob("*.png"), *photos.rglob("*.jpg")]:
        image.write_bytes(b"\x93NUMPY\x01\x00")
    with pytest.raises(DataError, match=r"none of the .* images can be read\n.*broken image: .* unknown image format"):
        new_project("clip", [photos], tmp_path / "made", hours=None)


def test_images_without_captions_are_refused_with_a_remedy_that_works(tmp_path):
    photos = put_photos(tmp_path / "photos", 30)
    with pytest.raises(DataError, match="has a caption \\(images: 30\\)") as caught:
        new_project("clip", [photos], tmp_path / "made", hours=None)
    name = str(caught.value).partition("such as ")[2].splitlines()[0]
    assert name == "000.txt"
    for number in range(30):
        (photos / f"{number:03}.txt").write_text(pair_sets.caption(number))
    assert new_project("clip", [photos], tmp_path / "made", hours=None).is_new


def test_text_is_not_for_clip_and_images_are_not_for_bert(tmp_path):
    (tmp_path / "text").mkdir()
    (tmp_path / "text/a.txt").write_text("A text.")
    for recipe, data, message in (
        ("clip", tmp_path / "text", "has no images"),
        ("bert", put_captions(tmp_path / "photos"), "no readable text file"),
        ("fourm", tmp_path / "photos", "no photographs with another modality"),
    ):
        with pytest.raises(DataError, match=message) as caught:
            new_project(recipe, [data], tmp_path / "made", hours=None)
        assert "clip reads images with captions" in str(caught.value)
        assert "bert reads text" in str(caught.value)


def open_train(folder: Path):
    return open_pairs(ClipSourceConfig(path=str(folder)), "train")


def test_packing_holds_out_whole_images_and_copies_are_on_one_side(tmp_path):
    rows = pair_sets.rows(40)
    pair_sets.write_csv_set(tmp_path / "set", "train", rows)
    images = sorted((tmp_path / "set/train").iterdir())
    for number in range(0, 40, 2):  # each image is there twice
        shutil.copy(images[number], images[number + 1])
    pairs = open_train(tmp_path / "set")
    manifests = pack({"train": pairs}, tmp_path / "out", shard_bytes=1 << 20, heldout=0.2)
    assert manifests["valid"]["num_images"] == 8
    assert manifests["train"]["num_images"] == 32
    contents = {}
    for split in PARTS:
        packed = open_pairs(ClipSourceConfig(path=str(tmp_path / "out")), split)
        contents[split] = {packed.read_image(row) for row in range(len(packed))}
    assert not contents["train"] & contents["valid"]
    again = pack({"train": pairs}, tmp_path / "again", shard_bytes=1 << 20, heldout=0.2)
    assert [again[split]["fingerprint"] for split in PARTS] == [manifests[split]["fingerprint"] for split in PARTS]
    tiny = pack({"train": pairs}, tmp_path / "one", shard_bytes=1 << 20, heldout=1e-6)
    assert tiny["valid"]["num_images"] == 2  # the copies of one


def test_a_share_that_cannot_be_held_out_is_refused(tmp_path):
    page_data.put_pairs(tmp_path / "set")
    out, words = str(tmp_path / "out"), ["data", "pack", str(tmp_path / "set"), "--heldout", "0.1", "--out"]
    refused = run_here([*words, out])
    assert refused.code == 2
    message = refused.err.partition("error: ")[2]
    advice = remedies.followed(message, "recipes/clip/pack.py: --heldout is …, but the set already has")
    assert "leave out --heldout" in advice
    assert run_here([*words, out, "--split", "train"]).code == 0
    assert run_here([*words[:3], "--out", str(tmp_path / "whole")]).code == 0
    pairs = open_train(tmp_path / "set")
    with pytest.raises(InputError) as caught:
        pack({"train": pairs}, tmp_path / "none", shard_bytes=1 << 20, heldout=1.5)
    assert "--heldout 0.05" in remedies.followed(caught.value, "recipes/clip/pack.py: --heldout is")
    pack({"train": pairs}, tmp_path / "some", shard_bytes=1 << 20, heldout=0.05)
    pair_sets.write_csv_set(tmp_path / "single", "train", pair_sets.rows(1))
    with pytest.raises(InputError) as caught:
        pack({"train": open_train(tmp_path / "single")}, tmp_path / "none", shard_bytes=1 << 20, heldout=0.5)
    assert "leave out --heldout" in remedies.followed(
        caught.value, "recipes/clip/pack.py: --heldout is …, but … has no two"
    )
    pack({"train": open_train(tmp_path / "single")}, tmp_path / "all", shard_bytes=1 << 20)


def put_rooms(folder: Path, num: int) -> Path:
    page_data.put_rooms(folder / "both", num, 1)
    shutil.move(folder / "both/train", folder / "rooms")
    return folder / "rooms"


@pytest.mark.slow
def test_aligned_folders_become_a_report(tmp_path):
    rooms = put_rooms(tmp_path, 14)
    (rooms / "depth/00003.png").write_bytes(b"no image")
    (rooms / "seg/00004.png").unlink()
    (rooms / "normal").mkdir()
    project = new_project("fourm", [rooms], tmp_path / "made", hours=0.0005)
    left_out = {one["what"]: one["count"] for one in project.record["left_out"]}
    assert left_out == {
        f"folders of unknown modalities in {rooms}": 1,
        f"samples of {rooms} that lack a modality": 1,
        f"samples of {rooms} with a broken file": 1,
    }
    small = {
        "model:\n": "model:\n  hidden_size: 16\n  num_heads: 2\n  num_encoder_layers: 1\n  num_decoder_layers: 1\n"
        "  intermediate_size: 42\n"
    }
    run(project.folder, "masking: {num_input_tokens: 24, num_target_tokens: 24}\n", small)
    parts = [len(list((project.folder / f"raw/{split}/rgb").iterdir())) for split in PARTS]
    assert parts == [10, 2]


def test_held_out_folders_are_used_and_must_have_the_same_modalities(tmp_path):
    page_data.put_rooms(tmp_path / "rooms", 4, 2)
    project = new_project("fourm", [tmp_path / "rooms"], tmp_path / "made", hours=None)
    assert len(list((project.folder / "raw/valid/det").iterdir())) == 2
    shutil.rmtree(tmp_path / "rooms/valid/det")
    with pytest.raises(DataError, match="but the training data has rgb, depth, seg, caption, det"):
        new_project("fourm", [tmp_path / "rooms"], tmp_path / "other", hours=None)


def put_photographs(folder: Path, orientations: list[int]) -> Path:
    """Write photographs of 30 x 20 stored pixels with a depth map and a caption each."""
    from PIL import Image

    for number, orientation in enumerate(orientations):
        for kind in ("rgb", "depth", "caption"):
            (folder / kind).mkdir(parents=True, exist_ok=True)
        exif = Image.Exif()
        exif[0x0112] = orientation
        Image.new("RGB", (30, 20), (number, 0, 0)).save(folder / f"rgb/{number}.png", exif=exif)
        Image.new("L", (30, 20), number).save(folder / f"depth/{number}.png")
        (folder / f"caption/{number}.txt").write_text(f"a thing {number}")
    return folder


def test_maps_of_turned_photographs_that_were_not_turned_are_left_out(tmp_path):
    photos = put_photographs(tmp_path / "photos", [1, 6, 1, 1, 3])
    project = new_project("fourm", [photos], tmp_path / "made", hours=None)
    (left_out,) = project.record["left_out"]
    assert (left_out["what"], left_out["count"]) == (f"samples of {photos} with a broken file", 1)
    (example,) = left_out["examples"]
    assert example.startswith(f"{photos}/depth/1.png has 30 x 20 pixels, but {photos}/rgb/1.png has another shape")


def test_captions_of_few_words_have_room_in_the_vocabulary(tmp_path):
    photos = put_photographs(tmp_path / "photos", [1] * 10)
    project = new_project("fourm", [photos], tmp_path / "made", hours=None)
    with within(project.folder):
        for command in project.record["commands"][:2]:
            ended = run_here(command[1:])
            assert ended.code == 0, ended.err


def test_without_captions_the_vocabulary_has_room_for_the_names_of_classes(tmp_path):
    """Names of classes have several words, joined by underscores, as in many sets."""
    page_data.put_rooms(tmp_path / "rooms", 4, 2)
    for split in PARTS:
        shutil.rmtree(tmp_path / f"rooms/{split}/caption")
        for path in (tmp_path / f"rooms/{split}/det").iterdir():
            text = path.read_text(encoding="utf-8")
            path.write_text(re.sub(r'("class(?:_name)?": ")', r"\1allen_spanner ", text), encoding="utf-8")
    project = new_project("fourm", [tmp_path / "rooms"], tmp_path / "made", hours=None)
    with within(project.folder):
        for command in project.record["commands"][:2]:
            ended = run_here(command[1:])
            assert ended.code == 0, ended.err


@pytest.mark.slow
def test_text_is_drawn_and_becomes_a_report(tmp_path):
    pytest.importorskip("freetype")
    page_data.put_texts(tmp_path / "raw", 12, 120)
    page_data.put_font(tmp_path / "raw/font.ttf")
    project = new_project("pixel", [tmp_path / "raw"], tmp_path / "made", hours=0.0005)
    assert project.record["found"]["number of fonts"] == "1"
    assert project.record["left_out"] == []
    run(project.folder, SMALL["pixel"])


def test_characters_that_no_font_has_are_named(tmp_path):
    pytest.importorskip("freetype")
    page_data.put_texts(tmp_path / "raw", 12, 120)
    page_data.put_font(tmp_path / "raw/font.ttf")
    with open(sorted((tmp_path / "raw").glob("*.txt"))[0], "r+", encoding="utf-8") as file:
        text = file.read()
        file.seek(0)
        file.write("เราทุกคน " + text)
    given = tmp_path / "raw"
    project = new_project("pixel", [given], tmp_path / "made", hours=None)
    lacking = project.record["found"]["missing glyphs"]
    expected = r"0\.\d\d% of the characters of a sample have no glyph .* \(Thai\); to draw them, name fonts"
    assert re.match(expected, lacking)
    assert lacking.endswith(f": pretrainkit new pixel {given} FONT.ttf --out FOLDER")
    assert "missing glyphs" in (project.folder / "README.md").read_text(encoding="utf-8")


def test_text_with_combining_marks_is_drawn_by_an_engine_that_places_them(tmp_path):
    pytest.importorskip("freetype")
    page_data.put_font(tmp_path / "font.ttf")
    for form, is_named in (("NFC", False), ("NFD", True)):
        (tmp_path / form).mkdir()
        text = unicodedata.normalize(form, "the garden of the kïng and the old house ")
        for number in range(12):
            (tmp_path / form / f"{number}.txt").write_text(f"{number} {text}" * 40, encoding="utf-8")
        project = new_project("pixel", [tmp_path / form, tmp_path / "font.ttf"], tmp_path / f"made {form}", hours=None)
        (engine,) = (decision for decision in project.record["decisions"] if decision["name"] == "engine")
        assert ("combining marks" in engine["reason"]) == is_named


def test_fonts_without_the_scripts_of_the_text_are_refused(tmp_path):
    pytest.importorskip("freetype")
    (tmp_path / "raw").mkdir()
    for number in range(12):
        (tmp_path / f"raw/{number}.txt").write_text(f"{number} เราทุกคนเกิดมาอย่างอิสระ " * 40, encoding="utf-8")
    page_data.put_font(tmp_path / "latin.ttf")
    words = ["pixel", tmp_path / "raw", tmp_path / "latin.ttf"]
    with pytest.raises(DataError, match=r"latin\.ttf lacks") as caught:
        new_project(words[0], words[1:], tmp_path / "made", hours=None)
    assert "Thai" in str(caught.value)
    advice = remedies.followed(caught.value, "recipes/pixel/project.py: … lacks …")
    assert "pretrainkit new pixel DATA FONT.ttf --out PROJECT" in advice
    fonts = Path(__file__).parents[2] / "../shared/data/fonts"
    if not fonts.is_dir():
        pytest.skip("no font with Thai letters")
    new_project("pixel", [words[1], fonts / "NotoSerifThai-Regular.otf"], tmp_path / "made", hours=None)


def test_without_a_font_the_message_names_the_package(tmp_path, monkeypatch):
    pytest.importorskip("freetype")
    from pretrainkit.recipes.pixel import project

    page_data.put_texts(tmp_path / "raw", 12, 120)
    monkeypatch.setattr(project, "installed_font", lambda: None)
    with pytest.raises(DataError, match="there is no font among the data") as caught:
        new_project("pixel", [tmp_path / "raw"], tmp_path / "made", hours=None)
    advice = remedies.followed(caught.value, "recipes/pixel/project.py: there is no font")
    assert "pip install 'pretrainkit[demo]'" in advice
    page_data.put_font(tmp_path / "FONT.ttf")
    assert new_project("pixel", [tmp_path / "raw", tmp_path / "FONT.ttf"], tmp_path / "made", hours=None).is_new
