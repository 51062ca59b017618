"""Parts of samples: what `draw_part`, `centre_square` and `stored_part` promise."""

import numpy as np
import pytest

from pretrainkit.data.aligned_crops import CropConfig, centre_square, draw_part, stored_part
from pretrainkit.errors import DataError


def test_drawn_parts_are_inside_and_have_the_configured_area() -> None:
    generator = np.random.default_rng(0)
    crop = CropConfig(scale=(0.5, 0.9), flip=0.25)
    parts = [draw_part(crop, 60, 80, generator) for _ in range(400)]
    for part in parts:
        assert 0 <= part.top <= part.top + part.height <= 60
        assert 0 <= part.left <= part.left + part.width <= 80
        assert 0.45 < part.height * part.width / 4800 < 0.95
    assert sum(part.is_flipped for part in parts) / 400 == pytest.approx(0.25, abs=0.06)


def test_stored_parts_are_rows_of_their_table() -> None:
    table = np.array([[0, 10, 60, 60, 0], [5, 6, 20, 30, 1]])
    part = stored_part(table, 1, (60, 80), "parts.npy")
    assert (part.top, part.left, part.height, part.width, part.is_flipped, part.number) == (5, 6, 20, 30, True, 1)
    assert stored_part(table, 0, (60, 80), "parts.npy") == centre_square(60, 80)
    with pytest.raises(DataError, match="not integers"):
        stored_part(table[:, :4], 0, (60, 80), "parts.npy")


def test_parts_of_a_larger_image_are_refused() -> None:
    table = np.array([[0, 10, 60, 60, 0], [5, 6, 20, 30, 1]])
    with pytest.raises(
        DataError, match="has crops of at least 70 x 60 pixels, but the image has 80 x 40\n  give the images"
    ):
        stored_part(table, 1, (40, 80), "parts.npy")
    assert stored_part(table, 1, (60, 70), "parts.npy").size == stored_part(table, 1, None, "parts.npy").size


def test_nearest_values_are_cut_and_mirrored() -> None:
    values = np.arange(24).reshape(4, 6)
    part = stored_part(np.array([[0, 2, 4, 4, 1]]), 0, (4, 6), "parts.npy")
    np.testing.assert_array_equal(part.nearest(values, 4, 4), values[:, 2:6][:, ::-1])
    np.testing.assert_array_equal(part.nearest(values.repeat(2, 0).repeat(2, 1), 4, 4), values[:, 2:6][:, ::-1])
