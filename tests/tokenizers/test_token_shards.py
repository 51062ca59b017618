"""Token shards: what is written is read, from anywhere, in any cut into shards; broken folders are refused by name."""

import json
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretrainkit.errors import DataError
from pretrainkit.tokenizers.shard_writer import ShardWriter, write_shards
from pretrainkit.tokenizers.shards import TokenShards
from pretrainkit.tokenizers.special import SpecialIds

SPECIAL = SpecialIds(256, 257, 258, 259, 260)
SHARDS = st.lists(
    st.lists(st.lists(st.lists(st.integers(0, 999), min_size=1, max_size=9), min_size=1, max_size=4), max_size=4),
    min_size=1,
    max_size=4,
)


def make(folder, shards, vocab_size=1000):
    write_shards(folder, shards, vocab_size=vocab_size, special=SPECIAL)
    return TokenShards.open(folder, verify=True)


@pytest.fixture
def shards(tmp_path):
    rng = np.random.default_rng(0)
    content = [[[rng.integers(0, 999, rng.integers(1, 30)) for _ in range(5)] for _ in range(8)] for _ in range(3)]
    return make(tmp_path / "shards", content)


@settings(max_examples=40, deadline=None)
@given(content=SHARDS, wide=st.booleans())
def test_shards_are_read_back_equal(tmp_path_factory, content, wide):
    shards = make(tmp_path_factory.mktemp("shards"), content, 70_000 if wide else 1000)
    documents = [document for shard in content for document in shard]
    sentences = [sentence for document in documents for sentence in document]
    assert shards.dtype == (np.uint32 if wide else np.uint16)
    assert (shards.num_documents, shards.num_sentences) == (len(documents), len(sentences))
    assert shards.num_tokens == sum(map(len, sentences))
    assert [[ids.tolist() for ids in shards.document(i)] for i in range(len(documents))] == documents
    assert [shards.sentence(i).tolist() for i in range(len(sentences))] == sentences
    assert sum(len(shards.document_hashes(shard)) for shard in range(shards.num_shards)) == len(documents)


@settings(max_examples=60, deadline=None)
@given(content=SHARDS, data=st.data())
def test_gather_equals_slices_of_all_tokens(tmp_path_factory, content, data):
    shards = make(tmp_path_factory.mktemp("shards"), content)
    tokens = np.array([token for shard in content for document in shard for ids in document for token in ids], np.int64)
    starts = data.draw(st.lists(st.integers(0, len(tokens)), max_size=12))
    lengths = [data.draw(st.integers(0, min(20, len(tokens) - start))) for start in starts]
    width = max(lengths, default=0) + data.draw(st.integers(0, 3))
    wanted = np.full((len(starts), width), 260)
    for row, (start, length) in enumerate(zip(starts, lengths)):
        wanted[row, :length] = tokens[start : start + length]
    where = np.array(starts, np.int64), np.array(lengths, np.int64)
    assert np.array_equal(shards.gather(*where, width=width, pad=260), wanted)
    flat = [tokens[start : start + length] for start, length in zip(starts, lengths)]
    assert np.array_equal(shards.gather_flat(*where), np.concatenate([*flat, tokens[:0]]))


def test_gather_flat_of_very_uneven_lengths(shards):
    starts, lengths = np.array([0, 5, 6, 7]), np.array([shards.num_tokens, 1, 1, 1])
    everything = np.concatenate([shards.tokens(shard) for shard in range(3)])
    assert np.array_equal(shards.gather_flat(starts, lengths), np.concatenate([everything, everything[5:8]]))


def test_gather_refuses_positions_outside(shards):
    for start, length in ((-1, 2), (shards.num_tokens, 1), (0, -1)):
        with pytest.raises(ValueError, match="outside"):
            shards.gather(np.array([start]), np.array([length]), 8, 0)
    with pytest.raises(ValueError, match="width 8"):
        shards.gather(np.array([0]), np.array([9]), 8, 0)


def test_shards_are_pickled_by_folder(shards):
    shards.tokens(0)
    data = pickle.dumps(shards)
    copy = pickle.loads(data)
    assert len(data) < 4000
    assert np.array_equal(copy.tokens(2), shards.tokens(2))
    assert copy.fingerprint == shards.fingerprint


def test_tokens_cannot_be_written(shards):
    with pytest.raises(ValueError):
        shards.tokens(0)[0] = 1


def test_fingerprint_follows_content_alone(tmp_path):
    one, same, other = ([[[[1, 2], [3]]]], [[[[1, 2], [3]]]], [[[[1], [2, 3]]]])
    fingerprints = [make(tmp_path / str(i), content).fingerprint for i, content in enumerate((one, same, other))]
    assert fingerprints[0] == fingerprints[1] != fingerprints[2]


def test_open_names_a_folder_without_shards(tmp_path):
    with pytest.raises(DataError, match="there is no folder"):
        TokenShards.open(tmp_path / "absent")
    (tmp_path / "train").mkdir()
    (tmp_path / "train/manifest.json").write_text('{"num_tokens": 9}')
    with pytest.raises(DataError, match="name one of the folders in it"):
        TokenShards.open(tmp_path)
    with pytest.raises(DataError, match="kind of its manifest is unknown"):
        TokenShards.open(tmp_path / "train")
    (tmp_path / "train/manifest.json").write_text('{"kind": "corpus"}')
    with pytest.raises(DataError, match="is a corpus of text, not token shards\n  encode it"):
        TokenShards.open(tmp_path / "train")


@pytest.mark.parametrize("part", ["tokens", "sentences", "documents", "hashes"])
def test_open_refuses_truncated_and_missing_files(shards, part):
    path = shards.folder / f"{part}-00001-of-00003.bin"
    data = path.read_bytes()
    path.write_bytes(data[:-1])
    with pytest.raises(DataError, match=f"{path.name} has {len(data) - 1} bytes instead of {len(data)}"):
        TokenShards.open(shards.folder)
    path.unlink()
    with pytest.raises(DataError, match=f"{path.name} is missing"):
        TokenShards.open(shards.folder)


def test_verify_finds_a_changed_byte(shards):
    path = shards.folder / "tokens-00002-of-00003.bin"
    data = bytearray(path.read_bytes())
    data[10] ^= 1
    path.write_bytes(data)
    TokenShards.open(shards.folder)
    with pytest.raises(DataError, match=f"{path.name} has sha256"):
        TokenShards.open(shards.folder, verify=True)


def test_a_token_that_is_not_in_the_vocabulary_is_named_when_it_is_read(shards):
    path = shards.folder / "tokens-00001-of-00003.bin"
    tokens = np.fromfile(path, shards.dtype)
    tokens[2] |= 1 << 15
    tokens.tofile(path)
    damaged = TokenShards.open(shards.folder)
    begin = damaged.token_begins[[1]]
    assert damaged.gather(begin, np.array([2]), 3, pad=1 << 15).tolist() == [[*tokens[:2].tolist(), 1 << 15]]
    for read in (lambda: damaged.gather(begin, np.array([3]), 3, pad=0), lambda: damaged.gather_flat(begin, [3])):
        with pytest.raises(DataError, match=rf"{path.name} is damaged: token 2 is \d+, but the vocabulary has"):
            read()


def test_open_refuses_index_files_of_other_shards(shards):
    path = shards.folder / "sentences-00000-of-00003.bin"
    ends = np.fromfile(path, np.int64)
    ends[-1] += 1
    ends.tofile(path)
    with pytest.raises(DataError, match="does not end at"):
        TokenShards.open(shards.folder)


@pytest.mark.parametrize("change", [{"dtype": "<u4"}, {"shards": []}, {"tokenizer": {}}, {"shards": [{}]}])
def test_open_refuses_a_manifest_that_contradicts_itself(shards, change):
    path = shards.folder / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(DataError, match="make the shards again"):
        TokenShards.open(shards.folder)


def test_an_error_leaves_no_shard(tmp_path):
    with pytest.raises(ValueError, match="add up"), ShardWriter(tmp_path, 0, 1, 1000) as writer:
        writer.add(np.arange(3), np.array([2]), np.array([1]), np.zeros(1, np.uint64))
    assert list(tmp_path.iterdir()) == []
