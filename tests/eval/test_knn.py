"""The vote of the nearest, against a slow count."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pretrainkit.eval.linear_probe import knn_accuracy


def toy(seed, num_train=40, num_query=23, num_classes=4, width=5):
    generator = torch.Generator().manual_seed(seed)
    centre = torch.randn(num_classes, width, generator=generator)
    labels = torch.randint(0, num_classes, (num_train + num_query,), generator=generator)
    vectors = centre[labels] + torch.randn(len(labels), width, generator=generator)
    return vectors[:num_query], labels[:num_query], vectors[num_query:], labels[num_query:]


def slow(query, query_label, train, train_label, num_neighbours, temperature):
    query, train = (
        v.double().numpy() / np.linalg.norm(v.double().numpy(), axis=1, keepdims=True) for v in (query, train)
    )
    num_right = 0
    for vector, wanted in zip(query, query_label.tolist()):
        cosine = (train * vector).sum(1)
        votes = np.zeros(10)
        for i in sorted(range(len(train)), key=lambda i: (-cosine[i], i))[:num_neighbours]:
            votes[train_label[i]] += math.exp(cosine[i] / temperature)
        num_right += votes.argmax() == wanted
    return 100 * num_right / len(query)


@given(seed=st.integers(0, 2**31), num_neighbours=st.integers(1, 60))
def test_votes_equal_a_slow_count(seed, num_neighbours):
    case = toy(seed)
    options = {"num_neighbours": num_neighbours, "temperature": 0.2}
    assert knn_accuracy(*case, num_classes=4, **options) == pytest.approx(slow(*case, **options))


def test_chunks_and_copies_of_images_change_nothing():
    query, query_label, train, train_label = toy(1)
    train, train_label = train.repeat(3, 1), train_label.repeat(3)
    whole = knn_accuracy(query, query_label, train, train_label, num_classes=4, num_neighbours=7)
    for megabytes in (0, 1):
        assert (
            knn_accuracy(query, query_label, train, train_label, num_classes=4, num_neighbours=7, megabytes=megabytes)
            == whole
        )


def test_the_first_of_equally_near_neighbours_vote():
    train = torch.ones(4, 2)
    labels = torch.tensor([2, 1, 1, 1])
    query = torch.ones(1, 2)
    assert knn_accuracy(query, torch.tensor([2]), train, labels, num_classes=3, num_neighbours=1) == 100
    assert knn_accuracy(query, torch.tensor([1]), train, labels, num_classes=3, num_neighbours=3) == 100
