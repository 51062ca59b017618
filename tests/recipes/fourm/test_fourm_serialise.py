"""Conversion of boxes, palettes, metadata, poses and outlines to words."""

import numpy as np
import pytest

from pretrainkit.data.aligned_crops import Part, centre_square
from pretrainkit.recipes.fourm import serialise
from pretrainkit.recipes.fourm.sequences import merge_spans

WHOLE = Part(0, 0, 100, 200, False, (100, 200))


def generator(seed=0):
    return np.random.default_rng(seed)


def box(box, name="dog", score=0.9):
    return {"boxes": list(box), "class_name": name, "score": score}


def test_a_box_is_four_numbers_rounded_to_even_and_a_name():
    words = serialise.boxes([box((0.25, 0, 1, 0.5))], WHOLE, rng=generator())
    assert words == ["v0=250", "v1=0", "v2=999", "v3=500", "dog"]


def test_boxes_are_cut_to_the_part_mirrored_and_ordered():
    part = Part(0, 100, 100, 100, True, (100, 200))  # the right half, mirrored
    words = serialise.boxes(
        [box((0.0, 0.0, 0.4, 1.0), "gone"), box((0.5, 0.5, 0.75, 1.0), "low"), box((0.25, 0.0, 1.0, 0.5), "top")],
        part,
        rng=generator(),
    )
    assert words[4::5] == ["top", "low"]
    assert words[:4] == ["v0=0", "v1=0", "v2=999", "v3=500"]
    assert words[5:9] == ["v0=500", "v1=500", "v2=999", "v3=999"]


def test_boxes_of_low_score_or_little_in_sight_are_left_out_and_the_best_are_kept():
    boxes = [box((0, 0, 1, 1), "a", 0.59), box((0, 0, 1, 1), "b", 0.7), box((0, 0, 1, 1), "c", 0.8)]
    assert serialise.boxes(boxes, WHOLE, rng=generator())[4::5] == ["b", "c"]
    assert serialise.boxes(boxes, WHOLE, max_boxes=1, rng=generator())[4::5] == ["c"]
    half = Part(0, 0, 100, 100, False, (100, 200))
    narrow = [box((0.4, 0, 0.9, 1), "mostly out")]
    assert serialise.boxes(narrow, half, rng=generator())[4::5] == ["mostly out"]
    assert serialise.boxes(narrow, half, min_visibility=0.5, rng=generator()) == []
    outside = [box((0.6, 0.1, 0.9, 0.9), "best, but outside", 0.9), box((0.1, 0.1, 0.3, 0.9), "inside", 0.7)]
    assert serialise.boxes(outside, half, max_boxes=1, rng=generator())[4::5] == ["inside"]


def test_figures_are_pairs_of_a_name_and_a_bin():
    figures = {
        "original_width": 640,
        "n_humans": 3,
        "brightness": 255.0,
        "watermark_score": 0.7,
        "aesthetic_score": 5.0,
    }
    chunks = serialise.metadata(figures, generator())
    assert sorted(map(tuple, chunks)) == [
        ("v1=0", "v0=20"),
        ("v1=10", "v0=49"),
        ("v1=19", "v0=1"),
        ("v1=20", "v0=1"),
        ("v1=5", "v0=3"),
    ]
    orders = {tuple(chunk[0] for chunk in serialise.metadata(figures, generator(seed))) for seed in range(9)}
    assert len(orders) > 3


@pytest.mark.parametrize("name", ["brightness", "entropy", "occlusion_score"])
def test_figures_come_back_within_a_bin(name):
    low, high = serialise._RANGES[name]
    for value in np.linspace(low, high, 23).tolist():
        found = serialise.metadata_value(name, serialise.metadata_bin(name, value))
        assert value - (high - low) / 49 - 1e-9 <= found <= value + 1e-9


def test_a_palette_has_a_number_and_three_words_for_each_colour():
    palettes = {str(n): [[n, 10, 255]] * n for n in range(1, 8)}
    lengths = set()
    for seed in range(40):
        words = serialise.palette(palettes, generator(seed))
        size = int(words[0].removeprefix("v1="))
        assert len(words) == 1 + 3 * size
        assert words[1:4] == [f"v0={size}", "v0=10", "v0=255"]
        lengths.add(size)
    assert lengths == set(range(1, 8))


def test_a_person_is_39_words_and_no_person_is_no_word():
    people = {
        "bbox_xyxy": [[0, 0, 100, 100], [150, 0, 200, 100]],
        "pred_smpl_params": {
            "global_orient": np.zeros((2, 3, 3)).tolist(),
            "body_pose": np.zeros((2, 207)).tolist(),
            "betas": np.full((2, 10), 9.0).tolist(),
        },
        "pred_cam": [[0.0, -5.0, 30.0]] * 2,
        "pose_tokenized": [[0, 511, 512, 1023, 1, 2, 3, 4]] * 2,
    }
    words = serialise.poses(people, WHOLE, generator())
    assert len(words) == 78
    assert words[0] == words[39] == "human"
    person = words[:39]
    pose = person.index("pose")
    assert person[pose + 1 : pose + 5] == ["v0=0", "v0=511", "v1=0", "v1=511"]
    camera = person.index("camera")
    assert person[camera + 1 : camera + 4] == ["v0=50", "v0=0", "v0=999"]
    shape = person.index("shape")
    assert person[shape + 1] == "v0=999"  # the original leaves the vocabulary here
    left = Part(0, 0, 100, 100, False, (100, 200))
    assert len(serialise.poses(people, left, generator())) == 39
    assert serialise.poses({}, WHOLE, generator()) == ["none"]


def test_an_outline_is_a_box_and_sixteen_codes_after_each_point_inside():
    square = [[0, 0], [224, 0], [224, 224], [0, 224]]
    record = {"points": [square], "token_ids": [list(range(500, 516))], "bbox": [[0, 1, 224, 223]]}
    words = serialise.sam_instances(record, 224, generator())
    assert len(words) == 7 * (3 + 1 + 4 + 16)
    assert words[3:8] == ["polygon", "v0=1", "v1=0", "v2=223", "v3=224"]
    assert words[8:10] == ["v0=500", "v0=501"]
    assert words[23] == "v1=3"
    empty = serialise.sam_instances({"points": [], "token_ids": [], "bbox": []}, 224, generator())
    assert empty[3::4] == ["none"] * 7


def test_a_point_is_inside_by_the_sides_to_its_right():
    corner = np.array([[0.0, 0.0], [4.0, 0.0], [4.0, 1.0], [1.0, 1.0], [1.0, 4.0], [0.0, 4.0]])
    inside = [(0.5, 3.5), (3.5, 0.5), (0.5, 0.5)]
    outside = [(2.0, 2.0), (-1.0, 0.5), (5.0, 0.5), (0.5, 5.0)]
    assert all(serialise.contains(corner, *point) for point in inside)
    assert not any(serialise.contains(corner, *point) for point in outside)


def touching_boxes(num):
    """Yield parts of images with adjacent boxes that only share an edge with them."""
    drawn = np.random.default_rng(0)
    for _ in range(num):
        height, width = drawn.integers(40, 700, 2).tolist()
        top, left = int(drawn.integers(1, height // 2)), int(drawn.integers(1, width // 2))
        h, w = int(drawn.integers(8, height - top)), int(drawn.integers(8, width - left))
        part = Part(top, left, h, w, bool(drawn.integers(2)), (height, width))
        edge = drawn.integers(4)
        box_4 = [
            (0, top, left, top + h),
            (left + w, top, width, top + h),
            (left, 0, left + w, top),
            (left, top + h, left + w, height),
        ][edge]
        yield part, (box_4[0] / width, box_4[1] / height, box_4[2] / width, box_4[3] / height)


def test_a_box_that_only_touches_the_part_is_left_out():
    ghosts = [
        (part, corners)
        for part, corners in touching_boxes(3000)
        if serialise.boxes([box(corners)], part, rng=generator())
    ]
    assert not ghosts, f"{len(ghosts)} of 3000, such as {ghosts[0]}"


def test_people_who_only_touch_the_part_are_left_out():
    for part, corners in touching_boxes(300):
        height, width = part.size
        pixels = [value * side for value, side in zip(corners, (width, height, width, height), strict=True)]
        shapes = {"global_orient": [[0.0]], "betas": [[0.0]]}
        people = {"bbox_xyxy": [pixels], "pred_smpl_params": shapes, "pred_cam": [[0.0]], "pose_tokenized": [[1]]}
        assert serialise.poses(people, part, generator()) == ["none"]


def test_parts_move_boxes_as_they_move_pixels():
    part = Part(20, 40, 60, 50, True, (100, 200))
    image = np.zeros((100, 200), np.uint8)
    image[30:60, 50:70] = 1
    seen = part.nearest(image, 60, 50)
    rows, columns = np.nonzero(seen)
    moved = part.boxes(np.array([[50 / 200, 30 / 100, 70 / 200, 60 / 100]]))[0]
    expected = [columns.min() / 50, rows.min() / 60, (columns.max() + 1) / 50, (rows.max() + 1) / 60]
    np.testing.assert_allclose(moved, expected)
    assert centre_square(100, 200) == Part(0, 50, 100, 100, False, (100, 200))


def test_merging_leaves_out_tokens_without_a_target():
    ids = merge_spans(np.array([7, 5, 8, 6], np.int32), np.array([5, 1, 2], np.int32), frozenset({5, 6}))
    assert ids.tolist() == [7, 1, 2, 8]
