"""Cleaners of books: each takes out what it is for, and nothing else."""

import json

import pytest
from typer.testing import CliRunner

from pretrainkit.cli.corpus import app
from pretrainkit.corpus.books import BookCleaning

PLAIN = "A well-\nknown man.\nHe was 12\n12\nyears old, in\n  - iv -\nthe year 1900.\n"


@pytest.mark.parametrize(
    ("chosen", "text"),
    [
        ({}, PLAIN),
        ({"join_hyphens": True}, PLAIN.replace("-\nk", "k")),
        ({"drop_page_numbers": True}, PLAIN.replace("12\n12\n", "12\n").replace("  - iv -\n", "")),
        ({"strip_licence": True}, PLAIN),
    ],
)
def test_only_the_selected_parts_are_removed(chosen, text):
    assert BookCleaning(**chosen).clean(PLAIN) == text


def test_a_hyphen_before_a_name_stays():
    assert BookCleaning(join_hyphens=True).clean("Anglo-\nSaxon, 10-\nyear") == "Anglo-\nSaxon, 10-\nyear"


@pytest.mark.parametrize("word", ["civil", "mix", "vi", "I", "iiii", "Civil", "livid", "vic", "xIx", "ivy", "id", "mm"])
def test_a_lone_word_of_roman_letters_stays(word):
    text = f"so\n{word}\nis a word\n"
    assert BookCleaning(drop_page_numbers=True).clean(text) == text


def test_roman_page_numbers_are_removed_if_they_follow_each_other():
    clean = BookCleaning(drop_page_numbers=True).clean
    pages = "".join(
        f"Of page {n}.\n{roman}\n" for n, roman in enumerate(["v", "vi", "viii", "ix", "xl", "civil", "xli"])
    )
    assert clean(pages) == "".join(f"Of page {n}.\n" for n in range(6)) + "civil\nOf page 6.\n"
    assert clean("I\nOne.\nII\nTwo.\nii\nIV\nFour.\nIX\n") == "One.\nTwo.\nii\nFour.\nIX\n"
    assert clean("page xii\n[mcmxcix]\npage civil\nend\n") == "page civil\nend\n"


def test_the_command_takes_out_licences(tmp_path):
    mark = "*** {} OF THE PROJECT GUTENBERG EBOOK X ***"
    book = "\n".join(["Licence", mark.format("START"), "Text.", mark.format("END"), "More"])
    (tmp_path / "a.txt").write_text(book)
    words = ["books", str(tmp_path / "a.txt"), "--out", str(tmp_path / "out"), "--strip-licence"]
    assert CliRunner().invoke(app, words).exit_code == 0
    shard = (tmp_path / "out/part-00000-of-00001.jsonl").read_text()
    assert json.loads(shard) == {"text": "Text.", "meta": {"dataset": "Books"}}
