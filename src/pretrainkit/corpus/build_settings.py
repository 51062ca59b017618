"""Settings of corpus commands: shards to write, and data sets to stream from the hub.

This module imports nothing slow, because the command line imports it.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pretrainkit.corpus.quality import Quality
from pretrainkit.corpus.shard_writer import Compression
from pretrainkit.errors import DataError

if TYPE_CHECKING:
    from pretrainkit.corpus.duplicates import DuplicateRule


@dataclass(frozen=True, kw_only=True)
class BuildSettings:
    """Settings of the shards to write."""

    num_shards: int = 8
    """Number of shards of the training data. Held-out data gets its share of this number, at least one shard."""
    heldout: float = 0.0
    """Share of documents for OUT/valid, at least 0 and below 1, chosen by a hash of their text. If it would hold out
    none of several documents, a share is used that holds out at least one."""
    seed: int | None = 0
    """Seed of the order; None keeps the order of the input."""
    compress: Compression = "none"
    """Compression of the shards."""
    rule: Literal["even", "sabertooth"] = "even"
    """even: shards differ by at most one document. sabertooth: each shard has the mean number of documents, rounded up,
    so there can be fewer shards."""
    split_folders: bool = True
    """Write to `train/` and `valid/` in the output folder, not to the output folder itself."""
    text_key: str = "text"
    """Key (JSONL) or column (parquet) that holds the text."""
    max_bad: int = 0
    """Number of bad records, such as broken lines, that may be skipped (and counted)."""
    quality: Quality | None = None
    """Quality rules that documents must meet; None keeps all documents."""
    duplicates: "DuplicateRule | None" = None
    """Rule that drops duplicates: all but the first of similar documents or, with held-out data, documents that are
    similar to a held-out one. None keeps all documents."""

    def __post_init__(self) -> None:
        if self.num_shards < 1 or self.num_shards > 99_999:
            raise DataError(f"--num-shards is {self.num_shards}\n  give a number from 1 to 99999")
        if not 0 <= self.heldout < 1:
            raise DataError(f"--heldout is {self.heldout}\n  give a share of the documents, at least 0 and below 1")
        if self.heldout and not self.split_folders:
            raise DataError("held-out data needs the folders train/ and valid/\n  set heldout=0 or split_folders=True")

    @property
    def splits(self) -> dict[str, Path]:
        """Folder of each split, relative to the output folder."""
        if not self.split_folders:
            return {"train": Path()}
        return {"train": Path("train")} | ({"valid": Path("valid")} if self.heldout else {})

    def content(self) -> dict[str, Any]:
        """Return the settings that decide the bytes of the shards: all except `max_bad` and unset rules."""
        unset = {key for key in ("quality", "duplicates") if getattr(self, key) is None}
        return {key: value for key, value in asdict(self).items() if key not in unset | {"max_bad"}}


@dataclass(frozen=True, kw_only=True)
class HubRequest:
    """A data set to stream from the hub."""

    name: str
    """Name of the data set on the hub, such as "allenai/c4", or a local folder."""
    config: str | None = None
    """Name of a configuration, such as en or 20231101.bg; None for the default one."""
    split: str = "train"
    """Split of the data set."""
    column: str = "text"
    """Column that holds the text."""
    meta_columns: tuple[str, ...] = ()
    """Column to keep in meta, such as url; may be repeated."""
    revision: str | None = None
    """Branch, tag or commit; None for the current state of the default branch."""
    max_documents: int | None = None
    """Maximum number of documents. If it is set, one process streams the first ones."""

    def __post_init__(self) -> None:
        if self.max_documents is not None and self.max_documents < 1:
            raise DataError(f"--max-documents is {self.max_documents}\n  give at least 1, or leave it out for all")

    @property
    def dataset(self) -> str:
        """Value of `meta.dataset` of the documents."""
        name = Path(self.name).name if Path(self.name).exists() else self.name
        return f"{name}/{self.config}" if self.config else name

    def as_dict(self) -> dict[str, Any]:
        """Return the set fields in JSON form, for plans and manifests."""
        return {key: value for key, value in json.loads(json.dumps(asdict(self))).items() if value not in (None, [])}
