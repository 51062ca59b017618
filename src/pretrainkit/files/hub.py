"""Upload to the Hugging Face hub and download models from it. Uploads send only files that differ and repeat failed
requests."""

from __future__ import annotations

import hashlib
import logging
import tempfile
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Literal, NamedTuple, Protocol, TypeVar

from pretrainkit.errors import InputError, RunError
from pretrainkit.files.cards import CARD
from pretrainkit.files.manifest import file_sha256

_log = logging.getLogger(__name__)
_TRIES = 12
_FIRST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS = 2.0, 600.0

T = TypeVar("T")

_WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.pth")
_MODEL_FILES = ("*.json", "*.txt", "*.model", "*.yaml", "*.md")


def fetch_model(name: str) -> Path:
    """Download the model `NAME` or `NAME@REVISION` of the hub and return its folder: configs, tokenizer and weights (as
    safetensors if it has them). Without network, the copy of an earlier download is used. Raises InputError if the hub
    does not have the model, or cannot be reached and there is no copy."""
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    repository, _, suffix = name.partition("@")
    revision = suffix or None
    try:
        try:
            about = HfApi().model_info(repository, revision=revision)
        except (HfHubHTTPError, HFValidationError):
            raise
        except Exception as error:  # no network, or offline mode
            return _earlier_download(repository, revision, type(error).__name__)
        names = [file.rfilename for file in about.siblings or ()]
        weights = _WEIGHTS[:1] if any(file.endswith(".safetensors") for file in names) else _WEIGHTS
        _show_licence(repository, getattr(about.card_data, "license", None))
        return Path(snapshot_download(repository, revision=revision, allow_patterns=[*_MODEL_FILES, *weights]))
    except InputError:
        raise
    except Exception as error:  # from the library, its HTTP client, or the file system
        reason = str(error).splitlines()[0][:200] if str(error) else ""
        raise InputError(
            f"{name} cannot be downloaded from the hub: {type(error).__name__}: {reason}\n"
            "  check the name; for a model that is not public, log in with hf auth login; or give a local folder"
        ) from error


def _earlier_download(repository: str, revision: str | None, reason: str) -> Path:
    """Return the folder of a model in the hub's cache, because the hub cannot be reached for this `reason`. Raises
    InputError if the model is not in the cache."""
    from huggingface_hub import ModelCard, snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    patterns = [*_MODEL_FILES, _WEIGHTS[0]]
    try:
        path = snapshot_download(repository, revision=revision, allow_patterns=patterns, local_files_only=True)
    except LocalEntryNotFoundError as error:
        raise InputError(
            f"the hub cannot be reached ({reason}), and there is no copy of an earlier download of {repository}\n"
            "  download it with a network connection and without HF_HUB_OFFLINE, or give a local folder"
        ) from error
    _log.warning("the hub cannot be reached (%s): using a copy of an earlier download", reason)
    card = Path(path, CARD)
    header = ModelCard.load(card, ignore_metadata_errors=True).data if card.is_file() else None
    _show_licence(repository, getattr(header, "license", None))
    return Path(path)


def _show_licence(repository: str, licence: str | list[str] | None) -> None:
    _log.warning("%s: licence %s; read it before you use or redistribute the model", repository, licence or "not given")


class UploadProgress(Protocol):
    """Progress of an upload."""

    def stage(self, name: str, total: int, unit: str) -> None: ...

    def advance(self, num: int) -> None: ...


class StoredFile(NamedTuple):
    """A file on the hub."""

    num_bytes: int
    sha256: str | None
    """SHA-256 of the content of a large file; None for small files."""
    git_sha1: str
    """Hash of the content as git computes it."""


class Hub:
    """A repository of the hub. It uses the token of `hf auth login` or `HF_TOKEN`."""

    def __init__(
        self,
        name: str,
        *,
        kind: Literal["dataset", "model"] = "dataset",
        private: bool = True,
        revision: str | None = None,
    ) -> None:
        """Refer to the repository `name`, such as `USER/NAME`, without contacting the hub.

        Args:
            private: If True, a new repository is private. An existing repository is not changed.
            revision: Branch to write to, which is created if it does not exist. None: the main branch.
        """
        from huggingface_hub import HfApi

        self.name, self.kind, self.private, self.revision, self._api = name, kind, private, revision, HfApi()

    @property
    def url(self) -> str:
        """Address of the repository's page."""
        folder = "datasets/" if self.kind == "dataset" else ""
        return f"{self._api.endpoint}/{folder}{self.name}"

    def files(self) -> dict[str, StoredFile]:
        """Return the files of the repository by path. Creates the repository and the branch if they do not exist."""
        retried(lambda: self._api.create_repo(self.name, repo_type=self.kind, private=self.private, exist_ok=True))
        if self.revision is not None:
            branch = self.revision
            retried(lambda: self._api.create_branch(self.name, branch=branch, repo_type=self.kind, exist_ok=True))
        return self._list()

    def existing_files(self) -> dict[str, StoredFile]:
        """Return the files of the repository by path; none if there is no such repository. Changes nothing."""
        from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

        try:
            return self._list()
        except RunError as error:
            if isinstance(error.__cause__, RepositoryNotFoundError | RevisionNotFoundError):
                return {}
            raise

    def _list(self) -> dict[str, StoredFile]:
        from huggingface_hub.hf_api import RepoFile

        tree = retried(
            lambda: list(
                self._api.list_repo_tree(self.name, repo_type=self.kind, revision=self.revision, recursive=True)
            )
        )
        return {
            entry.path: StoredFile(entry.size, entry.lfs.sha256 if entry.lfs else None, entry.blob_id)
            for entry in tree
            if isinstance(entry, RepoFile)
        }

    def read(self, path: str) -> bytes:
        """Return the content of a file of the repository."""
        with tempfile.TemporaryDirectory() as folder:
            local = retried(lambda: self._api.hf_hub_download(self.name, path, repo_type=self.kind, local_dir=folder))
            return Path(local).read_bytes()

    def add(self, files: Mapping[str, Path | bytes], message: str) -> None:
        """Add or replace files in one commit: all of them or none."""
        from huggingface_hub import CommitOperationAdd

        def commit() -> None:
            operations = [CommitOperationAdd(path, content) for path, content in files.items()]
            self._api.create_commit(
                self.name, operations, commit_message=message, repo_type=self.kind, revision=self.revision
            )

        retried(commit)

    def upload(
        self,
        files: Mapping[str, Path | bytes],
        *,
        files_per_commit: int | None = None,
        dry_run: bool = False,
        progress: UploadProgress | None = None,
    ) -> dict[str, int]:
        """Add the files that are new or differ from the repository, in their order, and return their sizes in bytes.

        Args:
            files_per_commit: Number of files per commit; None: all of them.
            dry_run: If True, change nothing and only return the files that would be sent.
        """
        stored = self.existing_files() if dry_run else self.files()
        left = [(path, content) for path, content in files.items() if not is_same(content, stored.get(path))]
        if not dry_run:
            step = files_per_commit or max(1, len(left))
            if progress is not None:
                progress.stage("uploading", len(left), "file")
            for begin in range(0, len(left), step):
                group = dict(left[begin : begin + step])
                self.add(group, about_commit(group))
                if progress is not None:
                    progress.advance(len(group))
        return {path: _num_bytes(content) for path, content in left}


def about_commit(files: Mapping[str, object]) -> str:
    """Return the message of a commit that adds these files."""
    return f"Add {next(iter(files))}" + (" ..." if len(files) > 1 else "")


def _num_bytes(content: Path | bytes) -> int:
    return len(content) if isinstance(content, bytes) else content.stat().st_size


def is_same(content: Path | bytes, stored: StoredFile | None) -> bool:
    """True if the hub already has this content."""
    if stored is None:
        return False
    num_bytes = _num_bytes(content)
    if num_bytes != stored.num_bytes:
        return False
    if stored.sha256 is not None:
        own = hashlib.sha256(content).hexdigest() if isinstance(content, bytes) else file_sha256(content)
        return own == stored.sha256
    raw = content if isinstance(content, bytes) else content.read_bytes()
    return hashlib.sha1(b"blob %d\0" % num_bytes + raw, usedforsecurity=False).hexdigest() == stored.git_sha1


def retried(call: Callable[[], T]) -> T:
    """Return the result of a call to the hub; repeat it with growing pauses while the hub or the network fails.

    Raises RunError if the hub rejects the call, or cannot be reached after all attempts.
    """
    from huggingface_hub import get_session
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    # The library uses httpx, or httpx2 from its version 2 on.
    http = import_module(type(get_session()).__module__.partition(".")[0])

    wait = _FIRST_WAIT_SECONDS
    for attempt in range(_TRIES):
        try:
            return call()
        except HfHubHTTPError as error:
            if error.response.status_code < 500 or attempt == _TRIES - 1:
                advice = "run the same command again to continue; uploaded files are kept"
                if error.response.status_code in (401, 403):
                    advice = "log in with a token that may write there: hf auth login"
                raise RunError(f"the hub rejected the request: {error}\n  {advice}") from error
        except OfflineModeIsEnabled as error:
            raise RunError(
                "the hub cannot be used, because HF_HUB_OFFLINE is set\n  unset it, and run the same command again"
            ) from error
        except http.TransportError as error:
            if attempt == _TRIES - 1:
                message = f"the hub cannot be reached: {error}\n  run the same command again to continue"
                raise RunError(message) from error
        _log.warning("the hub cannot be reached now; the next attempt is in %.0f seconds", wait)
        time.sleep(wait)
        wait = min(2 * wait, _LONGEST_WAIT_SECONDS)
    raise AssertionError("every path returns or raises")
