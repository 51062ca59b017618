"""SQuAD 2.0: questions that have no answer."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretrainkit.eval.metrics import best_null_threshold, squad, squad_v2

ANSWER = st.sampled_from(["red", "a red house", "house", "blue sky", "the"])
ROWS = st.lists(
    st.tuples(st.lists(ANSWER, max_size=2), ANSWER | st.just(""), st.integers(-3, 3).map(float)), min_size=1, max_size=8
)


@given(ROWS)
def test_the_best_threshold_is_the_best_of_all(rows):
    targets, said, odds = map(list, zip(*rows, strict=True))
    by_threshold = {}
    for threshold in [min(odds) - 1, *odds]:
        answers = ["" if odd > threshold else text for text, odd in zip(said, odds, strict=True)]
        by_threshold[threshold] = squad_v2(targets, answers)["f1"]
    threshold, f1 = best_null_threshold(targets, said, odds)
    assert f1 == pytest.approx(max(by_threshold.values()))
    assert by_threshold[threshold] == pytest.approx(f1)


@given(st.lists(st.tuples(st.lists(ANSWER.filter(lambda a: a != "the"), min_size=1), ANSWER), min_size=1))
def test_it_equals_the_older_metric_if_all_questions_have_answers(rows):
    targets, said = map(list, zip(*rows, strict=True))
    assert squad_v2(targets, said) == pytest.approx(squad(targets, said))


def test_only_nothing_is_right_where_there_is_no_answer():
    assert squad_v2([[], [], ["red"]], ["", "red", ""]) == pytest.approx({"em": 100 / 3, "f1": 100 / 3})
