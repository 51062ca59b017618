"""Samples for the report: results are marked right exactly where they belong to the query."""

import base64
import io

import numpy as np
import pytest

from pretrainkit.images.pillow import thumbnail
from pretrainkit.recipes.clip.retrieve import retrieved_pairs
from pretrainkit.report.shown import read_shown
from support.toy_held_out import ToyEncoder, toy_pairs

PIL = pytest.importorskip("PIL.Image")


def test_right_and_wrong_depend_on_the_image_of_a_caption():
    model = ToyEncoder().train()
    samples = retrieved_pairs(model, toy_pairs(), num=8, batch_size=7)
    assert model.training
    by_image, by_caption = samples[:4], samples[4:]
    for sample in by_image:
        truth = {item["text"] for item in sample["truth"]}
        image_id = next(iter(truth)).split(" of ")[1]
        assert 1 <= len(truth) <= 5
        assert len(sample["found"]) == 5
        for item in sample["found"]:
            assert item["is_right"] == item["text"].endswith(f" of {image_id}")
    for sample in by_caption:
        assert sample["query"].startswith("caption ")
        assert len(sample["found"]) == 5
        for item in sample["found"]:
            assert item["is_right"] == (item["image"] == sample["truth"][0]["image"])


def test_the_report_takes_every_picture():
    notes: list[str] = []
    for sample in retrieved_pairs(ToyEncoder(), toy_pairs(), num=4):
        for cell in sample.values():
            if isinstance(cell, list):
                assert all(item.picture or item.text for item in read_shown(cell, notes))
    assert notes == []


def test_a_few_images_are_enough():
    assert len(retrieved_pairs(ToyEncoder(), toy_pairs(num_images=1), num=8)) >= 2


def test_a_thumbnail_is_a_small_jpeg_of_the_same_picture():
    image = np.zeros((3, 300, 200), np.uint8)
    image[0] = 200
    uri = thumbnail(image)
    assert len(uri) < 5000
    picture = PIL.open(io.BytesIO(base64.b64decode(uri.partition(",")[2])))
    assert picture.size == (64, 96)
    assert np.abs(np.asarray(picture).astype(int) - [200, 0, 0]).max() < 8
