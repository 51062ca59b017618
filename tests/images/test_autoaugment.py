"""AutoAugment does what Pillow's own functions do, in the order and with the draws of the original."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.pictures import noise_image, smooth_image

Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
from PIL import ImageEnhance, ImageOps  # noqa: E402

from pretrainkit.images import autoaugment  # noqa: E402
from pretrainkit.images.autoaugment import POLICIES, Operation, amount  # noqa: E402

NAMES = sorted(
    {choice.name for policy in POLICIES for choice in policy} | {"shear_y", "translate_x", "translate_y", "brightness"}
)


def expected(image: np.ndarray, operation: Operation) -> np.ndarray:
    """The same by Pillow, written down independently."""
    name, level = operation
    picture = Image.fromarray(np.ascontiguousarray(image))
    width, height = picture.size
    grey = (128, 128, 128)
    if name == "rotate":
        # The original composites the rotated RGBA image over grey.
        turned = picture.convert("RGBA").rotate(level)
        return np.asarray(Image.composite(turned, Image.new("RGBA", turned.size, (128,) * 4), turned).convert("RGB"))
    affine = Image.Transform.AFFINE
    done = {
        "shear_x": lambda: picture.transform(
            (width, height), affine, (1, level, 0, 0, 1, 0), Image.BICUBIC, fillcolor=grey
        ),
        "shear_y": lambda: picture.transform(
            (width, height), affine, (1, 0, 0, level, 1, 0), Image.BICUBIC, fillcolor=grey
        ),
        "translate_x": lambda: picture.transform(
            (width, height), affine, (1, 0, level * width, 0, 1, 0), fillcolor=grey
        ),
        "translate_y": lambda: picture.transform(
            (width, height), affine, (1, 0, 0, 0, 1, level * height), fillcolor=grey
        ),
        "color": lambda: ImageEnhance.Color(picture).enhance(level),
        "contrast": lambda: ImageEnhance.Contrast(picture).enhance(level),
        "brightness": lambda: ImageEnhance.Brightness(picture).enhance(level),
        "sharpness": lambda: ImageEnhance.Sharpness(picture).enhance(level),
        "posterize": lambda: ImageOps.posterize(picture, int(level)),
        "solarize": lambda: ImageOps.solarize(picture, level),
        "invert": lambda: ImageOps.invert(picture),
        "equalize": lambda: ImageOps.equalize(picture),
        "autocontrast": lambda: ImageOps.autocontrast(picture),
    }[name]()
    return np.asarray(done)


@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("level", range(10))
@pytest.mark.parametrize("name", NAMES)
def test_every_level_of_every_operation_is_pillows_bit_for_bit(name, level, sign):
    operation = Operation(name, amount(name, level, sign))
    image = smooth_image(48, 40, seed=level)
    assert (autoaugment.apply(image, (operation,)) == expected(image, operation)).all()


@given(
    width=st.integers(1, 40),
    height=st.integers(1, 40),
    seed=st.integers(0, 1000),
    largest=st.integers(0, 255),
    names=st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 9)), max_size=4),
    in_planes=st.booleans(),
)
@settings(max_examples=100)
def test_any_sequence_on_any_size_equals_one_after_another(width, height, seed, largest, names, in_planes):
    image = np.minimum(noise_image(width, height, seed), np.uint8(largest))
    if in_planes:
        image = np.ascontiguousarray(image.transpose(2, 0, 1)).transpose(1, 2, 0)
    operations = tuple(Operation(name, amount(name, level)) for name, level in names)
    step_by_step = image
    for operation in operations:
        step_by_step = expected(step_by_step, operation)
    assert (autoaugment.apply(image, operations) == step_by_step).all()


def test_the_image_given_is_left_alone():
    image = smooth_image(30, 30)
    before = image.copy()
    for name in NAMES:
        autoaugment.apply(image, (Operation(name, amount(name, 7)),))
    assert (image == before).all()


def test_policies_are_those_of_the_paper_in_order():
    rows = [tuple((choice.name, choice.probability, choice.level) for choice in policy) for policy in POLICIES]
    assert len(rows) == 25
    assert rows[0] == (("posterize", 0.4, 8), ("rotate", 0.6, 9))
    assert rows[12] == (("equalize", 0.0, 7), ("equalize", 0.8, 8))
    assert rows[18] == (("shear_x", 0.6, 5), ("equalize", 1.0, 9))
    assert [rows.index(row) for row in rows[20:]] == [4, 1, 13, 14, 2]
    # A checksum over all probabilities and levels: 20 rows typed from the table, 5 repeated.
    assert sum(choice[1] for row in rows for choice in row) == pytest.approx(31.0)
    assert sum(choice[2] for row in rows for choice in row) == 287


def test_levels_have_the_meaning_of_the_original():
    assert [amount("posterize", level) for level in range(10)] == [8, 8, 7, 7, 6, 6, 5, 5, 4, 4]
    assert amount("rotate", 9) == 30
    assert amount("shear_x", 9, -1) == pytest.approx(-0.3)
    assert amount("translate_y", 9) == pytest.approx(150 / 331)
    assert amount("color", 9, -1) == pytest.approx(0.1)
    assert amount("contrast", 0) == 1
    assert [amount("solarize", level) for level in (0, 9)] == [256, 0]


def test_a_turn_by_level_9_is_30_degrees_counter_clockwise():
    image = np.zeros((101, 101, 3), np.uint8)
    image[50, 60:100] = 255  # points to the right
    turned = autoaugment.apply(image, (Operation("rotate", amount("rotate", 9)),))
    rows, columns = np.nonzero(turned[:, :, 0] == 255)
    angle = np.degrees(np.arctan2(50 - rows.mean(), columns.mean() - 50))
    assert angle == pytest.approx(30, abs=1)
    assert (turned[0, 0] == 128).all(), "what was not covered before is grey"


def original_draws(stream: random.Random) -> list[tuple[str, float]]:
    """Python's stream as the original uses it."""
    signed = {"color", "contrast", "sharpness", "brightness", "shear_x"}
    found = []
    for choice in POLICIES[stream.randint(0, 24)]:
        if stream.random() < choice.probability:
            sign = stream.choice([-1, 1]) if choice.name in signed else 1
            found.append((choice.name, amount(choice.name, choice.level, sign)))
    return found


@given(seed=st.integers(0, 2**32))
def test_draws_from_pythons_stream_are_the_originals(seed):
    ours, theirs = random.Random(seed), random.Random(seed)
    for _ in range(50):
        assert list(autoaugment.draw(ours)) == original_draws(theirs)
    assert ours.getstate() == theirs.getstate()


def test_policies_are_drawn_uniformly_and_halves_with_their_probability():
    stream = np.random.default_rng(7)
    num = 20_000
    drawn = [autoaugment.draw(stream) for _ in range(num)]
    mean_length = sum(choice.probability for policy in POLICIES for choice in policy) / 25
    assert np.mean([len(operations) for operations in drawn]) == pytest.approx(mean_length, abs=0.03)
    shears = [operation.amount for operations in drawn for operation in operations if operation.name == "shear_x"]
    assert len(shears) / num == pytest.approx(0.6 / 25, abs=0.005)
    assert np.mean(np.array(shears) > 0) == pytest.approx(0.5, abs=0.08)


def test_an_unknown_operation_is_an_error():
    with pytest.raises(ValueError, match="no operation 'swirl'"):
        amount("swirl", 3)
    with pytest.raises(ValueError, match="no operation 'swirl'"):
        autoaugment.apply(smooth_image(4, 4), (Operation("swirl", 1.0),))
