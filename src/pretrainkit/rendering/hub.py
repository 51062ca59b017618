"""Rendered rows to a data set of the Hugging Face hub, some files at a time.

What the hub has already, by size and hash, is not sent again, so that the same command after a crash goes on.
"""

from __future__ import annotations

import hashlib
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from pretrainkit.errors import DataError, RunError
from pretrainkit.files.manifest import file_sha256, read_manifest
from pretrainkit.rendering.relayout import DATA_FOLDER, is_rendered, row_files
from pretrainkit.workers.processes import Progress, Quiet

FILES_PER_COMMIT = 8
CARD_NAME = "README.md"
_TRIES = 12
_FIRST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS = 2.0, 600.0
_SPLITS = ("train", "valid")

T = TypeVar("T")


@dataclass(frozen=True)
class Stored:
    """A file on the hub."""

    num_bytes: int
    sha256: str | None
    """Known of large files only."""
    git_sha1: str
    """Of its content as git counts it."""


@dataclass(frozen=True)
class Pushed:
    """What an upload did."""

    num_uploaded: int
    num_kept: int


class Hub:
    """A data set of the hub; the token is the one that `hf auth login` or `HF_TOKEN` gave."""

    def __init__(self, name: str, *, private: bool = True) -> None:
        """`name` is `USER/NAME`; a new data set is `private`."""
        from huggingface_hub import HfApi

        self.name, self.private, self._api = name, private, HfApi()

    def files(self) -> dict[str, Stored]:
        """What is there, by path; makes the data set if there is none."""
        from huggingface_hub.hf_api import RepoFile

        _retried(lambda: self._api.create_repo(self.name, repo_type="dataset", private=self.private, exist_ok=True))
        tree = _retried(lambda: list(self._api.list_repo_tree(self.name, repo_type="dataset", recursive=True)))
        return {
            entry.path: Stored(entry.size, entry.lfs.sha256 if entry.lfs else None, entry.blob_id)
            for entry in tree
            if isinstance(entry, RepoFile)
        }

    def read(self, path: str) -> bytes:
        """The content of a file that is there."""
        with tempfile.TemporaryDirectory() as folder:
            found = _retried(lambda: self._api.hf_hub_download(self.name, path, repo_type="dataset", local_dir=folder))
            return Path(found).read_bytes()

    def add(self, files: Mapping[str, Path | bytes], message: str) -> None:
        """Adds or replaces files, all or none."""
        from huggingface_hub import CommitOperationAdd

        def commit() -> None:
            operations = [CommitOperationAdd(path, content) for path, content in files.items()]
            self._api.create_commit(self.name, operations, commit_message=message, repo_type="dataset")

        _retried(commit)


def push(
    folder: str | Path, hub: Hub, *, files_per_commit: int = FILES_PER_COMMIT, progress: Progress | None = None
) -> Pushed:
    """Uploads what `pretrainkit render` wrote to `folder`: rows, the renderer, and last of all the card.

    Args:
        folder: With train and valid, one of these, or a data set in the published layout.
        files_per_commit: Uploaded together.

    Raises:
        DataError: There are no rows.
        RunError: The hub refused.
    """
    files, progress = _contents(Path(folder)), progress or Quiet()
    there = hub.files()
    left = {path: content for path, content in files.items() if not _is_same(content, there.get(path))}
    progress.stage("uploading", len(left), "file")
    paths = list(left)
    for group in (paths[begin : begin + files_per_commit] for begin in range(0, len(paths), files_per_commit)):
        hub.add({path: left[path] for path in group}, f"Add {group[0]}" + (" ..." if len(group) > 1 else ""))
        progress.advance(len(group))
    return Pushed(len(left), len(files) - len(left))


def _contents(folder: Path) -> dict[str, Path | bytes]:
    """Path on the hub to what belongs there; the card last, as it makes the rest a data set."""
    found: dict[str, Path | bytes] = {}
    splits: list[str] = []
    folders = {"train": folder} if is_rendered(folder) else {split: folder / split for split in _SPLITS}
    for split, place in folders.items():
        if not is_rendered(place):
            continue
        splits.append(split)
        files = row_files(place)
        for index, path in enumerate(files):
            found[f"{DATA_FOLDER}/{split}-{index:05d}-of-{len(files):05d}.parquet"] = path
        found |= renderer_files(place / "renderer")
    if not splits:
        data = sorted((folder / DATA_FOLDER).glob("*.parquet"))
        splits = sorted({path.name.split("-")[0] for path in data})
        found = {f"{DATA_FOLDER}/{path.name}": path for path in data}
        infos = folder / "dataset_infos.json"
        found |= {infos.name: infos} if infos.is_file() else {}
    if not splits:
        raise DataError(f"{folder} has no rendered rows\n  make some with pretrainkit render")
    first = next(place for place in (*folders.values(), folder) if place.is_dir())
    manifest = read_manifest(first) if is_rendered(first) else None
    return found | {CARD_NAME: card(splits, manifest).encode()}


def renderer_files(folder: Path) -> dict[str, Path | bytes]:
    """Path on the hub to each file of a renderer's folder."""
    return {f"renderer/{path.relative_to(folder)}": path for path in sorted(folder.rglob("*")) if path.is_file()}


def card(splits: Sequence[str], manifest: Mapping[str, Any] | None) -> str:
    """Says which files are which split, and how the rows were made, where a manifest does."""
    entries = "".join(f"  - split: {split}\n    path: {DATA_FOLDER}/{split}-*\n" for split in splits)
    about = ""
    if manifest is not None:
        rendering = manifest.get("rendering") or {}
        about = (
            f"\nRows of {manifest.get('max_seq_length')} patches of {manifest.get('pixels_per_patch')} pixels, "
            f"drawn by {rendering.get('engine')}, fingerprint {rendering.get('fingerprint')}.\n"
        )
    return f"---\nconfigs:\n- config_name: default\n  data_files:\n{entries}---\n# Rendered text\n{about}"


def _is_same(content: Path | bytes, stored: Stored | None) -> bool:
    if stored is None:
        return False
    num_bytes = len(content) if isinstance(content, bytes) else content.stat().st_size
    if num_bytes != stored.num_bytes:
        return False
    if stored.sha256 is not None:
        own = hashlib.sha256(content).hexdigest() if isinstance(content, bytes) else file_sha256(content)
        return own == stored.sha256
    raw = content if isinstance(content, bytes) else content.read_bytes()
    return hashlib.sha1(b"blob %d\0" % num_bytes + raw, usedforsecurity=False).hexdigest() == stored.git_sha1


def _retried(call: Callable[[], T]) -> T:
    """The call again, after longer and longer waits, while the hub has troubles of its own."""
    from huggingface_hub import get_session
    from huggingface_hub.errors import HfHubHTTPError

    # httpx, or httpx2 from the hub's version 2 on.
    http = import_module(type(get_session()).__module__.partition(".")[0])

    wait = _FIRST_WAIT_SECONDS
    for attempt in range(_TRIES):
        try:
            return call()
        except HfHubHTTPError as error:
            if error.response.status_code < 500 or attempt == _TRIES - 1:
                advice = "run the same command again to go on: what is uploaded stays"
                if error.response.status_code in (401, 403):
                    advice = "log in with a token that may write there: hf auth login"
                raise RunError(f"the hub refused: {error}\n  {advice}") from error
        except http.TransportError as error:
            if attempt == _TRIES - 1:
                raise RunError(f"the hub cannot be reached: {error}\n  run the same command again to go on") from error
        time.sleep(wait)
        wait = min(2 * wait, _LONGEST_WAIT_SECONDS)
    raise AssertionError("every path returns or raises")
