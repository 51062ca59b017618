"""Replaces the network: a hub of data sets that checks that the library would take each request.

Tests that import it are skipped where `datasets` is not installed.
"""

import inspect
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

datasets = pytest.importorskip("datasets")
huggingface_hub = pytest.importorskip("huggingface_hub")
NUM_FILES = 3
"""Number of files of a streamed set."""
Sets = Mapping[tuple[str, str | None], Sequence[Mapping[str, Any]]]


class HubStandIn:
    """Replaces `datasets.load_dataset`: rows by (path, name), without labels in test sets; and a record of the
    requests."""

    def __init__(self, sets: Sets) -> None:
        self.sets = sets
        self.revisions: list[str | None] = []
        """Revisions of streamed sets."""
        self.asked: list[tuple[str, str | None, str]] = []
        self._signature = inspect.signature(datasets.load_dataset)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        given = self._signature.bind(*args, **kwargs).arguments
        path, name, split = given["path"], given.get("name"), given["split"]
        self.asked.append((path, name, split))
        if (path, name) not in self.sets:
            raise datasets.exceptions.DatasetNotFoundError(f"Dataset '{path}' doesn't exist on the Hub")
        unlabelled = {"label": -1} if split.startswith("test") else {}
        found = datasets.Dataset.from_list([{**row, **unlabelled} for row in self.sets[path, name]])
        if not given.get("streaming"):
            return found
        self.revisions.append(given.get("revision"))
        return found.to_iterable_dataset(num_shards=min(NUM_FILES, len(found)))

    def dataset_info(self, name: str, *, revision: str | None = None) -> Any:
        """Replace `HfApi.dataset_info`: return the commit of a revision."""
        if not any(name == path for path, _ in self.sets):
            raise OSError(f"404 Client Error. Repository Not Found for url: .../api/datasets/{name}")
        return SimpleNamespace(sha=f"commit-of-{revision or 'main'}")


def stand_in(patch: pytest.MonkeyPatch, sets: Sets) -> HubStandIn:
    """Replace the hub by one with these sets alone, while the patch lasts."""
    hub = HubStandIn(sets)
    patch.setattr(datasets, "load_dataset", hub)
    patch.setattr(huggingface_hub.HfApi, "dataset_info", lambda api, *args, **named: hub.dataset_info(*args, **named))
    return hub
