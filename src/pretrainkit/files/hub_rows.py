"""Rows of one split of a data set of the Hugging Face hub, in the cache of `datasets`."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pretrainkit.errors import DataError, MissingSplitError, import_optional
from pretrainkit.files.sources import HubSet, explained_read_errors, hub_splits


def hub_rows(hub_set: HubSet, names: Sequence[str]) -> Any:
    """Return the first split of `names` that the set has, as a `datasets.Dataset`. Only the files of this split are
    downloaded. Without a network, those in the cache are used. Raises DataError if there is no such set or split, and
    MissingPackageError if `datasets` is not installed."""
    datasets = import_optional("datasets", "hub", hub_set.address)
    try:
        splits = hub_splits(hub_set.address)
    except DataError:
        for name in names:
            with suppress(Exception):  # `datasets` raises various types if the split is not in the cache
                return _builder(datasets, hub_set, name).as_dataset(split=name)
        raise
    split = next((name for name in names if name in splits), None)
    if split is None:
        raise MissingSplitError(
            f"{hub_set.address} has no split {' or '.join(names)}; it has {', '.join(splits)}\n"
            "  choose one: write split: NAME next to its path"
        )
    with explained_read_errors(hub_set.address):
        builder = _builder(datasets, hub_set, split)
        files = builder.config.data_files
        builder.config.data_files = type(files)({split: files[split]})
        builder.download_and_prepare(verification_mode="no_checks")  # the known sizes are those of all splits
        return builder.as_dataset(split=split)


def _builder(datasets: Any, hub_set: HubSet, split: str) -> Any:
    """Return the reader of a set. Each split has a separate cache, because `datasets` would take a single split in the
    usual cache for the whole set."""
    folder = "@".join(filter(None, [split, hub_set.revision]))
    cache = Path(datasets.config.HF_DATASETS_CACHE, "pretrainkit", folder)
    return datasets.load_dataset_builder(hub_set.name, hub_set.config, revision=hub_set.revision, cache_dir=str(cache))
