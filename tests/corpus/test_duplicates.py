"""Near duplicates are detected, others are not; held-out data has no near duplicate in the training data."""

import json
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretrainkit.corpus import duplicates, pairs
from pretrainkit.corpus.duplicates import DropList, DuplicateRule, find_duplicates
from pretrainkit.corpus.minhash import MinHash
from pretrainkit.corpus.readers import read_documents
from pretrainkit.corpus.shards import BuildSettings, build_corpus
from pretrainkit.errors import DataError
from pretrainkit.files.sources import find_sources
from pretrainkit.files.spans import group_sources
from pretrainkit.workers.engine import LOCAL, LocalEngine, Resources, StageRunner
from pretrainkit.workers.processes import DEFAULT_MEMORY, Quiet


def words(seed, num=120):
    draw = random.Random(seed)
    return [f"w{draw.randrange(5000)}" for _ in range(num)]


def nearly(text, seed):
    """The text with one word replaced, in capitals."""
    changed = text.split()
    changed[random.Random(seed).randrange(len(changed))] = "other"
    return " ".join(changed).upper()


ORIGINALS = [" ".join(words(seed)) for seed in range(40)]
NEAR = [nearly(text, seed) for seed, text in enumerate(ORIGINALS[:15])]
COPIES = ORIGINALS[:5]


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    folder = tmp_path_factory.mktemp("raw")
    for number, texts in enumerate([ORIGINALS, NEAR, COPIES]):
        (folder / f"{number}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return folder


def build(raw, out, method, **options):
    rule = DuplicateRule(minhash=method)
    return build_corpus(find_sources([raw]), out, BuildSettings(num_shards=2, duplicates=rule, seed=None, **options))


def dropped(sources, work, method, memory_bytes=DEFAULT_MEMORY, **options):
    """The list of documents to leave out."""
    runner = StageRunner(LOCAL, 1, memory_bytes, Quiet())
    found = find_duplicates(sources, work, DuplicateRule(minhash=method), runner=runner, **options)
    listed = np.fromfile(found.path, np.uint64)
    assert len(listed) == found.num_dropped
    return listed.tolist()


def all_parts(folder):
    return [path.name for path in folder.glob("part-*")]


def texts(folder):
    return [document.text for document in read_documents(find_sources([folder]))]


def test_the_first_of_near_duplicates_is_kept(tmp_path, raw):
    manifests = build(raw, tmp_path, MinHash(), split_folders=False)
    assert texts(tmp_path) == ORIGINALS
    assert manifests["train"]["skipped"]["duplicate"]["count"] == 20
    assert sorted(path.name for path in tmp_path.iterdir()) == ["manifest.json", *sorted(all_parts(tmp_path))]


def test_only_equal_texts_are_dropped_if_only_copies_count(tmp_path, raw):
    build(raw, tmp_path, None, split_folders=False)
    assert texts(tmp_path) == ORIGINALS + NEAR


def test_nothing_near_a_held_out_document_is_trained_on(tmp_path, raw):
    build(raw, tmp_path, MinHash(), heldout=0.3)
    train, valid = texts(tmp_path / "train"), texts(tmp_path / "valid")
    number = {text: index for index, text in enumerate(ORIGINALS)}
    number |= {text: index for index, text in enumerate(NEAR)}
    assert valid
    assert not {number[text] for text in train} & {number[text] for text in valid}
    # What is near nothing held out stays, copies included.
    assert sorted(train) == sorted(
        text
        for text in ORIGINALS + NEAR + COPIES
        if number[text] not in {number[other] for other in valid}
    )  # fmt: skip


@pytest.mark.parametrize("heldout", [0.0, 0.3])
def test_the_list_does_not_depend_on_how_the_work_is_shared(tmp_path, raw, monkeypatch, heldout):
    sources = find_sources([raw])
    one = dropped(sources, tmp_path / "one", MinHash(), heldout=heldout)
    monkeypatch.setattr(duplicates, "group_sources", lambda sources: group_sources(sources, 1, 2000))
    many = dropped(sources, tmp_path / "many", MinHash(), heldout=heldout)
    # So little memory that every few documents are a run, and runs are merged in steps.
    monkeypatch.setattr(LocalEngine, "resources", lambda *_: Resources(1, 2000))
    monkeypatch.setattr(pairs, "_LEAST_BLOCK", 4)
    tight = dropped(sources, tmp_path / "tight", MinHash(), heldout=heldout)
    assert many == tight == sorted(many)
    assert len(one) == len(many)  # in parts of a file, documents have other numbers
    assert len(one) == 20 if not heldout else 0 < len(one) < 20


def test_documents_of_no_words_are_alike_and_settings_are_checked():
    minhash = MinHash()
    assert np.array_equal(minhash.bands(""), minhash.bands(" - "))
    assert not (minhash.bands("one") == minhash.bands("two")).any()
    assert (minhash.bands("Straße, nach Haus!") == minhash.bands("STRASSE nach haus")).all()
    with pytest.raises(DataError, match="0 bands"):
        MinHash(num_bands=0)


def test_the_share_of_detected_pairs_follows_the_formula():
    minhash, found = MinHash(run_words=1), 0
    for seed in range(60):
        own, other = words(seed, 300), words(seed + 1000, 75)
        # Sets of words with 225 or so in common of 375: a similarity of about 0.6, detected in 21 of 100 cases.
        found += bool((minhash.bands(" ".join(own)) == minhash.bands(" ".join(own[:225] + other))).any())
    assert 3 <= found <= 27


@given(listed=st.sets(st.integers(0, 400)), asked=st.lists(st.integers(0, 400)))
def test_a_list_has_exactly_its_entries(tmp_path_factory, listed, asked):
    path = tmp_path_factory.mktemp("list") / "dropped.u64"
    np.array(sorted(listed), np.uint64).tofile(path)
    held = DropList(path)
    assert [number in held for number in sorted(asked)] == [number in listed for number in sorted(asked)]
    assert [number in held for number in asked] == [number in listed for number in asked]
