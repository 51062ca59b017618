"""Segments of token shards against a plain walk over the documents."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretrainkit.errors import RunError
from pretrainkit.recipes.t5 import segments
from pretrainkit.recipes.t5.segments import segment_index, segments_of
from pretrainkit.tokenizers.shard_writer import write_shards
from pretrainkit.tokenizers.shards import TokenShards
from pretrainkit.tokenizers.special import SpecialIds

SPECIAL = SpecialIds(unk=2, cls=3, sep=1, mask=4, pad=0)
END = 1


def documents_of(sizes, seed=0):
    """One document of sentences of up to 9 tokens for each size."""
    rng = np.random.default_rng(seed)
    return [np.array_split(rng.integers(5, 3000, size), max(1, size // 9)) for size in sizes]


def shards_of(folder, sizes, num_shards=3, seed=0):
    documents = documents_of(sizes, seed)
    share = -(-len(documents) // num_shards)
    parts = [documents[shard * share : (shard + 1) * share] for shard in range(num_shards)]
    write_shards(folder, parts, vocab_size=3000, special=SPECIAL)
    return TokenShards.open(folder), [np.concatenate(document) for document in documents]


def expected(texts, length, group_size, end_mark):
    """The definition: groups of documents end to end, cut."""
    found = []
    marks = [] if end_mark is None else [end_mark]
    for first in range(0, len(texts), group_size):
        stream = np.concatenate([np.concatenate([text, marks]) for text in texts[first : first + group_size]])
        found += [stream[begin : begin + length].tolist() for begin in range(0, len(stream), length)]
    return found


@settings(max_examples=25)
@given(
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=40),
    length=st.integers(1, 50),
    group_size=st.sampled_from([1, 2, 7, 128]),
    end_mark=st.sampled_from([None, END]),
)
def test_segments_are_those_of_the_definition(tmp_path_factory, sizes, length, group_size, end_mark):
    shards, texts = shards_of(tmp_path_factory.mktemp("s") / "shards", sizes)
    index = segment_index(shards, length, group_size=group_size, end_mark=end_mark)
    wanted = expected(texts, length, group_size, end_mark)
    assert len(index) == len(wanted)
    every = index.read(shards, np.arange(len(index)))
    assert [every[i].tolist() for i in range(len(every))] == wanted
    np.testing.assert_array_equal(every.lengths, index.lengths(np.arange(len(index))))
    some = np.random.default_rng(0).permutation(len(index))[:5]
    few = index.read(shards, some)
    assert [few[i].tolist() for i in range(len(few))] == [wanted[number] for number in some]


def test_the_stream_of_segments_is_the_corpus_and_only_last_ones_are_short(tmp_path):
    shards, texts = shards_of(tmp_path / "s", np.random.default_rng(1).integers(1, 400, 300))
    index = segment_index(shards, 568)
    every = index.read(shards, np.arange(len(index)))
    np.testing.assert_array_equal(every.values, np.concatenate(texts))
    is_last = np.isin(np.arange(len(index)) + 1, index.segment_ends)
    assert (every.lengths[~is_last] == 568).all()
    assert len(index.group_ends) == 3
    assert len(index.piece_starts) == 3  # documents of a group that are stored one after another are one piece


def test_a_long_document_gives_one_chunk_which_is_always_the_same(tmp_path):
    sizes = [30, 1000, 20, 70, 950]
    shards, texts = shards_of(tmp_path / "s", sizes, num_shards=2)
    index = segment_index(shards, 64, max_document_tokens=100)
    stream = index.read(shards, np.arange(len(index))).values.tolist()
    kept = [text.tolist() for text in texts]
    for number in (1, 4):
        chunks = [kept[number][begin : begin + 100] for begin in range(0, len(kept[number]), 100)]
        kept[number] = next(chunk for chunk in chunks if ",".join(map(str, chunk)) in ",".join(map(str, stream)))
    assert stream == [token for text in kept for token in text]
    again = segment_index(shards, 64, max_document_tokens=100)
    assert again.read(shards, np.arange(len(again))).values.tolist() == stream
    whole = segment_index(shards, 64, max_document_tokens=None)
    assert whole.num_tokens == sum(sizes)


def test_chunks_with_a_uniform_start_are_parts_of_every_document(tmp_path):
    shards, texts = shards_of(tmp_path / "s", [60] * 2000 + [1] * 10)
    index = segment_index(shards, 60, group_size=1, max_document_tokens=40, is_uniform_start=True)
    assert len(index) == 2010
    parts = index.read(shards, np.arange(len(index)))
    for number in (0, 1, 700, 1999, 2004):
        part, text = parts[number].tolist(), texts[number].tolist()
        assert ",".join(map(str, part)) in ",".join(map(str, text))
    lengths = parts.lengths[:2000]
    assert set(lengths.tolist()) == set(range(1, 41))
    # 99 places to begin at, 20 + 1 of which leave room for a whole chunk.
    assert abs((lengths == 40).mean() - 21 / 99) < 0.04
    firsts = np.array([texts[number].tolist().index(parts[number][0]) for number in range(2000)])
    assert abs((firsts == 0).mean() - 40 / 99) < 0.05


def test_cut_documents_keep_their_end_mark(tmp_path):
    shards, _ = shards_of(tmp_path / "s", [30, 250, 20], num_shards=1)
    index = segment_index(shards, 64, max_document_tokens=100, end_mark=END)
    stream = index.read(shards, np.arange(len(index))).values
    assert (stream == END).sum() == 3
    assert stream[-1] == END


def test_random_lengths_lose_nothing_and_differ_between_groups(tmp_path):
    shards, texts = shards_of(tmp_path / "s", [200] * 60)
    index = segment_index(shards, 300, group_size=2, is_random_length=True)
    every = index.read(shards, np.arange(len(index)))
    np.testing.assert_array_equal(every.values, np.concatenate(texts))
    assert len(np.unique(index.lengths_G)) > 10
    assert 8 <= index.lengths_G.min() <= index.lengths_G.max() <= 300


@pytest.mark.parametrize("parts", [[[], []], [[[np.array([7, 8, 9])]], [], [[np.array([5])]]]])
def test_empty_shards_are_no_trouble(tmp_path, parts):
    write_shards(tmp_path / "s", parts, vocab_size=3000, special=SPECIAL)
    shards = TokenShards.open(tmp_path / "s")
    index = segment_index(shards, 2)
    assert index.num_tokens == shards.num_tokens
    assert index.read(shards, np.arange(len(index))).values.tolist() == ([7, 8, 9, 5] if shards.num_tokens else [])


SETTINGS = [
    {"group_size": 128, "max_document_tokens": None, "end_mark": None},
    {"group_size": 1, "max_document_tokens": 40, "end_mark": END, "is_uniform_start": True},
    {"group_size": 7, "max_document_tokens": 100, "end_mark": None, "is_random_length": True},
]


@pytest.mark.parametrize("settings", SETTINGS)
def test_kept_segments_equal_the_computed_ones_and_are_computed_once(tmp_path, settings, monkeypatch):
    shards, _ = shards_of(tmp_path / "s", np.random.default_rng(3).integers(1, 300, 200))
    settings = {"is_random_length": False, "is_uniform_start": False} | settings
    monkeypatch.setattr(segments, "_BLOCK", 11)
    found = segment_index(shards, 64, **settings)
    kept = segments_of(shards, 64, min_documents=1, **settings)
    assert len([path for path in (tmp_path / "s").iterdir() if path.name.startswith("segments-")]) == 1
    for name in ("lengths_G", "group_ends", "segment_ends", "piece_ends", "piece_starts"):
        np.testing.assert_array_equal(getattr(found, name), getattr(kept, name))
    monkeypatch.setattr(segments, "index_blocks", None)
    again = segments_of(shards, 64, min_documents=1, **settings)
    every = np.arange(len(found))
    np.testing.assert_array_equal(again.read(shards, every).values, found.read(shards, every).values)


def test_other_settings_are_kept_apart_and_a_folder_that_cannot_be_written_only_costs_time(
    tmp_path, monkeypatch, caplog
):
    shards, _ = shards_of(tmp_path / "s", [20] * 50)
    settings = SETTINGS[0] | {"is_random_length": False, "is_uniform_start": False}
    lengths = {len(segments_of(shards, length, min_documents=1, **settings)) for length in (10, 20)}
    assert lengths == {100, 50}

    def full(*arguments):
        raise RunError("No space left on device")

    monkeypatch.setattr(segments, "_write", full)
    assert len(segments_of(shards, 40, min_documents=1, **settings)) == 25
    assert "cannot be stored" in caplog.text
    assert not [path for path in (tmp_path / "s").iterdir() if path.name.startswith(".segments")]
