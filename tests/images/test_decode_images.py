"""Files of every kind become RGB; damaged ones are named with the reason; decoders agree."""

import io
import logging
import pickle
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.pictures import encoded, noise_image, smooth_image

Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
ImageOps = pytest.importorskip("PIL.ImageOps", reason="Pillow is not installed")

from pretrainkit.errors import MissingPackageError  # noqa: E402
from pretrainkit.images import decode as decoding  # noqa: E402
from pretrainkit.images.decode import ImageError, open_image  # noqa: E402

HEADS = [b"", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"RIFF"]


def decode(data, wanted=None, name=None):
    return open_image(data, name=name).decode(wanted)


@pytest.fixture
def only_pillow(monkeypatch):
    """Decode images without simplejpeg."""
    monkeypatch.setattr(decoding, "_simplejpeg", lambda: None)


@pytest.mark.parametrize("format", ["PNG", "WEBP", "BMP", "TIFF", "PPM"])
def test_lossless_files_keep_every_pixel(format):
    image = noise_image(13, 7)
    options = {"lossless": True} if format == "WEBP" else {}
    assert (decode(encoded(image, format, **options)) == image).all()


@pytest.mark.parametrize("mode", ["1", "L", "P", "LA", "RGBA"])
@pytest.mark.parametrize("format", ["PNG", "TIFF"])
def test_every_mode_is_converted_like_by_pillow(format, mode):
    if (format, mode) == ("TIFF", "LA"):
        pytest.skip("Pillow does not write this")
    data = encoded(smooth_image(20, 10), format, mode)
    expected = Image.open(io.BytesIO(data)).convert("RGB")
    found = decode(data)
    assert found.shape == (10, 20, 3)
    assert found.dtype == np.uint8
    assert (found == np.asarray(expected)).all()


@pytest.mark.parametrize("mode", ["L", "CMYK", "RGB"])
@pytest.mark.parametrize("progressive", [False, True])
def test_jpeg_of_every_mode_is_converted_like_by_pillow(mode, progressive):
    data = encoded(smooth_image(100, 70), "JPEG", mode, progressive=progressive)
    assert (decode(data) == np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))).all()


def test_transparent_palettes_do_not_warn(recwarn):
    file = io.BytesIO()
    Image.fromarray(smooth_image(8, 8)).convert("P").save(file, "PNG", transparency=bytes([0, 255] * 128))
    assert decode(file.getvalue()).shape == (8, 8, 3)
    # In a whole run other warnings arrive here, which are not of the picture.
    assert not [warning for warning in recwarn.list if "Transparency" in str(warning.message)]


def test_16_bit_greys_keep_their_upper_bits():
    grey = np.array([[0, 255, 256], [32768, 65280, 65535]], np.uint16)
    file = io.BytesIO()
    Image.fromarray(grey).save(file, "PNG")
    assert decode(file.getvalue())[:, :, 1].tolist() == [[0, 0, 1], [128, 255, 255]]


def test_16_bit_greys_of_a_sensor_with_12_bits_are_reported_once_for_a_folder(caplog):
    file = io.BytesIO()
    Image.fromarray(np.array([[0, 4095]], np.uint16)).save(file, "PNG")
    with caplog.at_level(logging.WARNING):
        for name in ("frames/1.png", "frames/2.png"):
            open_image(file.getvalue(), name=name).decode()
    (message,) = caplog.messages
    assert "images in frames have 16 bits but values below 4096, so at most 16 grey levels are left" in message


@pytest.mark.parametrize(("dtype", "kind"), [(np.float32, "floats"), (np.int32, "32-bit integers")])
def test_pixels_whose_range_is_not_known_are_refused(dtype, kind):
    file = io.BytesIO()
    Image.fromarray(np.ones((2, 2), dtype)).save(file, "TIFF")
    with pytest.raises(ImageError, match=f"its pixels are {kind}, whose range is not known"):
        decode(file.getvalue())


def test_16_bit_greys_of_a_tiff_keep_their_upper_bits():
    file = io.BytesIO()
    Image.fromarray(np.array([[255, 65535]], np.uint16)).save(file, "TIFF")
    assert decode(file.getvalue())[0, :, 1].tolist() == [0, 255]


def test_the_first_frame_of_a_moving_image_counts():
    file = io.BytesIO()
    frames = [Image.new("RGB", (6, 4), color) for color in ("red", "blue")]
    frames[0].save(file, "GIF", save_all=True, append_images=frames[1:])
    assert (decode(file.getvalue()) == (255, 0, 0)).all()


def turned(format, orientation):
    """Return an image of 96 x 64 stored pixels with this EXIF orientation."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encoded(smooth_image(96, 64), format, exif=exif)


@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(10))
@pytest.mark.parametrize("with_turbo", [True, False])
def test_images_are_turned_by_exif(format, orientation, with_turbo, monkeypatch):
    if not with_turbo:
        monkeypatch.setattr(decoding, "_simplejpeg", lambda: None)
    data = turned(format, orientation)
    expected = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))))
    image = open_image(data)
    assert (image.height, image.width) == expected.shape[:2]
    assert (image.decode() == expected).all()


@pytest.mark.parametrize("orientation", [1, 3, 6])
def test_the_size_that_is_wanted_is_that_of_the_turned_image(orientation):
    image = open_image(turned("JPEG", orientation))
    assert image.decode((image.width // 2, image.height // 2)).shape == (image.height // 2, image.width // 2, 3)
    assert image.decode((image.width // 2 + 1, image.height // 2)).shape == (image.height, image.width, 3)


def test_exif_after_the_pixels_of_a_png_counts():
    data, chunk = turned("PNG", 1), turned("PNG", 6)
    start = chunk.index(b"eXIf") - 4
    chunk = chunk[start : start + 12 + int.from_bytes(chunk[start : start + 4], "big")]
    plain = data[:start] + data[start + len(chunk) :]
    end = plain.index(b"IEND") - 4
    assert decode(plain).shape == (64, 96, 3)
    assert decode(plain[:end] + chunk + plain[end:]).shape == (96, 64, 3)


@pytest.mark.parametrize("with_turbo", [True, False])
def test_damaged_exif_turns_nothing(with_turbo, monkeypatch):
    if not with_turbo:
        monkeypatch.setattr(decoding, "_simplejpeg", lambda: None)
    data = encoded(smooth_image(96, 64), "JPEG", exif=b"Exif\0\0no TIFF at all")
    assert decode(data).shape == (64, 96, 3)


def test_decoders_agree_bit_for_bit_at_every_scale(only_pillow):
    turbo = pytest.importorskip("simplejpeg", reason="simplejpeg is not installed")
    for subsampling in (0, 1, 2):
        data = encoded(smooth_image(333, 251), quality=85, subsampling=subsampling)
        for divisor in (1, 2, 4, 8):
            smaller = -(-333 // divisor), -(-251 // divisor)
            expected = turbo.decode_jpeg(data, min_width=smaller[0], min_height=smaller[1])
            found = decode(data, (333 // divisor, 251 // divisor))
            assert found.shape == (smaller[1], smaller[0], 3)
            assert (found == expected).all()


@given(
    width=st.integers(1, 300),
    height=st.integers(1, 300),
    wanted=st.tuples(st.integers(1, 400), st.integers(1, 400)),
    with_turbo=st.booleans(),
)
@settings(max_examples=40)
def test_no_less_is_decoded_than_wanted_and_no_more_than_needed(width, height, wanted, with_turbo):
    data = encoded(np.zeros((height, width, 3), np.uint8))
    with pytest.MonkeyPatch.context() as patch:
        if not with_turbo:
            patch.setattr(decoding, "_simplejpeg", lambda: None)
        rows, columns, _ = decode(data, wanted).shape
    assert (columns, rows) in {(-(-width // scale), -(-height // scale)) for scale in (1, 2, 4, 8)}
    if width >= wanted[0] and height >= wanted[1]:
        assert columns >= wanted[0]
        assert rows >= wanted[1]
    else:
        assert (columns, rows) == (width, height)
    if min(width, height) >= 64 and columns > -(-width // 8):
        assert columns // 2 < wanted[0] or rows // 2 < wanted[1], "a half would have been enough"


def test_half_a_jpeg_looks_like_the_whole():
    data = encoded(smooth_image(512, 384), quality=95)
    half = decode(data, (256, 192))
    whole = np.asarray(Image.fromarray(decode(data)).resize((256, 192), Image.Resampling.BOX))
    assert np.abs(half.astype(int) - whole).mean() < 1


def test_a_missing_file_is_missing(tmp_path):
    with pytest.raises(ImageError, match=r"nowhere\.jpg.*cannot be read") as raised:
        decode(tmp_path / "nowhere.jpg")
    assert raised.value.reason == "missing"


@pytest.mark.parametrize("with_turbo", [True, False])
@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "GIF"])
def test_files_that_are_cut_off_or_not_images_are_broken(format, with_turbo, monkeypatch):
    if not with_turbo:
        monkeypatch.setattr(decoding, "_simplejpeg", lambda: None)
    data = encoded(smooth_image(200, 150), format)
    for damaged in (b"", b"no image at all", data[: len(data) // 2], data[:10], data[:2]):
        with pytest.raises(ImageError) as raised:
            decode(damaged, name="'cat.jpg'")
        assert raised.value.reason == "broken"
        assert "image 'cat.jpg' is broken" in str(raised.value)
        assert "object at" not in str(raised.value)


@given(data=st.binary(max_size=300), head=st.sampled_from(HEADS))
@settings(max_examples=60)
def test_arbitrary_bytes_raise_nothing_else(data, head):
    try:
        decode(head + data)
    except ImageError:
        pass
    else:
        pytest.fail("an image made of arbitrary bytes")


@pytest.mark.parametrize("with_turbo", [True, False])
def test_a_stray_byte_between_jpeg_segments_does_no_harm(with_turbo, monkeypatch):
    if not with_turbo:
        monkeypatch.setattr(decoding, "_simplejpeg", lambda: None)
    data = encoded(smooth_image(80, 80))
    table = data.index(b"\xff\xdb")
    assert (decode(data[:table] + b"\x00\x00" + data[table:]) == decode(data)).all()


@pytest.mark.parametrize("with_turbo", [True, False])
def test_images_that_claim_to_be_huge_are_refused_before_decoding(with_turbo, monkeypatch):
    if not with_turbo:
        monkeypatch.setattr(decoding, "_simplejpeg", lambda: None)
    data = encoded(smooth_image(8, 8))
    frame = data.index(b"\xff\xc0")
    huge = data[: frame + 5] + (60_000).to_bytes(2, "big") * 2 + data[frame + 9 :]
    with pytest.raises(ImageError, match=r"60000 x 60000|exceeds limit") as raised:
        decode(huge)
    assert raised.value.reason == "too large"


def test_errors_keep_their_reason_between_processes():
    error = pickle.loads(pickle.dumps(ImageError("image 'x' is gone", "missing")))
    assert (str(error), error.reason) == ("image 'x' is gone", "missing")


def test_content_may_be_any_kind_of_bytes(tmp_path):
    image = noise_image(5, 4)
    data = encoded(image, "PNG")
    (tmp_path / "a.png").write_bytes(data)
    jpeg = encoded(image)
    for given_data in (bytearray(data), memoryview(data), tmp_path / "a.png", str(tmp_path / "a.png")):
        assert (decode(given_data) == image).all()
    assert (decode(memoryview(jpeg)) == decode(jpeg)).all()


def test_without_pillow_the_install_line_is_shown(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(MissingPackageError, match=r"pip install 'pretrainkit\[vision\]'"):
        decode(b"")


def test_fast_decoding_is_close_to_exact_decoding_and_of_the_same_size():
    image = open_image(encoded(smooth_image(160, 120), quality=90))
    exact, fast = image.decode().astype(int), image.decode(is_fast=True).astype(int)
    assert fast.shape == exact.shape
    assert abs(fast - exact).mean() < 3
