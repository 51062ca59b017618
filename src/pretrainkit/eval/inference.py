"""What a recipe offers so that a trained model can be asked about many examples. Torch-free."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypedDict

if TYPE_CHECKING:
    from pretrainkit.tasks.sources import TaskSource

Mode = Literal["predict", "score", "predict-with-scores"]
"""predict: what the model says. score: how likely the targets are to it. predict-with-scores: what it says, and how
likely that is."""


class RequestOptions(TypedDict, total=False):
    """The fields of `InferenceRequest` that users of `pretrainkit.infer` give."""

    mode: Mode
    inputs: str | None
    targets: str | None
    lengths: Mapping[str, int] | None
    fields: tuple[str, ...] | None
    has_ids: bool
    batch_size: int
    decoding: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class InferenceRequest:
    """What to ask about what. Either `task` or `rows` is given."""

    mode: Mode = "predict"
    task: str | None = None
    """Name of a task."""
    split: str = "test"
    """Of the task."""
    rows: TaskSource | None = None
    """Examples of no task; their one split is `split`."""
    inputs: str | None = None
    """Of rows: a pattern such as "summarize: {text}", or a column; None: the column that is called inputs or text."""
    targets: str | None = None
    """Of rows, to be scored: likewise; None: the column that is called targets."""
    lengths: Mapping[str, int] | None = None
    """Tokens of features, to which examples are cut; None: nothing is."""
    fields: tuple[str, ...] | None = None
    """What of each example is written; None: the texts of its features; empty: everything."""
    has_ids: bool = False
    """Whether the ids of predictions are written too."""
    batch_size: int = 32
    """Examples per forward pass."""
    decoding: Mapping[str, Any] = field(default_factory=dict)
    """The recipe's settings for making answers."""


class Inference(ABC):
    """Examples, and what a model says about them."""

    @abstractmethod
    def __len__(self) -> int:
        """Examples."""

    @property
    @abstractmethod
    def settings(self) -> Mapping[str, Any]:
        """JSON values that change whenever a line could: of examples, vocabulary and settings, not of the weights."""

    @abstractmethod
    def lines(self, begin: int, end: int) -> list[dict[str, Any]]:
        """JSON objects for the examples `begin` … `end` - 1, in order; the same ones for the same range."""
