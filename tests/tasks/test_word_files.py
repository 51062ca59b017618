"""Sentences word by word from files."""

import gzip
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretrainkit.errors import DataError
from pretrainkit.tasks.row_files import open_sentences

WORD = st.text(st.characters(codec="utf-8", exclude_categories=("Z", "C")), min_size=1, max_size=6).filter(
    lambda word: not word.startswith(("#", "-DOC"))
)
SENTENCES = st.lists(st.lists(st.tuples(WORD, st.sampled_from(["NOUN", "X", "_"])), min_size=1, max_size=6), min_size=1)


def rows(path, split="train"):
    source = open_sentences(path, split)
    return [source.example(split, number) for number in range(source.num_examples(split))]


def conllu(sentences, *, with_more):
    lines = []
    for number, sentence in enumerate(sentences):
        lines.append(f"# sent_id = s{number}")
        for place, (word, tag) in enumerate(sentence, 1):
            if with_more:
                lines += [f"{place}-{place + 1}\tboth" + "\t_" * 8, f"{place}.1\tempty" + "\t_" * 8]
            lines.append("\t".join([str(place), word, "_", tag, "x" + tag, "_", str(place - 1), "dep", "_", "_"]))
        lines.append("")
    return "\n".join(lines)


@settings(deadline=None, max_examples=25)
@given(sentences=SENTENCES, with_more=st.booleans())
def test_conllu_gives_the_words_of_the_tree_and_counts_the_other_lines(sentences, with_more, tmp_path_factory):
    path = tmp_path_factory.mktemp("ud") / "some.conllu"
    path.write_text(conllu(sentences, with_more=with_more), "utf-8")
    found = rows(path)
    assert [list(zip(row["words"], row["upos"], strict=True)) for row in found] == sentences
    assert [row["heads"] for row in found] == [[str(k) for k in range(len(one))] for one in sentences]
    assert sum(row["num_skipped"] for row in found) == (2 * sum(map(len, sentences)) if with_more else 0)
    assert [row["id"] for row in found] == [f"s{number}" for number in range(len(sentences))]


@settings(deadline=None, max_examples=25)
@given(sentences=SENTENCES)
def test_columns_give_first_words_and_last_labels(sentences, tmp_path_factory):
    folder = tmp_path_factory.mktemp("ner")
    lines = ["-DOCSTART- -X- O", ""]
    for sentence in sentences:
        lines += [*(f"{word} middle {tag}" for word, tag in sentence), "", "  "]
    (folder / "a.txt").write_text("\n".join(lines), "utf-8")
    (folder / "a.bio.gz").write_bytes(gzip.compress("\r\n".join(lines).encode()))
    for found in (rows(folder / "a.txt"), rows(folder / "a.bio.gz")):
        assert [list(zip(row["words"], row["tags"], strict=True)) for row in found] == sentences
        assert {label for row in found for label in row["column2"]} == {"middle"}


def test_comments_before_a_sentence_are_no_words(tmp_path):
    """A comment of MultiCoNER has as many fields as its rows of words."""
    text = "# id 7c8 domain=train\n#1 _ _ B-X\n# _ _ O\n\n# sent_id = 5\n# text = # a\n# _ _ O\n"
    (tmp_path / "a.conll").write_text(text)
    assert [(row["words"], row["tags"]) for row in rows(tmp_path / "a.conll")] == [
        (["#1", "#"], ["B-X", "O"]),
        (["#"], ["O"]),
    ]


def test_json_lines_are_rows_as_they_are(tmp_path):
    row = {"words": ["a", "b"], "tags": ["X", "Y"]}
    (tmp_path / "a.jsonl").write_text(json.dumps(row))
    assert rows(tmp_path / "a.jsonl") == [row]


@pytest.mark.parametrize(
    ("name", "text", "what"),
    [
        ("a.conllu", "1\tword\n", "2 fields"),
        ("a.txt", "a X\n\nword\nword X\n", "line 4"),
        ("b.txt", "a X\nb\n", "line 2"),
    ],
)
def test_broken_lines_are_named(name, text, what, tmp_path):
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=what):
        rows(tmp_path / name)


def test_other_content_is_another_data_set(tmp_path):
    prints = set()
    for number in range(2):
        (tmp_path / f"{number}.conllu").write_text(conllu([[("a", str(number))]], with_more=False))
        prints.add(open_sentences(tmp_path / f"{number}.conllu", "train").fingerprint("train"))
    assert len(prints) == 2
