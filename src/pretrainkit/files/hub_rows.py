"""Rows of one split of a data set of the Hugging Face hub, in the cache of `datasets`."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pretrainkit.errors import DataError, import_optional
from pretrainkit.files.sources import HubSet, explained_read_errors, hub_splits


def hub_rows(hub_set: HubSet, names: Sequence[str]) -> Any:
    """Return the first split of `names` that the set has, as a `datasets.Dataset`. Only the files of this split are
    downloaded; without network, they are found in the cache. Raises DataError if there is no such set or split,
    MissingPackageError if `datasets` is not installed."""
    datasets = import_optional("datasets", "hub", hub_set.address)
    try:
        splits = hub_splits(hub_set.address)
    except DataError:
        for wanted in names:
            with suppress(Exception):  # it has types of its own for what is not in its cache
                return _builder(datasets, hub_set, wanted).as_dataset(split=wanted)
        raise
    name = next((name for name in names if name in splits), None)
    if name is None:
        raise DataError(
            f"{hub_set.address} has no split {' or '.join(names)}; it has {', '.join(splits)}\n"
            "  name one with split: NAME beside its path"
        )
    with explained_read_errors(hub_set.address):
        builder = _builder(datasets, hub_set, name)
        files = builder.config.data_files
        builder.config.data_files = type(files)({name: files[name]})
        builder.download_and_prepare(verification_mode="no_checks")  # the sizes it knows are those of all splits
        return builder.as_dataset(split=name)


def _builder(datasets: Any, hub_set: HubSet, split: str) -> Any:
    """The reader of a set, with a cache of its own for each split: in the usual one a split alone would be taken for
    the whole set."""
    folder = "@".join(filter(None, [split, hub_set.revision]))
    cache = Path(datasets.config.HF_DATASETS_CACHE, "pretrainkit", folder)
    return datasets.load_dataset_builder(hub_set.name, hub_set.config, revision=hub_set.revision, cache_dir=str(cache))
