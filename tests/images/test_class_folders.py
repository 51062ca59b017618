"""Class folders: sorted classes, sorted files, and messages about missing files."""

import json
import logging

import pytest

from pretrainkit.errors import DataError
from pretrainkit.images.class_folders import class_folders, class_names, image_files


@pytest.fixture
def flowers(tmp_path):
    for name in ("sun_flower/b.JPG", "sun_flower/a.png", "rose/c.jpeg", "rose/notes.txt", "rose/.d.jpg", "readme.md"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
    return tmp_path


def test_linked_folders_are_read_and_hidden_ones_are_not(flowers, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "e.jpg").touch()
    (flowers / "rose/more").symlink_to(elsewhere)
    (flowers / "rose/.ipynb_checkpoints").mkdir()
    (flowers / "rose/.ipynb_checkpoints/c-checkpoint.jpeg").touch()
    assert [path.name for path in class_folders(flowers).files] == ["c.jpeg", "e.jpg", "a.png", "b.JPG"]


def test_files_that_are_no_images_are_reported(flowers, caplog):
    """Once for all classes: in some sets, each class has a table beside its images."""
    (flowers / "sun_flower/boxes.txt").touch()
    with caplog.at_level(logging.WARNING):
        class_folders(flowers)
    assert [record.getMessage().partition(": ")[2] for record in caplog.records] == [
        "files without the extension of an image are left out: 2, such as notes.txt"
    ]


def test_classes_and_files_are_sorted(flowers):
    found = class_folders(flowers)
    assert found.classes == ("rose", "sun_flower")
    assert [path.name for path in found.files] == ["c.jpeg", "a.png", "b.JPG"]
    assert found.labels_N.tolist() == [0, 1, 1]
    assert image_files(flowers) == list(found.files)
    assert image_files(flowers / "rose/c.jpeg") == [flowers / "rose/c.jpeg"]


def test_names_come_from_folders_or_a_file(flowers, tmp_path):
    found = class_folders(flowers).classes
    assert class_names(found, None) == ["rose", "sun flower"]
    path = tmp_path / "names.json"
    path.write_text(json.dumps({"rose": "a rose", "sun_flower": "sunflower", "other": "x"}))
    assert class_names(found, path) == ["a rose", "sunflower"]
    path.write_text(json.dumps({"rose": "a rose"}))
    with pytest.raises(DataError, match=r"no name for sun_flower.*\n  add them"):
        class_names(found, path)
    path.write_text("[]")
    with pytest.raises(DataError, match="does not contain class names"):
        class_names(found, path)
    with pytest.raises(DataError, match=r"cannot read class names(.|\n)*give a JSON file"):
        class_names(found, tmp_path / "nowhere.json")


def test_folders_without_images_are_refused(flowers, tmp_path):
    (flowers / "tulip").mkdir()
    with pytest.raises(DataError, match="tulip contains no image"):
        class_folders(flowers)
    with pytest.raises(DataError, match="has no subfolders"):
        class_folders(flowers / "tulip")
    for reader in (class_folders, image_files):
        with pytest.raises(DataError, match="there is no folder"):
            reader(tmp_path / "nowhere")
