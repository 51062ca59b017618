"""Rendered texts as arrays."""

import numpy as np
import pytest

from pretrainkit.rendering import float_pixels, render_batch

TEXTS = ["short", "a text that is somewhat longer", ["some", "words"], ("a", "pair")]


@pytest.mark.parametrize("rgb", [False, True])
def test_a_batch_holds_each_texts_patches_in_the_order_row_column_colour(renderer, change, rgb):
    renderer = change(renderer, rgb=rgb)
    batch = render_batch(renderer, TEXTS)
    colors = 3 if rgb else 1
    assert batch.patches_BLD.dtype == np.uint8
    assert batch.patches_BLD.shape == (4, int(batch.num_patches_B.max()), 256 * colors)
    for text, row, num in zip(TEXTS, batch.patches_BLD, batch.num_patches_B, strict=True):
        encoding = renderer(text)
        assert num == encoding.num_text_patches + 1
        assert np.array_equal(row[:num].reshape(num, 16, 16, colors), encoding.patches.reshape(num, 16, 16, colors))
        assert (row[num:] == 255).all()
    assert np.array_equal(batch.is_real().sum(axis=1), batch.num_patches_B)


def test_a_text_does_not_depend_on_its_batch(renderer):
    alone = render_batch(renderer, TEXTS[:1], num_patches=40)
    among = render_batch(renderer, TEXTS, num_patches=40)
    assert np.array_equal(alone.patches_BLD[0], among.patches_BLD[0])


def test_the_length_is_the_requested_one(renderer):
    assert render_batch(renderer, TEXTS, num_patches=60).patches_BLD.shape[1] == 60
    assert render_batch(renderer, TEXTS, multiple_of=64).patches_BLD.shape[1] == 64
    with pytest.raises(ValueError, match="max_seq_length of 3"):
        render_batch(renderer, TEXTS, num_patches=3)
    with pytest.raises(ValueError, match="at least one"):
        render_batch(renderer, [])


def test_floats_are_the_pixels_of_the_original(renderer, change):
    grey, colors = float_pixels(renderer("text")), float_pixels(change(renderer, rgb=True)("text"))
    assert grey.dtype == np.float32
    assert grey.shape == (3, 16, 8464)
    assert np.array_equal(grey, colors)
    assert np.array_equal(grey[1], renderer("text").pixel_values.astype(np.float32) / np.float32(255))
    assert grey.max() == 1
    assert grey.min() == 0
