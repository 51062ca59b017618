"""What a corpus is made of: counts, lengths, exact duplicates, what was skipped, languages (or at least scripts); and
some documents of it, drawn by a hash of their text, so that they are the same on any number of workers."""

import heapq
import unicodedata
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretrainkit.corpus.readers import SENTENCE_LINES, read_documents, text_hash
from pretrainkit.corpus.word_tables import split_words
from pretrainkit.files.skips import Skips
from pretrainkit.files.sources import SourceFile
from pretrainkit.files.spans import group_sources
from pretrainkit.workers.processes import DEFAULT_MEMORY, Progress, Quiet, num_processes, run_tasks

PERCENTILES = (0, 1, 10, 25, 50, 75, 90, 99, 100)
_MAX_DATASETS = 50
_BINS_PER_DOUBLING = 2
_SAMPLE_CHARACTERS = 2000
_LOOKED_AT = 1000
"""Characters of a text."""
_FEW = 20
"""Letters below which a text is not judged."""
UNKNOWN = "unknown"
_SCRIPTS = {"Cjk": "Han", "Hiragana": "Kana", "Katakana": "Kana", "Canadian": "Canadian syllabics", "Modifier": ""}
Sample = list[tuple[int, str, str]]
"""Hash of a text, its beginning, and where it stands."""


@dataclass(frozen=True)
class StatsPart:
    """Measures of a group: one entry per document in the arrays."""

    num_characters: int
    text_bytes: NDArray[np.uint64]
    words: NDArray[np.uint64]
    hashes: NDArray[np.uint64]
    datasets: Counter[str]
    skips: dict[str, Any]
    num_source_bytes: int
    sample: Sample
    """The documents with the smallest hashes, sorted."""


def measure_group(sources: Sequence[SourceFile], *, text_key: str, max_bad: int, num_sampled: int) -> StatsPart:
    """Reads one group of files. Holds 24 bytes per document."""
    text_bytes, words, hashes = array("Q"), array("Q"), array("Q")
    datasets: Counter[str] = Counter()
    skips = Skips(max_bad)
    num_characters = 0
    sampled: dict[int, tuple[int, str, str]] = {}
    for document in read_documents(sources, skips, text_key=text_key):
        encoded = document.text.encode()
        num_characters += len(document.text)
        text_bytes.append(len(encoded))
        words.append(len(split_words(encoded)))
        number = text_hash(document.text)
        hashes.append(number)
        if num_sampled and number not in sampled:
            place = f"{document.source}, document {document.position}"
            title = str(document.meta.get("title", "")) or place
            sampled[number] = (number, document.text[:_SAMPLE_CHARACTERS], title)
        # Seldom, so that sorting costs little for each document.
        if len(sampled) > 2 * num_sampled:
            sampled = {entry[0]: entry for entry in heapq.nsmallest(num_sampled, sampled.values())}
        datasets[_dataset(document.meta)] += 1
    num_source_bytes = sum(source.num_bytes for source in sources)
    measured = (np.array(text_bytes), np.array(words), np.array(hashes))
    sample = heapq.nsmallest(num_sampled, sampled.values())
    return StatsPart(num_characters, *measured, datasets, skips.as_dict(), num_source_bytes, sample)


def _dataset(meta: dict[str, Any]) -> str:
    name = meta.get("dataset", meta.get("pile_set_name"))
    if isinstance(name, str):
        return name
    return "BERT text" if meta.items() >= SENTENCE_LINES.items() else "(unnamed)"


def corpus_stats(
    sources: Sequence[SourceFile],
    *,
    text_key: str = "text",
    max_bad: int = 0,
    workers: int | None = None,
    progress: Progress | None = None,
    num_sampled: int = 0,
) -> dict[str, Any]:
    """Statistics of the documents of `sources`, ready for JSON.

    Words are runs of bytes other than space, TAB, LF and CR. Duplicates are documents whose text occurred before, by a
    64-bit hash. Memory: 24 bytes per document. With `num_sampled`, so many documents stand under "sample", each as
    [text, place], drawn by their hash: the first 2,000 characters of each. Raises DataError where a file cannot be
    read, or has bad input beyond the budget.
    """
    progress = progress or Quiet()
    total_bytes = sum(source.num_bytes for source in sources)
    groups = [[source for _, source in group] for group in group_sources(sources)]
    measure = partial(measure_group, text_key=text_key, max_bad=max_bad, num_sampled=num_sampled)
    progress.stage("reading", total_bytes, "B")
    skips, parts, sample = Skips(max_bad), [], Sample()
    for part in run_tasks(measure, groups, num_processes(workers, len(groups), total_bytes, DEFAULT_MEMORY)):
        skips.merge(part.skips)
        sample = _merged(sample, part.sample, num_sampled)
        parts.append(replace(part, sample=[]))
        progress.advance(part.num_source_bytes)
    for warning in skips.warnings:
        progress.note(f"warning: {warning}")
    text_bytes, words, hashes = (
        np.concatenate([getattr(part, name) for part in parts] or [np.empty(0, np.uint64)])
        for name in ("text_bytes", "words", "hashes")
    )
    num_documents = len(hashes)
    datasets: Counter[str] = sum((part.datasets for part in parts), Counter())
    return {
        "num_files": len(sources),
        "num_source_bytes": total_bytes,
        "num_documents": num_documents,
        "num_empty_documents": int((words == 0).sum()),
        "num_duplicates": num_documents - len(np.unique(hashes)),
        "num_words": int(words.sum()),
        "num_characters": sum(part.num_characters for part in parts),
        "num_text_bytes": int(text_bytes.sum()),
        "words_per_document": _distribution(words),
        "text_bytes_per_document": _distribution(text_bytes),
        "words_histogram": _histogram(words),
        "text_bytes_histogram": _histogram(text_bytes),
        "datasets": dict(datasets.most_common(_MAX_DATASETS)),
        "skipped": skips.for_manifest(),
    } | ({"sample": [[text, place] for _, text, place in sample]} if num_sampled else {})


def _merged(one: Sample, other: Sample, size: int) -> Sample:
    """The smallest of both, each hash once; of two places with one text the first by name."""
    both = {entry[0]: entry for entry in sorted([*one, *other], reverse=True)}
    return sorted(both.values())[:size]


def _histogram(values: NDArray[np.uint64]) -> dict[str, list[float]]:
    """Documents between edges that grow by the factor sqrt(2), without empty bins at the ends: counts (N,) and edges
    (N + 1,), of which the first two are 0 and 1 where there are zeros."""
    if not len(values):
        return {"edges": [], "counts": []}
    num_bins = int(np.ceil(np.log2(max(int(values.max()), 1) + 1) * _BINS_PER_DOUBLING)) + 1
    wanted = np.unique(np.ceil(2.0 ** (np.arange(num_bins + 1) / _BINS_PER_DOUBLING)))
    # The first bin, [0, 1), is that of the zeros.
    edges = np.concatenate([[0.0], wanted])
    counts, _ = np.histogram(values.astype(np.float64), edges)
    used = np.flatnonzero(counts)
    first, last = int(used[0]), int(used[-1]) + 1
    return {"edges": edges[first : last + 1].tolist(), "counts": counts[first:last].tolist()}


def _distribution(values: NDArray[np.uint64]) -> dict[str, float]:
    if not len(values):
        return {}
    names = ("mean", *(f"p{percent}" for percent in PERCENTILES))
    points = [values.mean(), *np.percentile(values, PERCENTILES)]
    return {name: round(float(point), 1) for name, point in zip(names, points, strict=True)}


def script_of(text: str) -> str:
    """The script of most of its letters, such as "Latin", "Cyrillic" or "Han"; "unknown" where there are few."""
    counts: Counter[str] = Counter()
    for sign, count in Counter(text[:_LOOKED_AT]).items():
        if sign.isalpha():
            word = unicodedata.name(sign, "").partition(" ")[0].capitalize()
            counts[_SCRIPTS.get(word, word)] += count
    del counts[""]
    if counts["Kana"]:  # Japanese writes in both
        counts["Kana"] += counts.pop("Han", 0)
    return counts.most_common(1)[0][0] if counts.total() >= _FEW else UNKNOWN


def classifier() -> Callable[[str], str] | None:
    """A function from a text to the code of its language, such as "en"; None: py3langid is not installed."""
    try:
        import py3langid
    except ImportError:
        return None

    def language_of(text: str) -> str:
        start = text[:_LOOKED_AT]
        return str(py3langid.classify(start)[0]) if sum(map(str.isalpha, start)) >= _FEW else UNKNOWN

    return language_of


def language_counts(texts: Iterable[str]) -> tuple[str, dict[str, int]]:
    """What was counted ("language" or "script"), and how many texts are written in each, the most frequent first."""
    language_of = classifier()
    counts = Counter(map(language_of or script_of, texts))
    ordered = dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
    return ("language" if language_of else "script"), ordered
