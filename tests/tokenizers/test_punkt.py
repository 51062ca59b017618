"""Sentence boundaries: equal to NLTK's with equal parameters, and the facts of section 7 of the specification."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretrainkit.corpus.sources import find_sources
from pretrainkit.errors import DataError
from pretrainkit.tokenizers.punkt import Punkt, train_punkt
from pretrainkit.tokenizers.sentences import learn_punkt, make_splitter, read_punkt

ENGLISH = Punkt(
    abbreviations=frozenset({"mr", "mrs", "dr", "u.s", "e.g", "st", "no", "p.m"}),
    collocations=frozenset({("##number##", "century"), ("st", "louis"), ("went", "home")}),
    starters=frozenset({"the", "he", "however"}),
    orthography={
        "the": 2 | 64 | 32,
        "he": 2 | 32,
        "smith": 4,
        "bach": 8,
        "after": 2 | 32 | 16,
        "century": 32,
        "new": 36,
    },
)


def nltk_splitter(punkt):
    from nltk.tokenize.punkt import PunktParameters, PunktSentenceTokenizer

    parameters = PunktParameters()
    parameters.abbrev_types = set(punkt.abbreviations)
    parameters.collocations = set(punkt.collocations)
    parameters.sent_starters = set(punkt.starters)
    parameters.ortho_context.update(punkt.orthography)
    splitter = PunktSentenceTokenizer()
    splitter._params = parameters
    return splitter


NLTK = nltk_splitter(ENGLISH)
FRAGMENTS = st.sampled_from(
    [
        *("Mr.", "Dr", "Smith", "went", "home", ".", "?", "!", "...", "..", ". . .", "J.", "S.", "Bach", "3.", "19."),
        *(
            "century",
            "No.",
            "U.S.",
            "e.g.",
            "said,",
            "the",
            "The",
            "he",
            "He",
            "however",
            "Why?!",
            'end."',
            "(end.)",
            "end.)",
        ),
        *(
            '"',
            "'",
            ")",
            "(",
            "[",
            "]",
            "“",
            "”",
            "’",
            "«",
            "»",
            "--",
            "-",
            ",",
            ";",
            ":",
            ".And",
            "one.Sentence",
            "st.",
            "Louis",
        ),
        *(
            "st.)",
            "5.5",
            "A.M.",
            "p.m.",
            "é.",
            "Ω.",
            "да.",
            "Да",
            "…",
            "。",
            "",
            " ",
            "  ",
            "\n",
            "\n\n",
            "\t",
            "\u00a0",
            "\u2003",
        ),
    ]
)


@settings(max_examples=600, deadline=None)
@given(st.lists(st.tuples(FRAGMENTS, st.sampled_from(["", " ", " ", "\n", "  "])), max_size=25))
def test_splits_as_nltk_does(parts):
    text = "".join(fragment + blank for fragment, blank in parts)
    assert ENGLISH.split(text) == NLTK.tokenize(text)


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="aB. ?!\"')\n\t1-,x\u00a0\x0b", max_size=40))
def test_splits_any_characters_as_nltk_does(text):
    assert ENGLISH.split(text) == NLTK.tokenize(text)


def test_splits_whole_documents_as_nltk_does(prose):
    punkt = train_punkt(prose[:10])
    theirs = nltk_splitter(punkt)
    for text in prose:
        assert punkt.split(text) == theirs.tokenize(text)


def test_newlines_are_no_boundaries_and_headings_merge():
    assert ENGLISH.split("A heading\n\nThe text goes\non. It ends.") == ["A heading\n\nThe text goes\non.", "It ends."]


def test_abbreviations_initials_and_decimals_do_not_end_sentences():
    text = "Mr. Smith met J. S. Bach at 5.5 p.m. on the 3. century walk. He left."
    assert ENGLISH.split(text) == [text[:-9], "He left."]


def test_a_period_before_a_letter_is_no_candidate():
    assert ENGLISH.split("one.Sentence here") == ["one.Sentence here"]


def test_closing_quotes_stay_with_their_sentence():
    assert ENGLISH.split('He said, "Stop." Then he left.') == ['He said, "Stop."', "Then he left."]


def test_other_marks_are_no_endings_and_other_scripts_split_at_periods():
    assert ENGLISH.split("So… Then 文。文 ends") == ["So… Then 文。文 ends"]
    assert ENGLISH.split("Это первое. Это второе.") == ["Это первое.", "Это второе."]


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=60))
def test_no_character_but_blanks_is_lost(text):
    assert "".join("".join(ENGLISH.split(text)).split()) == "".join(text.split())


def test_parameters_go_through_json(prose, tmp_path):
    punkt = train_punkt(prose[:4])
    path = tmp_path / "sentences.json"
    path.write_text(json.dumps(punkt.as_dict()))
    assert read_punkt(path) == punkt
    assert json.dumps(train_punkt(prose[:4]).as_dict()) == json.dumps(punkt.as_dict())


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": "other"}', '{"format": "pretrainkit punkt 1"}'])
def test_broken_parameters_are_refused(content, tmp_path):
    path = tmp_path / "sentences.json"
    path.write_text(content)
    with pytest.raises(DataError, match=r"sentences\.json"):
        read_punkt(path)


def test_parameters_are_learned_from_files(corpus, tmp_path):
    sources = find_sources([corpus / "train"])
    assert learn_punkt(sources) == learn_punkt(sources)
    (tmp_path / "empty.jsonl").write_text('{"text": " "}\n')
    with pytest.raises(DataError, match="no text"):
        learn_punkt(find_sources([tmp_path / "empty.jsonl"]))


def test_other_splitters():
    text = "One. Two!\n\n「三。」四。 Five"
    assert make_splitter("newline")(text) == ["One. Two!", "「三。」四。 Five"]
    assert make_splitter("none")(text) == [text]
    assert make_splitter("regex")(text) == ["One.", "Two!", "「三。」", "四。", "Five"]
    assert make_splitter("regex", pattern="(T)")("oneTtwo") == ["one", "two"]


def test_settings_of_splitters_without_use_or_sense_are_refused():
    with pytest.raises(DataError, match="does not apply"):
        make_splitter("newline", pattern="x")
    with pytest.raises(DataError, match="not a regular expression"):
        make_splitter("regex", pattern="(")
    with pytest.raises(DataError, match="needs parameters"):
        make_splitter("punkt")
    with pytest.raises(DataError, match="one of punkt"):
        make_splitter("other")
