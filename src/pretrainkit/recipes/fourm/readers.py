"""Readers: they convert the bytes of a file to the content of a modality.

Your own reader is an object of a subclass of `Reader`. Name it in the modality as `module:OBJECT`.

Dimensions: P patches of a grid, H x W pixels, C channels, L vectors of E numbers.
"""

import codecs
import contextlib
import gzip
import io
import json
import re
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretrainkit.data.aligned_crops import Part
from pretrainkit.data.aligned_samples import (
    BAD_ARRAYS,
    map_size,
    read_array,
    read_map,
    require_numbers,
    standardised,
)
from pretrainkit.errors import ConfigError, DataError
from pretrainkit.files.sources import utf8_text
from pretrainkit.images.decode import IMAGE_SUFFIXES, open_image
from pretrainkit.recipes.fourm import serialise
from pretrainkit.recipes.fourm.config import FourMDataConfig
from pretrainkit.recipes.fourm.modality import Modality
from pretrainkit.tasks.user_modules import user_object

JSON_SUFFIXES = (".json", ".json.gz")
_SAM_SIZE = 224
"""Side in pixels of the images on which SAM found its instances."""


@dataclass(frozen=True)
class Request:
    """Everything that a reader can use besides the file."""

    modality: Modality
    part: Part
    """Part of the sample that is used."""
    rng: np.random.Generator
    """Generator for this sample, modality and epoch; always the same in evaluation."""
    is_training: bool
    data: FourMDataConfig
    name: str
    """Name of the file, for messages."""


@dataclass(frozen=True)
class Chunks:
    """Sequence of chunks of words. Masking hides all words of a chunk, or none."""

    words: Sequence[Sequence[str]]


Content = NDArray[Any] | str | list[str] | Chunks
"""Content of a modality. pixels: uint8 (C, H, W). image: int (P,), row by row. vectors: float32 (L, E). sequence: a
text; a list of words, where a reserved token such as v0=12 or "wine glass" is one word; chunks of such words; or
ids."""


class Reader(ABC):
    """Reads files of one kind."""

    suffixes: tuple[str, ...]
    """Suffixes of its files, in lower case."""

    @abstractmethod
    def read(self, content: bytes, request: Request) -> Content:
        """Return the content of a file; must be a pure function of the arguments. Raises DataError if the file is
        broken or does not fit the modality."""

    is_of_parts: bool = False
    """True if files were created from stored parts of the sample and cannot be cropped any more."""

    def image_size(self, content: bytes, name: str) -> tuple[int, int] | None:
        """Return (height, width) of the image in the file, or None if the file is not an image."""
        return None


class _Image(Reader):
    """Image files, which have their size in the header."""

    suffixes: tuple[str, ...] = IMAGE_SUFFIXES

    def image_size(self, content: bytes, name: str) -> tuple[int, int]:
        encoded = open_image(content, name=name)
        return encoded.height, encoded.width


class Rgb(_Image):
    """Photographs, as pixels of the modality's size."""

    def read(self, content: bytes, request: Request) -> NDArray[np.uint8]:
        size = request.modality.image_size
        assert size is not None
        image_HWC = request.part.read(
            open_image(content, name=request.name), size, size, is_exact=not request.is_training
        )
        if request.modality.num_channels == 1:
            image_HWC = image_HWC[:, :, :1]
        return np.ascontiguousarray(image_HWC.transpose(2, 0, 1))


class Tokens(Reader):
    """Tokens from `.npy` files of integers (parts, P) or (P,): those of every stored part, row by row, as image
    tokenizers write them."""

    suffixes = (".npy",)
    is_of_parts = True

    def read(self, content: bytes, request: Request) -> NDArray[np.int32]:
        table = read_array(content, request.name)
        table = table.reshape(1, -1) if table.ndim == 1 else table.reshape(len(table), -1)
        modality = request.modality
        if table.dtype.kind not in "iu" or table.shape[1] != modality.max_tokens or len(table) <= request.part.number:
            raise DataError(
                f"{request.name} contains {table.dtype} {table.shape}, but {modality.name} needs integers "
                f"(at least {request.part.number + 1}, {modality.max_tokens})\n  create its tokens again"
            )
        tokens: NDArray[np.int32] = table[request.part.number].astype(np.int32)
        assert modality.vocab_size is not None
        if tokens.min() < 0 or tokens.max() >= modality.vocab_size:
            raise DataError(
                f"{request.name} has tokens from {tokens.min()} to {tokens.max()}, but the vocabulary of "
                f"{modality.name} has {modality.vocab_size}\n  set its vocab_size, or create its tokens again"
            )
        return tokens


class ClassMap(_Image):
    """Class maps, as grey or palette images of class numbers. The token of a patch is its most frequent class; no image
    tokenizer is needed. Class 255 becomes the last class of the vocabulary."""

    suffixes = (".png",)
    _samples = 4

    def read(self, content: bytes, request: Request) -> NDArray[np.int32]:
        classes_HW, modality = read_map(content, request.name), request.modality
        rows, columns = modality.grid
        assert modality.vocab_size is not None
        largest = classes_HW.max()  # of the complete map, so that the check does not depend on the random part
        if largest >= modality.vocab_size:
            largest = classes_HW[classes_HW != 255].max(initial=0)
        if largest >= modality.vocab_size:
            raise DataError(
                f"{request.name} has class {largest}, but the vocabulary of {modality.name} has "
                f"{modality.vocab_size}\n  set its vocab_size"
            )
        part_HW = request.part.nearest(classes_HW, rows * self._samples, columns * self._samples).astype(np.int64)
        part_HW[part_HW == 255] = modality.vocab_size - 1
        votes_PS = _patches(part_HW, rows, columns)
        # Each patch has separate bins, so that one call counts all of them.
        flat = votes_PS + np.arange(len(votes_PS))[:, None] * modality.vocab_size
        counts = np.bincount(flat.ravel(), minlength=len(votes_PS) * modality.vocab_size)
        return counts.reshape(len(votes_PS), -1).argmax(axis=1).astype(np.int32)


class DepthMap(Reader):
    """Depth maps, as images of 8 or 16 bits or as `.npy` of floats; no image tokenizer is needed. The token of a patch
    is its mean depth, standardized by the middle 80 % of the part's values. The tokens are equal steps between -2.5 and
    2.5 standard deviations."""

    suffixes = (".png", ".npy")
    _samples = 4
    reach = 2.5

    def image_size(self, content: bytes, name: str) -> tuple[int, int]:
        return map_size(content, name)

    def read(self, content: bytes, request: Request) -> NDArray[np.int32]:
        depth_HW, modality = read_map(content, request.name), request.modality
        rows, columns = modality.grid
        assert modality.vocab_size is not None
        part_HW = request.part.nearest(depth_HW.astype(np.float32), rows * self._samples, columns * self._samples)
        with np.errstate(invalid="ignore"):  # infinite values are checked below
            means_P = _patches(standardised(part_HW), rows, columns).mean(axis=1)
        if not np.isfinite(means_P).all():
            raise DataError(
                f"{request.name} has infinite depth in the middle 80 % of its values, so it cannot be standardized\n"
                "  write the largest depth there, or leave out its sample"
            )
        steps = np.floor((means_P + self.reach) / (2 * self.reach) * modality.vocab_size)
        return steps.clip(0, modality.vocab_size - 1).astype(np.int32)


class ColorMap(_Image):
    """Mean colour of each patch of a photograph, in equal steps of red, green and blue; a vocabulary of 512 has 8 steps
    of each. No image tokenizer is needed."""

    def read(self, content: bytes, request: Request) -> NDArray[np.int32]:
        modality = request.modality
        assert modality.vocab_size is not None
        steps = round(modality.vocab_size ** (1 / 3))
        if steps**3 != modality.vocab_size:
            raise DataError(
                f"vocab_size {modality.vocab_size} of {modality.name} is not a cube of a number of steps\n  use 512"
            )
        encoded = open_image(content, name=request.name)
        image_HW3 = request.part.read(encoded, *modality.grid, is_exact=not request.is_training)
        image_HW3 = image_HW3.astype(np.int32) * steps // 256
        # A colour is a number of three digits in base `steps`.
        return ((image_HW3[..., 0] * steps + image_HW3[..., 1]) * steps + image_HW3[..., 2]).reshape(-1)


class Caption(Reader):
    """Captions from `.txt` or JSON: a text, a list of texts, or a list of {"caption": text}. Of several captions,
    the stored part with number k > 0 has caption k (`aligned_captions`). Otherwise training draws a caption, and
    evaluation uses the first one."""

    suffixes = (".txt", *JSON_SUFFIXES)

    def read(self, content: bytes, request: Request) -> str:
        texts = texts_of(content, request.name)
        if len(texts) == 1:
            return texts[0]
        if request.data.aligned_captions and 0 < request.part.number < len(texts):
            return texts[request.part.number]
        return texts[int(request.rng.integers(len(texts)))] if request.is_training else texts[0]


@dataclass(frozen=True)
class JsonReader(Reader):
    """JSON files of one structure, converted to words."""

    description: str
    """Description of valid content, for messages."""
    words: Callable[[Any, Request], Content]
    """Function that converts the JSON to a sequence. For another structure, it may raise any error of a look-up or a
    conversion."""
    is_of_parts: bool = False
    suffixes: tuple[str, ...] = JSON_SUFFIXES

    def read(self, content: bytes, request: Request) -> Content:
        value = _json(content, request.name)
        try:
            return self.words(value, request)
        except (KeyError, TypeError, IndexError, ValueError, AttributeError) as error:
            raise _unfit(request, self.description) from error


def _boxes(value: Any, request: Request) -> list[str]:
    data = request.data
    return serialise.boxes(
        value["instances"],
        request.part,
        min_score=data.min_box_score,
        max_boxes=data.max_boxes,
        order=data.box_order,
        min_visibility=data.min_box_visibility,
        rng=request.rng,
    )


def _metadata(value: Any, request: Request) -> Chunks:
    return Chunks(serialise.metadata(value, request.rng))


def _palette(value: Any, request: Request) -> list[str]:
    return serialise.palette(value[0], request.rng)


def _poses(value: Any, request: Request) -> list[str]:
    return serialise.poses(value, request.part, request.rng)


def _sam_instances(value: Any, request: Request) -> list[str]:
    record = value if isinstance(value, dict) else value[request.part.number]
    return serialise.sam_instances(record, _SAM_SIZE, request.rng)


_MOST_VECTOR_BYTES = 1 << 28


class Vectors(Reader):
    """Vectors from `.npz` files with emb (n, L, E) and mask_valid (n, L). The valid vectors of the stored part are
    taken, or those of the first part."""

    suffixes = (".npz",)

    def read(self, content: bytes, request: Request) -> NDArray[np.float32]:
        try:
            with np.load(io.BytesIO(content), allow_pickle=False) as file:
                num_bytes = sum(member.file_size for member in file.zip.infolist())
                if num_bytes > _MOST_VECTOR_BYTES:  # a small file can expand to any size
                    raise DataError(
                        f"{request.name} would expand to {num_bytes / 2**20:,.0f} MiB, but vectors of one image take "
                        f"at most {_MOST_VECTOR_BYTES >> 20} MiB\n  store fewer parts or vectors in it"
                    )
                all_nLE, is_valid_nL = file["emb"], file["mask_valid"].astype(np.bool_)
            number = request.part.number if request.part.number < len(all_nLE) else 0
            vectors_LE = all_nLE[number][is_valid_nL[number]].astype(np.float32)
        except BAD_ARRAYS as error:
            raise _unfit(request, "emb (n, L, E) and mask_valid (n, L)") from error
        if vectors_LE.ndim != 2 or vectors_LE.shape[1] != request.modality.vector_width:
            raise DataError(
                f"{request.name} contains vectors of {vectors_LE.shape[1:]} numbers, but {request.modality.name} has "
                f"{request.modality.vector_width}\n  set its vector_width, or use other files"
            )
        return vectors_LE


READERS: Mapping[str, Reader] = {
    "rgb": Rgb(),
    "tokens": Tokens(),
    "classes": ClassMap(),
    "depth": DepthMap(),
    "colors": ColorMap(),
    "caption": Caption(),
    "boxes": JsonReader('instances of {"boxes": [4 shares of the image], "class_name": text, "score": number}', _boxes),
    "metadata": JsonReader("numbers by name", _metadata),
    "palette": JsonReader('a list with {"1": [[r, g, b]], "2": …}', _palette),
    "poses": JsonReader("bbox_xyxy, pred_smpl_params, pred_cam and pose_tokenized", _poses),
    "sam_instances": JsonReader("records of points, token_ids and bbox, one for each part", _sam_instances, True),
    "vectors": Vectors(),
}
"""Readers by the name in `Modality.reader`."""


def reader_of(modality: Modality) -> Reader:
    """Return the reader of a modality's files. Raises ConfigError if there is no such reader, or if it is not a
    `Reader`."""
    if modality.reader in READERS:
        return READERS[modality.reader]
    if ":" not in modality.reader:
        raise ConfigError(
            f"there is no reader {modality.reader!r}, which modality {modality.name!r} names\n"
            f"  readers are {', '.join(READERS)}; name your own reader as module:OBJECT"
        )
    reader = user_object(modality.reader)
    if not isinstance(reader, Reader):
        raise ConfigError(
            f"{modality.reader} is an object of type {type(reader).__name__}, not a Reader\n"
            "  make it an object of a subclass of pretrainkit.recipes.fourm.readers.Reader"
        )
    return reader


def read_file(reader: Reader, content: bytes, request: Request) -> Content:
    """Return the content of a file, without vectors beyond the length of the modality. Raises DataError if the file is
    broken, or if a reader of the user fails or returns something that does not fit the modality."""
    modality = request.modality
    try:
        value = reader.read(content, request)
    except DataError:
        raise
    except Exception as error:
        if modality.reader in READERS:
            raise
        raise DataError(
            f"{modality.reader} cannot read {request.name}: {type(error).__name__}: {error}\n"
            "  replace the file, leave out its sample, or correct the reader (--debug shows where it failed)"
        ) from error
    if modality.kind == "sequence":
        if modality.reader not in READERS:
            _require_words(value, request)
        return value
    size = modality.image_size
    form, dtypes, shape = {
        "pixels": ("uint8", "u", (modality.num_channels, size, size)),
        "image": ("integers", "iu", (modality.max_tokens,)),
        "vectors": ("numbers", "iuf", (None, modality.vector_width)),
    }[modality.kind]
    array = np.asarray(value)
    fits = array.ndim == len(shape) and all(
        wanted in (None, own) for own, wanted in zip(array.shape, shape, strict=True)
    )
    if not fits or array.dtype.kind not in dtypes or (modality.kind == "pixels" and array.dtype != np.uint8):
        wanted = ", ".join("any" if side is None else str(side) for side in shape)
        raise DataError(
            f"the reader of {modality.name} returned {array.dtype} {array.shape} for {request.name}, but the modality "
            f"needs {form} ({wanted}{',' * (len(shape) == 1)})\n"
            f"  correct {modality.reader} or the fields of the modality, or leave out the sample"
        )
    if modality.kind == "vectors":
        array = array[: modality.max_tokens].astype(np.float32)
        require_numbers(array, request.name, is_finite=True)
    return array


_NUMBER = re.compile(r"v[0-3]=(0|[1-9]\d{0,2})")
"""Words of the vocabulary for numbers."""


def _require_words(value: Content, request: Request) -> None:
    """Raise DataError if the content is not a sequence, or if one of its numbers is not a word of the vocabulary."""
    if isinstance(value, str | np.ndarray):  # ids are compared with the vocabulary when they are encoded
        return
    words = chain.from_iterable(value.words) if isinstance(value, Chunks) else value
    for word in words if isinstance(value, list | Chunks) else [value]:
        if not isinstance(word, str):
            raise DataError(
                f"the reader of {request.modality.name} returned {word!r} for {request.name}\n"
                "  return a text, a list of words, chunks of words, or an array of ids"
            )
        if re.match(r"v\d=", word) and not _NUMBER.fullmatch(word):
            raise DataError(
                f"the reader of {request.modality.name} returned the number {word} for {request.name}\n"
                "  numbers are v0=0 to v3=999, without decimals: scale and shift the values to this range"
            )


def _patches(values_HW: NDArray, rows: int, columns: int) -> NDArray:
    """Return the values of all patches: (rows x columns, values of one patch)."""
    return (
        values_HW.reshape(rows, -1, columns, values_HW.shape[1] // columns).swapaxes(1, 2).reshape(rows * columns, -1)
    )


_LARGEST_JSON = 1 << 28


def _json(content: bytes, name: str) -> Any:
    try:
        if content[:2] == b"\x1f\x8b":
            with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
                content = file.read(_LARGEST_JSON + 1)
            if len(content) > _LARGEST_JSON:
                raise ValueError(f"it has more than {_LARGEST_JSON >> 20} MB")
        return json.loads(content)
    except (ValueError, OSError, EOFError, RecursionError, zlib.error) as error:
        raise DataError(f"{name} is not valid JSON: {error}\n  replace the file or leave out its sample") from error


def _json_or_text(content: bytes, name: str) -> Any:
    if content[:1] in (b"[", b'"', b"{") or content[:2] == b"\x1f\x8b":
        with contextlib.suppress(DataError):  # a text may begin with a bracket
            return _json(content, name)
    try:
        return utf8_text(content)
    except ValueError as error:
        raise DataError(f"{name} is not UTF-8: {error}\n  convert it, or leave out its sample") from error


def texts_of(content: bytes, name: str) -> list[str]:
    """Return all texts of a caption file, at least one."""
    content = content.removeprefix(codecs.BOM_UTF8)
    value = _json(content, name) if name.endswith(JSON_SUFFIXES) else _json_or_text(content, name)
    value = value if isinstance(value, list) else [value]
    texts = [item["caption"] if isinstance(item, dict) and "caption" in item else item for item in value]
    if not texts or not all(isinstance(text, str) for text in texts):
        raise DataError(f'{name} contains no texts\n  write a text, a list of texts, or a list of {{"caption": text}}')
    return [text.strip() for text in texts]


def boxes_of(content: bytes, name: str) -> list[str]:
    """Return the class of each box in a file. Raises DataError if it does not contain boxes."""
    try:
        return [str(box["class_name"]) for box in _json(content, name)["instances"] if len(box["boxes"]) == 4]
    except (KeyError, TypeError) as error:
        raise DataError(f"{name} does not contain boxes\n  replace the file or leave out its sample") from error


def _unfit(request: Request, expected: str) -> DataError:
    return DataError(f"{request.name} does not contain {expected}\n  replace the file or leave out its sample")
