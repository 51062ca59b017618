"""Pack everything that a training needs into one archive for other machines: `corpus pack` and `corpus unpack`.

The archive is a tar file without compression (shards are already compressed). It begins with `pack.json`, which has the
size and sha256 of every file. The files follow in the order of their names. Times, owners and modes are not stored, so
equal input gives equal bytes. Unpacking does not trust the archive: it writes only plain files that `pack.json` names,
checks each one, and writes only below the output folder.
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
    """Write `archive` with all files of `folders` except hidden ones, each folder under its own name.

    Returns the content of `pack.json`. Raises DataError if a folder is missing, empty or unfinished, two folders have
    the same name, or the archive already exists.
    """
    archive = Path(archive)
    if archive.exists():
        raise DataError(f"{archive} already exists\n  name another file, or remove it")
    files: dict[str, Path] = {}
    for folder in map(Path, folders):
        name = folder.resolve().name
        if (folder / ".work").exists():
            raise DataError(f"{folder} is not finished\n  repeat the command that writes it, and let it finish")
        inside = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        inside = [path for path in inside if not any(part[0] == "." for part in path.relative_to(folder).parts)]
        if not inside:
            raise DataError(f"{folder} is not a folder with files\n  name folders of shards or tokenizers")
        if any(known.split("/")[0] == name for known in files):
            raise DataError(f"two folders are named {name}, but each needs its own name in the archive\n  rename one")
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
    """Write the files of an archive below `out`, each only if its sha256 is the one in `pack.json`.

    Existing files with the right content are kept, so an interrupted call can be resumed. Raises DataError if the
    archive is truncated, damaged or not from `pack`, if a file in it is unlisted, missing, not a plain file or would be
    outside of `out`, or if another file already exists in its place.
    """
    archive, out = Path(archive), Path(out)
    try:
        with tarfile.open(archive, mode="r:") as tar:
            contents = _read_contents(archive, tar)
            remaining = {entry["name"]: entry for entry in contents["files"]}
            for name in remaining:
                _check_name(archive, name)
            for member in tar:
                if member.name == _CONTENTS:
                    continue
                _check_name(archive, member.name)
                entry = remaining.pop(member.name, None)
                # A small sparse file can expand to any size.
                if entry is None or not member.isreg() or member.issparse():
                    problem = f"is not listed in {_CONTENTS}" if entry is None else "is not a plain file"
                    raise _refused(archive, f"{member.name!r} {problem}")
                if member.size != entry["num_bytes"]:
                    raise _refused(archive, _damaged(member.name))
                file = tar.extractfile(member)
                assert file is not None
                _write(archive, file, _place(archive, out, member.name), entry)
    except (tarfile.TarError, EOFError, OSError, ValueError, MemoryError) as error:  # also of headers
        raise DataError(f"{archive} cannot be read: {error or 'damaged'}\n  download or copy it again") from error
    if remaining:
        raise _refused(archive, f"{len(remaining)} files are missing, such as {min(remaining)}")
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
        raise _refused(archive, f"{name!r} would be written outside of the folder")


def _place(archive: Path, out: Path, name: str) -> Path:
    """Return the path to write a file to. A symbolic link in the path must not lead outside of `out`."""
    place = out / name
    if not place.parent.resolve().is_relative_to(out.resolve()) or place.is_symlink():
        raise _refused(archive, f"{name!r} would be written outside of the folder, through an existing symbolic link")
    return place


def _write(archive: Path, file: IO[bytes], place: Path, entry: dict[str, Any]) -> None:
    if matches_entry(place, entry):
        return
    if place.exists():
        raise DataError(f"{place} already exists with other content\n  unpack into another folder, or remove it")
    with atomic_file(place) as raw:
        hashing = HashingFile(raw)
        while piece := file.read(_PIECE_BYTES):
            hashing.write(piece)
        if (hashing.num_bytes, hashing.sha256) != (entry["num_bytes"], entry["sha256"]):
            raise _refused(archive, _damaged(entry["name"]))


def _damaged(name: str) -> str:
    return f"{name} is damaged: its content does not match {_CONTENTS}"


def _refused(archive: Path, problem: str) -> DataError:
    return DataError(
        f"{archive} cannot be unpacked: {problem}\n  copy it again, or create it with `pretrainkit corpus pack`"
    )
