"""Files of fonts: which ones a config means, and what they are."""

import struct
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from pretrainkit.errors import DataError
from pretrainkit.files.manifest import file_sha256

SUFFIXES = (".ttf", ".otf", ".ttc", ".otc")
"""Of fonts, and of collections of several faces."""

_COLLECTION = b"ttcf"
"""First bytes of a file with several faces (OpenType 1.9)."""


def font_files(main: str, fallbacks: tuple[str, ...]) -> list[Path]:
    """The main font, then the fallbacks with folders replaced by their fonts, each file once.

    Raises:
        DataError: A path does not exist, or a folder holds no font.
    """
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


def faces_of(files: Sequence[Path], font_index: int) -> list[int]:
    """Which face of each file is drawn: of the main font the chosen one, of fallbacks the first.

    Raises:
        DataError: The main font has fewer faces.
    """
    if font_index and font_index >= (num := num_faces(files[0])):
        raise DataError(
            f"font {files[0]} has no face {font_index}\n  it has {num}; give a font_index of {num - 1} or less"
        )
    return [font_index, *(0 for _ in files[1:])]


def num_faces(path: Path) -> int:
    """Faces of a file: several in a collection."""
    with open(path, "rb") as file:
        head = file.read(12)
    return int(struct.unpack_from(">I", head, 8)[0]) if head[:4] == _COLLECTION and len(head) == 12 else 1


def fallback_scales(files: Sequence[Path], font_index: int = 0) -> list[float]:
    """Of the main font 1, of each other at most 1: what makes its lines no higher than the main font's.

    Raises:
        DataError: A file does not say how high its lines are.
    """
    height, *others = map(_line_height, files, faces_of(files, font_index))
    return [1.0, *(min(1.0, height / other) for other in others)]


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
    """Hash of a font's bytes.

    Raises:
        DataError: It cannot be read.
    """
    try:
        stat = path.stat()
        return _sha256(str(path), stat.st_size, stat.st_mtime_ns)
    except OSError as error:
        raise DataError(f"font {path} cannot be read: {error.strerror}\n  give a file that you may read") from error


@lru_cache(maxsize=1024)
def _sha256(path: str, num_bytes: int, changed_ns: int) -> str:
    return file_sha256(path)
