"""The best tree against all trees."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretrainkit.recipes.glue.tree_model import best_tree


def is_tree(heads):
    """Every word reaches the root, on which one hangs; word k is number k + 1."""
    for word in range(1, len(heads) + 1):
        for _ in heads:
            word = heads[word - 1] if word else 0
        if word:
            return False
    return list(heads).count(0) == 1


def total(scores, heads):
    return scores[np.arange(len(heads)), list(heads)].sum()


@settings(max_examples=60, deadline=None)
@given(num_words=st.integers(1, 5), seed=st.integers(0, 2**31), is_coarse=st.booleans())
def test_no_tree_has_a_higher_sum(num_words, seed, is_coarse):
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=(num_words, num_words + 1)) * 10
    scores = scores.round(-1) if is_coarse else scores  # many equal ones
    found = best_tree(scores)
    assert is_tree(found.tolist())
    trees = [heads for heads in product(range(num_words + 1), repeat=num_words) if is_tree(heads)]
    assert len(trees) == num_words ** (num_words - 1)  # rooted labelled trees
    assert total(scores, found) == pytest.approx(max(total(scores, heads) for heads in trees))


@given(num_words=st.integers(1, 40), seed=st.integers(0, 2**31))
def test_the_most_likely_heads_are_kept_if_they_are_a_tree(num_words, seed):
    rng = np.random.default_rng(seed)
    names = rng.permutation(num_words) + 1
    heads = np.zeros(num_words, np.int64)
    for place in range(1, num_words):
        heads[names[place] - 1] = names[rng.integers(place)]
    scores = rng.normal(size=(num_words, num_words + 1))
    scores[np.arange(num_words), heads] += 20
    np.testing.assert_array_equal(best_tree(scores), heads)


def test_cycles_within_cycles_are_left():
    scores = np.full((4, 5), -50.0)
    for word, head, score in ((1, 2, 9), (2, 1, 9), (3, 4, 9), (4, 3, 9), (1, 3, 8), (3, 1, 8), (4, 0, 1)):
        scores[word - 1, head] = score
    assert best_tree(scores).tolist() == [3, 1, 4, 0]


def test_without_words_there_is_no_tree():
    assert best_tree(np.empty((0, 1))).tolist() == []
