"""What a fine-tuned model answers, as JSON lines. Dimensions: N examples, C classes."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import nn

from pretrainkit.data.task_sources import TaskSource
from pretrainkit.errors import DataError, InputError
from pretrainkit.recipes.glue.answers import outputs_of
from pretrainkit.recipes.glue.config import GlueRun
from pretrainkit.recipes.glue.examples import encoded, read_rows
from pretrainkit.recipes.glue.objective import GlueObjective
from pretrainkit.recipes.glue.source import TextSource, rows_of, task_of
from pretrainkit.recipes.glue.tasks import TextTask, named_task
from pretrainkit.training.inference import Inference, InferenceRequest
from pretrainkit.training.precision import Precision
from pretrainkit.training.text_reader import TextReader


class Answers(Inference):
    """`{"index", "label", "probabilities"}` for classes, `{"index", "value"}` for numbers."""

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
        self._classes = config.model.classes or ()
        rows = read_rows(source, split, task, needs_label=False)
        if not rows.index:
            raise DataError(f"there are no rows in {split}\n  give other ones")
        rows = type(rows)(rows.texts, [None] * len(rows.index), rows.index)  # what is asked for is not looked at
        examples = encoded(rows, self._classes, reader, config.data.max_seq_length)
        self._source = TextSource([examples], reader, source.fingerprint(split))
        self._settings = {
            "task": task.name,
            "split": split,
            "rows": self._source.fingerprint,
            "tokenizer": reader.fingerprint,
            "max_seq_length": config.data.max_seq_length,
        }

    def __len__(self) -> int:
        return sum(self._source.sizes)

    @property
    def settings(self) -> Mapping[str, Any]:
        return self._settings

    def lines(self, begin: int, end: int) -> list[dict[str, Any]]:
        outputs_NC = outputs_of(
            self._model,
            GlueObjective(self._config),
            self._source,
            np.arange(begin, end),
            batch_size=self._request.batch_size,
            precision=self._precision,
        ).astype(np.float64)
        index_N = self._source.parts[0].index[begin:end].tolist()
        if not self._classes:
            return [{"index": i, "value": value} for i, value in zip(index_N, outputs_NC[:, 0].tolist(), strict=True)]
        share_NC = np.exp(outputs_NC - outputs_NC.max(1, keepdims=True))
        share_NC /= share_NC.sum(1, keepdims=True)
        return [
            {
                "index": index,
                "label": self._classes[int(share_C.argmax())],
                "probabilities": dict(zip(self._classes, share_C.tolist(), strict=True)),
            }
            for index, share_C in zip(index_N, share_NC, strict=True)
        ]


def _asked(config: GlueRun, request: InferenceRequest) -> tuple[TextTask, TaskSource, str]:
    """(columns, rows, split)."""
    own = task_of(config.data)
    if request.rows is not None:
        return own, request.rows, request.split
    assert request.task is not None
    task = own if request.task == own.name else named_task(request.task)
    if task.classes is not None and config.model.classes != task.classes:
        raise InputError(
            f"{request.task} has the classes {', '.join(task.classes)}, the model "
            f"{', '.join(config.model.classes or ('numbers',))}\n  give a model that was trained on such a task"
        )
    data = config.data.model_copy(update={"train": (), "valid": ()}) if task.data is not None else config.data
    source, split = rows_of(data, task, request.split)[0]
    return task, source, split
