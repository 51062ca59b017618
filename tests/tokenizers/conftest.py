"""A small English text and tokenizers trained from it, once."""

import json
import pydoc_data.topics
from collections import Counter
from pathlib import Path

import pytest

from pretrainkit.tokenizers.train import TokenizerSettings, train_tokenizer


@pytest.fixture(scope="session")
def prose() -> list[str]:
    """Documents: topics of the language reference that every Python has."""
    return [" ".join(text.split()) for text in list(pydoc_data.topics.topics.values())[:40]]


@pytest.fixture(scope="session")
def words(prose, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("words") / "words.tsv"
    counts = Counter(word for text in prose for word in text.split())
    path.write_text("".join(f"{word}\t{count}\n" for word, count in counts.items()), encoding="utf-8")
    return path


def trained(words: Path, folder: Path, **settings) -> Path:
    train_tokenizer([words], folder, TokenizerSettings(**settings))
    return folder


@pytest.fixture(scope="session")
def unigram(words, tmp_path_factory) -> Path:
    return trained(words, tmp_path_factory.mktemp("unigram") / "tokenizer", vocab_size=1500)


@pytest.fixture(scope="session")
def wordpiece(words, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wordpiece") / "tokenizer"
    return trained(words, folder, kind="wordpiece", vocab_size=1000, lowercase=True)


@pytest.fixture(scope="session")
def bpe(words, tmp_path_factory) -> Path:
    return trained(words, tmp_path_factory.mktemp("bpe") / "tokenizer", kind="bpe", vocab_size=1000)


@pytest.fixture
def corpus(prose, tmp_path) -> Path:
    """A folder of three JSONL files under `train` and one under `valid`."""
    folder = tmp_path / "corpus"
    for name, texts in {
        "train/part-0.jsonl": prose[:10],
        "train/part-1.jsonl": [*prose[10:20], "", " \u200b"],
        "train/part-2.jsonl": prose[20:25],
        "valid/part-0.jsonl": prose[25:30],
    }.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    return folder
