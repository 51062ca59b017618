"""`data check --deep` and training report data that a run of 4M cannot use before any compute."""

import io
import json
import shlex
import shutil

import numpy as np
import pytest
from PIL import Image

import pretrainkit
from pretrainkit.data.order import Order
from pretrainkit.errors import DataError
from pretrainkit.recipes.fourm.modality import Modality
from pretrainkit.recipes.fourm.recipe import FourM
from pretrainkit.recipes.fourm.source import open_source
from pretrainkit.workers.processes import Quiet
from support.aligned_files import config_of, write_folders
from support.aligned_files import write_tokenizer as write_words
from support.fourm_data import write_set, write_tokenizer
from support.remedies import followed

SMALL = (
    "model.num_encoder_layers=1",
    "model.num_decoder_layers=1",
    "model.hidden_size=64",
    "model.num_heads=1",
    "model.intermediate_size=64",
    "data.batch_size=4",
    "num_steps=1",
    "schedule.num_warmup_steps=0",
    "checkpoint.every_steps=1",
    "checkpoint.asynchronous=false",
)


@pytest.fixture
def data(tmp_path):
    return [
        f"data.train={write_set(tmp_path / 'train', 5, 0)}",
        f"data.tokenizer={write_tokenizer(tmp_path / 'words')}",
    ]


def config_with(data, *settings):
    return pretrainkit.load_config("fourm/tiny", [*data, *SMALL, *settings])


def replace(path, content):
    """Replace a file of a sample by one with this content."""
    for old in path.parent.glob(f"{path.stem}.*"):
        old.unlink()
    path.write_bytes(content)


def saved(values):
    file = io.BytesIO()
    np.save(file, values)
    return file.getvalue()


def png(values):
    file = io.BytesIO()
    Image.fromarray(values).save(file, "PNG")
    return file.getvalue()


def test_a_deep_check_reads_every_file_and_names_unusable_ones(data, tmp_path):
    whole = (tmp_path / "train" / "rgb" / "0000" / "00000.png").read_bytes()
    with_nan = np.where(np.eye(40, dtype=bool), np.nan, 1.0).astype(np.float32)
    in_pixels = {"boxes": [9, 9, 30, 30], "score": 1, "class_name": "box"}
    spoiled = {
        "rgb/0000/00000.png": (whole[: len(whole) // 2], "is broken"),
        "depth/0000/00001.npy": (saved(with_nan), "has NaN in 40 of 1,600 places"),
        "depth/0000/00002.png": (png(np.ones((40, 60), np.uint8)), "has 60 x 40 pixels, but"),
        "seg/0000/00003.png": (
            png(np.full((40, 40), 300, np.uint16)),
            "has class 300",
        ),
        "det/0000/00004.json": (json.dumps({"instances": [in_pixels]}).encode(), "shares of the image"),
        "caption/0000/00004.txt": (b"[1, 2]", "contains no texts"),
        "caption/0000/00003.txt": ("café".encode("latin-1"), "is not UTF-8: 'utf-8' codec"),
        "caption/0000/00002.txt": ("cafe".encode("utf-16-le"), "it has zeros, as UTF-16 has"),
        "seg/0000/00004.png": (png(np.full((40, 40, 3), (1, 2, 3), np.uint8)), "has colours"),
    }
    config = config_with(data)
    assert pretrainkit.check_data(config, deep=True).problems == []
    for name, (content, _) in spoiled.items():
        replace(tmp_path / "train" / name, content)
    problems = pretrainkit.check_data(config, deep=True).problems
    assert len(problems) == len(spoiled)
    for name, (_, message) in spoiled.items():
        (found,) = [problem for problem in problems if message in problem]
        assert f"{tmp_path / 'train'}/{name}" in found.splitlines()[0]


def test_a_deep_check_detects_errors_that_only_some_random_crops_would_meet(data, tmp_path):
    """The problems are a class in one corner, and a box without a class outside of the centre square."""
    folder = tmp_path / "train"
    classes = np.zeros((40, 60), np.uint16)
    classes[0, 0] = 300
    replace(folder / "seg" / "0000" / "00001.png", png(classes))
    replace(folder / "rgb" / "0000" / "00001.png", png(np.zeros((40, 60, 3), np.uint8)))
    replace(folder / "depth" / "0000" / "00001.png", png(np.ones((40, 60), np.uint8)))
    corner = {"boxes": [0, 0, 0.01, 0.01], "score": 1}
    replace(folder / "rgb" / "0000" / "00002.png", png(np.zeros((40, 60, 3), np.uint8)))
    replace(folder / "depth" / "0000" / "00002.png", png(np.ones((40, 60), np.uint8)))
    replace(folder / "seg" / "0000" / "00002.png", png(np.zeros((40, 60), np.uint8)))
    replace(folder / "det" / "0000" / "00002.json", json.dumps({"instances": [corner]}).encode())
    of_class, of_box = pretrainkit.check_data(config_with(data), deep=True).problems
    assert "seg/0000/00001.png has class 300" in of_class
    assert "det/0000/00002.json does not contain instances" in of_box


def test_a_deep_check_names_captions_that_are_not_json(data, tmp_path):
    folder = tmp_path / "train" / "caption" / "0000"
    for file in sorted(folder.iterdir()):
        caption = file.read_text()
        file.unlink()
        file.with_suffix(".json").write_text(json.dumps([caption]))
    assert pretrainkit.check_data(config_with(data), deep=True).problems == []
    replace(folder / "00001.json", b"")
    replace(folder / "00002.json", b'{"a":')
    empty, torn = pretrainkit.check_data(config_with(data), deep=True).problems
    assert "caption/0000/00001.json is not valid JSON" in empty
    assert "caption/0000/00002.json is not valid JSON" in torn


def test_a_modality_of_a_set_that_does_not_open_is_not_called_absent(data, tmp_path):
    other = write_set(tmp_path / "other", 3, 1)
    shutil.rmtree(other / "depth")
    (tmp_path / "train" / "det" / "0000" / "00002.json").unlink()
    (problem,) = pretrainkit.check_data(config_with([f"{data[0]},{other}", data[1]]), deep=True).problems
    assert "det lacks 1, such as 0000/00002" in problem


def test_a_deep_check_reads_held_out_data_and_all_stored_parts(tmp_path):
    """The tokens of the second part, which evaluation never uses, are outside of the vocabulary."""
    root = write_folders(tmp_path / "set", 3)
    for number in range(3):
        for folder, values in (
            ("tok_rgb@64", np.array([[0] * 16, [8 if number == 1 else 7] * 16], np.int16)),
            ("crop_settings", np.array([[0, 20, 80, 80, 0], [0, 0, 40, 40, 1]], np.int64)),
        ):
            (root / folder / "0000").mkdir(parents=True, exist_ok=True)
            np.save(root / folder / "0000" / f"{number:06d}.npy", values)
    tokens = Modality(name="tok_rgb@64", kind="image", image_size=64, patch_size=16, vocab_size=8, reader="tokens")
    config = config_of((), write_words(tmp_path), valid=str(root), names=("caption", tokens))
    (problem,) = FourM().check_files(config, Quiet())
    assert "000001.npy has tokens from 8 to 8, but the vocabulary of tok_rgb@64 has 8" in problem


def test_a_deep_check_reports_sets_that_do_not_open_beside_the_others(data, tmp_path):
    (tmp_path / "train" / "det" / "0000" / "00002.json").unlink()
    valid = write_set(tmp_path / "valid", 3, 1)
    replace(valid / "rgb" / "0000" / "00001.png", b"")
    first, second = pretrainkit.check_data(config_with(data, f"data.valid={valid}"), deep=True).problems
    assert "det lacks 1, such as 0000/00002" in first
    assert "00001.png is broken: the file is empty" in second


def without_seg(folder):
    for path in (folder / "seg" / "0000").iterdir():
        path.unlink()
    (folder / "seg" / "0000").rmdir()
    (folder / "seg").rmdir()


def test_a_modality_that_no_set_has_is_refused_and_the_advice_works(data, tmp_path):
    without_seg(tmp_path / "train")
    for refuse in (
        lambda: pretrainkit.train(config_with(data), tmp_path / "run"),
        lambda: pretrainkit.check_data(config_with(data)),
    ):
        with pytest.raises(DataError, match=r"no data set of data.train has seg@64 \(folder seg\)") as raised:
            refuse()
    assert not (tmp_path / "run").exists()
    assert pretrainkit.check_data(config_with(data), deep=True).problems == [str(raised.value)]

    (leave_out,) = shlex.split(str(raised.value).split("model: ")[1])
    config = config_with(data, leave_out)
    assert pretrainkit.check_data(config).figures["training examples"] == 5
    kept = config.model.modalities
    before = [one for one in config_with(data).model.modalities if one.name != "seg@64"]
    unbound = {"vocab_size": None}
    assert [one.model_copy(update=unbound) for one in kept] == [one.model_copy(update=unbound) for one in before]


def test_the_folder_of_a_modality_can_be_named(data, tmp_path):
    (tmp_path / "train" / "seg").rename(tmp_path / "train" / "classes")
    with pytest.raises(DataError, match="seg@64") as raised:
        pretrainkit.check_data(config_with(data))
    (advice,) = shlex.split(
        followed(raised.value, "recipes/fourm/source.py: no data set of data.train has")
        .split("folder: ")[1]
        .splitlines()[0]
    )
    train = advice.replace("FOLDER", str(tmp_path / "train")).replace("NAME", "classes")
    assert pretrainkit.check_data(config_with([*data, train])).figures["training examples"] == 5


def test_runs_of_earlier_versions_resume_and_trained_models_take_fewer_modalities(data, tmp_path, monkeypatch):
    without_seg(tmp_path / "train")
    with monkeypatch.context() as patch:
        patch.setattr(FourM, "check_new_run", lambda *_: None)  # as in a version without this check
        pretrainkit.train(config_with(data), tmp_path / "run")
    assert pretrainkit.resume(tmp_path / "run", ["num_steps=2"])
    assert pretrainkit.check_data(config_with(data, f"init_from={tmp_path / 'run'}")).figures


@pytest.mark.parametrize("size", [(40, 60), (60, 40), (80, 40)])
def test_maps_of_another_shape_than_their_image_are_refused(tmp_path, size):
    root = write_folders(tmp_path / "set", 1)  # images of 80 x 120
    replace(root / "depth" / "0000" / "000000.png", png(np.ones(size, np.uint8)))
    source = open_source(config_of(str(root), write_words(tmp_path)), "train")
    records = Order(source.sizes, seed=0).records(np.arange(1))
    if size == (40, 60):  # half the resolution of the same view
        source.build(records)
        return
    with pytest.raises(
        DataError, match=f"depth/0000/000000.png has {size[1]} x {size[0]} pixels, but .*rgb/0000/000000.png"
    ):
        source.build(records)


@pytest.mark.parametrize(("value", "message"), [(np.nan, "has NaN in 1 of"), (np.inf, "has infinite depth")])
def test_depth_that_is_not_a_number_is_named_with_its_file(tmp_path, value, message):
    root = write_folders(tmp_path / "set", 1)
    depth = np.linspace(1, 2, 80 * 120).reshape(80, 120)
    depth[40:] = value if np.isinf(value) else 1
    depth[0, 0] = value
    replace(root / "depth" / "0000" / "000000.npy", saved(depth))
    source = open_source(config_of(str(root), write_words(tmp_path)), "train")
    with pytest.raises(DataError, match=f"depth/0000/000000.npy {message}"):
        source.build(Order(source.sizes, seed=0).records(np.arange(1)))


def test_a_few_infinite_depths_are_as_far_as_can_be(tmp_path):
    root = write_folders(tmp_path / "set", 1)
    depth = np.linspace(1, 2, 80 * 120).reshape(80, 120)
    depth[:2] = np.inf
    replace(root / "depth" / "0000" / "000000.npy", saved(depth))
    source = open_source(config_of(str(root), write_words(tmp_path)), "train")
    source.build(Order(source.sizes, seed=0).records(np.arange(1)))


def test_an_absent_folder_is_a_problem_like_any_other():
    (problem,) = pretrainkit.check_data(pretrainkit.load_config("t5/tiny", ["data.train=/nowhere"]), deep=True).problems
    assert problem.startswith("there is no folder /nowhere")
