"""One archive of what a training needs, to carry to other machines: `corpus pack` and `corpus unpack`.

A tar file without compression (shards bring their own): first `pack.json`, with size and sha256 of every file, then the
files in the order of their names, with no clock, owner or mode of the machine, so equal input gives equal bytes.
Unpacking trusts nothing: only plain files that `pack.json` names are written, below the folder given, each checked.
"""

import json
import tarfile
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import IO, Any

from pretrainkit.errors import DataError
from pretrainkit.files.manifest import HashingFile, atomic_file, file_sha256, made_by, matches_entry

_CONTENTS = "pack.json"
_MAX_CONTENTS_BYTES = 256_000_000
_PIECE_BYTES = 1 << 20


def pack(folders: Sequence[str | Path], archive: str | Path) -> dict[str, Any]:
    """Writes `archive` with all files of `folders` but hidden ones, each folder under its own name.

    Returns what `pack.json` says. Raises DataError where a folder is missing, empty or still being written, two have
    one name, or the archive is there.
    """
    archive = Path(archive)
    if archive.exists():
        raise DataError(f"{archive} is there already\n  name another file, or remove it")
    files: dict[str, Path] = {}
    for folder in map(Path, folders):
        name = folder.resolve().name
        if (folder / ".work").exists():
            raise DataError(f"{folder} is not finished\n  run the command that writes it again, to its end")
        inside = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        inside = [path for path in inside if not any(part[0] == "." for part in path.relative_to(folder).parts)]
        if not inside:
            raise DataError(f"{folder} is no folder with files\n  name folders of shards or tokenizers")
        if any(known.split("/")[0] == name for known in files):
            raise DataError(f"two folders are called {name}\n  rename one: they would lie in one place")
        files |= {f"{name}/{path.relative_to(folder).as_posix()}": path for path in inside}
    listed: list[dict[str, Any]] = [
        {"name": name, "num_bytes": path.stat().st_size, "sha256": file_sha256(path)}
        for name, path in sorted(files.items())
    ]
    contents = {"kind": "pack", "format_version": 1, "made_by": made_by(), "files": listed}
    encoded = json.dumps(contents, indent=1, sort_keys=True, ensure_ascii=False).encode()
    with atomic_file(archive) as out, tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(_member(_CONTENTS, len(encoded)), BytesIO(encoded))
        for entry in listed:
            with open(files[entry["name"]], "rb") as file:
                tar.addfile(_member(entry["name"], entry["num_bytes"]), file)
    return contents


def _member(name: str, num_bytes: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size = num_bytes
    member.mode = 0o644
    return member


def unpack(archive: str | Path, out: str | Path) -> dict[str, Any]:
    """Writes the files of an archive below `out`, each only if its sha256 is the one `pack.json` names. Files that
    are there already with the right content are kept, so an interrupted call goes on. Raises DataError where the
    archive is cut off, not of `pack`, or damaged; a file is not listed, missing, no plain file, or would lie outside
    `out`; another file is in its place."""
    archive, out = Path(archive), Path(out)
    try:
        with tarfile.open(archive, mode="r:") as tar:
            contents = _read_contents(archive, tar)
            wanted = {entry["name"]: entry for entry in contents["files"]}
            for name in wanted:
                _check_name(archive, name)
            for member in tar:
                if member.name == _CONTENTS:
                    continue
                _check_name(archive, member.name)
                entry = wanted.pop(member.name, None)
                if entry is None or not member.isreg() or member.issparse():  # a sparse one can unfold without end
                    what = "is listed nowhere" if entry is None else "is no plain file"
                    raise _refused(archive, f"{member.name!r} {what}")
                if member.size != entry["num_bytes"]:
                    raise _refused(archive, _damaged(member.name))
                file = tar.extractfile(member)
                assert file is not None
                _write(archive, file, _place(archive, out, member.name), entry)
    except (tarfile.TarError, EOFError, OSError) as error:
        raise DataError(f"{archive} cannot be read: {error}\n  fetch it again") from error
    if wanted:
        raise _refused(archive, f"{len(wanted)} files are missing, such as {min(wanted)}")
    return contents


def _read_contents(archive: Path, tar: tarfile.TarFile) -> dict[str, Any]:
    first = tar.next()
    if first is None or first.name != _CONTENTS or not first.isreg() or first.size > _MAX_CONTENTS_BYTES:
        raise _refused(archive, f"it does not begin with {_CONTENTS}")
    file = tar.extractfile(first)
    assert file is not None
    try:
        contents = json.loads(file.read())
        entries = contents["files"]
        well_formed = contents["kind"] == "pack" and all(
            type(entry["name"]) is str and type(entry["num_bytes"]) is int and type(entry["sha256"]) is str
            for entry in entries
        )
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _refused(archive, f"{_CONTENTS} is not readable: {error}") from error
    if not well_formed:
        raise _refused(archive, f"{_CONTENTS} does not list files")
    return contents


def _check_name(archive: Path, name: str) -> None:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in name or "\\" in name:
        raise _refused(archive, f"{name!r} would lie outside of the folder")


def _place(archive: Path, out: Path, name: str) -> Path:
    """Where a file goes; a link on the way there must not lead outside."""
    place = out / name
    if not place.parent.resolve().is_relative_to(out.resolve()) or place.is_symlink():
        raise _refused(archive, f"{name!r} would lie outside of the folder, behind a link that is there")
    return place


def _write(archive: Path, file: IO[bytes], place: Path, entry: dict[str, Any]) -> None:
    if matches_entry(place, entry):
        return
    if place.exists():
        raise DataError(f"{place} is there already, with other content\n  unpack into another folder, or remove it")
    with atomic_file(place) as raw:
        hashing = HashingFile(raw)
        while piece := file.read(_PIECE_BYTES):
            hashing.write(piece)
        if (hashing.num_bytes, hashing.sha256) != (entry["num_bytes"], entry["sha256"]):
            raise _refused(archive, _damaged(entry["name"]))


def _damaged(name: str) -> str:
    return f"{name} has not the bytes that {_CONTENTS} names: damaged on the way"


def _refused(archive: Path, problem: str) -> DataError:
    return DataError(f"{archive} is not unpacked: {problem}\n  fetch it again, or make it by `corpus pack`")
