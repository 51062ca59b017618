"""Batches from aligned files: modalities of a sample stay together in all forms of storage."""

import gzip
import json
import pickle
import shutil

import numpy as np
import pytest
from PIL import Image

from pretrainkit.data.aligned_crops import CropConfig
from pretrainkit.data.order import Order
from pretrainkit.errors import ConfigError, DataError
from pretrainkit.recipes.fourm.config import FourMDataConfig
from pretrainkit.recipes.fourm.modality import Modality, published
from pretrainkit.recipes.fourm.source import open_source
from pretrainkit.tasks.user_modules import user_object
from support.aligned_files import CLASSES, NAMES, config_of, files_of, write_folders, write_tars, write_tokenizer
from support.remedies import followed


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return write_tokenizer(tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return write_folders(tmp_path_factory.mktemp("folders"), 10)


def records_of(source, num=8, seed=0):
    return Order(source.sizes, seed=seed).records(np.arange(num))


def assert_equal(one, other):
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


def test_tar_files_equal_folders(folders, tokenizer, tmp_path):
    pattern = write_tars(tmp_path, 10)
    from_folders = open_source(config_of(str(folders), tokenizer), "train")
    from_tars = open_source(config_of(pattern, tokenizer), "train")
    assert from_tars.sizes == from_folders.sizes == (10,)
    assert_equal(from_tars.build(records_of(from_tars)), from_folders.build(records_of(from_folders)))


def test_archives_at_an_address_equal_folders(folders, tokenizer, tmp_path, monkeypatch):
    import fsspec

    monkeypatch.setenv("PRETRAINKIT_CACHE", str(tmp_path / "cache"))
    pattern = write_tars(tmp_path / "tars", 6)
    fsspec.filesystem("memory").put(str(tmp_path / "tars"), "/bucket", recursive=True)
    address = "memory://bucket" + pattern.removeprefix(str(tmp_path / "tars"))
    for _ in range(2):  # the second time from the kept index
        source = open_source(config_of(address, tokenizer), "train")
        near = open_source(config_of(pattern, tokenizer), "train")
        assert_equal(source.build(records_of(source, 3)), near.build(records_of(near, 3)))
    assert len(list((tmp_path / "cache").rglob("*.index"))) == 5 * 2
    with pytest.raises(DataError, match=r"2 of 2 archives are missing .*rgb/05"):
        open_source(config_of("memory://bucket/[rgb,det]/{05..06}.tar", tokenizer), "train")


def test_a_batch_is_a_pure_function_of_its_records(folders, tokenizer):
    source = open_source(config_of(str(folders), tokenizer), "train")
    records = records_of(source)
    batch = source.build(records)
    again = pickle.loads(pickle.dumps(source)).build(records)
    assert_equal(batch, again)
    rows = np.array([5, 1, 6])
    some = source.build(records.take(rows))
    by_row = [name for name in batch if "_places/" not in name]
    assert_equal({name: some[name] for name in by_row}, {name: batch[name][rows] for name in by_row})
    assert batch["pixels/rgb@64"].shape == (8, 3, 64, 64)
    assert (batch["encoder_length"] > 30).all()
    assert not source.build(records.take(slice(0, 0)))["encoder_ids"].size


def test_evaluation_ignores_keys_and_epochs(folders, tokenizer):
    source = open_source(config_of((), tokenizer, valid=str(folders)), "valid")
    first, second = records_of(source, 10, seed=0), records_of(source, 10, seed=1)
    place = [second.index.tolist().index(index) for index in first.index.tolist()]
    assert_equal(source.build(first), source.build(second.take(np.array(place))))


@pytest.mark.parametrize("split", ["train", "valid"])
def test_all_modalities_of_a_sample_show_the_same_part(folders, tokenizer, split):
    config = config_of(str(folders), tokenizer, valid=str(folders), crop={"scale": (0.4, 1.0)})
    source = open_source(config, split)
    for epoch in range(3):
        records = records_of(source, 10, seed=epoch)
        for sample in source.samples(records):
            rgb, text, words, depth, classes = (sample.contents[number] for number in range(5))
            kind = int(sample.key[-1]) % 2
            assert text in (f"a {CLASSES[kind]} on a table", "something on a table")
            lit = rgb[2 * kind].reshape(4, 16, 4, 16).mean(axis=(1, 3)) / 255
            seen = (classes == 1 + kind).reshape(4, 4)
            assert seen[lit > 0.9].all()
            assert not seen[lit < 0.1].any()
            if lit.max() > 0.9 and lit.min() < 0.1:
                near = depth.reshape(4, 4)[lit > 0.9]
                assert near.max() < depth.reshape(4, 4)[lit < 0.1].min()
            if words:
                left, top, right, bottom = (int(word.partition("=")[2]) / 999 for word in words[:4])
                columns, rows = (np.arange(4) + 0.5) / 4, (np.arange(4) + 0.5) / 4
                inside = (rows[:, None] > top) & (rows[:, None] < bottom) & (columns > left) & (columns < right)
                assert inside[lit > 0.9].all()
                assert not inside[lit < 0.1].any()
            else:
                assert lit.max() < 0.5


def test_training_sees_parts_and_mirrors_and_evaluation_the_middle(folders, tokenizer):
    config = config_of(str(folders), tokenizer, valid=str(folders))
    train, valid = open_source(config, "train"), open_source(config, "valid")
    drawn = [sample.part for seed in range(4) for sample in train.samples(records_of(train, 10, seed))]
    assert 0.2 < np.mean([part.is_flipped for part in drawn]) < 0.8
    assert len({(part.top, part.left, part.height, part.width) for part in drawn}) > 30
    assert {
        (part.top, part.left, part.height, part.width, part.is_flipped)
        for part in (sample.part for sample in valid.samples(records_of(valid, 10)))
    } == {(0, 20, 80, 80, False)}


def test_evaluation_resizes_the_whole_photograph_as_pillow(tokenizer, tmp_path):
    """Training may decode a JPEG at a reduced size."""
    small = np.random.default_rng(0).integers(0, 256, (40, 60, 3), np.uint8)
    write_folders(tmp_path, 1)
    (file,) = (tmp_path / "rgb" / "0000").iterdir()
    file.unlink()
    Image.fromarray(small).resize((600, 400), Image.Resampling.BICUBIC).save(file.with_suffix(".jpg"), quality=90)
    source = open_source(config_of(str(tmp_path), tokenizer, valid=str(tmp_path)), "valid")
    (sample,) = source.samples(records_of(source, 1))
    opened = Image.open(file.with_suffix(".jpg")).crop((100, 0, 500, 400))
    expected = np.asarray(opened.resize((64, 64), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
    np.testing.assert_array_equal(sample.contents[0], expected)


def tokens_set(root, settings=True):
    """Write samples with stored parts. A token is 100 x part + sample, and each part has its own caption."""
    write_folders(root, 4, ("rgb", "det"))
    for number in range(4):
        for folder, values in (
            ("tok_rgb@64", (100 * np.arange(3)[:, None] + np.full((3, 16), number)).astype(np.int16)),
            ("crop_settings", np.array([[0, 20, 80, 80, 0], [0, 0, 40, 40, 1], [40, 80, 40, 40, 0]], np.int64)),
        ):
            if settings or folder != "crop_settings":
                (root / folder / "0000").mkdir(parents=True, exist_ok=True)
                np.save(root / folder / "0000" / f"{number:06d}.npy", values)
        (root / "caption" / "0000").mkdir(parents=True, exist_ok=True)
        texts = json.dumps([{"caption": f"part {part}"} for part in range(3)]).encode()
        (root / "caption" / "0000" / f"{number:06d}.json.gz").write_bytes(gzip.compress(texts))
    return str(root)


def test_stored_parts_are_drawn_once_for_all_modalities(tokenizer, tmp_path):
    config = config_of(tokens_set(tmp_path), tokenizer, names=("rgb@64", "caption", "tok_rgb@64"))
    source = open_source(config, "train")
    seen = set()
    for sample in source.samples(records_of(source, 40)):
        number = sample.part.number
        assert (sample.contents[2] == 100 * number + int(sample.key[-1])).all()
        assert sample.part.is_flipped == (number == 1)
        if number:
            assert sample.contents[1] == f"part {number}"
        seen.add(number)
    assert seen == {0, 1, 2}
    config = config.changed(data={"crop": CropConfig(flip=0)})
    source = open_source(config, "train")
    assert {sample.part.number for sample in source.samples(records_of(source, 40))} == {0, 2}


def test_stored_tokens_without_parts_are_of_the_middle(tokenizer, tmp_path):
    config = config_of(tokens_set(tmp_path, settings=False), tokenizer, names=("rgb@64", "tok_rgb@64"))
    source = open_source(config, "train")
    assert {sample.part.left for sample in source.samples(records_of(source, 8))} == {20}


def test_a_missing_file_is_named(tokenizer, tmp_path):
    root = write_folders(tmp_path, 5)
    (root / "depth" / "0000" / "000003.png").unlink()
    with pytest.raises(DataError, match="depth lacks 1, such as 0000/000003"):
        open_source(config_of(str(root), tokenizer), "train")


def test_archives_with_other_samples_are_refused(tokenizer, tmp_path):
    pattern = write_tars(tmp_path, 8)
    (tmp_path / "det" / "01.tar").write_bytes((tmp_path / "det" / "00.tar").read_bytes())
    with pytest.raises(DataError, match="the first difference is sample 4"):
        open_source(config_of(pattern, tokenizer), "train")


@pytest.mark.parametrize(
    ("folder", "content", "message"),
    [
        ("rgb", b"no image", "broken"),
        ("det", b'{"instances": [{"boxes": [1, 2]}]}', "does not contain"),
        ("det", b"{", "not valid JSON"),
        ("caption", b"[1, 2]", "contains no texts"),
        ("depth", b"no image", "broken"),
    ],
)
def test_broken_files_are_named(tokenizer, tmp_path, folder, content, message):
    root = write_folders(tmp_path, 1)
    (file,) = (root / folder / "0000").iterdir()
    file.write_bytes(content)
    source = open_source(config_of(str(root), tokenizer), "train")
    with pytest.raises(DataError, match=message) as raised:
        source.build(records_of(source, 1))
    assert file.stem in str(raised.value)


@pytest.mark.parametrize("values", [np.full((1, 16), 16384, np.int32), np.zeros((1, 9), np.int16), np.zeros((1, 16))])
def test_tokens_that_do_not_fit_the_modality_are_refused(tokenizer, tmp_path, values):
    root = tmp_path / "set"
    (root / "tok_rgb@64" / "0").mkdir(parents=True)
    np.save(root / "tok_rgb@64" / "0" / "a.npy", values)
    source = open_source(config_of(str(root), tokenizer, names=("tok_rgb@64",)), "train")
    with pytest.raises(DataError, match="tok_rgb@64"):
        source.build(records_of(source, 1))


def test_sets_with_different_modalities_are_mixed(folders, tokenizer, tmp_path):
    other = write_folders(tmp_path, 6, ("caption", "det"), start=20)
    config = config_of([str(folders), {"path": str(other), "weight": None}], tokenizer)
    source = open_source(config, "train")
    batch = source.build(records_of(source, 16))
    is_text = records_of(source, 16).source == 1
    assert is_text.any()
    assert not batch["pixels/rgb@64"][is_text].any()
    assert batch["pixels/rgb@64"][~is_text].any(axis=(1, 2, 3)).mean() > 0.5  # the others are of the dark table alone
    text_numbers = {NAMES.index("caption"), NAMES.index("det")}
    for row in np.flatnonzero(is_text).tolist():
        assert set(batch["encoder_modality"][row, : batch["encoder_length"][row]].tolist()) <= text_numbers
    assert source.summary()["sets"][1]["modalities"] == ["caption", "det"]


def test_every_set_may_have_a_mixture_and_folders_of_its_own(folders, tokenizer, tmp_path):
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "words").symlink_to(folders / "caption")
    mixture = [{"inputs": {"caption": 1.0}, "targets": {"caption": 1.0}}]
    path = str(tmp_path / "set")
    config = config_of([{"path": path, "folders": {"caption": "words"}, "mixture": mixture}], tokenizer)
    source = open_source(config, "train")
    assert set(source.build(records_of(source, 6))["encoder_modality"].ravel().tolist()) <= {0, 1}


@pytest.mark.parametrize(
    ("train", "error", "message"),
    [
        ((), DataError, "names no data"),
        ("/nowhere", DataError, "cannot be read"),
        ([{"path": "FOLDERS", "modalities": ["smell"]}], ConfigError, "which the model does not have"),
        ([{"path": "FOLDERS", "modalities": ["rgb@64"], "folders": {"rgb": "photos"}}], DataError, "no folder photos"),
    ],
)
def test_data_that_is_not_there_is_refused(folders, tokenizer, train, error, message):
    if isinstance(train, list):
        train = [{**train[0], "path": str(folders)}]
    with pytest.raises(error, match=message):
        open_source(config_of(train, tokenizer), "train")


def test_sequences_need_a_tokenizer_with_enough_sentinels(folders, tokenizer):
    config = config_of(str(folders), tokenizer)
    config = config.changed(data={"tokenizer": None})
    with pytest.raises(DataError, match="sequences need a text tokenizer"):
        open_source(config, "train")
    long = Modality(name="x", kind="sequence", length=500, vocab_size=9, reader="caption")
    with pytest.raises(DataError, match="sentinels"):
        open_source(config_of(str(folders), tokenizer, names=(long, "rgb@64")), "train")


def test_commas_in_brackets_do_not_separate_sets():
    data = FourMDataConfig(train="/a/[rgb,det]/{0,1}.tar,/b", batch_size=1)
    assert [one.path for one in data.train] == ["/a/[rgb,det]/{0,1}.tar", "/b"]


def test_vectors_are_inputs_and_their_sentinels_have_none(tokenizer, tmp_path):
    modality = published("t5_caption").model_copy(update={"vector_width": 5, "length": 9})
    root = write_folders(tmp_path, 3, ("caption",))
    (root / "t5_caption" / "0000").mkdir(parents=True)
    for number in range(3):
        vectors = np.random.default_rng(number).normal(size=(1, 12, 5)).astype(np.float32)
        is_valid = np.arange(12)[None] < 4 + number
        np.savez(root / "t5_caption" / "0000" / f"{number:06d}.npz", emb=vectors, mask_valid=is_valid)
    source = open_source(config_of(str(root), tokenizer, names=("caption", modality)), "train")
    records = records_of(source, 3)
    batch = source.build(records)
    for row, index in enumerate(records.index.tolist()):
        vectors = np.random.default_rng(index).normal(size=(1, 12, 5)).astype(np.float32)[0, : 4 + index]
        np.testing.assert_array_equal(batch["vectors/t5_caption"][row, : 4 + index], vectors)
        assert not batch["vectors/t5_caption"][row, 4 + index :].any()
        own = np.arange(40) < batch["encoder_length"][row]
        own &= batch["encoder_modality"][row] == 1
        assert set(batch["encoder_ids"][row, own].tolist()) <= set(range(-1, 4 + index))
    assert not (batch["decoder_modality"] == 1).any()
    assert set(files_of(0)) >= {"caption"}


def test_vectors_that_expand_from_a_small_file_to_a_very_large_one_are_refused(tokenizer, tmp_path):
    modality = published("t5_caption").model_copy(update={"vector_width": 5, "length": 9})
    root = write_folders(tmp_path, 1, ("caption",))
    (root / "t5_caption" / "0000").mkdir(parents=True)
    path = root / "t5_caption" / "0000" / "000000.npz"
    np.savez_compressed(path, emb=np.zeros((1, 1 << 24, 5), np.float32), mask_valid=np.ones((1, 12), np.bool_))
    assert path.stat().st_size < 1 << 20
    source = open_source(config_of(str(root), tokenizer, names=("caption", modality)), "train")
    with pytest.raises(DataError, match=r"(?s)would expand to 320 MiB.*store fewer parts"):
        source.build(records_of(source, 1))


def test_images_and_vectors_need_no_text_tokenizer(tmp_path):
    vectors = published("t5_caption").model_copy(update={"vector_width": 5, "length": 9})
    tokens = Modality(name="tok_x@32", kind="image", image_size=32, patch_size=16, vocab_size=8, reader="tokens")
    for name in ("t5_caption", "tok_x@32"):
        (tmp_path / name / "0000").mkdir(parents=True)
    np.savez(tmp_path / "t5_caption" / "0000" / "a.npz", emb=np.ones((1, 6, 5)), mask_valid=np.ones((1, 6)))
    np.save(tmp_path / "tok_x@32" / "0000" / "a.npy", np.arange(4))
    config = config_of(str(tmp_path), "", names=(vectors, tokens))
    config = config.changed(data={"tokenizer": None})
    source = open_source(config, "train")
    assert source.vocabulary is None
    batch = source.build(records_of(source, 1))
    real = np.arange(40) < batch["encoder_length"][0]
    assert batch["encoder_ids"][0, real & (batch["encoder_modality"][0] == 0)].min() >= -1
    assert set(batch["decoder_modality"][0, : batch["decoder_length"][0]].tolist()) == {1}


def test_a_folder_of_other_files_says_how_they_end(tokenizer, tmp_path):
    root = write_folders(tmp_path, 1, ("caption", "rgb"))
    (root / "rgb/0000/000000.png").rename(root / "rgb/0000/000000.npy")
    with pytest.raises(
        DataError, match=r"rgb has no files that end in \.jpg, .*; its files end in \.npy\n  convert them"
    ):
        open_source(config_of(str(root), tokenizer, names=("caption", "rgb@64")), "train")


def test_moved_data_are_the_same_and_other_data_of_equal_names_are_not(folders, tokenizer, tmp_path):
    shutil.copytree(folders, tmp_path / "moved")
    write_folders(tmp_path / "other", 10)
    (tmp_path / "other/caption/0000/000000.json").write_text('["a blue table"]')
    names = (folders, tmp_path / "moved", tmp_path / "other")
    first, moved, other = (open_source(config_of(str(name), tokenizer), "train").fingerprint for name in names)
    assert first == moved != other


def test_a_users_reader_may_move_with_the_data(tokenizer, tmp_path):
    fingerprints = set()
    for name in ("before", "after"):
        (tmp_path / name).mkdir()
        fingerprints.add(source_with_reader(tmp_path / name, tokenizer, WORDS, "['table']").fingerprint)
    assert len(fingerprints) == 1


VECTORS = "kind='vectors', is_target=False, length=9, vector_width=5"
PIXELS = "kind='pixels', is_target=False, image_size=4, patch_size=2, num_channels=1"
IMAGE = "kind='image', image_size=4, patch_size=2, vocab_size=8"
WORDS = "kind='sequence', length=4, vocab_size=9"


def source_with_reader(folder, tokenizer, fields, returned):
    """Data of captions and a modality `own`, which the user's reader returns from the file 0/a.txt."""
    (folder / "mine.py").write_text(
        "import numpy as np\n"
        "from pretrainkit.recipes.fourm.modality import Modality\n"
        "from pretrainkit.recipes.fourm.readers import Chunks, Reader\n"
        "class Own(Reader):\n"
        "    suffixes = ('.txt',)\n"
        "    def read(self, content, request):\n"
        f"        return {returned}\n"
        "READER = Own()\n"
        f"OWN = Modality(name='own', {fields}, reader=__file__ + ':READER')\n"
    )
    for name in ("caption", "own"):
        (folder / name / "0").mkdir(parents=True)
        (folder / name / "0/a.txt").write_text("a red table")
    own = user_object(f"{folder / 'mine.py'}:OWN")
    return open_source(config_of(str(folder), tokenizer, names=("caption", own)), "train")


@pytest.mark.parametrize(
    ("fields", "returned", "problem"),
    [
        (VECTORS, "np.ones((9, 7))", r"returned float64 \(9, 7\) for .*own/0/a.txt, .* needs numbers \(any, 5\)"),
        (VECTORS, "np.ones(5)", r"returned float64 \(5,\) for .*a.txt"),
        (VECTORS, "np.full((9, 5), np.nan)", r"a.txt has NaN in 45 of 45 places"),
        (VECTORS, "np.full((9, 5), np.inf)", r"a.txt has NaN or infinite values in 45 of 45 places"),
        (VECTORS, "np.ones(300).reshape(9, 5)", r"mine.py:READER cannot read .*a.txt: ValueError: cannot reshape"),
        (PIXELS, "np.full((1, 4, 4), 0.5)", r"returned float64 \(1, 4, 4\) for .*a.txt, .* needs uint8 \(1, 4, 4\)"),
        (PIXELS, "np.zeros((4, 4), np.uint8)", r"returned uint8 \(4, 4\) for .*a.txt"),
        (IMAGE, "np.full(4, 0.5)", r"returned float64 \(4,\) for .*a.txt, .* needs integers \(4,\)"),
        (IMAGE, "np.arange(9)", r"returned int64 \(9,\) for .*a.txt"),
        (WORDS, "None", r"returned None for .*a.txt"),
        (WORDS, "['table', 3]", r"returned 3 for .*a.txt"),
        (WORDS, "['v0=-5']", r"returned the number v0=-5 for .*a.txt\n  numbers are v0=0 to v3=999"),
        (WORDS, "Chunks([['v0=1', 'v1=1000']])", r"returned the number v1=1000 for .*a.txt"),
    ],
)
def test_a_reader_that_returns_something_else_is_named_with_the_file(tokenizer, tmp_path, fields, returned, problem):
    source = source_with_reader(tmp_path, tokenizer, fields, returned)
    with pytest.raises(DataError, match=problem):
        source.build(records_of(source, 1))


def test_an_error_of_a_reader_can_be_shown(tokenizer, tmp_path):
    source = source_with_reader(tmp_path, tokenizer, WORDS, "1 / 0")
    with pytest.raises(DataError) as error:
        source.build(records_of(source, 1))
    assert "--debug" in followed(error.value, "recipes/fourm/readers.py: … cannot read …: …")
    assert isinstance(error.value.__cause__, ZeroDivisionError)


def test_vectors_of_a_reader_are_cut_to_the_length_of_the_modality(tokenizer, tmp_path):
    source = source_with_reader(tmp_path, tokenizer, VECTORS, "np.arange(100).reshape(20, 5)")
    batch = source.build(records_of(source, 1))
    np.testing.assert_array_equal(batch["vectors/own"], np.arange(45, dtype=np.float32).reshape(1, 9, 5))
