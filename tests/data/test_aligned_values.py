"""Maps, arrays, depth and files of aligned data sets."""

import io
import pathlib

import numpy as np
import pytest
from PIL import Image

from pretrainkit.data.aligned_samples import open_samples, read_map, standardised
from pretrainkit.errors import DataError


def test_depth_loses_scale_and_offset_and_outliers_do_not_count():
    depth = np.arange(100.0).reshape(10, 10)
    spoiled = depth.copy()
    spoiled[0, 0], spoiled[9, 9] = -1e9, 1e9
    found = standardised(depth)
    assert found.ravel()[10:90].mean() == pytest.approx(0, abs=1e-6)
    np.testing.assert_allclose(standardised(3 * depth + 7), found, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(standardised(spoiled)[3:7], found[3:7])


def test_few_things_on_a_flat_ground_are_far_but_not_thousands_of_deviations_away():
    ground = np.full((20, 20), 255, np.float32)
    ground[4:8, 4:8] = 40
    found = standardised(ground)
    assert found[4:8, 4:8].tolist() == [[-10.0] * 4] * 4
    assert not found[8:].any()


def test_maps_keep_all_their_bits():
    values = np.array([[1, 300], [65535, 7]], np.uint16)
    picture, stored = io.BytesIO(), io.BytesIO()
    Image.fromarray(values).save(picture, "PNG")
    np.save(stored, values)
    np.testing.assert_array_equal(read_map(picture.getvalue(), "picture"), values)
    np.testing.assert_array_equal(read_map(stored.getvalue(), "stored"), values)


def test_a_file_that_is_not_a_map_is_refused():
    stored = io.BytesIO()
    np.save(stored, np.zeros(3))
    with pytest.raises(DataError, match=r"has the shape \(3,\)"):
        read_map(stored.getvalue(), "a.npy")
    with pytest.raises(DataError, match="is broken"):
        read_map(b"no image", "a.png")


def test_colours_are_not_taken_for_classes():
    """Their red channel would be."""
    values = np.arange(6, dtype=np.uint8).reshape(2, 3)
    for channels in (1, 2, 3, 4):  # grey, with alpha, grey as colours, with alpha
        picture, image = io.BytesIO(), np.repeat(values[:, :, None], channels, axis=2)
        image[..., -1] = 255 if channels in (2, 4) else image[..., -1]
        Image.fromarray(image.squeeze()).save(picture, "PNG")
        np.testing.assert_array_equal(read_map(picture.getvalue(), "grey"), values)
    image[0, 0, 2] = 9
    picture = io.BytesIO()
    Image.fromarray(image).save(picture, "PNG")
    with pytest.raises(DataError, match=r"a\.png has colours"):
        read_map(picture.getvalue(), "a.png")


def test_reading_a_file_keeps_nothing_in_memory(tmp_path, monkeypatch):
    """Python keeps each part of a Path in a table, which grew by megabytes after thousands of steps."""
    (tmp_path / "rgb").mkdir()
    (tmp_path / "rgb/a.png").write_bytes(b"a")
    samples = open_samples(str(tmp_path), {"rgb": (".png",)})
    monkeypatch.setattr(pathlib.Path, "__new__", None)
    assert samples.read("rgb", 0) == b"a"
