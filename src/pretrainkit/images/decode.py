"""Decode image files to pixels: RGB, uint8, (height, width, 3).

The header is read first, so that the caller can request a reduced size before decoding. A JPEG is then decoded at a
half, a quarter or an eighth of its size, which costs a fraction of the time and has clean antialiasing, because its
coefficients are frequencies. libjpeg-turbo offers every eighth, but on images of 500 x 375 pixels its 7/8, 6/8 and 5/8
take longer than the full size, and 3/8 longer than 4/8 (benchmarks/images.py). So only halvings are used.

JPEG is decoded by libjpeg-turbo (package simplejpeg) if it is installed; other files, and JPEG without simplejpeg, are
decoded by Pillow. Both give the same pixels. Only the first frame of an animation is used. Transparency is dropped, as
by Pillow's `convert("RGB")` and ZeroVL. 16-bit grey images keep their upper eight bits. Images are turned by their EXIF
orientation, as viewers, labelling tools, transformers and datasets show them; ZeroVL and open_clip do not turn them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from pretrainkit.errors import DataError
from pretrainkit.images.pillow import Pixels, open_with_pillow, require_pillow

if TYPE_CHECKING:
    from PIL.Image import Image

_log = logging.getLogger(__name__)
Reason = Literal["missing", "broken", "too large"]
Data = bytes | bytearray | memoryview | str | os.PathLike[str]
"""The content of a file, or its path."""

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".ppm", ".tif", ".tiff", ".avif", ".jfif")
"""File name extensions of images that Pillow reads, in lower case; the most frequent ones first."""

MAX_PIXELS = 89_478_485
"""Maximum number of pixels, equal to Pillow's limit. A file of a few kilobytes can claim a size that exceeds memory."""

_TURNS: Mapping[int, Callable[[Pixels], Pixels]] = {
    1: lambda image: image,
    2: lambda image: image[:, ::-1],
    3: lambda image: image[::-1, ::-1],
    4: lambda image: image[::-1],
    5: lambda image: image.swapaxes(0, 1),
    6: lambda image: np.rot90(image, -1),
    7: lambda image: image[::-1, ::-1].swapaxes(0, 1),
    8: np.rot90,
}
"""Functions that turn a stored image, by its EXIF orientation."""
_SIDEWAYS = (5, 6, 7, 8)
"""The orientations that exchange width and height."""
_MOST_OF_12_BITS = 1 << 12
"""Values of many cameras and sensors are smaller, though their files have 16 bits."""
_BITS_TAG, _ORIENTATION_TAG = 0x0102, 0x0112
_ORIENTATION_MARKS = (b"eXIf", b"Raw profile type exif", b"tiff:Orientation")
"""Bytes of which a PNG with an orientation contains some."""
_APP1, _START_OF_SCAN = 0xE1, 0xDA
"""Segments of a JPEG: EXIF or XMP; the pixels."""

_SMALLEST_TO_SCALE = 64
"""A JPEG whose shorter side has fewer pixels is always decoded at full size."""


class ImageError(DataError):
    """An image is missing, broken or too large."""

    def __init__(self, message: str, reason: Reason = "broken") -> None:
        super().__init__(message)
        self.reason: Reason = reason


@dataclass(frozen=True, kw_only=True)
class EncodedImage:
    """An image file whose header was read, but which is not decoded yet."""

    content: bytes | bytearray | memoryview
    """Content of the whole file."""
    name: str
    """Name of the image in messages."""
    width: int
    """Width in pixels, after turning."""
    height: int
    """Height in pixels, after turning."""
    orientation: int
    """EXIF orientation; 1: the image is stored as it is shown."""
    is_jpeg: bool
    """True if the image can be decoded at a reduced size."""
    is_turbo: bool
    """True if simplejpeg decodes the image."""

    def decode(self, wanted: tuple[int, int] | None = None, *, is_fast: bool = False) -> Pixels:
        """Return the pixels. Raises ImageError if the file is damaged or truncated.

        Args:
            wanted: Minimum (width, height). A JPEG is decoded at its smallest halving that is at least as large. None:
                at full size.
            is_fast: Use libjpeg-turbo's fast DCT and fast upsampling of colours. It takes a tenth less time, and pixels
                differ by 1 to 2 of 255 on average. Without simplejpeg it has no effect.
        """
        scale = self._scale(wanted)
        image = self._with_turbo(scale, is_fast) if self.is_turbo else None
        if image is None:
            image = self._with_pillow(scale)
        return np.ascontiguousarray(_TURNS[self.orientation](image)) if self.orientation > 1 else image

    @property
    def _stored_size(self) -> tuple[int, int]:
        return (self.height, self.width) if self.orientation in _SIDEWAYS else (self.width, self.height)

    def _scale(self, wanted: tuple[int, int] | None) -> int:
        if wanted is None or not self.is_jpeg or min(self.width, self.height) < _SMALLEST_TO_SCALE:
            return 1
        largest = min(self.width // wanted[0], self.height // wanted[1])
        return max(scale for scale in (1, 2, 4, 8) if scale <= max(largest, 1))

    def _with_turbo(self, scale: int, is_fast: bool) -> Pixels | None:
        """Return the pixels, or None if simplejpeg reports any error, even a stray byte. Pillow is then tried."""
        turbo = _simplejpeg()
        assert turbo is not None
        width, height = self._stored_size
        try:
            return turbo.decode_jpeg(
                self.content,
                min_width=-(-width // scale),
                min_height=-(-height // scale),
                fastdct=is_fast,
                fastupsample=is_fast,
            )
        except ValueError:
            return None

    def _with_pillow(self, scale: int) -> Pixels:
        opened = _open(self.content, self.name)
        try:
            if scale > 1:
                width, height = self._stored_size
                opened.draft("RGB", (width // scale, height // scale))
            return _rgb(opened, self.name)
        except Exception as error:  # decoders of damaged files raise nearly anything
            raise _broken(self.name, error) from error


def open_image(data: Data, *, name: str | None = None) -> EncodedImage:
    """Read the header of an image file. Raises ImageError if the file does not exist, is not an image, or has more than
    MAX_PIXELS; MissingPackageError if Pillow is not installed.

    Args:
        data: The content of a file, or its path.
        name: The name of the image in messages. None: the path, or the number of bytes.
    """
    require_pillow()
    if isinstance(data, bytes | bytearray | memoryview):
        content, name = data, name or f"of {len(data)} bytes"
    else:
        try:
            content, name = Path(data).read_bytes(), name or repr(os.fspath(data))
        except OSError as error:
            raise ImageError(
                f"image {str(Path(data))!r} cannot be read: {error.strerror or error}\n"
                "  check the path and its permissions",
                "missing",
            ) from error
    header = _turbo_header(content)
    opened: Image | None
    if header is None:
        opened = _open(content, name)
        (width, height), is_jpeg = opened.size, opened.format in ("JPEG", "MPO")
    else:
        (width, height), is_jpeg = header, True
        # Looking at the segments is faster than opening the file with Pillow.
        opened = _open(content, name) if _jpeg_may_be_turned(content) else None
    if width * height > MAX_PIXELS:
        raise _too_large(name, f"{width} x {height} pixels")
    orientation = 1 if opened is None else _orientation(opened, content)
    if orientation in _SIDEWAYS:
        width, height = height, width
    return EncodedImage(
        content=content,
        name=name,
        width=width,
        height=height,
        orientation=orientation,
        is_jpeg=is_jpeg,
        is_turbo=header is not None,
    )


@cache
def _simplejpeg() -> ModuleType | None:
    try:
        import simplejpeg
    except ImportError:
        return None
    return simplejpeg


def _turbo_header(content: bytes | bytearray | memoryview) -> tuple[int, int] | None:
    """Return (width, height) of a JPEG that simplejpeg can convert to RGB; None for other files, and for CMYK."""
    turbo = _simplejpeg()
    if turbo is None or bytes(content[:2]) != b"\xff\xd8":
        return None
    try:
        height, width, colors, _ = turbo.decode_jpeg_header(content)
    except ValueError:
        return None
    return None if colors in ("CMYK", "YCCK") else (width, height)


def _open(content: bytes | bytearray | memoryview, name: str) -> Image:
    from PIL import Image, UnidentifiedImageError

    try:
        return open_with_pillow(content)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise _too_large(name, str(error)) from error
    except UnidentifiedImageError as error:  # Pillow's own message is the address of a buffer
        raise _broken(name, "the file is empty" if not len(content) else "unknown image format") from error
    except Exception as error:  # decoders of damaged files raise nearly anything
        raise _broken(name, error) from error


def _orientation(opened: Image, content: bytes | bytearray | memoryview) -> int:
    """Return the EXIF orientation of an image whose pixels are not decoded yet; 1 if it has none, or a damaged one."""
    # Pillow turns TIFF itself. It decodes a PNG to its end to search for EXIF.
    if opened.format == "TIFF" or (opened.format == "PNG" and not _png_may_be_turned(bytes(content))):
        return 1
    try:
        orientation: int = opened.getexif().get(_ORIENTATION_TAG, 1)
    except Exception:  # damaged EXIF raises nearly anything
        return 1
    return orientation if orientation in _TURNS else 1


def _jpeg_may_be_turned(content: bytes | bytearray | memoryview) -> bool:
    """Return False if a JPEG has neither EXIF nor XMP before its pixels."""
    at = 2
    while at + 4 <= len(content) and content[at] == 0xFF:
        if content[at + 1] in (_APP1, _START_OF_SCAN):
            return content[at + 1] == _APP1
        at += 2 + int.from_bytes(content[at + 2 : at + 4], "big")
    return True  # not a plain row of segments


def _png_may_be_turned(content: bytes) -> bool:
    return any(mark in content for mark in _ORIENTATION_MARKS)


def _rgb(opened: Image, name: str) -> Pixels:
    """Convert to RGB like Pillow's `convert("RGB")`, except for 16-bit grey, which Pillow would clip at 255."""
    if opened.mode == "F" or _has_32_bits(opened):  # Pillow would make small values black
        kind = "floats" if opened.mode == "F" else "32-bit integers"
        raise ValueError(f"its pixels are {kind}, whose range is not known; convert it to 8 or 16 bits")
    if opened.mode.startswith("I"):
        values_HW = np.asarray(opened).astype(np.int64)
        if 0 < values_HW.max(initial=0) < _MOST_OF_12_BITS:
            _warn_of_dark_greys(os.path.dirname(name.strip("'")))
        grey_HW = np.clip(values_HW >> 8, 0, 255).astype(np.uint8)
        return np.repeat(grey_HW[:, :, None], 3, axis=2)
    if opened.mode == "P" and "transparency" in opened.info:
        opened = opened.convert("RGBA")  # Pillow warns about a direct conversion to RGB
    return np.asarray(opened if opened.mode == "RGB" else opened.convert("RGB"))


@cache  # reports each folder once
def _warn_of_dark_greys(folder: str) -> None:
    _log.warning(
        "images in %s have 16 bits but values below %d, so at most %d grey levels are left in 8 bits\n"
        "  write values of the full range, or 8 bits, unless these are dark photographs",
        *(folder or ".", _MOST_OF_12_BITS, _MOST_OF_12_BITS >> 8),
    )


def _has_32_bits(opened: Image) -> bool:
    """True for a TIFF with integers of 32 bits. Pillow's mode I alone does not tell: it also has 16-bit grey."""
    return opened.mode == "I" and opened.format == "TIFF" and 32 in cast(Any, opened).tag_v2.get(_BITS_TAG, ())


def _broken(name: str, error: Exception | str) -> ImageError:
    return ImageError(f"image {name} is broken: {error}\n  replace the file or leave its row out", "broken")


def _too_large(name: str, detail: str) -> ImageError:
    return ImageError(
        f"image {name} is too large: {detail}; the limit is {MAX_PIXELS:,} pixels\n  make it smaller", "too large"
    )
