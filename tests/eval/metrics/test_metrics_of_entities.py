"""Entities, compared with all spans of a sentence, one by one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretrainkit.errors import DataError
from pretrainkit.eval.metrics import are_entity_labels, entities, entity_f1

LABELS = st.lists(st.sampled_from(["O", "B-A", "I-A", "B-B", "I-B"]), min_size=1, max_size=7)


def is_entity(labels, kind, begin, end):
    """A longest stretch of one kind, in which only the first word may have B."""
    goes_on_before = begin and labels[begin] == f"I-{kind}" and labels[begin - 1] in (f"B-{kind}", f"I-{kind}")
    inside = all(label == f"I-{kind}" for label in labels[begin + 1 : end])
    goes_on_after = end < len(labels) and labels[end] == f"I-{kind}"
    return labels[begin] in (f"B-{kind}", f"I-{kind}") and inside and not goes_on_before and not goes_on_after


def brute_force(labels):
    ends = range(1, len(labels) + 1)
    return [(k, b, e) for b in range(len(labels)) for e in ends if b < e for k in "AB" if is_entity(labels, k, b, e)]


@given(LABELS)
def test_entities_are_the_longest_spans_of_a_kind(labels):
    assert entities(labels) == brute_force(labels)


@given(st.lists(LABELS.flatmap(lambda one: st.tuples(st.just(one), st.permutations(one))), min_size=1, max_size=4))
def test_f1_counts_entities_of_all_sentences(pairs):
    targets, said = [one for one, _ in pairs], [list(other) for _, other in pairs]
    true = {(i, *one) for i, labels in enumerate(targets) for one in brute_force(labels)}
    found = {(i, *one) for i, labels in enumerate(said) for one in brute_force(labels)}
    scores = entity_f1(targets, said)
    precision, recall = (100 * len(true & found) / len(one) if one else 0.0 for one in (found, true))
    assert scores["precision"] == pytest.approx(precision)
    assert scores["recall"] == pytest.approx(recall)
    harmonic = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
    assert scores["f1"] == pytest.approx(harmonic)


def test_ends_and_single_words_are_read_too():
    assert entities(["B-A", "I-A", "E-A", "S-A", "E-B", "?"]) == [("A", 0, 3), ("A", 3, 4), ("B", 4, 5)]


def test_only_labels_of_entities_are_taken_for_some():
    assert are_entity_labels(("B-PER", "I-PER", "O"))
    assert not are_entity_labels(("ADJ", "NOUN", "X"))
    assert not are_entity_labels(("O",))


def test_sentences_of_other_lengths_are_refused():
    with pytest.raises(DataError, match="2 targets and 1"):
        entity_f1([["O", "O"]], [["O"]])
