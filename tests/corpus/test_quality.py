"""Rules of quality, each with a text that breaks only this rule; and BERT text, written and read."""

import pytest

from pretrainkit.corpus.bert_text import write_bert_text
from pretrainkit.corpus.quality import Quality
from pretrainkit.corpus.readers import Document, read_documents
from pretrainkit.errors import DataError
from pretrainkit.files.sources import find_sources

GOOD = "The quick brown foxes have jumped over that lazy dogs with joy."
PROSE = "\n".join(f"{GOOD} Number {index} of them is here." for index in range(8))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (PROSE, None),
        (GOOD, "too_few_words"),
        ("word " * 100_001, "too_many_words"),
        ("a b c d " * 30, "words_too_short"),
        ("abcdefghijklmno " * 60, "words_too_long"),
        (PROSE.replace("them", "#them #all"), "too_many_symbols"),
        (PROSE.replace("them", "1234 5678 9012 1234"), "too_few_letters"),
        ("\n".join("- " + line for line in PROSE.split("\n")), "too_many_bullets"),
        (PROSE.replace("here.", "here..."), "too_many_ellipses"),
        ((GOOD + "\n") * 8, "too_many_repeated_lines"),
    ],
)
def test_a_document_is_dropped_by_the_rule_that_it_breaks(text, problem):
    assert Quality().problem(text) == problem


def test_english_stop_words_count_only_if_requested():
    text = "lorem ipsum dolor sit amet " * 20
    assert Quality(max_duplicate_line_share=1.0).problem(text) is None
    assert Quality(min_stop_words=2).problem(text) == "too_few_stop_words"
    assert Quality(min_words=0).problem("") is None
    with pytest.raises(DataError, match="no document can have"):
        Quality(min_words=9, max_words=5)


def test_bert_text_is_read_as_it_was_written(tmp_path):
    documents = [
        Document("One. Two\nlines. Three."),
        Document(""),
        Document("a\u2028b.\nc.\n", {"lines": "sentences"}),
    ]
    out = tmp_path / "a.txt"
    assert write_bert_text(documents, lambda text: text.split(". "), out) == (2, 5)
    assert out.read_text() == "One\nTwo lines\nThree.\n\na b.\nc.\n"
    assert [document.text for document in read_documents(find_sources([out]))] == [
        "One\nTwo lines\nThree.\n",
        "a b.\nc.\n",
    ]
