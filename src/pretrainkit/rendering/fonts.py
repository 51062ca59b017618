"""Files of fonts: which ones a config means, and what they are."""

import struct
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from pretrainkit.errors import DataError
from pretrainkit.files.manifest import file_sha256
from pretrainkit.rendering.config import RendererConfig

SUFFIXES = (".ttf", ".otf", ".ttc", ".otc")
"""Endings of fonts, and of collections of several faces."""

_COLLECTION = b"ttcf"
"""First bytes of a file with several faces (OpenType 1.9)."""


def font_files(main: str, fallbacks: tuple[str, ...]) -> list[Path]:
    """The main font, then the fallbacks with folders replaced by their fonts, each file once. Raises DataError where a
    path does not exist, or a folder holds no font."""
    found: list[Path] = []
    for name in (main, *fallbacks):
        path = Path(name).expanduser()
        if path.is_dir() and name != main:
            inside = sorted(child for child in path.iterdir() if child.suffix.lower() in SUFFIXES)
            if not inside:
                raise DataError(
                    f"{path} holds no .ttf, .otf or .ttc file\n  name a folder of fonts, or the files themselves"
                )
            found += inside
        elif path.is_file():
            found.append(path)
        else:
            raise DataError(f"font {name!r} is not a file\n  give the path of a .ttf, .otf or .ttc file")
    return list(dict.fromkeys(path.resolve() for path in found))


class Face(NamedTuple):
    """A face that is drawn."""

    path: Path
    number: int
    """In its file, which may be a collection of several."""
    scale: float
    """Factor of its size."""


def drawn_faces(config: RendererConfig) -> list[Face]:
    """Return the chosen face of the main font and the first of each fallback; with `fit_fallbacks` these are made
    smaller until their lines are no higher than the main font's. Raises DataError where the main font has fewer faces,
    or a file does not say how high its lines are."""
    files, chosen = font_files(config.font_file, config.fallback_fonts), config.font_index
    if chosen and chosen >= (num := num_faces(files[0])):
        raise DataError(f"font {files[0]} has no face {chosen}\n  it has {num}; give a font_index of {num - 1} or less")
    indices = [chosen, *(0 for _ in files[1:])]
    heights = [*map(_line_height, files, indices)] if config.fit_fallbacks else [1.0] * len(files)
    scales = (min(1.0, heights[0] / height) for height in heights)
    return [Face(*one) for one in zip(files, indices, scales, strict=True)]


def num_faces(path: Path) -> int:
    """Faces of a file: several in a collection."""
    with open(path, "rb") as file:
        head = file.read(12)
    return int(struct.unpack_from(">I", head, 8)[0]) if head[:4] == _COLLECTION and len(head) == 12 else 1


def _line_height(path: Path, face: int) -> float:
    """Ascent and descent together, in ems, as the tables head and hhea of a font say (OpenType 1.9)."""
    try:
        content = path.read_bytes()
        # A collection begins with the places of its faces; a face with a directory: tag, checksum, offset, length.
        begin = struct.unpack_from(">I", content, 12 + 4 * face)[0] if content[:4] == _COLLECTION else 0
        (num_tables,) = struct.unpack_from(">H", content, begin + 4)
        entries = (struct.unpack_from(">4sIII", content, begin + 12 + 16 * number) for number in range(num_tables))
        offsets = {tag: offset for tag, _, offset, _ in entries}
        (units,) = struct.unpack_from(">H", content, offsets[b"head"] + 18)
        above, below = struct.unpack_from(">hh", content, offsets[b"hhea"] + 4)
        return max((above - below) / units, 1e-3)
    except (OSError, struct.error, KeyError, ZeroDivisionError) as error:
        raise DataError(
            f"font {path} does not say how high its lines are\n  give another one, or leave out fit_fallbacks"
        ) from error


def font_sha256(path: Path) -> str:
    """Hash of a font's bytes. Raises DataError where it cannot be read."""
    try:
        stat = path.stat()
        return _sha256(str(path), stat.st_size, stat.st_mtime_ns)
    except OSError as error:
        raise DataError(f"font {path} cannot be read: {error.strerror}\n  give a file that you may read") from error


@lru_cache(maxsize=1024)
def _sha256(path: str, num_bytes: int, changed_ns: int) -> str:
    return file_sha256(path)
