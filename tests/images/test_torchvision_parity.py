"""Transforms that torchvision also defines give the same pixels, in training up to rounding where images are
resized."""

import io

import numpy as np
import pytest

from support.pictures import encoded, noise_image, smooth_image

pytest.importorskip("support.torchvision_beside_cpu_torch", reason="torchvision is not installed")
Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
ImageOps = pytest.importorskip("PIL.ImageOps", reason="Pillow is not installed")

import torchvision.transforms as reference  # noqa: E402
import torchvision.transforms.functional as reference_functions  # noqa: E402

from pretrainkit.images.autoaugment import POLICIES  # noqa: E402
from pretrainkit.images.ops import CenterCrop, RandomResizeCrop, Resize, ResizeShorter  # noqa: E402
from pretrainkit.images.transforms import adjust, compose, grey  # noqa: E402

BICUBIC = reference.InterpolationMode.BICUBIC
SIZES = [(90, 50), (31, 77), (64, 64), (200, 33), (1, 1), (1, 9)]


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("ops", "theirs"),
    [
        ([Resize(size=32)], reference.Resize((32, 32))),
        (
            [Resize(size=40), CenterCrop(size=33)],
            reference.Compose([reference.Resize((40, 40)), reference.CenterCrop(33)]),
        ),
        (
            [ResizeShorter(size=20), CenterCrop(size=20)],
            reference.Compose([reference.Resize(20, interpolation=BICUBIC), reference.CenterCrop(20)]),
        ),
        ([CenterCrop(size=48)], reference.CenterCrop(48)),
    ],
    ids=["resize", "resize, center_crop", "resize_shorter, center_crop", "center_crop"],
)
def test_evaluation_transforms_are_torchvisions(size, ops, theirs):
    image = smooth_image(*size)
    expected = np.asarray(theirs(Image.fromarray(image))).astype(int)
    assert (compose(ops, is_exact=True)(image, rng()) == expected).all()
    # As torch resizes: bilinear is off by 1 at most, bicubic by 2.
    tolerance = 2 if isinstance(ops[0], ResizeShorter) else 1
    assert np.abs(compose(ops)(image, rng()) - expected).max() <= tolerance


def _turned() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    return encoded(smooth_image(401, 300), exif=exif)


def _with_alpha(format: str, **options) -> bytes:
    image, file = Image.fromarray(smooth_image(401, 300)).convert("RGBA"), io.BytesIO()
    image.putalpha(Image.fromarray(noise_image(401, 300)[:, :, 0]))
    image.save(file, format, **options)
    return file.getvalue()


FILES = {
    "photograph": lambda: encoded(smooth_image(1203, 901), quality=90),
    "noise": lambda: encoded(noise_image(640, 481), quality=95, subsampling=0),
    "small": lambda: encoded(noise_image(90, 70), quality=50),
    "progressive": lambda: encoded(smooth_image(801, 603), progressive=True),
    "grey": lambda: encoded(smooth_image(801, 603), mode="L"),
    "CMYK": lambda: encoded(smooth_image(801, 603), mode="CMYK"),
    "turned by EXIF": _turned,
    "RGBA PNG": lambda: _with_alpha("PNG"),
    "RGBA WebP": lambda: _with_alpha("WEBP", lossless=True),
    "palette PNG": lambda: encoded(smooth_image(401, 300), "PNG", "P"),
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kernel", ["bilinear", "bicubic"])
def test_exact_pixels_of_files_are_torchvisions_bit_for_bit(name, kernel):
    """open_clip and timm evaluate like this: Image.open, RGB, shorter side, centre; they do not turn by EXIF."""
    file = FILES[name]()
    opened = ImageOps.exif_transpose(Image.open(io.BytesIO(file))).convert("RGB")
    theirs = reference.Compose([reference.Resize(64, reference.InterpolationMode(kernel)), reference.CenterCrop(56)])
    ours = compose([ResizeShorter(size=64, interpolation=kernel), CenterCrop(size=56)], is_exact=True)
    assert (ours.load(file, rng()) == np.asarray(theirs(opened))).all()
    squashed = compose([Resize(size=64), CenterCrop(size=56)], is_exact=True)
    theirs = reference.Compose([reference.Resize((64, 64)), reference.CenterCrop(56)])
    assert (squashed.load(file, rng()) == np.asarray(theirs(opened))).all()


@pytest.mark.parametrize("size", SIZES)
def test_a_part_drawn_is_resized_as_by_torchvision(size):
    image = smooth_image(*size)
    transform = compose([RandomResizeCrop(size=24)])
    (window,) = transform.draw(*size, rng())
    expected = reference_functions.resized_crop(
        Image.fromarray(image), window.top, window.left, window.height, window.width, [24, 24]
    )
    assert np.abs(transform(image, rng()) - np.asarray(expected).astype(int)).max() <= 1


@pytest.mark.parametrize("size", [(400, 300), (900, 30), (30, 900)])
def test_parts_are_distributed_as_torchvisions(size):
    import torch

    op = RandomResizeCrop(size=8)
    transform, generator = compose([op]), rng()
    ours = [transform.draw(*size, generator)[0] for _ in range(1500)]
    found = np.array([(window.top, window.left, window.height, window.width) for window in ours])
    blank = Image.new("L", size)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        theirs = np.array(
            [reference.RandomResizedCrop.get_params(blank, list(op.scale), list(op.ratio)) for _ in range(1500)]
        )
    for mine, other in zip(found.T, theirs.T, strict=True):
        quantiles = [0.1, 0.3, 0.5, 0.7, 0.9]
        np.testing.assert_allclose(np.quantile(mine, quantiles), np.quantile(other, quantiles), atol=0.05 * max(size))


@pytest.mark.parametrize(
    ("name", "theirs", "amounts"),
    [
        ("brightness", reference_functions.adjust_brightness, (0, 0.6, 1.4)),
        ("contrast", reference_functions.adjust_contrast, (0, 0.6, 1.4)),
        ("saturation", reference_functions.adjust_saturation, (0, 0.6, 1.4)),
        ("hue", reference_functions.adjust_hue, (-0.5, -0.13, 0, 0.2, 0.5)),
    ],
)
def test_adjustments_are_torchvisions_bit_for_bit(name, theirs, amounts):
    image = smooth_image(40, 30)
    for amount in amounts:
        expected = np.asarray(theirs(Image.fromarray(image), amount))
        assert (adjust(image, ((name, amount),)) == expected).all()


def test_grey_is_torchvisions_bit_for_bit():
    image = smooth_image(40, 30)
    assert (grey(image) == np.asarray(reference_functions.to_grayscale(Image.fromarray(image), 3))).all()


def test_policies_are_torchvisions_table():
    theirs = reference.AutoAugment(reference.AutoAugmentPolicy.IMAGENET).policies
    names = {"shear_x": "ShearX", "autocontrast": "AutoContrast"}
    for ours, other in zip(POLICIES, theirs, strict=True):
        for choice, (name, probability, level) in zip(ours, other, strict=True):
            assert (names.get(choice.name, choice.name.title()), choice.probability) == (name, probability)
            assert level is None or level == choice.level
