"""Answers to prompts; and many examples of a task, or rows of a file, and what a model says about them."""

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
from pretrainkit.recipes.t5.config import T5Run
from pretrainkit.recipes.t5.decoding_config import decoding_of
from pretrainkit.recipes.t5.model import T5
from pretrainkit.recipes.t5.predictor import Answer, Predictor
from pretrainkit.recipes.t5.task_source import declared_features, run_tasks, task_names
from pretrainkit.recipes.t5.texts import SENTINEL, decode, encode, fill, vocabulary_of
from pretrainkit.tasks.identity import identity
from pretrainkit.tasks.preprocessors import format_strings
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
    """With `inputs`, `targets` or both as ids."""
    vocabulary: Vocabulary
    predictor: Predictor
    data: str
    """Changes whenever the examples would."""

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
        return [{"inputs": self._shown(one), **answer} for one, answer in zip(examples, answers, strict=True)]

    def _answers(self, examples: Sequence[Example]) -> list[dict[str, Any]]:
        if self.request.mode == "score":
            if any("targets" not in example for example in examples):
                raise InputError(
                    "there are no targets to score\n  name their column or a pattern: --targets COLUMN, "
                    "or a task that has some"
                )
            return [{"score": _rounded(score)} for score in self.predictor.score(examples)]
        if self.request.mode == "predict":
            return [self._said(ids) for ids in self.predictor.predict(examples)]
        found, values = self.predictor.predict_with_values(examples)
        scores = zip(found, values["scores"], values["token_scores"], strict=True)
        return [
            {**self._said(ids), "aux": {"scores": _rounded(score), "token_scores": list(map(_rounded, tokens))}}
            for ids, score, tokens in scores
        ]

    def _said(self, ids: np.ndarray) -> dict[str, Any]:
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
                f"an example has no {', '.join(missing)}\n  it has {', '.join(example)}\n"
                "  in place of --fields, --all-fields writes them all"
            )
        return _plain({name: example[name] for name in fields or example})


def open_inference(
    config: T5Run,
    model: T5,
    tokenizer: Path | None,
    request: InferenceRequest,
    autocast: Callable[[], AbstractContextManager[None]],
) -> T5Inference:
    """See `Recipe.open_inference`."""
    decoding = decoding_of(**request.decoding)
    if request.task is not None:
        bound, vocabulary, data = _task_examples(config, tokenizer, request)
        is_prefix: bool | None = True
    else:
        assert request.rows is not None
        vocabulary = vocabulary_of(config, tokenizer)
        goes_on, has_end = prompting(config, has_tokenizer=tokenizer is not None)
        bound = _row_examples(request, request.rows, vocabulary, has_end=has_end)
        data, is_prefix = request.rows.fingerprint(request.split), not goes_on
        data = fingerprint([data, request.inputs, request.targets, has_end])
    options: dict[str, Any] = {"batch_size": request.batch_size, "end_id": vocabulary.eos_id, "is_prefix": is_prefix}
    predictor = Predictor(config, model, decoding, **options, autocast=autocast)
    return T5Inference(request, bound, vocabulary, predictor, data)


def tasks_of_mixture(config: T5Run, tokenizer: Path | None, name: str, split: str) -> tuple[str, ...] | None:
    """See `Recipe.tasks_of_mixture`. Raises InputError where none of its tasks has the split."""
    config = _asked_of(config, tokenizer, name)
    if task_names(config) == [name]:
        return None
    tasks = run_tasks(config)[0]
    found = tuple(task.name for task in tasks if split in task.splits)
    if not found:
        splits = dict.fromkeys(one for task in tasks for one in task.splits)
        raise InputError(f"no task of {name} has the split {split!r}\n  there are: {', '.join(splits)}")
    for task in tasks:
        if split not in task.splits:
            _logger.warning("%s: task %s has no split %s and is not answered", name, task.name, split)
    return found


def _asked_of(config: T5Run, tokenizer: Path | None, name: str) -> T5Run:
    """The config of a run on that task."""
    given = {} if tokenizer is None else {"tokenizer": str(tokenizer)}
    return config.changed(data={"task": name, "train": (), "valid": (), **given})


def _task_examples(
    config: T5Run, tokenizer: Path | None, request: InferenceRequest
) -> tuple[BoundTask, Vocabulary, str]:
    config = _asked_of(config, tokenizer, str(request.task))
    tasks, vocabulary, _ = run_tasks(config)
    if len(tasks) > 1:
        raise InputError(
            f"{request.task} is a mixture\n  give one of its tasks: {', '.join(task.name for task in tasks)}"
        )
    (task,) = tasks
    if config.model.vocab_size is not None and vocabulary.size > config.model.vocab_size:
        raise InputError(
            f"task {task.name!r} has a vocabulary of {vocabulary.size} ids, the model knows {config.model.vocab_size}\n"
            "  give the task the tokenizer of the model"
        )
    bound = task.bind(request.split, request.lengths, caches=config.data.caches)
    steps = [identity(step) for step in task.preprocessors]
    return bound, vocabulary, fingerprint([task.name, task.fingerprint(request.split), steps])


def _row_examples(request: InferenceRequest, rows: TaskSource, vocabulary: Vocabulary, *, has_end: bool) -> BoundTask:
    """The rows as the examples of a task that nobody knows."""
    if not rows.num_examples(request.split):
        raise InputError("there are no rows to ask about\n  give a file that has some")
    names = list(rows.example(request.split, 0))
    inputs = _pattern(request.inputs, _INPUT_NAMES, names, "inputs")
    given = {"inputs": inputs} if inputs is not None else {}
    wants_targets = request.mode == "score" or request.targets is not None
    if wants_targets and (targets := _pattern(request.targets, _TARGET_NAMES, names, "targets")) is not None:
        given["targets"] = targets
    feature = Feature(vocabulary, required=False)
    steps = [partial(_texts, patterns=given), partial(_encoded, vocabulary=vocabulary, has_end=has_end)]
    task = Task("rows", rows, {"inputs": feature, "targets": feature}, steps)
    return task.bind(request.split, request.lengths)


def _pattern(given: str | None, usual: Sequence[str], columns: Sequence[str], option: str) -> str | None:
    """A pattern or a column; None where nothing is given and no column has a usual name."""
    if given is None:
        found = next((name for name in usual if name in columns), None)
        if found is None and option == "inputs":
            raise InputError(
                f"the rows have the columns {', '.join(columns)}: which is to be read?\n"
                "  name one, or give a pattern: --inputs 'summarize: {article}'"
            )
        return found
    named = [given] if given in columns or "{" not in given else _fields(given, option)
    if missing := [name for name in named if name not in columns]:
        raise InputError(
            f"the rows have no column {missing[0]!r}\n  there are {', '.join(columns)}; a pattern has them in braces: "
            "'summarize: {article}'"
        )
    return given


def _fields(pattern: str, option: str) -> list[str]:
    try:
        return [re.split(r"[.\[]", name)[0] for _, name, _, _ in Formatter().parse(pattern) if name is not None]
    except ValueError as error:
        raise InputError(
            f"--{option} {pattern!r} is no pattern: {error}\n  it has columns in braces, 'summarize: {{article}}'; a "
            "brace as such is written twice"
        ) from None


def _texts(example: Example, patterns: Mapping[str, str]) -> Example:
    """Feature to a column, or to a pattern of columns."""
    columns = {name: str(example[one]) for name, one in patterns.items() if one in example}
    rest = {name: one for name, one in patterns.items() if name not in columns}
    made = {name: value for name, value in example.items() if name not in ("inputs", "targets")}
    return made | columns | {name: format_strings(**{name: one})(example)[name] for name, one in rest.items()}


def _encoded(example: Example, vocabulary: Vocabulary, has_end: bool) -> Example:
    """Texts to ids, with sentinels spelled out in them. Targets are ended always, inputs where the model expects it."""
    made = dict(example)
    for name in ("inputs", "targets"):
        if name in example:
            end = [vocabulary.eos_id] if name == "targets" or has_end else []
            made[f"{name}_pretokenized"] = example[name]
            made[name] = np.array([*encode(example[name], vocabulary), *end], np.int32)
    return made


def _rounded(value: float) -> float:
    """Digits beyond these depend on the order of sums."""
    return round(float(value), 5)


def _plain(value: Any) -> Any:
    """As JSON has it."""
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
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
    """Return `num` answers to each prompt, of which `batch_size` are read at a time. Raises InputError where settings
    do not go together, or a sentinel does not exist.

    Args:
        tokenizer: See `texts.vocabulary_of`.
        prompts: Inputs as a task would make them; or texts with `<extra_id_0>`, `<extra_id_1>`, … in place of what is
            to be filled in; or beginnings, for a language model.
        decoding: See `decoding_of`.

    Returns:
        Per prompt: "prompt"; "answers", the best first, each with "text", "score" (log-probability; of a beam search,
        over the brevity penalty) and, where the prompt has sentinels, "filled"; "text": what to show people: the
        answers, the filled prompts, or the prompt gone on with, in lines.
    """
    vocabulary = vocabulary_of(config, tokenizer)
    goes_on, has_end = prompting(config, has_tokenizer=tokenizer is not None)
    options: dict[str, Any] = {"batch_size": batch_size, "end_id": vocabulary.eos_id, "is_prefix": not goes_on}
    predictor = Predictor(config, model, decoding_of(**decoding), **options)
    end = [vocabulary.eos_id] * has_end
    inputs = [[*encode(prompt, vocabulary), *end] for prompt in prompts]

    def described(prompt: str, ids: list[int], answer: Answer) -> dict[str, Any]:
        found = {"text": decode(answer.ids, vocabulary), "score": answer.score}
        if SENTINEL.search(prompt):
            found["filled"] = fill(ids, answer.ids, vocabulary)
        elif goes_on:
            found["filled"] = decode([*ids, *answer.ids.tolist()], vocabulary)
        return found

    made = []
    found = predictor.answers([{"inputs": ids} for ids in inputs], num)
    for prompt, ids, answers in zip(prompts, inputs, found, strict=True):
        shown = [described(prompt, ids, answer) for answer in answers]
        text = "\n".join(one.get("filled", one["text"]) for one in shown)
        made.append({"prompt": prompt, "answers": shown, "text": text})
    return made


def score(config: T5Run, model: T5, tokenizer: Path | None, pairs: Sequence[tuple[str, str]]) -> list[float]:
    """The log-probability of each answer, its end mark too, given its prompt, of `pairs` of both. See `generate`."""
    vocabulary = vocabulary_of(config, tokenizer)
    goes_on, has_end = prompting(config, has_tokenizer=tokenizer is not None)
    predictor = Predictor(config, model, end_id=vocabulary.eos_id, is_prefix=not goes_on)
    end = [vocabulary.eos_id]
    examples = [
        {"inputs": [*encode(prompt, vocabulary), *end * has_end], "targets": encode(answer, vocabulary) + end}
        for prompt, answer in pairs
    ]
    return predictor.score(examples).tolist()


def prompting(config: T5Run, *, has_tokenizer: bool) -> tuple[bool, bool]:
    """(whether prompts are beginnings of what the model says, whether they get an end mark). `has_tokenizer`: the model
    can be used without the module that its tasks are defined in."""
    is_decoder = config.model.kind == "decoder_only"
    if config.data.task is None:
        first = config.data.denoising.all[0]
        goes_on = is_decoder and first.inputs is None
        return goes_on, first.end_of_segment and not goes_on
    if has_tokenizer and not is_decoder:
        return False, True
    inputs = declared_features(config).get("inputs")
    return is_decoder and inputs is None, inputs is not None and inputs.add_eos
