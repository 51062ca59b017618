"""Statistics of a corpus: counts, lengths, exact duplicates, skipped records, and languages (or at least scripts). Also
a sample of its documents, drawn by a hash of their text, so that it is the same for any number of workers."""

import heapq
import unicodedata
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
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
"""Number of characters of a text that decide its script or language."""
_FEW = 20
"""Minimum number of letters in a text whose script or language is determined."""
UNKNOWN = "unknown"
_SCRIPTS = {"Cjk": "Han", "Hiragana": "Kana", "Katakana": "Kana", "Canadian": "Canadian syllabics", "Modifier": ""}
Sample = list[tuple[int, str, str]]
"""Hash of a text, its beginning, and its title or place."""


@dataclass(frozen=True)
class StatsPart:
    """Measurements of a group of files. The arrays have one entry per document."""

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
    """Measure one group of files. This takes 24 bytes of memory per document."""
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
        # Reduced only at twice the size, so that sorting costs little per document.
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
    """Return statistics of the documents of `sources` in JSON form.

    Words are runs of bytes other than space, TAB, LF and CR. Duplicates are documents whose text occurred before, by a
    64-bit hash. This takes 24 bytes of memory per document. With `num_sampled`, the key "sample" has this many
    documents, drawn by their hash: [the first 2,000 characters, title or place] of each. Raises DataError if a file
    cannot be read or has more bad input than allowed.
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
        "words_histogram": histogram(words),
        "text_bytes_histogram": histogram(text_bytes),
        "datasets": dict(datasets.most_common(_MAX_DATASETS)),
        "skipped": skips.for_manifest(),
    } | ({"sample": [[text, place] for _, text, place in sample]} if num_sampled else {})


def _merged(first: Sample, second: Sample, size: int) -> Sample:
    """Return the entries with the smallest hashes of both, without repeated hashes. If two places have the same text,
    the one with the first name is kept."""
    both = {entry[0]: entry for entry in sorted([*first, *second], reverse=True)}
    return sorted(both.values())[:size]


def histogram(values: NDArray[np.integer]) -> dict[str, list[float]]:
    """Return a histogram with edges that grow by the factor sqrt(2), without empty bins at the ends: counts (N,) and
    edges (N + 1,). The first two edges are 0 and 1 if there are zeros."""
    if not len(values):
        return {"edges": [], "counts": []}
    num_bins = int(np.ceil(np.log2(max(int(values.max()), 1) + 1) * _BINS_PER_DOUBLING)) + 1
    positive_edges = np.unique(np.ceil(2.0 ** (np.arange(num_bins + 1) / _BINS_PER_DOUBLING)))
    # The first bin, [0, 1), counts the zeros.
    edges = np.concatenate([[0.0], positive_edges])
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
    """Return the script of most letters, such as "Latin", "Cyrillic" or "Han"; "unknown" if there are few letters."""
    counts: Counter[str] = Counter()
    for sign, count in Counter(text[:_LOOKED_AT]).items():
        if sign.isalpha():
            word = unicodedata.name(sign, "").partition(" ")[0].capitalize()
            counts[_SCRIPTS.get(word, word)] += count
    del counts[""]
    if counts["Kana"]:  # Japanese uses both
        counts["Kana"] += counts.pop("Han", 0)
    return counts.most_common(1)[0][0] if counts.total() >= _FEW else UNKNOWN


def classifier() -> Callable[[str], str] | None:
    """Return a function from a text to the code of its language, such as "en"; None if py3langid is not installed."""
    try:
        import py3langid
    except ImportError:
        return None

    def language_of(text: str) -> str:
        start = text[:_LOOKED_AT]
        return str(py3langid.classify(start)[0]) if sum(map(str.isalpha, start)) >= _FEW else UNKNOWN

    return language_of


def language_counts(texts: Iterable[str]) -> tuple[str, dict[str, int]]:
    """Return the property that was counted ("language" or "script"), and the number of texts by its value, the most
    frequent first."""
    language_of = classifier()
    counts = Counter(map(language_of or script_of, texts))
    ordered = dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
    return ("language" if language_of else "script"), ordered


def most_frequent(counts: Mapping[str, int], most: int = 5) -> str:
    """Return the shares of the most frequent values for people; only the first may be below half a per cent."""
    total, first = sum(counts.values()), list(counts.items())[:most]
    shown = [f"{name} {n / total:.0%}" for i, (name, n) in enumerate(first) if i == 0 or n / total >= 0.005]
    rest = len(counts) - len(shown)
    return ", ".join(shown) + (f" and {rest} more" if rest else "")
