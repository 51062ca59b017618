"""Answers to prompts."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pretrainkit.recipes.t5.config import T5Run
from pretrainkit.recipes.t5.decoding_config import decoding_of
from pretrainkit.recipes.t5.model import T5
from pretrainkit.recipes.t5.predictor import Answer, Predictor
from pretrainkit.recipes.t5.task_source import declared_features
from pretrainkit.recipes.t5.texts import SENTINEL, decode, encode, fill, vocabulary_of


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
    """`num` answers to each prompt, of which `batch_size` are read at a time. Raises InputError where settings do not
    go together, or a sentinel does not exist.

    Args:
        config: Bound.
        model: As it was trained.
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


def score(
    config: T5Run, model: T5, tokenizer: Path | None, pairs: Sequence[tuple[str, str]], *, batch_size: int = 64
) -> list[float]:
    """The log-probability of each answer, its end mark too, given its prompt, of `pairs` of both. See `generate`."""
    vocabulary = vocabulary_of(config, tokenizer)
    goes_on, has_end = prompting(config, has_tokenizer=tokenizer is not None)
    predictor = Predictor(config, model, batch_size=batch_size, end_id=vocabulary.eos_id, is_prefix=not goes_on)
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
