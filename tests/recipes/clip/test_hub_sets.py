"""Sets of images on a server that speaks as the Hugging Face hub does: pairs, and images with classes."""

import json
import re

import pytest

from pretrainkit import api
from pretrainkit.errors import DataError
from pretrainkit.exporting.native import write_native
from pretrainkit.images.ops import Resize
from pretrainkit.recipes.clip.class_images import open_class_images
from pretrainkit.recipes.clip.config import ClassificationConfig, ClipSourceConfig, class_set_name, set_name
from support.clip_models import random_model, run_config, text
from support.hub_server import served_hub
from support.pair_sets import caption, make_tokenizer, png

pytestmark = pytest.mark.slow

datasets = pytest.importorskip("datasets", reason="datasets is not installed: pip install 'pretrainkit[hub]'")
pytest.importorskip("PIL", reason="Pillow is not installed: pip install 'pretrainkit[vision]'")

CLASSES = ["red_car", "blue bird", "tree"]
LABELS = {"train": [0, 1, 2, 0], "validation": [2, 0, 0, 1, 0, 2]}


def columns_of(split):
    first = 100 if split == "validation" else 0
    labels = LABELS[split]
    images = [{"bytes": png(first + number), "path": None} for number in range(len(labels))]
    texts = [caption(first + number) for number in range(len(labels))]
    return {"img": images, "label": labels, "text": texts, "wnid": [CLASSES[label] for label in labels]}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder of `datasets`, the files of it on the hub, and the same images in folders of classes."""
    root = tmp_path_factory.mktemp("sets")
    label = datasets.ClassLabel(names=CLASSES)
    text = datasets.Value("string")
    features = datasets.Features({"img": datasets.Image(), "label": label, "text": text, "wnid": text})
    rows = datasets.DatasetDict({split: datasets.Dataset.from_dict(columns_of(split), features) for split in LABELS})
    rows.save_to_disk(str(root / "saved"))
    for split in LABELS:
        rows[split].to_parquet(str(root / f"published/data/{split}-00000-of-00001.parquet"))
    for number, (image, name) in enumerate(zip(columns_of("validation")["img"], columns_of("validation")["wnid"])):
        (root / "classes" / name).mkdir(parents=True, exist_ok=True)
        (root / "classes" / name / f"{number}.png").write_bytes(image["bytes"])
    return root


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    root = tmp_path_factory.mktemp("model")
    tokenizer = make_tokenizer(root / "tokenizer")
    config = run_config(None, text(vocab_size=80), valid_transforms=(Resize(size=32),), max_length=12)
    write_native(config, random_model(config), tokenizer, root / "model")
    return root / "model"


@pytest.fixture
def hub(saved, tmp_path):
    with served_hub(tmp_path) as hub:
        for path in (saved / "published/data").iterdir():
            hub.stored[f"data/{path.name}"] = path.read_bytes()
        yield hub


def figures(hub, model, classes):
    words = [f"evaluate.classification=[{{{classes}}}]", "data.valid=null", "--json"]
    done = hub.command("evaluate", str(model), *words)
    assert done.returncode == 0, done.stderr
    return {name.partition("_")[2]: value for name, value in json.loads(done.stdout).items() if "zeroshot" in name}


def test_classes_of_the_hub_are_those_of_folders_and_only_their_split_is_fetched(saved, model, hub, tmp_path):
    expected = api.evaluate(model, None, [f"evaluate.classification=[{{path: {saved}/classes}}]"], device="cpu")
    expected = {name.partition("_")[2]: value for name, value in expected.items() if "zeroshot" in name}
    assert set(expected) == {"zeroshot_acc1", "zeroshot_mean_per_class_recall"}
    assert figures(hub, model, "path: hf://datasets/someone/set") == expected
    cached = [path.name for path in (tmp_path / "home").rglob("*.arrow")]
    assert cached == ["set-validation.arrow"]
    hub.environment["HF_HUB_OFFLINE"] = "1"
    hub.stored.clear()
    assert figures(hub, model, "path: hf://datasets/someone/set, label_key: wnid") == expected
    done = hub.command("data", "check", "hf://datasets/someone/set", "--split", "train")
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) < 8


def test_pairs_of_the_hub_are_read_by_split_revision_and_configuration(hub, tmp_path):
    for address in ("hf://datasets/someone/set", "hf://datasets/someone/set@main:default"):
        done = hub.command("data", "check", address, "--json")
        assert done.returncode == 0, done.stderr
        assert [found["pairs"] for found in json.loads(done.stdout)["sets"]] == [4, 6]
    done = hub.command(
        "data", "captions", "hf://datasets/someone/set", "--out", str(tmp_path / "x"), "--split", "valid"
    )
    assert done.returncode == 0, done.stderr
    missing = hub.command("data", "check", "hf://datasets/someone/nothing")
    assert missing.returncode == 2
    assert "hf://datasets/someone/nothing" in missing.stderr


def test_a_saved_data_set_equals_folders(saved):
    near = open_class_images(ClassificationConfig(path=f"{saved}/classes"))
    far = open_class_images(ClassificationConfig(path=f"{saved}/saved"))

    def content(images):
        return sorted((images.classes[label], images.read(row)) for row, label in enumerate(images.labels_N))

    assert content(far) == content(near)
    assert (far.classes, near.classes) == (tuple(CLASSES), ("blue bird", "red_car", "tree"))
    train = open_class_images(ClassificationConfig(path=f"{saved}/saved", split="train", label_key="wnid"))
    assert train.classes == ("blue bird", "red_car", "tree")
    assert train.labels_N.tolist() == [1, 0, 2, 1]
    assert "row 3" in train.describe(3)


def opened(folder, values, **settings):
    rows = {"image": [{"bytes": png(0), "path": None}] * len(values), "cls": values}
    datasets.Dataset.from_dict(rows).cast_column("image", datasets.Image()).save_to_disk(str(folder))
    return open_class_images(ClassificationConfig(path=str(folder), **settings))


def test_numbers_need_names(tmp_path):
    with pytest.raises(DataError, match=r"has numbers, but the data set has no names for them\n.*class_names"):
        opened(tmp_path / "a", [3, 1, 3])
    images = opened(tmp_path / "b", [3, 1, 3], suite="imagenet")
    assert (images.classes, images.labels_N.tolist()) == (("1", "3"), [1, 0, 1])
    assert images.imagenet_classes == ("1", "3")
    assert opened(tmp_path / "c", [3, 1], class_names="names.json").classes == ("1", "3")


@pytest.mark.parametrize(
    ("values", "settings", "message"),
    [
        ([-1, -1], {"suite": "imagenet"}, "rows have no class in column 'cls'\n  name a split with classes"),
        (["a", None], {}, "rows have no class"),
        ([0.5, 1.5], {}, "not a class of each image\n  classes are numbers or names: name another column"),
        (
            ["a", "b"],
            {"label_key": "name"},
            r"no column 'name' for the label; .*\n.*evaluate.classification='\[.*label",
        ),
        (["a", "b"], {"image_key": "cls"}, "BadImage"),
    ],
)
def test_files_that_are_not_a_class_or_an_image_are_refused(tmp_path, values, settings, message):
    if message == "BadImage":
        images = opened(tmp_path / "set", values, **settings)
        with pytest.raises(Exception, match="there is no such file"):
            images.read(0)
        return
    with pytest.raises(DataError, match=message):
        opened(tmp_path / "set", values, **settings)


def test_imagenet_on_the_hub_is_recognized_by_the_order_of_its_classes(saved):
    images = open_class_images(ClassificationConfig(path=f"{saved}/saved", suite="imagenet"))
    assert images.imagenet_classes == ("0", "1", "2")
    ids = open_class_images(ClassificationConfig(path=f"{saved}/saved", suite="imagenet", label_key="wnid"))
    assert ids.imagenet_classes == ids.classes


def test_settings_of_data_sets_are_refused_for_folders(saved):
    with pytest.raises(DataError, match="split, label_key belong to data sets of Hugging Face"):
        open_class_images(ClassificationConfig(path=f"{saved}/classes", split="x", label_key="y"))
    with pytest.raises(DataError, match=re.escape("s3://bucket/classes cannot be read")):
        open_class_images(ClassificationConfig(path="s3://bucket/classes"))


def test_sets_of_the_hub_are_named_without_revision_and_configuration():
    address = "hf://datasets/someone/pictures@v1:small"
    assert class_set_name(ClassificationConfig(path=address)) == "pictures"
    assert set_name(ClipSourceConfig(path=address)) == "pictures"
    assert class_set_name(ClassificationConfig(path=address, name="mine")) == "mine"
