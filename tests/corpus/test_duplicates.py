"""Near duplicates are found, others are not; what is held out has no near duplicate among what is trained on."""

import json
import random

import numpy as np
import pytest

from pretrainkit.corpus.duplicates import find_duplicates
from pretrainkit.corpus.minhash import MinHash
from pretrainkit.corpus.readers import read_documents
from pretrainkit.corpus.shards import BuildSettings, build_corpus
from pretrainkit.corpus.sources import find_sources
from pretrainkit.errors import DataError


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


def build(raw, out, method, workers=1, **options):
    sources = find_sources([raw])
    found = find_duplicates(sources, out, method, heldout=options.get("heldout", 0.0), workers=workers)
    settings = BuildSettings(
        num_shards=2, drop_reason="duplicate", drop_fingerprint=found.drop_fingerprint, seed=None, **options
    )
    return found, build_corpus(sources, out, settings, workers=1)


def texts(folder):
    return [document.text for document in read_documents(find_sources([folder]))]


def test_the_first_of_near_duplicates_is_kept(tmp_path, raw):
    found, manifests = build(raw, tmp_path, MinHash(), split_folders=False)
    assert texts(tmp_path) == ORIGINALS
    assert (found.num_documents, found.num_dropped) == (60, 20)
    assert manifests["train"]["skipped"]["duplicate"]["count"] == 20
    assert not (tmp_path / ".signatures").exists()


def test_only_equal_texts_go_where_only_copies_count(tmp_path, raw):
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


def test_the_list_does_not_depend_on_how_the_work_is_shared(tmp_path, raw, monkeypatch):
    from pretrainkit.corpus import duplicates
    from pretrainkit.corpus.spans import group_sources

    one = find_duplicates(find_sources([raw]), tmp_path / "one", MinHash())
    monkeypatch.setattr(duplicates, "group_sources", lambda sources: group_sources(sources, 1, 2000))
    many = find_duplicates(find_sources([raw]), tmp_path / "many", MinHash())
    assert one.num_dropped == many.num_dropped == 20


def test_documents_of_no_words_are_alike_and_settings_are_checked():
    minhash = MinHash()
    assert np.array_equal(minhash.bands(""), minhash.bands(" - "))
    assert not (minhash.bands("one") == minhash.bands("two")).any()
    assert (minhash.bands("Straße, nach Haus!") == minhash.bands("STRASSE nach haus")).all()
    with pytest.raises(DataError, match="0 bands"):
        MinHash(num_bands=0)


def test_the_share_of_found_pairs_is_that_of_the_formula():
    minhash, found = MinHash(run_words=1), 0
    for seed in range(60):
        own, other = words(seed, 300), words(seed + 1000, 75)
        # Sets of words with 225 or so in common of 375: a similarity of about 0.6, found in 21 of 100 cases.
        found += bool((minhash.bands(" ".join(own)) == minhash.bands(" ".join(own[:225] + other))).any())
    assert 3 <= found <= 27
