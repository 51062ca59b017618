"""Readers, which turn the bytes of a file into the content of a modality.

A reader of your own is an object of a subclass of `Reader`, named in the modality as `module:OBJECT`.

Dimensions: P places of a grid, H x W pixels, C channels, L vectors of E numbers.
"""

import contextlib
import gzip
import io
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretrainkit.data.aligned_crops import Part
from pretrainkit.data.aligned_samples import (
    IMAGE_SUFFIXES,
    map_size,
    read_array,
    read_map,
    require_numbers,
    standardised,
)
from pretrainkit.errors import ConfigError, DataError
from pretrainkit.images.decode import open_image
from pretrainkit.recipes.fourm import serialise
from pretrainkit.recipes.fourm.config import FourMDataConfig
from pretrainkit.recipes.fourm.modality import Modality
from pretrainkit.tasks.user_modules import user_object

JSON_SUFFIXES = (".json", ".json.gz")
_SAM_SIZE = 224
"""Pixels of the sides of the images that instances of SAM were found on."""


@dataclass(frozen=True)
class Request:
    """Everything a reader can use besides the file."""

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
    """A sequence of which some words belong together: all of a chunk are hidden, or none."""

    words: Sequence[Sequence[str]]


Content = NDArray[Any] | str | list[str] | Chunks
"""Of pixels: uint8 (C, H, W). Of image: int (P,), row by row. Of vectors: float32 (L, E). Of a sequence: text, or a
list of words where reserved ones such as v0=12 or "wine glass" count as one, or chunks of such, or ids."""


class Reader(ABC):
    """Reads files of one kind."""

    suffixes: tuple[str, ...]
    """Suffixes of its files, in lower case."""

    @abstractmethod
    def read(self, content: bytes, request: Request) -> Content:
        """Return the content: a pure function of its arguments. Raises DataError where the file is broken or does not
        fit the modality."""

    is_of_parts: bool = False
    """True if files were created from stored parts of the sample and cannot be cropped any more."""

    def image_size(self, content: bytes, name: str) -> tuple[int, int] | None:
        """Return (height, width) of the image in the file, or None if the file is not an image."""
        return None


class _Image(Reader):
    """Image files, whose header says how large they are."""

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
    """`.npy` of integers (parts, P) or (P,): the tokens of every stored part, row by row, as image tokenizers give."""

    suffixes = (".npy",)
    is_of_parts = True

    def read(self, content: bytes, request: Request) -> NDArray[np.int32]:
        table = read_array(content, request.name)
        table = table.reshape(1, -1) if table.ndim == 1 else table.reshape(len(table), -1)
        modality = request.modality
        if table.dtype.kind not in "iu" or table.shape[1] != modality.max_tokens or len(table) <= request.part.number:
            raise DataError(
                f"{request.name} holds {table.dtype} {table.shape}, but {modality.name} needs integers "
                f"(at least {request.part.number + 1}, {modality.max_tokens})\n  make its tokens anew"
            )
        tokens: NDArray[np.int32] = table[request.part.number].astype(np.int32)
        assert modality.vocab_size is not None
        if tokens.min() < 0 or tokens.max() >= modality.vocab_size:
            raise DataError(
                f"{request.name} has tokens from {tokens.min()} to {tokens.max()}, but the vocabulary of "
                f"{modality.name} is {modality.vocab_size}\n  set its vocab_size, or make its tokens anew"
            )
        return tokens


class ClassMap(_Image):
    """A map of class numbers, as a grey or palette image: the most frequent class of each patch, without a tokenizer.
    255 is the last class of the vocabulary."""

    suffixes = (".png",)
    _samples = 4

    def read(self, content: bytes, request: Request) -> NDArray[np.int32]:
        classes_HW, modality = read_map(content, request.name), request.modality
        rows, columns = modality.grid
        assert modality.vocab_size is not None
        largest = classes_HW.max()  # of the whole, so that no random part is the first to meet one that does not fit
        if largest >= modality.vocab_size:
            largest = classes_HW[classes_HW != 255].max(initial=0)
        if largest >= modality.vocab_size:
            raise DataError(
                f"{request.name} has class {largest}, but the vocabulary of {modality.name} is "
                f"{modality.vocab_size}\n  set its vocab_size"
            )
        found_HW = request.part.nearest(classes_HW, rows * self._samples, columns * self._samples).astype(np.int64)
        found_HW[found_HW == 255] = modality.vocab_size - 1
        votes_PS = _patches(found_HW, rows, columns)
        # Each patch counts in bins of its own, so that one call counts them all.
        flat = votes_PS + np.arange(len(votes_PS))[:, None] * modality.vocab_size
        counts = np.bincount(flat.ravel(), minlength=len(votes_PS) * modality.vocab_size)
        return counts.reshape(len(votes_PS), -1).argmax(axis=1).astype(np.int32)


class DepthMap(Reader):
    """A depth image of 8 or 16 bits, or `.npy` of floats: the mean depth of each patch, relative to the middle 80 % of
    the part, in as many equal steps of -2.5 to 2.5 deviations as the vocabulary has; without a tokenizer."""

    suffixes = (".png", ".npy")
    _samples = 4
    reach = 2.5

    def image_size(self, content: bytes, name: str) -> tuple[int, int]:
        return map_size(content, name)

    def read(self, content: bytes, request: Request) -> NDArray[np.int32]:
        depth_HW, modality = read_map(content, request.name), request.modality
        rows, columns = modality.grid
        assert modality.vocab_size is not None
        found_HW = request.part.nearest(depth_HW.astype(np.float32), rows * self._samples, columns * self._samples)
        with np.errstate(invalid="ignore"):  # what is infinite is looked at below
            means_P = _patches(standardised(found_HW), rows, columns).mean(axis=1)
        if not np.isfinite(means_P).all():
            raise DataError(
                f"{request.name} has infinite depth in the middle 80 % of its values, so they have no scale\n"
                "  write the largest depth there, or leave its sample out"
            )
        steps = np.floor((means_P + self.reach) / (2 * self.reach) * modality.vocab_size)
        return steps.clip(0, modality.vocab_size - 1).astype(np.int32)


class ColorMap(_Image):
    """A photograph as the mean colour of each patch, in equal steps of red, green and blue (a vocabulary of 512 has 8
    of each); without a tokenizer."""

    def read(self, content: bytes, request: Request) -> NDArray[np.int32]:
        modality = request.modality
        assert modality.vocab_size is not None
        steps = round(modality.vocab_size ** (1 / 3))
        if steps**3 != modality.vocab_size:
            raise DataError(
                f"the vocabulary of {modality.name}, {modality.vocab_size}, is no cube of a number of steps\n  set 512"
            )
        encoded = open_image(content, name=request.name)
        image_HW3 = request.part.read(encoded, *modality.grid, is_exact=not request.is_training)
        image_HW3 = image_HW3.astype(np.int32) * steps // 256
        # A colour is a number of three digits to the base of `steps`.
        return ((image_HW3[..., 0] * steps + image_HW3[..., 1]) * steps + image_HW3[..., 2]).reshape(-1)


class Caption(Reader):
    """`.txt`, or JSON: a text, a list of texts, or of {"caption": text}. One is drawn, or the part's own is taken."""

    suffixes = (".txt", *JSON_SUFFIXES)

    def read(self, content: bytes, request: Request) -> str:
        texts = _texts(content, request.name)
        if len(texts) == 1:
            return texts[0]
        if request.data.aligned_captions and 0 < request.part.number < len(texts):
            return texts[request.part.number]
        return texts[int(request.rng.integers(len(texts)))] if request.is_training else texts[0]


@dataclass(frozen=True)
class JsonReader(Reader):
    """JSON of one structure, as words."""

    what: str
    """Description of the content, for messages."""
    words: Callable[[Any, Request], Content]
    """What was found as a sequence; of another structure it may raise any error of a look-up or a conversion."""
    is_of_parts: bool = False
    suffixes: tuple[str, ...] = JSON_SUFFIXES

    def read(self, content: bytes, request: Request) -> Content:
        found = _json(content, request.name)
        try:
            return self.words(found, request)
        except (KeyError, TypeError, IndexError, ValueError, AttributeError) as error:
            raise _unfit(request, self.what) from error


def _boxes(found: Any, request: Request) -> list[str]:
    data = request.data
    return serialise.boxes(
        found["instances"],
        request.part,
        min_score=data.min_box_score,
        max_boxes=data.max_boxes,
        order=data.box_order,
        min_visibility=data.min_box_visibility,
        rng=request.rng,
    )


def _metadata(found: Any, request: Request) -> Chunks:
    return Chunks(serialise.metadata(found, request.rng))


def _palette(found: Any, request: Request) -> list[str]:
    return serialise.palette(found[0], request.rng)


def _poses(found: Any, request: Request) -> list[str]:
    return serialise.poses(found, request.part, request.rng)


def _sam_instances(found: Any, request: Request) -> list[str]:
    record = found if isinstance(found, dict) else found[request.part.number]
    return serialise.sam_instances(record, _SAM_SIZE, request.rng)


class Vectors(Reader):
    """`.npz` with emb (n, L, E) and mask_valid (n, L): the part's own, or the first; valid ones only."""

    suffixes = (".npz",)

    def read(self, content: bytes, request: Request) -> NDArray[np.float32]:
        try:
            with np.load(io.BytesIO(content), allow_pickle=False) as file:
                all_nLE, is_valid_nL = file["emb"], file["mask_valid"].astype(np.bool_)
            number = request.part.number if request.part.number < len(all_nLE) else 0
            found_LE = all_nLE[number][is_valid_nL[number]].astype(np.float32)
        except (KeyError, ValueError, OSError, IndexError) as error:
            raise _unfit(request, "emb (n, L, E) and mask_valid (n, L)") from error
        if found_LE.ndim != 2 or found_LE.shape[1] != request.modality.vector_width:
            raise DataError(
                f"{request.name} holds vectors of {found_LE.shape[1:]} numbers, but {request.modality.name} has "
                f"{request.modality.vector_width}\n  set its vector_width, or give other files"
            )
        require_numbers(found_LE, request.name)
        return found_LE[: request.modality.max_tokens]


READERS: Mapping[str, Reader] = {
    "rgb": Rgb(),
    "tokens": Tokens(),
    "classes": ClassMap(),
    "depth": DepthMap(),
    "colors": ColorMap(),
    "caption": Caption(),
    "boxes": JsonReader('instances of {"boxes": [4 shares of the image], "class_name": text, "score": number}', _boxes),
    "metadata": JsonReader("figures by name", _metadata),
    "palette": JsonReader('a list with {"1": [[r, g, b]], "2": …}', _palette),
    "poses": JsonReader("bbox_xyxy, pred_smpl_params, pred_cam and pose_tokenized", _poses),
    "sam_instances": JsonReader("records of points, token_ids and bbox, one for each part", _sam_instances, True),
    "vectors": Vectors(),
}
"""Readers by the name in `Modality.reader`."""


def reader_of(modality: Modality) -> Reader:
    """Return what reads a modality's files. Raises ConfigError where there is no such reader, or it is not a
    `Reader`."""
    if modality.reader in READERS:
        return READERS[modality.reader]
    if ":" not in modality.reader:
        raise ConfigError(
            f"modality {modality.name!r} names the reader {modality.reader!r}\n"
            f"  there are {', '.join(READERS)}; one of your own is named as module:OBJECT"
        )
    found = user_object(modality.reader)
    if not isinstance(found, Reader):
        raise ConfigError(
            f"{modality.reader} is of type {type(found).__name__}, not a Reader\n"
            "  make it an object of a subclass of pretrainkit.recipes.fourm.readers.Reader"
        )
    return found


def _patches(values_HW: NDArray, rows: int, columns: int) -> NDArray:
    """Return the values of all patches: (rows x columns, values of one patch)."""
    return (
        values_HW.reshape(rows, -1, columns, values_HW.shape[1] // columns).swapaxes(1, 2).reshape(rows * columns, -1)
    )


def _json(content: bytes, name: str) -> Any:
    try:
        return json.loads(gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content)
    except (ValueError, OSError, EOFError) as error:
        raise DataError(f"{name} is no JSON: {error}\n  replace the file or leave its sample out") from error


def _texts(content: bytes, name: str) -> list[str]:
    """Return at least one text."""
    found: Any = content.decode(errors="replace")
    if name.endswith(JSON_SUFFIXES):
        found = _json(content, name)
    elif content[:1] in (b"[", b'"', b"{") or content[:2] == b"\x1f\x8b":
        with contextlib.suppress(DataError):  # a text that begins with a bracket
            found = _json(content, name)
    found = found if isinstance(found, list) else [found]
    texts = [one["caption"] if isinstance(one, dict) and "caption" in one else one for one in found]
    if not texts or not all(isinstance(text, str) for text in texts):
        raise DataError(f'{name} holds no texts\n  write a text, a list of texts, or of {{"caption": text}}')
    return [text.strip() for text in texts]


def _unfit(request: Request, what: str) -> DataError:
    return DataError(f"{request.name} does not hold {what}\n  replace the file or leave its sample out")
