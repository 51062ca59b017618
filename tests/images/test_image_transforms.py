"""Laws of the transforms: sizes, draws, unchanged parts, and decoding no more than needed."""

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from support.pictures import encoded, noise_image, smooth_image

Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")

from pretrainkit.errors import ConfigError  # noqa: E402
from pretrainkit.images import transforms  # noqa: E402
from pretrainkit.images.decode import open_image  # noqa: E402
from pretrainkit.images.ops import (  # noqa: E402
    AutoAugment,
    CenterCrop,
    ColorDistortion,
    ColorJitter,
    GaussianBlur,
    RandomCrop,
    RandomErasing,
    RandomFlip,
    RandomResizeCrop,
    Resize,
    ResizeShorter,
)
from pretrainkit.images.transforms import (  # noqa: E402
    Window,
    compose,
    resize,
)

GEOMETRIC = [Resize(size=16), ResizeShorter(size=16), CenterCrop(size=16), RandomCrop(size=16)]
GEOMETRIC += [RandomResizeCrop(size=16), RandomResizeCrop(size=16, scale=(0.0, 0.1), ratio=(0.1, 10.0))]
PHOTOMETRIC = [RandomFlip(), AutoAugment(), ColorDistortion(), ColorJitter(), GaussianBlur(probability=1.0)]
SIDES = st.one_of(st.integers(1, 3), st.integers(1, 80))


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize("shape", [(1, 1, 3), (5, 1, 3), (1, 5, 3)])
def test_an_image_of_one_pixel_in_width_or_height_is_resized_after_a_flip(shape):
    image = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)
    for flipped in (image[::-1], image[:, ::-1], image[::-1, ::-1]):
        assert np.array_equal(resize(flipped, 16, 16), resize(np.array(flipped.tolist(), np.uint8), 16, 16))


@given(
    width=SIDES,
    height=SIDES,
    ops=st.lists(st.sampled_from(GEOMETRIC + PHOTOMETRIC), max_size=3),
    last=st.sampled_from([op for op in GEOMETRIC if not isinstance(op, ResizeShorter)]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=50)
def test_any_image_becomes_a_square_and_equal_draws_give_equal_images(width, height, ops, last, seed):
    transform = compose([*ops, last])
    image = noise_image(width, height, seed)
    before = image.copy()
    first, second = transform(image, rng(seed)), pickle.loads(pickle.dumps(transform))(image, rng(seed))
    assert first.shape == (transform.size, transform.size, 3) == (16, 16, 3)
    assert first.dtype == np.uint8
    assert (first == second).all()
    assert (image == before).all(), "what was given is left alone"


@given(width=SIDES, height=SIDES, last=st.sampled_from([RandomResizeCrop(size=16), Resize(size=16)]))
@settings(max_examples=40)
def test_a_file_equals_its_pixels_if_nothing_is_scaled(width, height, last):
    transform = compose([last, *PHOTOMETRIC])
    data = encoded(noise_image(width, height), "PNG")
    assert (transform.load(data, rng(1)) == transform(open_image(data).decode(), rng(1))).all()
    assert (transform.load(open_image(data), rng(1)) == transform(open_image(data).decode(), rng(1))).all()


def test_a_large_jpeg_decoded_in_part_gives_nearly_the_same_and_in_whole_the_same():
    data = encoded(smooth_image(800, 600), quality=95)
    differences = []
    for is_exact in (False, True):
        transform = compose([Resize(size=64), RandomFlip()], is_exact=is_exact)
        whole = transform(open_image(data).decode(), rng()).astype(int)
        differences.append(np.abs(transform.load(data, rng()) - whole).mean())
    assert 1 > differences[0] > differences[1] == 0


def test_a_part_of_a_large_jpeg_is_the_part_drawn():
    transform = compose([RandomResizeCrop(size=40, scale=(0.3, 0.5))])
    data = encoded(smooth_image(801, 603), quality=95)
    for seed in range(10):
        difference = transform.load(data, rng(seed)) - transform(open_image(data).decode(), rng(seed)).astype(int)
        # Parts begin at whole pixels of what was decoded: at most half a pixel of the result away.
        assert np.abs(difference).mean() < 5
        assert (
            np.abs(
                transform.load(data, rng(seed + 1)) - transform(open_image(data).decode(), rng(seed)).astype(int)
            ).mean()
            > 12
        )


@given(
    width=st.integers(1, 2000),
    height=st.integers(1, 2000),
    size=st.integers(1, 300),
    scale=st.tuples(st.floats(0, 1), st.floats(0, 1)).map(sorted).map(tuple),
    seed=st.integers(0, 1000),
)
def test_a_drawn_part_is_inside_and_keeps_its_pixels_when_decoded_smaller(width, height, size, scale, seed):
    (window,) = compose([RandomResizeCrop(size=size, scale=scale)]).draw(width, height, rng(seed))
    assert isinstance(window, Window)
    assert window.width >= 1
    assert window.height >= 1
    assert 0 <= window.left <= window.left + window.width <= width
    assert 0 <= window.top <= window.top + window.height <= height
    for divisor in (2, 4, 8):
        if width // divisor >= window.wanted()[0] and height // divisor >= window.wanted()[1]:
            rows, columns, _ = window_of(window, -(-width // divisor), -(-height // divisor)).shape
            assert columns >= size, "no smaller than the result"
            assert rows >= size


def window_of(window: Window, width: int, height: int) -> np.ndarray:
    """The part that is resized, of an image decoded at this size."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transforms, "resize", lambda image, *_, **__: image)
        return window(np.broadcast_to(np.uint8(0), (height, width, 3)))


def test_random_parts_have_uniform_areas_and_log_uniform_aspects():
    transform = compose([RandomResizeCrop(size=8, scale=(0.1, 0.3), ratio=(0.5, 2.0))])
    generator = rng()
    windows = [transform.draw(1000, 1000, generator)[0] for _ in range(4000)]
    areas = np.array([window.width * window.height for window in windows]) / 1e6
    log_ratios = np.log([window.width / window.height for window in windows])
    for values, low, high in ((areas, 0.1, 0.3), (log_ratios, -np.log(2), np.log(2))):
        shares, _ = np.histogram(values, 5, (low - 0.003, high + 0.003))
        assert (np.abs(shares / len(windows) - 0.2) < 0.03).all()
    lefts = np.array([window.left / (1000 - window.width) for window in windows])
    assert np.mean(lefts) == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize(("width", "height", "part"), [(400, 10, (13, 10)), (10, 400, (10, 13))])
def test_the_largest_central_part_is_used_if_no_draw_fits(width, height, part):
    (window,) = compose([RandomResizeCrop(size=8, scale=(1.0, 1.0))]).draw(width, height, rng())
    assert (window.width, window.height) == part
    assert (window.left, window.top) == ((width - part[0]) // 2, (height - part[1]) // 2)


def test_resize_does_not_keep_the_aspect_and_center_crop_follows():
    transform = compose([Resize(size=256), CenterCrop(size=224)])
    image = smooth_image(90, 50)
    squashed = np.asarray(Image.fromarray(image).resize((256, 256), Image.Resampling.BILINEAR)).astype(int)
    assert np.abs(transform(image, rng()) - squashed[16:240, 16:240]).max() <= 1


@pytest.mark.parametrize(("size", "expected"), [((90, 50), (57, 32)), ((50, 90), (32, 57)), ((64, 64), (32, 32))])
def test_resize_shorter_keeps_the_aspect(size, expected):
    (window,) = compose([ResizeShorter(size=32), CenterCrop(size=8)]).draw(*size, rng())[:1]
    assert window.size == expected


@pytest.mark.parametrize("kernel", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [(50, 40), (300, 20), (1, 1), (180, 190)])
def test_resizing_is_pillows_but_for_rounding(kernel, size):
    image = smooth_image(120, 100)
    method = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}[kernel]
    expected = np.asarray(Image.fromarray(image).resize(size, method)).astype(int)
    for given_image in (image, np.asarray(Image.fromarray(image)), np.asfortranarray(image)):
        difference = np.abs(resize(given_image, *size, kernel) - expected)
        # Weights of 16 instead of 32 bits; those of bicubic are larger than 1 and negative in places.
        assert difference.max() <= {"bilinear": 1, "bicubic": 2}[kernel]
        assert (difference > 0).mean() < 0.08


def test_a_crop_beyond_the_image_is_black_on_both_sides():
    image = np.full((3, 9, 3), 200, np.uint8)
    for op in (CenterCrop(size=6), RandomCrop(size=6)):
        found = compose([op])(image, rng())[:, :, 0]
        assert (found[:1] == 0).all()
        assert (found[1:4] == 200).all()
        assert (found[4:] == 0).all()


def test_random_crops_reach_every_place_equally_often():
    image = np.zeros((1, 5, 3), np.uint8)
    image[0, :, 0] = range(5)
    transform, generator = compose([RandomCrop(size=1)]), rng()
    counts = np.bincount([transform(image, generator)[0, 0, 0] for _ in range(2000)], minlength=5)
    assert (np.abs(counts - 400) < 80).all()


def test_a_flip_mirrors_left_and_right_half_of_the_time():
    image = noise_image(8, 8)
    transform, generator = compose([Resize(size=8), RandomFlip()]), rng()
    flipped = [(transform(image, generator) == image[:, ::-1]).all() for _ in range(1000)]
    assert np.mean(flipped) == pytest.approx(0.5, abs=0.06)


def test_blur_comes_with_its_probability_and_lowers_contrast():
    image = noise_image(32, 32)
    transform, generator = compose([Resize(size=32), GaussianBlur(probability=0.3, radius=(1.0, 2.0))]), rng()
    spreads = np.array([transform(image, generator).std() for _ in range(600)])
    assert np.mean(spreads < image.std() * 0.7) == pytest.approx(0.3, abs=0.06)


def test_distortion_is_grey_a_fifth_of_the_time():
    image = smooth_image(16, 16)
    transform, generator = compose([Resize(size=16), ColorDistortion()]), rng()
    images = [transform(image, generator) for _ in range(800)]
    assert np.mean([np.ptp(found, axis=2).max() == 0 for found in images]) == pytest.approx(0.2, abs=0.045)
    assert np.mean([(found == image).all() for found in images]) == pytest.approx(0.2 * 0.8, abs=0.04)


@pytest.mark.parametrize(
    ("ops", "message"),
    [
        ([], "leave images of different sizes"),
        ([ResizeShorter()], "leave images of different sizes"),
        ([RandomErasing(), Resize()], "make it the last"),
        ([Resize(), RandomErasing(), RandomErasing()], "make it the last"),
    ],
)
def test_transforms_that_cannot_make_a_batch_are_refused(ops, message):
    with pytest.raises(ConfigError, match=message):
        compose(ops)


def test_random_erasing_is_kept_for_normalized_pixels():
    transform = compose([Resize(size=8), RandomErasing(probability=1.0)])
    assert transform.erasing == RandomErasing(probability=1.0)
    image = noise_image(8, 8)
    assert (transform(image, rng()) == image).all()


@pytest.mark.parametrize("settings_", [{"scale": (0.8, 0.3)}, {"ratio": (2.0, 1.0)}, {"scale": (0.5, 1.1)}])
def test_limits_in_the_wrong_order_or_range_are_refused(settings_):
    with pytest.raises(ValidationError):
        RandomResizeCrop(**settings_)
