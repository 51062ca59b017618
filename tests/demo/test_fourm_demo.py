"""The demo's rooms: views that belong together, the same for the same seed."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import pretrainkit
from pretrainkit.demo.fourm import CONFIG, NUM_CODES, TOKENIZERS
from pretrainkit.demo.rooms import COLORS, KINDS, VIEWS, draw_scene, paint, write_rooms


@pytest.mark.parametrize("seed", range(8))
def test_views_of_a_room_agree(seed: int) -> None:
    rng = np.random.default_rng(seed)
    room = draw_scene(rng)
    rgb, depth, classes = paint(room, 64, rng)
    is_floor = classes == 0
    assert (np.diff(depth, axis=0)[is_floor[1:] & is_floor[:-1]] <= 0).all()  # what is lower is nearer
    for thing in room.things:
        own = classes == 1 + KINDS.index(thing.kind)
        assert own.any()
        left, top, right, bottom = (round(edge * 64) for edge in thing.box)
        inside = np.zeros_like(own)
        inside[top:bottom, left:right] = True
        alone = [one for one in room.things if one.kind == thing.kind] == [thing]
        assert not alone or (own & ~inside).sum() <= 0.1 * own.sum()
        middle = (top + bottom) // 2, min(int(64 * thing.across), 63)
        assert depth[middle] == pytest.approx(thing.distance)
        nearest = min(COLORS, key=lambda name: float(np.abs(rgb[middle] - np.array(COLORS[name])).sum()))
        assert thing.color in (nearest, "white")  # in the fog white is grey
        assert f"{thing.color} {thing.kind}" in room.caption


def test_rooms_are_a_function_of_the_seed(tmp_path: Path) -> None:
    captions = [write_rooms(tmp_path / str(number), 3, seed) for number, seed in enumerate((1, 1, 2))]
    assert captions[0] == captions[1] != captions[2]
    for view in VIEWS:
        first, same, other = (sorted((tmp_path / str(number) / view).iterdir()) for number in range(3))
        assert [one.read_bytes() for one in first] == [one.read_bytes() for one in same]
        assert [one.read_bytes() for one in first] != [one.read_bytes() for one in other]
    boxes = json.loads((tmp_path / "0" / "det" / "00000.json").read_text("utf-8"))["instances"]
    assert {one["class_name"] for one in boxes} <= set(KINDS)
    assert np.asarray(Image.open(tmp_path / "0" / "depth" / "00000.png")).max() > 255  # 16 bits


def test_boxes_take_few_different_numbers() -> None:
    rng = np.random.default_rng(0)
    edges = [edge for _ in range(50) for thing in draw_scene(rng).things for edge in thing.box]
    assert len(set(edges)) <= 33
    assert all(0 <= edge <= 1 for edge in edges)


def test_the_config_of_the_demo_reads_the_tokens_of_its_tokenizers(tmp_path: Path) -> None:
    (tmp_path / "fourm.yaml").write_text(CONFIG, encoding="utf-8")
    config = pretrainkit.load_config(tmp_path / "fourm.yaml", ["num_steps=100"])
    sizes = {modality.name: modality.vocab_size for modality in config.model.modalities}
    assert [sizes[f"tok_{domain}@64"] for domain in TOKENIZERS] == [NUM_CODES] * len(TOKENIZERS)
    assert config.problems() == []
