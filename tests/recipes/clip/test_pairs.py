"""The same pairs out of every format."""

import csv
import json
import logging
import shutil
import sys
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from pretrainkit.errors import DataError
from pretrainkit.recipes.clip.config import ClipSourceConfig, set_name
from pretrainkit.recipes.clip.open_pairs import detect_format, open_pairs
from pretrainkit.recipes.clip.pack import pack
from pretrainkit.recipes.clip.pairs import BadImage, Pairs
from support.pair_sets import as_json, caption, png, rows, write_csv_set, write_samples


def opened(path, split="train", **settings) -> Pairs:
    return open_pairs(ClipSourceConfig(path=str(path), **settings), split)


def content(pairs: Pairs) -> list[tuple[str, bytes]]:
    return [(pairs.caption(row), pairs.read_image(row)) for row in range(len(pairs))]


# ---- CSV ----


def test_a_set_with_r_rows_has_r_pairs_whatever_the_number_of_images(tmp_path):
    """Fact 1."""
    pairs = opened(write_csv_set(tmp_path / "s", "train", rows(5, captions_per_image=3)))
    assert len(pairs) == 15
    assert len(set(pairs.image_ids.tolist())) == 5


def test_ids_of_64_bits_survive(tmp_path):
    """Fact 2, up to the set."""
    pairs = opened(write_csv_set(tmp_path / "s", "valid", rows(3)), "valid")
    assert pairs.caption_ids.tolist() == [2**37 + n for n in range(6)]
    assert pairs.image_ids.tolist() == [2**40 + n // 2 for n in range(6)]
    assert pairs.image_ids.dtype == pairs.caption_ids.dtype == np.int64


def test_captions_with_commas_quotes_and_line_breaks_are_whole(tmp_path):
    texts = ['a "red" dog, running', "two\nlines", "  blanks around  ", "naïve 🐕"]
    told = [{**row, "caption": text} for row, text in zip(rows(4, 1), texts)]
    pairs = opened(write_csv_set(tmp_path / "s", "train", told))
    assert [pairs.caption(row) for row in range(4)] == [text.strip() for text in texts]


@pytest.mark.parametrize("delimiter", [";", "\t"])
def test_a_table_with_semicolons_or_tabs_is_read_by_its_header(delimiter, tmp_path):
    texts = ["a dog, running", f'one{delimiter}"two"\nlines']
    folder = write_csv_set(tmp_path / "s", "train", rows(2, 1))
    with open(folder / "train_anno.csv", "w", newline="") as file:
        file.write("\n")
        table = [("image", "caption"), *((row["image"], text) for row, text in zip(rows(2, 1), texts))]
        csv.writer(file, delimiter=delimiter).writerows(table)
    pairs = opened(folder)
    assert [pairs.caption(row) for row in range(2)] == texts


def test_training_needs_image_and_caption_only_and_evaluation_the_ids(tmp_path):
    folder = write_csv_set(tmp_path / "s", "train", rows(3), columns=("caption", "image"))
    write_csv_set(folder, "valid", rows(3), columns=("caption", "image"))
    pairs = opened(folder)
    assert pairs.image_ids.tolist() == [0, 0, 1, 1, 2, 2]  # by name
    with pytest.raises(DataError, match=r"no column image_id; it has caption, image"):
        opened(folder, "valid")


def test_ids_that_are_not_numbers_name_images_in_training_and_are_refused_in_evaluation(tmp_path):
    told = [{**row, "image_id": f"x{row['image_id']}"} for row in rows(2)]
    folder = write_csv_set(tmp_path / "s", "train", told)
    write_csv_set(folder, "valid", told)
    assert opened(folder).image_ids.tolist() == [0, 0, 1, 1]
    with pytest.raises(DataError, match="image_id must hold whole numbers"):
        opened(folder, "valid")


def test_a_missing_column_or_file_is_named(tmp_path):
    folder = write_csv_set(tmp_path / "s", "train", rows(2), columns=("image", "image_id"))
    with pytest.raises(
        DataError, match=r"none of the columns caption, text, title for the caption; it has image, image_id"
    ):
        opened(folder)
    with pytest.raises(DataError, match=r"there is no .*valid_anno\.csv"):
        opened(folder, "valid")
    with pytest.raises(DataError, match="no column 'picture' for the image"):
        opened(folder, image_key="picture")
    with pytest.raises(DataError, match="there is no folder"):
        opened(tmp_path / "absent")


def test_a_table_that_is_torn_is_refused_with_its_line(tmp_path):
    folder = write_csv_set(tmp_path / "s", "train", rows(2))
    with open(folder / "train_anno.csv", "a") as file:
        file.write("0000.png,1,a caption, with a comma,3\n")
    with pytest.raises(DataError, match=r"train_anno\.csv cannot be read as a table: .*Expected 4 columns, got 5"):
        opened(folder)


def test_an_absent_image_is_missing_and_an_absent_caption_empty(tmp_path):
    told = rows(4, 1)
    for row, text in zip(told, ["", "NaN", "  ", "nan"]):
        row["caption"] = text
    folder = write_csv_set(tmp_path / "s", "train", told)
    (folder / "train" / "0002.png").unlink()
    pairs = opened(folder)
    assert [pairs.caption(row) for row in range(4)] == [""] * 4
    with pytest.raises(BadImage, match=r"0002\.png"):
        pairs.read_image(2)


def test_reading_adds_no_strings_to_pythons_table(tmp_path, monkeypatch):
    """A Path adds its parts; after some 60,000 samples the table was allocated again, with 3.7 MB more."""
    pairs = opened(write_csv_set(tmp_path / "s", "train", rows(2, 1)))
    content(pairs)  # with Python 3.13, the parts of the folder are added at its first use
    added: list[str] = []
    monkeypatch.setattr(sys, "intern", lambda text: added.append(text) or text)
    content(pairs)
    assert not added


@pytest.mark.parametrize("name", ["", "x" * 300 + ".png", "0001.png/more.png"])
def test_an_invalid_file_name_is_a_missing_image(tmp_path, name):
    told = rows(2, 1)
    folder = write_csv_set(tmp_path / "s", "train", told)
    table = folder / "train_anno.csv"
    table.write_text(table.read_text().replace("0000.png", name))
    pairs = opened(folder)
    assert [pairs.lacks_image(row) for row in range(2)] == [True, False]
    with pytest.raises(BadImage) as caught:
        pairs.read_image(0)
    assert caught.value.reason == "missing image"


# ---- the same in every format ----


def write_huggingface(folder, told, images) -> None:
    import datasets

    features = datasets.Features({"image": datasets.Image(), "caption": datasets.Value("string")})
    table = {
        "image": [{"bytes": images[row["image"]], "path": None} for row in told],
        "caption": [row["caption"] for row in told],
    }
    datasets.DatasetDict({"train": datasets.Dataset.from_dict(table, features)}).save_to_disk(str(folder))


def write_img2dataset_files(folder, told, images) -> None:
    """Write files like img2dataset with output_format files: two shards of three with one failure each."""
    for shard in range(2):
        part = told[3 * shard : 3 * shard + 3]
        (folder / f"{shard:05d}").mkdir(parents=True)
        for number, row in enumerate(part):
            (folder / f"{shard:05d}" / f"{shard:05d}{number:04d}.png").write_bytes(images[row["image"]])
        parquet.write_table(
            pa.table(
                {
                    "key": [f"{shard:05d}{number:04d}" for number in range(4)],
                    "caption": [*(row["caption"] for row in part), "lost"],
                    "status": ["success"] * 3 + ["failed_to_download"],
                }
            ),
            folder / f"{shard:05d}.parquet",
        )
        (folder / f"{shard:05d}_stats.json").write_text(json.dumps({"status_dict": {}}))


@pytest.mark.parametrize("kind", ["webdataset", "img2dataset", "img2dataset tars", "huggingface", "parquet", "packed"])
def test_every_format_gives_the_pairs_of_the_csv(tmp_path, kind, monkeypatch):
    told = rows(6, 1)
    source = opened(write_csv_set(tmp_path / "csv", "train", told))
    images = {row["image"]: png(int(row["image"][:4])) for row in told}
    folder = tmp_path / kind.replace(" ", "-")
    wanted = kind.split()[0]
    samples = [{"png": images[row["image"]], "txt": row["caption"].encode()} for row in told]
    if kind == "webdataset":
        write_samples(folder / "a-000.tar", samples[:4])
        write_samples(folder / "a-001.tar", samples[4:])
    elif kind == "img2dataset":
        write_img2dataset_files(folder, told, images)
    elif kind == "img2dataset tars":
        write_img2dataset_files(folder, told, images)
        for shard in range(2):
            shutil.rmtree(folder / f"{shard:05d}")
            about = [as_json(status="success", caption=row["caption"]) for row in told[3 * shard : 3 * shard + 3]]
            named = [{**s, "json": a} for s, a in zip(samples[3 * shard : 3 * shard + 3], about)]
            write_samples(folder / f"{shard:05d}.tar", named)
    elif kind == "packed":
        pack({"train": source}, folder, shard_bytes=3000)
        wanted = "webdataset"
    else:
        monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
        wanted = "huggingface"
        if kind == "huggingface":
            write_huggingface(folder, told, images)
        else:
            folder.mkdir()
            cells = [{"bytes": images[row["image"]], "path": row["image"]} for row in told]
            table = pa.table({"image": cells, "caption": [row["caption"] for row in told]})
            parquet.write_table(table, folder / "train-00000-of-00001.parquet")
    pairs = opened(folder)
    assert detect_format(ClipSourceConfig(path=str(folder)), "train") == wanted
    assert content(pairs) == content(source)
    assert len(set(pairs.image_ids.tolist())) == 6
    if kind.startswith("img2dataset"):
        assert pairs.skipped == {"status failed_to_download": 2}
    elif kind == "packed":
        assert pairs.image_ids.tolist() == source.image_ids.tolist()


@pytest.mark.parametrize("caption_key", [None, "caption"])
def test_a_damaged_table_of_img2dataset_is_refused_with_its_file(tmp_path, caption_key):
    told = rows(6, 1)
    write_img2dataset_files(tmp_path, told, {row["image"]: png(int(row["image"][:4])) for row in told})
    table = tmp_path / "00001.parquet"
    table.write_bytes(table.read_bytes()[:-20])
    with pytest.raises(
        DataError, match=r"00001\.parquet is not a parquet file, or is damaged: .*\n  download or create the file again"
    ):
        opened(tmp_path, caption_key=caption_key)


# ---- webdataset ----


def test_captions_come_from_the_key_that_is_named(tmp_path):
    sample = {"jpg": b"1", "txt": b"of txt", "json": as_json(caption="of json", other="other")}
    path = write_samples(tmp_path / "a.tar", [sample])
    assert opened(path).caption(0) == "of json"
    assert opened(path, caption_key="txt").caption(0) == "of txt"
    assert opened(path, caption_key="json:other").caption(0) == "other"


def test_each_caption_of_a_list_is_a_pair_and_they_share_their_image(tmp_path):
    about = as_json(caption=["one", "two", "three"], caption_id=[7, 8, 9], image_id=2**50)
    pairs = opened(write_samples(tmp_path / "a.tar", [{"jpg": b"1", "json": about}]))
    assert [pairs.caption(row) for row in range(3)] == ["one", "two", "three"]
    assert pairs.caption_ids.tolist() == [7, 8, 9]
    assert pairs.image_ids.tolist() == [2**50] * 3


def test_half_of_an_emoji_and_an_id_without_a_sign_are_read(tmp_path):
    about = b'{"caption": ["a cat \\ud83d", "two"], "image_id": %d}' % (2**64 - 5)  # cut by another program
    pairs = opened(write_samples(tmp_path / "a.tar", [{"jpg": b"1", "json": about}]))
    assert [pairs.caption(row) for row in range(2)] == ["a cat \ufffd", "two"]
    assert pairs.image_ids.tolist() == [-5, -5]


def test_images_without_ids_are_distinguished_by_their_place(tmp_path):
    several = [{"jpg": b"1", "json": as_json(caption=["x", "y"])}, {"jpg": b"1", "txt": b"z"}]
    for name in ("0.tar", "1.tar"):
        write_samples(tmp_path / "s" / name, several)
    assert opened(tmp_path / "s").image_ids.tolist() == [0, 0, 1, 2, 2, 3]


def test_samples_without_an_image_or_caption_are_counted(tmp_path):
    samples = [
        {"jpg": b"1", "txt": b"good"},
        {"txt": b"no image"},
        {"jpg": b"2"},
        {"jpg": b"3", "json": as_json(status="x")},
    ]
    pairs = opened(write_samples(tmp_path / "a.tar", samples))
    assert len(pairs) == 1
    assert pairs.skipped == {"sample without an image": 1, "sample without a caption": 1, "status x": 1}
    with pytest.raises(DataError, match=r"holds no image-text pairs\n  1 left out: sample without an image"):
        opened(write_samples(tmp_path / "b.tar", [{"txt": b"no image"}]))


def test_one_of_several_captions_is_drawn_in_proportion_and_evaluation_takes_the_first(tmp_path):
    samples = [{"jpg": b"1", "txt": b"plain", "json": as_json(caption="rich")}, {"jpg": b"2", "txt": b"alone"}]
    path = write_samples(tmp_path / "a.tar", samples)
    pairs = opened(path, caption_key={"json:caption": 3, "txt": 1})
    drawn = Counter(pairs.caption(0, draw) for draw in np.linspace(0, 1, 400, endpoint=False))
    assert drawn == {"rich": 300, "plain": 100}
    assert pairs.caption(0) == "rich"
    assert {pairs.caption(1, draw) for draw in (0.0, 0.5, 0.99)} == {"alone"}


def test_patterns_name_archives_and_missing_ones_are_counted(tmp_path):
    for number in range(3):
        write_samples(tmp_path / f"a-{number:02d}.tar", [{"jpg": b"1", "txt": str(number).encode()}])
    pairs = opened(tmp_path / "a-{01..02}.tar")
    assert [pairs.caption(row) for row in range(2)] == ["1", "2"]
    assert len(opened(tmp_path / "a-*.tar")) == 3
    with pytest.raises(DataError, match=r"2 of 4 archives are missing, such as .*a-03\.tar"):
        opened(tmp_path / "a-{01..04}.tar")


def test_gaps_between_archives_and_tables_are_reported(tmp_path, caplog):
    for number in (0, 1, 3):
        write_samples(tmp_path / f"a/{number:05d}.tar", [{"jpg": b"1", "txt": b"one"}])
        write_samples(tmp_path / f"b/b-{number}-of-4.tar", [{"jpg": b"1", "txt": b"one"}])
        write_samples(tmp_path / f"c/{2000 * number}.tar", [{"jpg": b"1", "txt": b"one"}])
    with caplog.at_level(logging.WARNING):
        assert len(opened(tmp_path / "a")) == len(opened(tmp_path / "c")) == 3
    assert [record.getMessage().partition("a: ")[2] for record in caplog.records] == [
        "archives are missing between those of numbers 0 and 3: 1, such as number 2"
    ]
    with pytest.raises(DataError, match=r"1 of 4 files of a set are missing, such as .*b-2-of-4\.tar") as raised:
        opened(tmp_path / "b")
    assert f"'{tmp_path}/b/*.tar'" in str(raised.value)
    assert len(opened(tmp_path / "b/*.tar")) == 3
    # A loader of parquet files takes no pattern, so that a part cannot be named.
    (tmp_path / "d").mkdir()
    for number in (0, 1, 3):
        table = pa.table({"image": [{"bytes": b"1", "path": None}], "caption": ["one"]})
        parquet.write_table(table, tmp_path / f"d/train-0000{number}-of-00004.parquet")
    with caplog.at_level(logging.WARNING):
        assert len(opened(tmp_path / "d")) == 3
    assert "1 of 4 files of a set are missing" in caplog.text
    assert "train-00002-of-00004.parquet" in caplog.text


def test_a_set_has_the_common_name_of_its_archives():
    names = {"x/cc3m": "cc3m", "x/cc3m/{000..331}.tar": "cc3m", "x/cc3m/*/a-*.tar": "cc3m", "a.tar": "a.tar"}
    assert {path: set_name(ClipSourceConfig(path=path)) for path in names} == names


# ---- Hugging Face ----


def test_lists_of_captions_in_a_data_set_become_pairs(tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    import datasets

    table = {"img": [png(0), png(1)], "sentences": [["a", "b"], ["c"]], "image_id": [5, 6]}
    datasets.Dataset.from_dict(table).save_to_disk(str(tmp_path / "s"))
    pairs = opened(tmp_path / "s")
    assert content(pairs) == [("a", png(0)), ("b", png(0)), ("c", png(1))]
    assert pairs.image_ids.tolist() == [5, 5, 6]
    with pytest.raises(DataError, match="no column 'text' for the caption; it has img, sentences, image_id"):
        opened(tmp_path / "s", caption_key="text")


def test_sets_with_a_fixed_number_of_captions_and_ids_without_a_sign_are_read(tmp_path):
    datasets = pytest.importorskip("datasets", reason="datasets is not installed: pip install 'pretrainkit[hub]'")
    columns = {
        "image": pa.array([{"bytes": png(0), "path": None}, {"bytes": png(1), "path": None}]),
        "caption": pa.array([["a", "b"], ["c", "d"]], pa.list_(pa.string(), 2)),
        "image_id": pa.array([2**64 - 5, 7], pa.uint64()),
    }
    datasets.Dataset(datasets.table.InMemoryTable(pa.table(columns))).save_to_disk(str(tmp_path / "s"))
    pairs = opened(tmp_path / "s")
    assert content(pairs) == [("a", png(0)), ("b", png(0)), ("c", png(1)), ("d", png(1))]
    assert pairs.image_ids.tolist() == [-5, -5, 7, 7]


def test_captions_that_a_file_still_has_under_a_missing_list_are_left_out(tmp_path):
    datasets = pytest.importorskip("datasets", reason="datasets is not installed: pip install 'pretrainkit[hub]'")
    captions = pa.ListArray.from_arrays([0, 2, 3], pa.array(["a", "b", "c"]), mask=pa.array([True, False]))
    images = pa.array([{"bytes": png(0), "path": None}, {"bytes": png(1), "path": None}])
    table = pa.table({"image": images, "caption": captions, "image_id": pa.array([5, 7])})
    datasets.Dataset(datasets.table.InMemoryTable(table)).save_to_disk(str(tmp_path / "s"))
    pairs = opened(tmp_path / "s")
    assert content(pairs) == [("c", png(1))]
    assert pairs.image_ids.tolist() == [7]


def test_a_column_that_holds_no_images_is_refused_when_the_set_is_opened(tmp_path):
    datasets = pytest.importorskip("datasets", reason="datasets is not installed: pip install 'pretrainkit[hub]'")
    datasets.Dataset.from_dict({"image": [[1, 2], [3]], "caption": ["a", "b"]}).save_to_disk(str(tmp_path / "s"))
    with pytest.raises(DataError, match=r"column 'image' holds .*int64.*, not images\n.*image_key"):
        opened(tmp_path / "s")


def test_a_missing_split_names_those_there_are(tmp_path):
    told = rows(2, 1)
    write_huggingface(tmp_path / "s", told, {row["image"]: png(0) for row in told})
    with pytest.raises(DataError, match="has no split valid or validation or val or test; it has train"):
        opened(tmp_path / "s", "valid")


# ---- all ----


def test_the_fingerprint_follows_names_captions_and_ids(tmp_path):
    def fingerprint(name, told) -> str:
        return opened(write_csv_set(tmp_path / name, "train", told)).fingerprint

    base = fingerprint("a", rows(3))
    assert fingerprint("b", rows(3)) == base
    assert fingerprint("c", rows(4)) != base
    for number, change in enumerate([{"caption": "x"}, {"image": "0009.png"}, {"image_id": 1}]):
        told = rows(3)
        first = told[0]["image_id"]
        assert fingerprint(f"d{number}", [row | change if row["image_id"] == first else row for row in told]) != base


def test_packing_needs_every_image_unless_some_may_be_left_out(tmp_path):
    folder = write_csv_set(tmp_path / "s", "train", rows(5))
    (folder / "train" / "0001.png").unlink()
    (folder / "train" / "0003.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"row 2 \(0001\.png\): missing image"):
        pack({"train": opened(folder)}, tmp_path / "out", shard_bytes=10**6)
    assert not (tmp_path / "out").exists()
    manifests = pack({"train": opened(folder)}, tmp_path / "out", shard_bytes=10**6, max_bad=2)
    assert manifests["train"]["left_out"] == {"missing image": 1, "broken image": 1}
    pairs = opened(tmp_path / "out")
    assert [pairs.caption(row) for row in range(6)] == [caption(n) for n in (0, 1, 4, 5, 8, 9)]


def test_a_name_without_its_scheme_is_refused_with_it():
    with pytest.raises(DataError, match="is hf://datasets/NAME"):
        open_pairs(ClipSourceConfig(path="someone/pictures"), "train")
