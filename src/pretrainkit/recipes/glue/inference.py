"""What a fine-tuned model answers, as JSON lines."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import nn

from pretrainkit.errors import InputError
from pretrainkit.eval.inference import Inference, InferenceRequest
from pretrainkit.recipes.glue.answers import answers_of
from pretrainkit.recipes.glue.config import GlueRun
from pretrainkit.recipes.glue.heads.by_kind import build_objective
from pretrainkit.recipes.glue.source import KINDS, TextSource, read_place, rows_of, task_of
from pretrainkit.recipes.glue.tasks import TextTask, named_task
from pretrainkit.recipes.text_reader import TextReader
from pretrainkit.tasks.sources import TaskSource
from pretrainkit.training.precision import Precision


class Answers(Inference):
    """Rows of a task or file, and an object about each; see `Labelled.lines`."""

    def __init__(
        self,
        config: GlueRun,
        model: nn.Module,
        reader: TextReader,
        request: InferenceRequest,
        precision: Precision,
    ) -> None:
        """
        Raises:
            DataError: The rows are not there, or lack a column.
            InputError: The task has other classes than the model.
        """
        if request.mode != "predict":
            raise InputError(f"mode {request.mode!r} is for models that write texts\n  leave --mode out")
        self._config, self._model, self._precision, self._request = config, model, precision, request
        task, source, split = _asked(config, request)
        kind = KINDS[task.kind]
        rows = kind.without_labels(read_place(source, split, task, needs_label=False))
        examples = kind.examples([rows], config, task, reader)
        self._source = TextSource(examples, source.fingerprint(split))
        self._settings = {
            "task": task.name,
            "split": split,
            "rows": self._source.fingerprint,
            "tokenizer": reader.fingerprint,
            "max_seq_length": config.data.max_seq_length,
            **({"spans": config.data.spans.model_dump()} if task.kind == "spans" else {}),
            **({"heads": config.data.heads} if task.kind == "tree" else {}),
        }

    def __len__(self) -> int:
        return len(self._source.examples.index)

    @property
    def settings(self) -> Mapping[str, Any]:
        return self._settings

    def lines(self, begin: int, end: int) -> list[dict[str, Any]]:
        rows, objective = np.arange(begin, end), build_objective(self._config)
        batch_size = self._request.batch_size
        said = answers_of(self._model, objective, self._source, rows, batch_size=batch_size, precision=self._precision)
        return self._source.examples.lines(rows, said)


def _asked(config: GlueRun, request: InferenceRequest) -> tuple[TextTask, TaskSource, str]:
    """(columns, rows, split)."""
    own = task_of(config.data)
    if request.rows is not None:
        return own, request.rows, request.split
    assert request.task is not None
    task = own if request.task == own.name else named_task(request.task)
    if task is not own and (task.kind != own.kind or config.model.classes != (task.classes or ())):
        raise InputError(
            f"{request.task} has the classes {', '.join(task.classes or ('numbers',))}, the model "
            f"{', '.join(config.model.classes or ('numbers',))}\n  give a model that was trained on such a task"
        )
    data = config.data.model_copy(update={"train": (), "valid": ()}) if task.data is not None else config.data
    source, split = rows_of(data, task, request.split)[0]
    return task, source, split
