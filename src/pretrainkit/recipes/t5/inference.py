"""Inference: answers to prompts, and answers or scores for the examples of a task or the rows of a file."""

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from string import Formatter
from typing import Any

import numpy as np

from pretrainkit.errors import InputError
from pretrainkit.eval.inference import Inference, InferenceRequest
from pretrainkit.files.manifest import fingerprint
from pretrainkit.recipes.t5.config import HELD_OUT, T5Run
from pretrainkit.recipes.t5.decoding_config import decoding_of
from pretrainkit.recipes.t5.model import T5
from pretrainkit.recipes.t5.predictor import Answer, Predictor
from pretrainkit.recipes.t5.task_source import declared_features, run_tasks, task_names
from pretrainkit.recipes.t5.texts import SENTINEL, decode, encode, fill, vocabulary_of
from pretrainkit.tasks.identity import identity
from pretrainkit.tasks.preprocessors import NotNull, format_strings
from pretrainkit.tasks.sources import TaskSource
from pretrainkit.tasks.steps import BoundTask, Example
from pretrainkit.tasks.task import Feature, Task
from pretrainkit.tasks.vocabulary import Vocabulary

_logger = logging.getLogger(__name__)
_INPUT_NAMES, _TARGET_NAMES = ("inputs", "text", "prompt"), ("targets",)


@dataclass(frozen=True)
class T5Inference(Inference):
    request: InferenceRequest
    examples: Sequence[Example]
    """Examples with `inputs`, `targets` or both as ids."""
    vocabulary: Vocabulary
    predictor: Predictor
    data: str
    """Fingerprint of the examples."""

    def __len__(self) -> int:
        return len(self.examples)

    @property
    def settings(self) -> Mapping[str, Any]:
        request = self.request
        return {
            "mode": request.mode,
            "data": self.data,
            "vocabulary": self.vocabulary.fingerprint,
            "lengths": None if request.lengths is None else dict(request.lengths),
            "fields": None if request.fields is None else list(request.fields),
            "has_ids": request.has_ids,
            "batch_size": request.batch_size,
            "decoding": self.predictor.decoding.model_dump(mode="json"),
            "max_length": self.predictor.max_length,
        }

    def lines(self, begin: int, end: int) -> list[dict[str, Any]]:
        examples = [self.examples[index] for index in range(begin, end)]
        answers = self._answers(examples)
        return [{"inputs": self._shown(example), **answer} for example, answer in zip(examples, answers, strict=True)]

    def _answers(self, examples: Sequence[Example]) -> list[dict[str, Any]]:
        if self.request.mode == "score":
            if any("targets" not in example for example in examples):
                raise InputError(
                    "there are no targets to score\n  pass their column or a pattern as --targets COLUMN, "
                    "or use a task that has targets"
                )
            return [{"score": _rounded(score)} for score in self.predictor.score(examples)]
        if self.request.mode == "predict":
            return [self._prediction(ids) for ids in self.predictor.predict(examples)]
        answers, values = self.predictor.predict_with_values(examples)
        scores = zip(answers, values["scores"], values["token_scores"], strict=True)
        return [
            {**self._prediction(ids), "aux": {"scores": _rounded(score), "token_scores": list(map(_rounded, tokens))}}
            for ids, score, tokens in scores
        ]

    def _prediction(self, ids: np.ndarray) -> dict[str, Any]:
        more = {"prediction_tokens": ids.tolist()} if self.request.has_ids else {}
        return {"prediction": decode(ids, self.vocabulary), **more}

    def _shown(self, example: Example) -> dict[str, Any]:
        fields = self.request.fields
        if fields is None:
            texts = {name: value for name, value in example.items() if name.endswith("_pretokenized")}
            if texts or "inputs" not in example:
                return _plain(texts)
            return {"inputs_pretokenized": decode(example["inputs"], self.vocabulary)}
        if missing := [name for name in fields if name not in example]:
            raise InputError(
                f"an example has no field {', '.join(missing)}\n  its fields are {', '.join(example)}\n"
                "  use --all-fields instead of --fields to write all of them"
            )
        return _plain({name: example[name] for name in fields or example})


def open_inference(
    config: T5Run,
    model: T5,
    tokenizer: Path | None,
    request: InferenceRequest,
    autocast: Callable[[], AbstractContextManager[None]],
) -> T5Inference:
    """See `capabilities.Infers.open_inference`."""
    decoding = decoding_of(**request.decoding)
    if request.task is not None:
        bound, vocabulary, data = _task_examples(config, tokenizer, request)
        is_prefix: bool | None = True
    else:
        assert request.rows is not None
        vocabulary = vocabulary_of(config, tokenizer)
        is_continued, has_end = prompting(config, has_tokenizer=tokenizer is not None)
        bound = _row_examples(request, request.rows, vocabulary, has_end=has_end)
        data, is_prefix = request.rows.fingerprint(request.split), not is_continued
        data = fingerprint([data, request.inputs, request.targets, has_end])
    options: dict[str, Any] = {"batch_size": request.batch_size, "end_id": vocabulary.eos_id, "is_prefix": is_prefix}
    predictor = Predictor(config, model, decoding, **options, autocast=autocast)
    return T5Inference(request, bound, vocabulary, predictor, data)


def tasks_of_mixture(config: T5Run, tokenizer: Path | None, name: str, split: str) -> tuple[str, ...] | None:
    """See `capabilities.Infers.tasks_of_mixture`. Raises InputError if none of its tasks has the split."""
    config = _config_with_task(config, tokenizer, name, split)
    if task_names(config) == [name]:
        return None
    tasks = run_tasks(config)[0]
    names = tuple(task.name for task in tasks if split in task.splits)
    if not names:
        splits = dict.fromkeys(name for task in tasks for name in task.splits)
        raise InputError(f"no task of {name} has the split {split!r}\n  use one of: {', '.join(splits)}")
    for task in tasks:
        if split not in task.splits:
            _logger.warning("%s: task %s has no split %s and is left out", name, task.name, split)
    return names


def _config_with_task(config: T5Run, tokenizer: Path | None, name: str, split: str) -> T5Run:
    """Return the config of a run on that task. A part of the training split serves as held-out data only if `split`
    is the usual held-out split."""
    own: dict[str, Any] = {} if tokenizer is None else {"tokenizer": str(tokenizer)}
    own |= {} if split == HELD_OUT else {"held_out_share": None}
    return config.changed(data={"task": name, "train": (), "valid": (), **own})


def _task_examples(
    config: T5Run, tokenizer: Path | None, request: InferenceRequest
) -> tuple[BoundTask, Vocabulary, str]:
    config = _config_with_task(config, tokenizer, str(request.task), request.split)
    tasks, vocabulary, _ = run_tasks(config)
    if len(tasks) > 1:
        raise InputError(
            f"{request.task} is a mixture\n  pass one of its tasks: {', '.join(task.name for task in tasks)}"
        )
    (task,) = tasks
    if config.model.vocab_size is not None and vocabulary.size > config.model.vocab_size:
        raise InputError(
            f"task {task.name!r} has a vocabulary of {vocabulary.size} ids, the model has {config.model.vocab_size}\n"
            "  use the tokenizer of the model for the task"
        )
    bound = task.bind(request.split, request.lengths, caches=config.data.caches)
    steps = [identity(step) for step in task.preprocessors]
    return bound, vocabulary, fingerprint([task.name, task.fingerprint(request.split), steps])


def _row_examples(request: InferenceRequest, rows: TaskSource, vocabulary: Vocabulary, *, has_end: bool) -> BoundTask:
    """Return the rows as the examples of an unregistered task."""
    if not rows.num_examples(request.split):
        raise InputError("the file has no rows\n  pass a file with rows")
    names = list(rows.example(request.split, 0))
    inputs = _pattern(request.inputs, _INPUT_NAMES, names, "inputs")
    patterns = {"inputs": inputs} if inputs is not None else {}
    needs_targets = request.mode == "score" or request.targets is not None
    if needs_targets and (targets := _pattern(request.targets, _TARGET_NAMES, names, "targets")) is not None:
        patterns["targets"] = targets
    feature = Feature(vocabulary, required=False)
    columns = {name: pattern for name, pattern in patterns.items() if pattern in names}
    formats = {name: pattern for name, pattern in patterns.items() if name not in columns}
    steps = [
        partial(_texts, columns=columns, formats=formats),
        partial(_encoded, vocabulary=vocabulary, has_end=has_end),
    ]
    task = Task("rows", rows, {"inputs": feature, "targets": feature}, steps)
    return task.bind(request.split, request.lengths)


def _pattern(pattern: str | None, usual: Sequence[str], columns: Sequence[str], option: str) -> str | None:
    """Return a pattern or a column; None without a pattern if no column has a usual name."""
    if pattern is None:
        column = next((name for name in usual if name in columns), None)
        if column is None and option == "inputs":
            raise InputError(
                f"cannot choose the input column among {', '.join(columns)}\n"
                "  pass a column or a pattern, such as --inputs 'summarize: {article}'"
            )
        return column
    named = [pattern] if pattern in columns or "{" not in pattern else _fields(pattern, option)
    if missing := [name for name in named if name not in columns]:
        raise InputError(
            f"the rows have no column {missing[0]!r}\n  use one of {', '.join(columns)}; a pattern has columns in "
            "braces: 'summarize: {article}'"
        )
    return pattern


def _fields(pattern: str, option: str) -> list[str]:
    try:
        return [re.split(r"[.\[]", name)[0] for _, name, _, _ in Formatter().parse(pattern) if name is not None]
    except ValueError as error:
        raise InputError(
            f"--{option} {pattern!r} is not a valid pattern: {error}\n  write columns in braces, 'summarize: "
            "{{article}}', and double a literal brace"
        ) from None


def _texts(example: Example, columns: Mapping[str, str], formats: Mapping[str, str]) -> Example:
    """Fill the features from columns, or from patterns of columns."""
    values = NotNull(example)
    texts = {name: str(values[column]) for name, column in columns.items()}
    others = {name: value for name, value in example.items() if name not in ("inputs", "targets")}
    filled = {name: format_strings(**{name: pattern})(example)[name] for name, pattern in formats.items()}
    return others | texts | filled


def _encoded(example: Example, vocabulary: Vocabulary, has_end: bool) -> Example:
    """Encode texts with sentinels. Targets always get an end mark, inputs only if the model expects it."""
    encoded = dict(example)
    for name in ("inputs", "targets"):
        if name in example:
            end = [vocabulary.eos_id] if name == "targets" or has_end else []
            encoded[f"{name}_pretokenized"] = example[name]
            encoded[name] = np.array([*encode(example[name], vocabulary), *end], np.int32)
    return encoded


def _rounded(value: float) -> float:
    """Return the value without the digits that depend on the order of sums."""
    return round(float(value), 5)


def _plain(value: Any) -> Any:
    """Return the value with JSON's types."""
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    if isinstance(value, Mapping):
        return {str(name): _plain(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)


def generate(
    config: T5Run,
    model: T5,
    tokenizer: Path | None,
    prompts: Sequence[str],
    *,
    num: int = 1,
    batch_size: int = 64,
    **decoding: Any,
) -> list[dict[str, Any]]:
    """Return `num` answers to each prompt; a forward pass reads `batch_size` prompts.

    Raises InputError if settings cannot be combined, or a prompt has an unknown sentinel.

    Args:
        tokenizer: See `texts.vocabulary_of`.
        prompts: Inputs in the form that a task makes; or texts with `<extra_id_0>`, `<extra_id_1>`, … at the spans to
            fill in; or beginnings, for a language model.
        decoding: See `decoding_of`.

    Returns:
        Per prompt: "prompt"; "answers", the best first, each with "text", "score" (log-probability; with beam search
        divided by the brevity penalty) and, if the prompt has sentinels, "filled"; "text": the answers, the filled
        prompts or the continued prompts for display, one per line.
    """
    vocabulary = vocabulary_of(config, tokenizer)
    is_continued, has_end = prompting(config, has_tokenizer=tokenizer is not None)
    options: dict[str, Any] = {"batch_size": batch_size, "end_id": vocabulary.eos_id, "is_prefix": not is_continued}
    predictor = Predictor(config, model, decoding_of(**decoding), **options)
    end = [vocabulary.eos_id] * has_end
    inputs = [[*encode(prompt, vocabulary), *end] for prompt in prompts]

    def describe(prompt: str, ids: list[int], answer: Answer) -> dict[str, Any]:
        described = {"text": decode(answer.ids, vocabulary), "score": answer.score}
        if SENTINEL.search(prompt):
            described["filled"] = fill(ids, answer.ids, vocabulary)
        elif is_continued:
            described["filled"] = decode([*ids, *answer.ids.tolist()], vocabulary)
        return described

    results = []
    all_answers = predictor.answers([{"inputs": ids} for ids in inputs], num)
    for prompt, ids, answers in zip(prompts, inputs, all_answers, strict=True):
        shown = [describe(prompt, ids, answer) for answer in answers]
        text = "\n".join(row.get("filled", row["text"]) for row in shown)
        results.append({"prompt": prompt, "answers": shown, "text": text})
    return results


def score(config: T5Run, model: T5, tokenizer: Path | None, pairs: Sequence[tuple[str, str]]) -> list[float]:
    """Return the log-probability of each answer with its end mark for (prompt, answer) `pairs`. See `generate`."""
    vocabulary = vocabulary_of(config, tokenizer)
    is_continued, has_end = prompting(config, has_tokenizer=tokenizer is not None)
    predictor = Predictor(config, model, end_id=vocabulary.eos_id, is_prefix=not is_continued)
    end = [vocabulary.eos_id]
    examples = [
        {"inputs": [*encode(prompt, vocabulary), *end * has_end], "targets": encode(answer, vocabulary) + end}
        for prompt, answer in pairs
    ]
    return predictor.score(examples).tolist()


def prompting(config: T5Run, *, has_tokenizer: bool) -> tuple[bool, bool]:
    """Return (True if answers continue prompts, True if prompts get an end mark).

    `has_tokenizer`: True if the model can be used without the module that defines its tasks."""
    is_decoder = config.model.kind == "decoder_only"
    if config.data.task is None:
        first = config.data.denoising.all[0]
        is_continued = is_decoder and first.inputs is None
        return is_continued, first.end_of_segment and not is_continued
    if has_tokenizer and not is_decoder:
        return False, True
    inputs = declared_features(config).get("inputs")
    return is_decoder and inputs is None, inputs is not None and inputs.add_eos
