"""Image files to pixels: RGB, uint8, (height, width, 3).

The header is read first, so that whoever needs only a part of the image, or a small one, can say so before decoding:
a JPEG is then decoded at a half, a quarter or an eighth of its size, at a fraction of the cost and with clean
antialiasing, for its coefficients are frequencies. libjpeg-turbo offers every eighth, but measured on 500 x 375, its
7/8, 6/8 and 5/8 take longer than the whole and 3/8 longer than 4/8 (benchmarks/images.py), so only halvings are used.

JPEG is decoded by libjpeg-turbo (package simplejpeg) where it is installed, else and for everything else by Pillow;
both give the same pixels. Only the first frame of a moving image counts, transparency is dropped (as Pillow's
`convert("RGB")` and so ZeroVL do), 16-bit greys keep their upper eight bits. Images are not turned as their EXIF data
say: neither ZeroVL nor CLIP does.
"""

from __future__ import annotations

import io
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Literal

import numpy as np

from pretrainkit.errors import DataError
from pretrainkit.images.pillow import Pixels, require_pillow

if TYPE_CHECKING:
    from PIL.Image import Image

Reason = Literal["missing", "broken", "too large"]
Data = bytes | bytearray | memoryview | str | os.PathLike[str]
"""The content of a file, or its path."""

MAX_PIXELS = 89_478_485
"""Larger images are refused: a file of a few kilobytes can claim to be as large as memory. Pillow's own limit."""

_SMALLEST_TO_SCALE = 64
"""Pixels of the shorter side below which a JPEG is always decoded whole."""


class ImageError(DataError):
    """An image that cannot be used."""

    def __init__(self, message: str, reason: Reason = "broken") -> None:
        super().__init__(message)
        self.reason: Reason = reason


@dataclass(frozen=True, kw_only=True)
class EncodedImage:
    """An image file after its header was read, not decoded yet."""

    content: bytes | bytearray | memoryview
    """Content of the whole file."""
    name: str
    """Name of the image in messages."""
    width: int
    """Pixels, as stored."""
    height: int
    """Pixels, as stored."""
    is_jpeg: bool
    """True if the image can be decoded at a reduced size."""
    is_turbo: bool
    """True if simplejpeg decodes the image."""

    def decode(self, wanted: tuple[int, int] | None = None, *, is_fast: bool = False) -> Pixels:
        """Return the pixels. Raises ImageError where the file is damaged or cut off.

        Args:
            wanted: (width, height) that will be enough: a JPEG is decoded at the smallest halving of its size that has
                at least these. None: at its full size.
            is_fast: Let libjpeg-turbo round coarsely and repeat colours where they are stored at half the size: a tenth
                less time, and 1 to 2 of 255 off on average. Nothing changes where simplejpeg is missing.
        """
        scale = self._scale(wanted)
        image = self._with_turbo(scale, is_fast) if self.is_turbo else None
        return self._with_pillow(scale) if image is None else image

    def _scale(self, wanted: tuple[int, int] | None) -> int:
        if wanted is None or not self.is_jpeg or min(self.width, self.height) < _SMALLEST_TO_SCALE:
            return 1
        largest = min(self.width // wanted[0], self.height // wanted[1])
        return max(scale for scale in (1, 2, 4, 8) if scale <= max(largest, 1))

    def _with_turbo(self, scale: int, is_fast: bool) -> Pixels | None:
        """Return the pixels, or None where simplejpeg complains, if only about a stray byte; Pillow then decides."""
        turbo = _simplejpeg()
        assert turbo is not None
        try:
            return turbo.decode_jpeg(
                self.content,
                min_width=-(-self.width // scale),
                min_height=-(-self.height // scale),
                fastdct=is_fast,
                fastupsample=is_fast,
            )
        except ValueError:
            return None

    def _with_pillow(self, scale: int) -> Pixels:
        opened = _open(self.content, self.name)
        try:
            if scale > 1:
                opened.draft("RGB", (self.width // scale, self.height // scale))
            return _rgb(opened)
        except Exception as error:  # decoders of damaged files raise nearly anything
            raise _broken(self.name, error) from error


def open_image(data: Data, *, name: str | None = None) -> EncodedImage:
    """Read the header of an image file. Raises ImageError where there is no such file, it is not an image, or it has
    more than MAX_PIXELS; MissingPackageError where Pillow is not installed.

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
    if header is None:
        opened = _open(content, name)
        (width, height), is_jpeg = opened.size, opened.format in ("JPEG", "MPO")
    else:
        (width, height), is_jpeg = header, True
    if width * height > MAX_PIXELS:
        raise _too_large(name, f"{width} x {height} pixels")
    return EncodedImage(
        content=content, name=name, width=width, height=height, is_jpeg=is_jpeg, is_turbo=header is not None
    )


@cache
def _simplejpeg() -> ModuleType | None:
    try:
        import simplejpeg
    except ImportError:
        return None
    return simplejpeg


def _turbo_header(content: bytes | bytearray | memoryview) -> tuple[int, int] | None:
    """(width, height) of a JPEG that simplejpeg can turn into RGB; CMYK it cannot."""
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
        return Image.open(io.BytesIO(content))
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise _too_large(name, str(error)) from error
    except UnidentifiedImageError as error:  # its own text is the address of a buffer
        raise _broken(name, "the file is empty" if not len(content) else "of no known image format") from error
    except Exception as error:  # decoders of damaged files raise nearly anything
        raise _broken(name, error) from error


def _rgb(opened: Image) -> Pixels:
    """Convert as Pillow's `convert("RGB")` does, except for 16-bit greys, which it would cut off at 255."""
    if opened.mode.startswith("I"):
        grey_HW = np.clip(np.asarray(opened).astype(np.int64) >> 8, 0, 255).astype(np.uint8)
        return np.repeat(grey_HW[:, :, None], 3, axis=2)
    if opened.mode == "P" and "transparency" in opened.info:
        opened = opened.convert("RGBA")  # straight to RGB, Pillow warns
    return np.asarray(opened if opened.mode == "RGB" else opened.convert("RGB"))


def _broken(name: str, error: Exception | str) -> ImageError:
    return ImageError(f"image {name} is broken: {error}\n  replace the file or leave its row out", "broken")


def _too_large(name: str, what: str) -> ImageError:
    return ImageError(
        f"image {name} is too large: {what}; at most {MAX_PIXELS:,} pixels are decoded\n  make it smaller", "too large"
    )
