import json

from pretrainkit.corpus.stats import corpus_stats
from pretrainkit.files.sources import find_sources


def test_statistics_of_a_handwritten_corpus(tmp_path):
    documents = [("a b c", "X"), ("a b c", "X"), ("é\u00a0é", "Y"), ("", "Y")]
    lines = [json.dumps({"text": text, "meta": {"dataset": name}}) for text, name in documents]
    (tmp_path / "x.jsonl").write_text("\n".join([*lines, "[]"]))
    (tmp_path / "y.txt").write_text("one two\nthree\n")
    stats = corpus_stats(find_sources([tmp_path]), workers=1)
    assert {key: value for key, value in stats.items() if isinstance(value, int)} == {
        "num_files": 2,
        "num_source_bytes": sum(path.stat().st_size for path in tmp_path.iterdir()),
        "num_documents": 5,
        "num_empty_documents": 1,
        "num_duplicates": 1,
        "num_words": 10,
        "num_characters": 27,
        "num_text_bytes": 30,
    }
    assert stats["datasets"] == {"X": 2, "Y": 2, "BERT text": 1}
    assert stats["words_per_document"]["p50"] == 3
    assert stats["words_per_document"]["mean"] == 2
    assert stats["skipped"]["not_an_object"]["count"] == 1


def test_statistics_of_nothing(tmp_path):
    (tmp_path / "x.txt").write_text("")
    assert corpus_stats(find_sources([tmp_path]))["num_documents"] == 0
