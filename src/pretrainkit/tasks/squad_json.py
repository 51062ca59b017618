"""Questions in the JSON of SQuAD 1.1 and 2.0, which XQuAD has too: an object with articles, paragraphs, questions."""

import gzip
import json
import zlib
from functools import cached_property
from pathlib import Path
from typing import Any

from pretrainkit.errors import DataError
from pretrainkit.files.manifest import file_sha256
from pretrainkit.files.manifest import fingerprint as json_fingerprint
from pretrainkit.tasks.sources import Example, _FileSource


class SquadJson(_FileSource):
    """Every question of `.json` files, also `.gz`, with the columns of the hub's `squad`. All of them are in memory.

    A question of SQuAD 2.0 that has no answer has an empty list of them; plausible ones are not read."""

    @cached_property
    def _rows(self) -> dict[str, list[list[Example]]]:
        return {}

    def _files(self, split: str) -> list[list[Example]]:
        if split not in self._rows:
            self._rows[split] = [_questions(Path(source.address)) for source in self._sources(split)]
        return self._rows[split]

    def file_sizes(self, split: str) -> tuple[int, ...]:
        return tuple(map(len, self._files(split)))

    def example(self, split: str, index: int) -> Example:
        for rows in self._files(split):
            if index < len(rows):
                return dict(rows[index])
            index -= len(rows)
        raise IndexError(f"example {index} behind the last one")

    def fingerprint(self, split: str) -> str:
        return json_fingerprint(["squad json", [file_sha256(source.address) for source in self._sources(split)]])


def _questions(path: Path) -> list[Example]:
    try:
        raw = path.read_bytes()
        content = json.loads(gzip.decompress(raw) if path.suffix == ".gz" else raw)
        return [
            _row(article.get("title", ""), paragraph["context"], question)
            for article in content["data"]
            for paragraph in article["paragraphs"]
            for question in paragraph["qas"]
        ]
    except (OSError, EOFError, zlib.error, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise DataError(f"{path} is not JSON as SQuAD has it: {reason}\n  give SQuAD 1.1 or XQuAD") from error


def _row(title: str, context: str, question: dict[str, Any]) -> Example:
    answers = question.get("answers", ())  # of questions for a leaderboard they are not told
    return {
        "id": question["id"],
        "title": title,
        "context": context,
        "question": question["question"],
        "answers": {
            "text": [answer["text"] for answer in answers],
            "answer_start": [answer["answer_start"] for answer in answers],
        },
    }
