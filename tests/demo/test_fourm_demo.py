"""The demo's rooms: views that belong together, the same for the same seed; and what reads the generated views."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import pretrainkit
from pretrainkit.demo.fourm import CONFIG, TOKENIZERS, mean_iou
from pretrainkit.demo.rooms import CLASSES, COLORS, KINDS, VIEWS, draw_scene, paint, write_rooms
from pretrainkit.demo.things import labels_of, train_classifier


@pytest.mark.parametrize("seed", range(8))
def test_views_of_a_room_agree(seed: int) -> None:
    room = draw_scene(np.random.default_rng(seed))
    rgb, depth, classes = paint(room, 64)
    is_floor = classes == 0
    assert (np.diff(depth, axis=0)[is_floor[1:] & is_floor[:-1]] <= 0).all()  # what is lower is nearer
    assert len(room.things) == 2
    assert room.things[0].color != room.things[1].color
    for thing in room.things:
        own = classes == 1 + CLASSES.index(thing.name)
        assert (rgb[own] == COLORS[thing.color]).all()
        left, top, right, bottom = (round(edge * 64) for edge in thing.box)
        assert 0 <= left < right <= 64
        assert 0 <= top < bottom <= 64
        rows, columns = np.nonzero(own)
        # A ball and a cone may leave out the outermost row of pixels of their box.
        edges = [columns.min(), rows.min(), 1 + columns.max(), 1 + rows.max()]
        assert np.abs(np.subtract(edges, (left, top, right, bottom))).max() <= 1
        assert (depth[own] == thing.distance).all()
        assert f"{thing.color} {thing.kind}" in room.caption


def test_rooms_are_a_function_of_the_seed(tmp_path: Path) -> None:
    scenes = [write_rooms(tmp_path / str(number), 3, seed) for number, seed in enumerate((1, 1, 2))]
    assert scenes[0] == scenes[1] != scenes[2]
    for view in VIEWS:
        first, same, other = (sorted((tmp_path / str(number) / view).iterdir()) for number in range(3))
        assert [one.read_bytes() for one in first] == [one.read_bytes() for one in same]
        assert [one.read_bytes() for one in first] != [one.read_bytes() for one in other]
    boxes = json.loads((tmp_path / "0" / "det" / "00000.json").read_text("utf-8"))["instances"]
    assert {one["class_name"] for one in boxes} <= set(CLASSES)
    assert np.asarray(Image.open(tmp_path / "0" / "depth" / "00000.png")).max() > 255  # 16 bits


def test_no_caption_of_held_out_scenes_occurs_in_training(tmp_path: Path) -> None:
    valid = write_rooms(tmp_path / "valid", 64, 2)
    train = write_rooms(tmp_path / "train", 100, 2, others=valid)
    assert not {scene.caption for scene in valid} & {scene.caption for scene in train}
    assert len(set(train)) == 100
    plain = write_rooms(tmp_path / "plain", 164, 2)
    left = [scene for scene in plain if scene.caption not in {held_out.caption for held_out in valid}]
    assert left == train[: len(left)]  # the same draws


def test_boxes_take_few_different_numbers() -> None:
    rng = np.random.default_rng(0)
    edges = [edge for _ in range(50) for thing in draw_scene(rng).things for edge in thing.box]
    assert len(set(edges)) <= 17
    assert all(0 <= edge <= 1 for edge in edges)


def test_the_classifier_finds_the_things_of_new_photographs() -> None:
    rng = np.random.default_rng(0)
    scenes = [draw_scene(rng) for _ in range(700)]
    rgb = np.stack([paint(scene, 64)[0] for scene in scenes])
    classify = train_classifier(rgb[:600], scenes[:600])
    is_right = classify(rgb[600:]) == labels_of(scenes[600:])
    assert is_right.mean() > 0.8
    kind, color = labels_of(scenes)[0, 2:]  # of the right thing
    assert (KINDS[kind], list(COLORS)[color]) == scenes[0].things[1][:2]


def test_mean_iou_of_classes() -> None:
    truth = np.array([0, 0, 0, 0, 1, 1, 2, 3], np.uint8)
    assert mean_iou(truth, truth) == 1
    assert mean_iou(np.array([0, 0, 0, 1, 1, 1, 3, 3], np.uint8), truth) == pytest.approx(
        (3 / 4 + 2 / 3 + 0 + 1 / 2) / 4
    )


def test_the_config_of_the_demo_reads_the_tokens_of_its_tokenizers(tmp_path: Path) -> None:
    (tmp_path / "fourm.yaml").write_text(CONFIG, encoding="utf-8")
    config = pretrainkit.load_config(tmp_path / "fourm.yaml", ["num_steps=100"])
    sizes = {modality.name: modality.vocab_size for modality in config.model.modalities}
    assert {domain: sizes[f"tok_{domain}@64"] for domain in TOKENIZERS} == {
        domain: num_codes for domain, (_, num_codes, _) in TOKENIZERS.items()
    }
    assert config.problems() == []
