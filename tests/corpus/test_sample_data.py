"""Real text, where it is at hand."""

from collections import Counter

from pretrainkit.corpus.readers import read_documents
from pretrainkit.corpus.shards import BuildSettings, build_corpus
from pretrainkit.corpus.words import count_words
from pretrainkit.files.manifest import verify
from pretrainkit.files.sources import find_sources


def test_books_and_wikitext_pass_every_stage(tmp_path, sample_data):
    sources = find_sources([sample_data / "books/novels_valid.jsonl.zst", sample_data / "wiki/wikitext2"])
    sources += find_sources([sample_data / "books/txt"], "book", dataset="Books")
    before = list(read_documents(sources))
    build_corpus(sources, tmp_path / "corpus", BuildSettings(num_shards=3, heldout=0.05, compress="zst"))
    shards = find_sources([tmp_path / "corpus/train", tmp_path / "corpus/valid"])
    after = list(read_documents(shards))
    assert Counter(document.text for document in after) == Counter(document.text for document in before)
    assert [verify(tmp_path / "corpus" / split)["split"] for split in ("train", "valid")] == ["train", "valid"]

    count_words(sources, tmp_path / "raw.tsv")
    count_words(shards, tmp_path / "shards.tsv")
    assert (tmp_path / "raw.tsv").read_bytes() == (tmp_path / "shards.tsv").read_bytes()
    # No VT or FF in this text, so that bytes.split() cuts where we do.
    assert not any("\v" in document.text or "\f" in document.text for document in before)
    expected = Counter(word for document in before for word in document.text.encode().split())
    rows = [row.split(b"\t") for row in (tmp_path / "raw.tsv").read_bytes().splitlines()]
    assert {word: int(count) for word, count in rows} == expected
