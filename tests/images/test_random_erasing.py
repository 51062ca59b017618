"""Normalizing and random erasing."""

import numpy as np
import pytest

from pretrainkit.images.ops import RandomErasing
from pretrainkit.images.transforms import erase, normalize
from support.pictures import noise_image

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def test_normalizing_takes_mean_and_deviation_of_each_colour():
    image = noise_image(6, 5)
    expected = (image / 255 - MEAN) / DEVIATION
    found = normalize(image, MEAN, DEVIATION)
    assert found.dtype == np.float32
    assert found.shape == (3, 5, 6)
    np.testing.assert_allclose(found, expected.transpose(2, 0, 1), atol=2e-6)


@pytest.mark.parametrize("max_boxes", [1, 3])
def test_boxes_come_with_their_probability_and_area(max_boxes):
    op = RandomErasing(probability=0.4, fill="const", max_boxes=max_boxes)
    image, rng = np.ones((3, 40, 30), np.float32), np.random.default_rng(0)
    shares = np.array([(erase(image, op, rng) == 0).mean() for _ in range(1500)])
    assert (image == 1).all(), "what was given is left alone"
    assert np.mean(shares > 0) == pytest.approx(0.4, abs=0.04)
    assert shares.max() < 0.36
    if max_boxes == 1:
        assert shares[shares > 0].min() > 0.015
        assert shares[shares > 0].mean() == pytest.approx((0.02 + 1 / 3) / 2, abs=0.03)


def test_fills_are_noise_of_each_pixel_one_colour_or_nothing():
    image = np.full((3, 60, 60), 100, np.float32)
    for fill, num_values in (("pixel", None), ("rand", 3), ("const", 1)):
        erased = erase(image, RandomErasing(probability=1.0, fill=fill), np.random.default_rng(3))
        inside = erased[erased != 100]
        assert inside.dtype == np.float32
        if num_values is None:
            assert len(np.unique(inside)) == len(inside)
            assert inside.std() == pytest.approx(1, abs=0.1)
        else:
            assert len(np.unique(inside)) == num_values


def test_images_too_small_for_a_box_stay_as_they_are():
    image = np.ones((3, 1, 1), np.float32)
    assert (erase(image, RandomErasing(probability=1.0), np.random.default_rng(0)) == 1).all()


def test_erasing_is_a_function_of_the_generator():
    image, op = np.ones((3, 20, 20), np.float32), RandomErasing(probability=0.7, max_boxes=2)
    for seed in range(5):
        first, second = (erase(image, op, np.random.default_rng(seed)) for _ in range(2))
        assert (first == second).all()
