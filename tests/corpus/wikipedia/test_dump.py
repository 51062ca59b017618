"""Pages of a dump: each once, wherever it is cut; damage is named and counted."""

import bz2
import gzip
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pretrainkit.corpus.readers import read_documents
from pretrainkit.corpus.wikipedia import dump
from pretrainkit.corpus.wikipedia.dump import read_pages, read_site
from pretrainkit.errors import DataError
from pretrainkit.files.skips import Skips
from pretrainkit.files.sources import find_sources
from pretrainkit.files.spans import cut_large
from support.wiki_dumps import HEAD, TAIL, page

ALL = [f"Title {number}" for number in range(1, 41)]


@pytest.fixture
def many_pages():
    """XML of 40 articles whose text names them."""
    return [page(title, f"Article {number} of many.", number=number) for number, title in enumerate(ALL, 1)]


@pytest.fixture
def multistream(many_pages):
    """The 40 articles as Wikipedia packs them: head, four pages at a time, and tail are bz2 streams of their own."""
    groups = ["".join(many_pages[start : start + 4]) for start in range(0, 40, 4)]
    return [bz2.compress(part.encode()) for part in (HEAD, *groups, TAIL)]


def source_of(path, content):
    path.write_bytes(content)
    return find_sources([path])[0]


def titles(source, max_bad=0):
    skips = Skips(max_bad)
    return [page.title for page in read_pages(source, skips)], skips


@pytest.mark.parametrize("name", ["a.xml", "a.xml.gz", "a.xml.bz2"])
def test_every_compression_gives_the_same_pages(tmp_path, many_pages, name):
    pack = {"xml": bytes, "gz": gzip.compress, "bz2": bz2.compress}[name.rpartition(".")[2]]
    source = source_of(tmp_path / name, pack((HEAD + "".join(many_pages) + TAIL).encode()))
    assert source.format == "dump"
    assert titles(source)[0] == ALL
    assert read_site(source).language == "en"
    assert {"file", "image", "kategorie", "category"} <= read_site(source).hidden_prefixes


@pytest.mark.parametrize("span", [97, 300, 700])
@pytest.mark.parametrize("kind", ["xml", "bz2", "cut anywhere.bz2"])
def test_spans_of_a_dump_give_each_page_once_and_in_order(tmp_path, many_pages, multistream, span, kind):
    plain = (HEAD + "".join(many_pages) + TAIL).encode()
    content = {
        "xml": plain,
        "bz2": b"".join(multistream),
        "cut anywhere.bz2": b"".join(bz2.compress(plain[at : at + 611]) for at in range(0, len(plain), 611)),
    }[kind]
    source = source_of(tmp_path / ("a.xml" if kind == "xml" else "a.xml.bz2"), content)
    parts = cut_large(source, span)
    assert len(parts) > 2
    assert sum(part.num_bytes for part in parts) == source.num_bytes
    assert [title for part in parts for title in titles(part)[0]] == ALL


def test_memory_addresses_are_read_through_fsspec(many_pages):
    import fsspec

    with fsspec.open("memory://wiki/pages.xml.bz2", "wb") as file:
        file.write(bz2.compress((HEAD + "".join(many_pages) + TAIL).encode()))
    documents = list(read_documents(find_sources(["memory://wiki/pages.xml.bz2"])))
    assert [document.meta["title"] for document in documents] == ALL
    assert documents[6].text == "Article 7 of many."


@pytest.mark.parametrize("hole", [b"\xff" * 8, None], ids=["damaged bytes", "a hole of zeros"])
def test_a_damaged_stream_is_named_and_the_others_are_read(tmp_path, multistream, hole):
    whole = multistream[3]
    multistream[3] = whole[:40] + hole + whole[48:] if hole else bytes(len(whole))
    source = source_of(tmp_path / "a.xml.bz2", b"".join(multistream))
    with pytest.raises(DataError, match="damaged bz2"):
        titles(source)
    found, skips = titles(source, max_bad=1)
    assert found == ALL[:8] + ALL[12:]
    assert skips.counts == {"damaged_bz2": 1}
    read = [titles(part, max_bad=1) for part in cut_large(source, 97)]
    assert [title for found, _ in read for title in found] == ALL[:8] + ALL[12:]
    assert sum(skips.num_bad for _, skips in read) == 1
    assert read_site(source).language == "en"  # damage behind the head is for the budget, not for the head


@pytest.mark.parametrize(("name", "pack"), [("a.xml.bz2", bz2.compress), ("a.xml.gz", gzip.compress)])
def test_a_dump_that_breaks_off_is_named(tmp_path, many_pages, name, pack):
    content = pack((HEAD + "".join(many_pages)).encode())
    source = source_of(tmp_path / name, content[:-30])
    with pytest.raises(DataError, match="truncated"):
        titles(source)


@pytest.mark.parametrize("span", [300, 1_000_000])
@pytest.mark.parametrize("name", ["a.xml", "a.xml.bz2"])
def test_a_dump_that_ends_between_two_pages_or_streams_is_named_once(tmp_path, many_pages, multistream, name, span):
    content = b"".join(multistream[:8]) if name.endswith("bz2") else (HEAD + "".join(many_pages[:28])).encode()
    parts = cut_large(source_of(tmp_path / name, content), span)
    read = [titles(part, max_bad=1) for part in parts]
    assert [title for found, _ in read for title in found] == ALL[:28]
    assert [dict(skips.counts) for _, skips in read] == [{}] * (len(parts) - 1) + [{"truncated_dump": 1}]


BAD_PAGES = {
    "invalid_utf8": page("X", "café").encode("latin-1"),
    "invalid_xml": page("X", "a").replace(">a<", ">a &unknown; b<").encode(),
    "page_too_large": page("X", "a" * 100_000).encode(),
    "page_not_closed": page("X", "a").encode().partition(b"</revision>")[0],
}
BAD_XML = [">a & b<", ">a\x01b<", ">a<b>c</b><", ">a &#xD800; b<", ">a &#0; b<"]


@pytest.mark.parametrize("reason", BAD_PAGES)
def test_a_bad_page_is_named_and_counted_and_the_next_is_read(tmp_path, reason, monkeypatch):
    monkeypatch.setattr(dump, "MAX_PAGE_BYTES", 100_000)
    good = page("Good", "text", number=2).encode()
    source = source_of(tmp_path / "a.xml", HEAD.encode() + good + BAD_PAGES[reason] + good + TAIL.encode())
    with pytest.raises(DataError, match=r"page 'X': " + reason.replace("_", " ")):
        titles(source)
    found, skips = titles(source, max_bad=1)
    assert (found, skips.counts) == (["Good", "Good"], {reason: 1})


@pytest.mark.parametrize("text", BAD_XML)
def test_text_that_is_not_xml_is_bad(tmp_path, text):
    bad = page("X", "a").replace(">a<", text)
    source = source_of(tmp_path / "a.xml", (HEAD + bad + TAIL).encode())
    assert titles(source, max_bad=1)[1].counts == {"invalid_xml": 1}


def test_a_huge_page_is_never_held_whole(tmp_path, monkeypatch):
    import tracemalloc

    monkeypatch.setattr(dump, "MAX_PAGE_BYTES", 100_000)
    monkeypatch.setattr(dump, "_PLAIN_BYTES", 10_000)
    monkeypatch.setattr(dump, "_READ_BYTES", 1000)
    huge = HEAD + page("Huge", "a" * 10_000_000) + page("Good", "text") + TAIL
    source = source_of(tmp_path / "a.xml.bz2", bz2.compress(huge.encode()))
    tracemalloc.start()
    found, skips = titles(source, max_bad=1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (found, skips.counts) == (["Good"], {"page_too_large": 1})
    assert peak < 2_000_000


def test_a_page_in_thousands_of_tiny_streams_is_read_in_a_moment(tmp_path):
    content = (HEAD + page("Good", "word " * 160_000) + TAIL).encode()
    streams = (bz2.compress(content[at : at + 100], 1) for at in range(0, len(content), 100))
    source = source_of(tmp_path / "a.xml.bz2", b"".join(streams))
    start = time.process_time()
    assert titles(source)[0] == ["Good"]
    assert time.process_time() - start < 3


@pytest.mark.parametrize("content", ["<mediawiki><page>" + "<page>" * 100_000, "<mediawiki" * 60_000])
def test_hundreds_of_thousands_of_openings_are_read_in_a_moment(tmp_path, content):
    source = source_of(tmp_path / "a.xml", content.encode())
    start = time.process_time()
    assert titles(source, max_bad=1_000_000)[0] == []
    assert time.process_time() - start < 3


def test_a_file_that_is_not_a_dump_is_refused(tmp_path):
    with pytest.raises(DataError, match="not a MediaWiki dump"):
        read_site(source_of(tmp_path / "a.xml", b"<html></html>"))


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_damage_makes_the_reader_fail_otherwise_than_by_data_errors(tmp_path, multistream, data):
    content = bytearray(b"".join(multistream))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at : at + data.draw(st.integers(0, 9))] = data.draw(st.binary(max_size=9))
    source = source_of(tmp_path / "a.xml.bz2", bytes(content))
    try:
        found, _ = titles(source, max_bad=100)
    except DataError:
        return
    assert set(found) <= set(ALL)
