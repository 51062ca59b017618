import pytest

from pretrainkit.corpus.books import book_text
from pretrainkit.corpus.readers import read_documents
from pretrainkit.errors import DataError
from pretrainkit.files.skips import Skips
from pretrainkit.files.sources import find_sources


def articles(tmp_path, raw, skips=None, compat=False):
    path = tmp_path / "wiki_00"
    path.write_text(raw, newline="")
    sources = find_sources([path], "wiki", dataset="Wikipedia")
    documents = list(read_documents(sources, skips, compat=compat))
    assert all(document.meta == {"dataset": "Wikipedia"} for document in documents)
    return [document.text for document in documents]


def test_book_lines_are_trimmed_of_unicode_white_space():
    """Acceptance fact 4."""
    assert book_text("\u3000The rain fell.\u3000\r\n") == "The rain fell."
    assert book_text("\ufeffA\n\n \xa0\nB\rC\vD\n") == "\ufeffA\nB\rC\vD"
    assert book_text("\x1cnot white space\x1f\n") == "\x1cnot white space\x1f"
    assert book_text("") == ""


def test_the_title_of_an_article_is_dropped_and_a_title_alone_gives_an_empty_text(tmp_path):
    """Acceptance fact 3."""
    raw = 'before\n<doc id="1">\n\nTitle\n\n  Text \r\nmore\n</doc>\nbetween\n<doc id="2">\nOnly title\n</doc>\n'
    assert articles(tmp_path, raw) == ["  Text \nmore", ""]


def test_an_article_without_lines_is_skipped_and_counted(tmp_path):
    """Defect 3: the original aborts."""
    skips = Skips()
    assert articles(tmp_path, "<doc>\n\n</doc>\n<doc>\nT\nx\n</doc>\n", skips) == ["x"]
    assert skips.counts == {"article_without_lines": 1}


def test_marks_inside_a_line_are_text_unless_compat(tmp_path):
    """Defect 3."""
    raw = "<doc>\nT\nthe tag <doc opens\nand </doc> closes\nend\n</doc>\n"
    assert articles(tmp_path, raw) == ["the tag <doc opens\nand </doc> closes\nend"]
    assert articles(tmp_path, raw, compat=True) == [""]


def test_an_article_that_is_cut_off_is_bad_input(tmp_path):
    with pytest.raises(DataError, match="line 4: article not closed"):
        articles(tmp_path, "<doc>\nT\n</doc>\n<doc>\nT\ntext\n")
