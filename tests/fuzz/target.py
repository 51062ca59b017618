"""Interface of a target of the fuzzer."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mutate import Files


@dataclass(frozen=True)
class Target:
    """A reader, called as a command calls it."""

    name: str
    seeds: Callable[[Path], list[Files]]
    """Makes valid inputs. It may use the given folder."""
    run: Callable[[Path], None]
    """Reads the input in a folder."""
    tokens: tuple[str, ...] = ()
    """Words of the format."""
    repair: Callable[[Files], Files] | None = None
    """Restores checksums of most inputs, because the reader would stop there otherwise."""
    fixed: tuple[str, ...] = ()
    """Names of files that are not changed."""


def files_of(folder: Path) -> Files:
    """Read a folder."""
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}
