"""Uploads to the Hugging Face hub: exports, and data that our commands wrote."""

import re
from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from typing import Any

from pretrainkit.errors import DataError
from pretrainkit.files.cards import CARD, data_card
from pretrainkit.files.hub import Hub, UploadProgress
from pretrainkit.files.manifest import MANIFEST_NAME, read_manifest, verify

FILES_PER_COMMIT = 8


def push_export(folder: Path, hub: Hub, *, dry_run: bool = False) -> dict[str, int]:
    """Upload an export in one commit, except for files that the repository already has. Returns the size in bytes of
    each file that was sent, or with `dry_run`, that would be sent. Raises RunError if the hub refuses."""
    return hub.upload(_files(folder), dry_run=dry_run)


def push_data(
    folder: Path, hub: Hub, *, license: str | None = None, dry_run: bool = False, progress: UploadProgress | None = None
) -> dict[str, int]:
    """Upload finished data: rendered rows, token shards, a corpus or packed pairs, with a data card.

    Each commit contains some of the files, the last one also the card. Files that the repository has are not sent
    again, so the same call resumes after an interruption.

    Args:
        folder: Output of a command: a split, or a folder of splits such as `train` and `valid`. A `README.md` in it is
            sent instead of our card.
        license: Identifier of the licence for our card.

    Returns:
        Size in bytes of each file that was sent, or with `dry_run`, that would be sent.

    Raises:
        DataError: `folder` contains no finished data, or files are missing or truncated.
        RunError: The hub refuses.
    """
    from pretrainkit.rendering.hub import published_rows

    files = published_rows(folder, hub.name, license) or _published_shards(folder, hub.name, license)
    if (folder / CARD).is_file():
        files[CARD] = folder / CARD
    return hub.upload(files, files_per_commit=FILES_PER_COMMIT, dry_run=dry_run, progress=progress)


def _files(folder: Path) -> dict[str, Path | bytes]:
    """Return all files below a folder, except hidden ones, by their path in it."""
    paths = {path.relative_to(folder): path for path in sorted(folder.rglob("*")) if path.is_file()}
    return {
        name.as_posix(): path for name, path in paths.items() if not any(part.startswith(".") for part in name.parts)
    }


def _published_shards(folder: Path, name: str, license: str | None) -> dict[str, Path | bytes]:
    """Return the files of shards and their card, the card last."""
    subfolders = {path.name: path for path in (sorted(folder.iterdir()) if folder.is_dir() else ()) if path.is_dir()}
    candidates = {"": folder} if (folder / MANIFEST_NAME).is_file() else subfolders
    splits = {
        split: path
        for split, path in candidates.items()
        if (path / MANIFEST_NAME).is_file() and "shards" in read_manifest(path)
    }
    if not folder.is_dir():
        raise DataError(f"there is no folder {folder}\n  use the path of finished data")
    if not splits:
        raise DataError(
            f"{folder} contains no finished data of pretrainkit: there is no {MANIFEST_NAME}\n"
            "  use the output folder of corpus shards, tokenizer encode, render or data pack"
        )
    manifests = {split: _checked(path) for split, path in splits.items()}
    files: dict[str, Path | bytes] = {}
    for split, path in splits.items():
        files |= {f"{split}/{inside}".lstrip("/"): file for inside, file in _files(path).items() if inside != CARD}
    first, manifest = next(iter(manifests.items()))
    about, use, has_rows = _described(manifest, Path("data", first))
    header = {"configs": [_configuration(manifests)]} if has_rows else {"viewer": False}
    card = data_card(name, manifests, about=about, use=use, license=license, header=header)
    return files | {CARD: card.encode()}


def _checked(folder: Path) -> dict[str, Any]:
    """Return the manifest of a folder after checking that all its files exist."""
    from pretrainkit.tokenizers.shards import FORMAT, TokenShards

    if read_manifest(folder).get("format") == FORMAT:
        return TokenShards.open(folder).manifest
    return verify(folder, checksums=False)


def _configuration(manifests: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the entry of the card's header with the files of each split. Without it, `datasets` takes the manifests
    for data."""
    files = []
    for folder, manifest in manifests.items():
        ends = dict.fromkeys("".join(Path(shard["name"]).suffixes) for shard in manifest["shards"])
        paths = [f"{folder}/*{end}".lstrip("/") for end in ends]
        # The names of splits in `datasets` are words.
        files.append({"split": re.sub(r"\W+", "_", folder or manifest.get("split", "train")), "path": paths})
    return {"config_name": "default", "data_files": files}


def _described(manifest: Mapping[str, Any], folder: Path) -> tuple[str, str, bool]:
    """Return a description of the data, a command that uses them in `folder`, and True if `datasets` can read them."""
    from pretrainkit.tokenizers.shards import FORMAT

    place = quote(folder.as_posix())
    if manifest.get("format") == FORMAT:
        tokenizer, splitter = manifest["tokenizer"], manifest.get("splitter") or {}
        about = (
            "Token shards of [pretrainkit](https://pypi.org/project/pretrainkit/): encoded text as memory-mapped "
            f"arrays, with the tokenizer that made them in `tokenizer`.\n\n"
            f"- tokenizer: {tokenizer['vocab_size']:,} pieces, fingerprint `{tokenizer['fingerprint']}`\n"
            f"- sentences: {splitter.get('name') or splitter.get('splitter') or 'as given'}\n"
            f"- corpus: fingerprint `{manifest['corpus']}`"
        )
        use = f"pretrainkit tokenizer inspect {place} --verify\npretrainkit train PRESET data.train={place}"
        return about, use, False
    if manifest.get("kind") == "corpus":
        about = "A corpus of [pretrainkit](https://pypi.org/project/pretrainkit/): documents as shuffled JSON lines."
        return about, f"pretrainkit corpus count-words {place} --out words.tsv", True
    about = "Data of [pretrainkit](https://pypi.org/project/pretrainkit/) with checksums of every file."
    return about, f"pretrainkit data check {place}", True
