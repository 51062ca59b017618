"""Words with errors: what each kind keeps, how many are hit, and files of labelled examples."""

import json
import unicodedata
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretrainkit.errors import DataError, InputError
from pretrainkit.recipes.pixel.noise import ATTACKS, JOINS_WORDS, corrupt, write_noisy

WORDS = st.lists(st.text("abcdefghijklmnopqrstuvwxyzAEIOUTX", min_size=1, max_size=12), min_size=1, max_size=30)
TYPOS = {"receive": ["recieve", "receve"]}
ONE_FOR_ONE = [attack for attack in ATTACKS if attack not in JOINS_WORDS]


def of_all(words, attack, **settings):
    return corrupt(words, attack, 1.0, seed=1, index=0, typos=TYPOS, **settings)


@given(words=WORDS, seed=st.integers(0, 99), index=st.integers(0, 999))
@pytest.mark.parametrize("attack", ATTACKS)
def test_errors_follow_from_seed_and_example_alone_and_words_stay_words(attack, words, seed, index):
    found = corrupt(words, attack, 0.5, seed=seed, index=index, typos=TYPOS)
    assert found == corrupt(words, attack, 0.5, seed=seed, index=index, typos=TYPOS)
    assert corrupt(words, attack, 0.0, seed=seed, index=index, typos=TYPOS) == words
    assert all(word and " " not in word for word in found)
    assert len(found) == len(words) or attack in JOINS_WORDS


@given(words=WORDS)
def test_each_kind_keeps_its_documented_parts(words):
    for word, found in zip(words, of_all(words, "full-swap"), strict=True):
        assert Counter(word) == Counter(found)
    for word, found in zip(words, of_all(words, "inner-swap"), strict=True):
        assert (Counter(word), word[0], word[-1]) == (Counter(found), found[0], found[-1])
    for word, found in zip(words, of_all(words, "disemvowel"), strict=True):
        assert found == word or not set(found) & set("aeiouAEIOU")
    for word, found in zip(words, of_all(words, "keyboard-typo"), strict=True):
        assert sum(one != other for one, other in zip(word, found, strict=True)) == 1
    for word, found in zip(words, of_all(words, "visual"), strict=True):
        assert "".join(letter for letter in found if not unicodedata.combining(letter)) == word
    assert "".join(of_all(words, "segmentation")) == "".join(words)
    assert [len(word) for word in of_all(words, "confusable")] == list(map(len, words))
    assert [found[::2] for found in of_all(words, "intrude")] == words


def test_words_with_known_errors():
    assert of_all(["ocean", "a", "Ox"], "truncate") == ["ocea", "a", "O"]
    assert of_all(["phone", "Knee", "quick"], "phonetic") == ["fone", "Nee", "quik"]
    assert of_all(["Receive", "it"], "natural-typo")[0] in ("Recieve", "Receve")
    assert of_all(["one", "two", "three"], "segmentation") == ["onetwothree"]


def test_the_share_of_words_is_the_severity():
    words = ["abcdefgh"] * 4000
    for severity in (0.2, 0.5, 0.8):
        found = corrupt(words, "truncate", severity, seed=0, index=0)
        assert abs(sum(word != "abcdefgh" for word in found) / 4000 - severity) < 0.03


def test_invalid_noise_is_refused_with_the_choices():
    with pytest.raises(InputError, match="choose one of: full-swap"):
        corrupt(["a"], "shouting", 0.5, seed=0, index=0)
    with pytest.raises(InputError, match="from 0 to 1"):
        corrupt(["a"], "truncate", 50, seed=0, index=0)
    with pytest.raises(InputError, match="--typos"):
        corrupt(["a"], "natural-typo", 0.5, seed=0, index=0)


def test_annotation_of_a_treebank_stays(tmp_path):
    rows = ["# sent_id = 1", "# text = Big ships", "1-2\tBigships\t_", "1\tBig\tbig\tADJ", "2\tships\tship\tNOUN", ""]
    (tmp_path / "test.conllu").write_text("\n".join([*rows, *rows]), "utf-8")
    assert write_noisy(tmp_path / "test.conllu", tmp_path / "out.conllu", "truncate", 1.0) == 2
    found = (tmp_path / "out.conllu").read_text("utf-8").splitlines()
    assert found[: len(rows) - 1] == [rows[0], rows[2], "1\tBi\tbig\tADJ", "2\tship\tship\tNOUN", ""]
    with pytest.raises(DataError, match="annotates each word"):
        write_noisy(tmp_path / "test.conllu", tmp_path / "other.conllu", "segmentation", 1.0)


def test_only_the_columns_named_are_changed(tmp_path):
    (tmp_path / "a.tsv").write_text("label\tone\ttwo\n1\tsome words\tothers\n", "utf-8")
    write_noisy(tmp_path / "a.tsv", tmp_path / "b.tsv", "truncate", 1.0, columns=["one"])
    assert (tmp_path / "b.tsv").read_text("utf-8") == "label\tone\ttwo\n1\tsom word\tothers\n"
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "é words", "label": 3}) + "\n", "utf-8")
    write_noisy(tmp_path / "a.jsonl", tmp_path / "b.jsonl", "segmentation", 1.0, columns=["text"])
    assert json.loads((tmp_path / "b.jsonl").read_text("utf-8")) == {"text": "éwords", "label": 3}
    for columns, reason in ((["three"], "its columns: label, one, two"), ([], "--column")):
        with pytest.raises(DataError, match=reason):
            write_noisy(tmp_path / "a.tsv", tmp_path / "c.tsv", "truncate", 1.0, columns=columns)
    with pytest.raises(DataError, match=r"not a .conllu, .jsonl or .tsv file"):
        write_noisy(tmp_path / "a.csv", tmp_path / "c.csv", "truncate", 1.0)


def test_misspellings_come_from_a_file(tmp_path):
    (tmp_path / "typos.txt").write_text("the teh\n", "utf-8")
    (tmp_path / "a.tsv").write_text("text\nThe the cat\n", "utf-8")
    write_noisy(
        tmp_path / "a.tsv", tmp_path / "b.tsv", "natural-typo", 1, columns=["text"], typos=tmp_path / "typos.txt"
    )
    assert (tmp_path / "b.tsv").read_text("utf-8") == "text\nTeh teh cat\n"
