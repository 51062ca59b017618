"""Classes and numbers against scikit-learn and SciPy."""

import warnings

import numpy as np
import pytest
import scipy.stats
import sklearn.metrics
from hypothesis import given
from hypothesis import strategies as st

from pretrainkit.eval import metrics

CLASSES = st.integers(0, 3)


def pairs(values, min_size=1):
    return st.lists(st.tuples(values, values), min_size=min_size, max_size=40).map(lambda rows: tuple(zip(*rows)))


@given(pairs(CLASSES))
def test_accuracy_is_that_of_scikit_learn(both):
    targets, predictions = both
    assert metrics.accuracy(targets, predictions)["accuracy"] == pytest.approx(
        100 * sklearn.metrics.accuracy_score(targets, predictions), abs=1e-9
    )


@given(pairs(CLASSES))
def test_matthews_is_that_of_scikit_learn_also_where_a_side_has_one_class(both):
    targets, predictions = both
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wanted = 100 * sklearn.metrics.matthews_corrcoef(targets, predictions)
    assert metrics.matthews(targets, predictions)["matthews_corrcoef"] == pytest.approx(wanted, abs=1e-9)


@given(pairs(st.integers(0, 1)))
def test_f1_is_that_of_scikit_learn_where_all_answers_are_valid(both):
    targets, predictions = both
    wanted = 100 * sklearn.metrics.f1_score(targets, predictions, zero_division=0)
    assert metrics.f1_invalid_wrong(targets, predictions)["f1"] == pytest.approx(wanted, abs=1e-9)


@given(pairs(st.integers(-1, 3)), st.integers(2, 4))
def test_mean_f1_is_the_macro_average_of_scikit_learn(both, num_classes):
    targets, predictions = both
    wanted = 100 * sklearn.metrics.f1_score(
        targets, predictions, labels=range(num_classes), average="macro", zero_division=0
    )
    found = metrics.mean_multiclass_f1(num_classes)(targets, predictions)
    assert found == {f"mean_{num_classes}class_f1": pytest.approx(wanted, abs=1e-9)}


def test_an_invalid_answer_counts_as_the_wrong_class():
    assert metrics.f1_invalid_wrong([0, 1, 1, 0, 1], [0, 1, -1, 5, 0]) == {"f1": pytest.approx(40.0)}


@given(pairs(st.floats(-1e6, 1e6, width=32), min_size=2))
def test_correlations_are_those_of_scipy_and_0_where_it_has_none(both):
    targets, predictions = (np.asarray(side) for side in both)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wanted = {
            "pearson": scipy.stats.pearsonr(targets, predictions)[0],
            "spearman": scipy.stats.spearmanr(targets, predictions)[0],
        }
    found = {
        "pearson": metrics.pearson(targets, predictions)["pearson_corrcoef"],
        "spearman": metrics.spearman(targets, predictions)["spearman_corrcoef"],
    }
    is_constant = len(set(targets)) == 1 or len(set(predictions)) == 1
    for name, value in found.items():
        assert value == pytest.approx(0.0 if is_constant else 100 * wanted[name], abs=1e-7)


def test_correlations_of_real_numbers_agree_to_a_billionth():
    rng = np.random.default_rng(0)
    targets, noise = rng.uniform(0, 5, 500), rng.normal(size=500)
    predictions = np.round(targets + noise, 1)
    wanted = [100 * fn(targets, predictions)[0] for fn in (scipy.stats.pearsonr, scipy.stats.spearmanr)]
    found = metrics.pearson(targets, predictions) | metrics.spearman(targets, predictions)
    assert list(found.values()) == pytest.approx(wanted, abs=1e-9)
