"""Find the font files of a config, and read properties of font files."""

import struct
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from pretrainkit.errors import DataError
from pretrainkit.files.manifest import file_sha256
from pretrainkit.rendering.config import RendererConfig

SUFFIXES = (".ttf", ".otf", ".ttc", ".otc")
"""File name extensions of fonts, and of collections of several faces."""

_COLLECTION = b"ttcf"
"""First bytes of a file with several faces (OpenType 1.9)."""


def installed_font() -> Path | None:
    """Return the file of DejaVu Sans Mono in the package matplotlib, without importing it. None if it is not installed.
    The font is monospaced, so that a patch of the usual size has two letters."""
    spec = find_spec("matplotlib")
    for folder in (spec.submodule_search_locations if spec is not None else None) or ():
        path = Path(folder, "mpl-data", "fonts", "ttf", "DejaVuSansMono.ttf")
        if path.is_file():
            return path
    return None


def font_files(main: str, fallbacks: tuple[str, ...]) -> list[Path]:
    """Return the main font, then the fallback fonts, with folders replaced by the fonts in them, each file once. Raises
    DataError if a path does not exist or a folder has no font."""
    files: list[Path] = []
    for name in (main, *fallbacks):
        path = Path(name).expanduser()
        if path.is_dir() and name != main:
            inside = sorted(child for child in path.iterdir() if child.suffix.lower() in SUFFIXES)
            if not inside:
                raise DataError(
                    f"{path} has no .ttf, .otf or .ttc file\n  name a folder of fonts, or the files themselves"
                )
            files += inside
        elif path.is_file():
            files.append(path)
        else:
            raise DataError(f"font {name!r} is not a file\n  give the path of a .ttf, .otf or .ttc file")
    return list(dict.fromkeys(path.resolve() for path in files))


class Face(NamedTuple):
    """A font face to draw with."""

    path: Path
    number: int
    """Index of the face in its file, which may be a collection."""
    scale: float
    """Factor of the font size."""


def drawn_faces(config: RendererConfig) -> list[Face]:
    """Return the chosen face of the main font and the first face of each fallback font. With `fit_fallbacks`, fallback
    fonts are scaled down to at most the main font's line height. Raises DataError if the main font has no face of this
    index, or a file lacks its line height."""
    files, chosen = font_files(config.font_file, config.fallback_fonts), config.font_index
    if chosen and chosen >= (num := num_faces(files[0])):
        raise DataError(f"font {files[0]} has no face {chosen}\n  it has {num}; give a font_index of {num - 1} or less")
    indices = [chosen, *(0 for _ in files[1:])]
    heights = [*map(_line_height, files, indices)] if config.fit_fallbacks else [1.0] * len(files)
    scales = (min(1.0, heights[0] / height) for height in heights)
    return [Face(*fields) for fields in zip(files, indices, scales, strict=True)]


def num_faces(path: Path) -> int:
    """Return the number of faces of a font file. Only collections have more than one."""
    with open(path, "rb") as file:
        head = file.read(12)
    return int(struct.unpack_from(">I", head, 8)[0]) if head[:4] == _COLLECTION and len(head) == 12 else 1


def _line_height(path: Path, face: int) -> float:
    """Return ascent plus descent in ems, read from the tables head and hhea of a font (OpenType 1.9)."""
    try:
        content = path.read_bytes()
        # A collection begins with the offsets of its faces. A face begins with a directory of tables, whose entries are
        # tag, checksum, offset and length.
        begin = struct.unpack_from(">I", content, 12 + 4 * face)[0] if content[:4] == _COLLECTION else 0
        (num_tables,) = struct.unpack_from(">H", content, begin + 4)
        entries = (struct.unpack_from(">4sIII", content, begin + 12 + 16 * number) for number in range(num_tables))
        offsets = {tag: offset for tag, _, offset, _ in entries}
        (units,) = struct.unpack_from(">H", content, offsets[b"head"] + 18)
        above, below = struct.unpack_from(">hh", content, offsets[b"hhea"] + 4)
        return max((above - below) / units, 1e-3)
    except (OSError, struct.error, KeyError, ZeroDivisionError) as error:
        raise DataError(
            f"font {path} does not specify its line height\n  give another font, or leave out fit_fallbacks"
        ) from error


def font_sha256(path: Path) -> str:
    """Return the SHA-256 of a font file. Raises DataError if it cannot be read."""
    try:
        stat = path.stat()
        return _sha256(str(path), stat.st_size, stat.st_mtime_ns)
    except OSError as error:
        raise DataError(f"font {path} cannot be read: {error.strerror}\n  give a file that you may read") from error


@lru_cache(maxsize=1024)
def _sha256(path: str, num_bytes: int, changed_ns: int) -> str:
    return file_sha256(path)
