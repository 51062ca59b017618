import json
import sys
from html.parser import HTMLParser

import pytest
from typer.testing import CliRunner

from pretrainkit.cli.corpus import app
from pretrainkit.errors import InputError
from pretrainkit.report.corpus_page import render_corpus

LONG = (
    "The quick brown fox jumps over the lazy dog and runs into the deep dark forest where nobody has ever been before "
)


class Page(HTMLParser):
    """Tags that are opened, and all text."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.text = set(), ""
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)

    def handle_data(self, data):
        self.text += data + "\n"


def write_corpus(folder):
    texts = [f"{LONG * 3}{number}" for number in range(5)]
    texts += [
        texts[0],
        "Мы живём в большом городе на берегу широкой реки и любим её",
        "",
        "<script>alert(1)</script> & co",
    ]
    rows = (json.dumps({"text": text, "meta": {"dataset": "Set <b>"}}) for text in texts)
    path = folder / "corpus.jsonl"
    path.write_text("\n".join(rows) + '\n{"no": "text"}\n')
    return path


def test_the_page_shows_counts_lengths_languages_duplicates_samples_and_skipped_records(tmp_path):
    pytest.importorskip("py3langid")
    page = tmp_path / "pages" / "corpus.html"
    arguments = ["stats", str(write_corpus(tmp_path)), "--page", str(page), "--title", "Mine & yours", "--json"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["num_documents"], found["num_duplicates"], found["num_near_duplicates"]) == (9, 1, 4)
    assert found["languages"] == {"of": "language", "counts": {"en": 5, "unknown": 2, "ru": 1}}
    assert sum(found["words_histogram"]["counts"]) == 9
    html = page.read_text()
    shown = Page(html)
    assert {"svg", "table", "rect"} <= shown.tags
    assert "script" not in shown.tags
    assert "http" not in html.replace("http://www.w3.org/2000/svg", "").replace("http-equiv", "")
    for words in ("Mine & yours", "9\ndocuments", "Words per document", "Set <b>", "Мы живём", "no text", "(empty)"):
        assert words in shown.text
    assert [path.name for path in page.parent.iterdir()] == ["corpus.html"]


def test_without_the_library_scripts_are_counted_and_the_page_is_the_same_on_any_number_of_workers(
    tmp_path, monkeypatch
):
    monkeypatch.setitem(sys.modules, "py3langid", None)
    source = write_corpus(tmp_path)
    pages = []
    for workers in (1, 2):
        page = tmp_path / f"{workers}.html"
        result = CliRunner().invoke(app, ["stats", str(source), "--page", str(page), "--workers", str(workers)])
        assert result.exit_code == 0, result.output
        assert "pretrainkit[languages]" in result.output
        pages.append(page.read_bytes())
    assert pages[0] == pages[1]
    assert "Scripts of 8 documents" in pages[0].decode()
    assert "Cyrillic" in pages[0].decode()


def test_an_empty_corpus_has_a_page_and_a_page_that_cannot_be_written_is_reported(tmp_path):
    (tmp_path / "empty.jsonl").write_text("")
    result = CliRunner().invoke(app, ["stats", str(tmp_path / "empty.jsonl"), "--page", str(tmp_path / "e.html")])
    assert result.exit_code == 0, result.output
    assert "no data" in (tmp_path / "e.html").read_text()
    (tmp_path / "file").write_text("")
    result = CliRunner().invoke(
        app, ["stats", str(tmp_path / "empty.jsonl"), "--page", str(tmp_path / "file" / "page.html")]
    )
    assert isinstance(result.exception, InputError)


def test_any_text_is_shown_as_text():
    nothing = {"edges": [], "counts": []}
    stats = {
        "num_files": 1,
        "num_source_bytes": 5,
        "num_documents": 1,
        "num_empty_documents": 0,
        "num_duplicates": 0,
        "num_words": 1,
        "num_characters": 1,
        "num_text_bytes": 1,
        "words_per_document": {},
        "text_bytes_per_document": {},
        "words_histogram": nothing,
        "text_bytes_histogram": nothing,
        "datasets": {"</svg><img src=x>": 1},
        "skipped": {},
        "sample": [["</td><iframe>\x00", "<a>"]],
    }
    assert not {"img", "iframe", "a"} & Page(render_corpus(stats, "</title>")).tags
