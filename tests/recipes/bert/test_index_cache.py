"""The chunk index kept on disk: equal to a new one, whole or absent, and only a convenience."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from pretrainkit.recipes.bert import chunks
from pretrainkit.recipes.bert.chunks import chunks_of
from pretrainkit.tokenizers.shard_writer import write_shards
from pretrainkit.tokenizers.shards import TokenShards
from pretrainkit.tokenizers.special import SpecialIds

NAMES = ("starts", "lengths", "inner_begins", "inner_ends", "document_sizes")


@pytest.fixture
def shards(tmp_path: Path) -> TokenShards:
    rng = np.random.default_rng(0)
    documents = [[rng.integers(5, 90, rng.geometric(0.1)) for _ in range(rng.geometric(0.05))] for _ in range(30)]
    write_shards(tmp_path, [documents[:20], documents[20:]], vocab_size=90, special=SpecialIds(0, 1, 2, 3, 4))
    return TokenShards.open(tmp_path)


def index_of(shards: TokenShards, min_sentences: int, **options):
    given = {"chunking": "lossless", "max_tokens": 30, "sentence_order": True} | options
    index = chunks_of(shards, min_sentences=min_sentences, **given)
    return [(array.dtype, array.tolist()) for array in (getattr(index, name) for name in NAMES)]


def caches(shards: TokenShards) -> list[str]:
    return [name for name in os.listdir(shards.folder) if "chunks-" in name]


def test_a_kept_index_equals_a_new_one(shards):
    made = index_of(shards, min_sentences=10**9)
    assert caches(shards) == []
    assert index_of(shards, min_sentences=1) == made
    assert len(caches(shards)) == 1
    assert index_of(shards, min_sentences=1) == made
    assert len(caches(shards)) == 1


def test_every_setting_has_its_own_index(shards):
    for options in ({}, {"chunking": "sabertooth"}, {"max_tokens": 40}, {"sentence_order": False}):
        assert index_of(shards, 1, **options) == index_of(shards, 10**9, **options)
    assert len(caches(shards)) == 4


def test_a_faster_rank_wins(shards, monkeypatch):
    made = index_of(shards, 1)
    folder = next(shards.folder.glob("chunks-*"))
    shutil.move(folder, shards.folder / "theirs")
    save = np.save

    def save_late(file, array):
        if not folder.exists():
            shutil.copytree(shards.folder / "theirs", folder)
        save(file, array)

    monkeypatch.setattr(chunks.np, "save", save_late)
    assert index_of(shards, 1) == made
    assert caches(shards) == [folder.name]


def test_a_full_disk_costs_nothing_but_time(shards, monkeypatch, caplog):
    made = index_of(shards, 10**9)

    def full(file, array):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(chunks.np, "save", full)
    assert index_of(shards, 1) == made
    assert caches(shards) == []
    assert "No space left" in caplog.text
