"""Conversion between texts and ids, with sentinels written as `<extra_id_0>`, `<extra_id_1>`, and so on."""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, takewhile
from pathlib import Path

from pretrainkit.errors import DataError, InputError
from pretrainkit.recipes.t5.config import T5Run
from pretrainkit.recipes.t5.task_source import run_tasks
from pretrainkit.tasks.vocabulary import ByteVocabulary, Vocabulary
from pretrainkit.tasks.vocabulary_folder import open_vocabulary

SENTINEL = re.compile(r"<extra_id_(\d+)>")


def vocabulary_of(config: T5Run, tokenizer: Path | None) -> Vocabulary:
    """Return the vocabulary of a trained model: of the folder beside it, else of `data.tokenizer`, else of its tasks.

    Raises DataError if there is no tokenizer; ConfigError if its tasks are not, or no longer, defined."""
    data = config.data
    place: str | Path | None = data.tokenizer if tokenizer is None else tokenizer
    if place is not None:
        return open_vocabulary(place, data.denoising.num_sentinels)
    if data.task is None:
        raise DataError("there is no tokenizer beside the model\n  a run stores it in RUN/tokenizer")
    return run_tasks(config)[1]


def encode(text: str, vocabulary: Vocabulary) -> list[int]:
    """Return ids without end mark. Raises InputError if the text has a sentinel that the vocabulary does not have."""
    parts = SENTINEL.split(text)  # texts and sentinel numbers alternate
    numbers = [int(number) for number in parts[1::2]]
    if not numbers:
        return vocabulary.encode(text)
    if max(numbers) >= len(vocabulary.sentinel_ids):
        raise InputError(
            f"the text has <extra_id_{max(numbers)}>, but the vocabulary has {len(vocabulary.sentinel_ids)} sentinels: "
            f"{text[:60]!r}\n  use only <extra_id_0> to <extra_id_{len(vocabulary.sentinel_ids) - 1}>"
        )
    sentinels = [vocabulary.sentinel_ids[number] for number in numbers]
    # Vocabularies with pieces for sentinels recognize them at the start of a word, and encode the text after them.
    whole = vocabulary.encode(SENTINEL.sub(r" \g<0>", text).replace("  <", " <"))
    if [index for index in whole if index in set(vocabulary.sentinel_ids)] == sentinels:
        return whole
    ids: list[int] = []
    for part, sentinel in zip(parts[::2], sentinels):
        ids += [*vocabulary.encode(part if _has_spaces(vocabulary) else part.rstrip()), sentinel]
    return ids + vocabulary.encode(parts[-1])


def _has_spaces(vocabulary: Vocabulary) -> bool:
    """Return True if spaces are tokens, which a sentinel does not replace together with a word."""
    return isinstance(vocabulary, ByteVocabulary)


def decode(ids: Iterable[int], vocabulary: Vocabulary) -> str:
    """Return the text up to the end mark."""
    numbers = {index: number for number, index in enumerate(vocabulary.sentinel_ids)}
    parts = []
    for is_sentinel, group in groupby(_until_end(ids, vocabulary), key=numbers.__contains__):
        run = list(group)
        parts += [f"<extra_id_{numbers[index]}>" for index in run] if is_sentinel else [vocabulary.decode(run)]
    if len(parts) == 1 or _has_spaces(vocabulary):
        return "".join(parts)
    return " ".join(part.strip() for part in parts if part.strip())


def fill(prompt: Sequence[int], answer: Iterable[int], vocabulary: Vocabulary) -> str:
    """Return the text of `prompt` with each sentinel replaced by the text after that sentinel in `answer`.

    A sentinel that the answer lacks is not replaced. Text after a sentinel that the prompt lacks is ignored.
    """
    texts: dict[int, list[int]] = {}
    sentinels = set(vocabulary.sentinel_ids)
    run: list[int] = []  # tokens before the first sentinel are ignored
    for index in _until_end(answer, vocabulary):
        if index in sentinels:
            run = texts.setdefault(index, [])
        else:
            run.append(index)
    filled = [token for index in prompt for token in texts.get(index, [index])]
    return decode(filled, vocabulary)


def _until_end(ids: Iterable[int], vocabulary: Vocabulary) -> Iterator[int]:
    return takewhile(vocabulary.eos_id.__ne__, map(int, ids))
