"""The overlap of boxes counts boxes of the same class only, unless classes are ignored."""

import pytest

from pretrainkit.recipes.fourm.generation.show import boxes_iou

LEFT, RIGHT, HALF = (0.0, 0.0, 0.4, 1.0), (0.6, 0.0, 1.0, 1.0), (0.0, 0.0, 0.4, 0.5)


@pytest.mark.parametrize(
    ("found", "truth", "wanted"),
    [
        ([], [], 1.0),
        ([], [("ball", LEFT)], 0.0),
        ([("ball", LEFT)], [("ball", LEFT)], 1.0),
        ([("ball", LEFT)], [("cone", LEFT)], 0.0),
        ([("ball", HALF)], [("ball", LEFT)], 0.5),
        ([("ball", RIGHT), ("ball", HALF)], [("ball", LEFT), ("ball", RIGHT)], 0.75),
        ([("ball", LEFT)], [("ball", LEFT), ("ball", RIGHT)], 0.5),
        ([("ball", LEFT), ("ball", LEFT)], [("ball", LEFT)], 0.5),
        ([("ball", (0.5, 0.5, 0.5, 0.5))], [("ball", (0.5, 0.5, 0.5, 0.5))], 0.0),
    ],
)
def test_overlap_of_boxes(found, truth, wanted):
    assert boxes_iou(found, truth) == pytest.approx(wanted)
    assert boxes_iou(truth, found) == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("found", "truth", "wanted"),
    [
        ([("ball", LEFT)], [("cone", LEFT)], 1.0),
        ([("ball", RIGHT), ("cone", HALF)], [("cone", LEFT), ("cone", RIGHT)], 0.75),
        ([], [("ball", LEFT)], 0.0),
    ],
)
def test_overlap_of_boxes_of_any_class(found, truth, wanted):
    assert boxes_iou(found, truth, of_any_class=True) == pytest.approx(wanted)
