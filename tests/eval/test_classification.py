"""Zero-shot classification is retrieval with classes as groups, and averages over templates as published."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pretrainkit.errors import InputError
from pretrainkit.eval.retrieval import Rows, accuracies, captions_of, class_vectors, ranks


def toy(seed, num_images=50, num_classes=7, num_templates=3, width=6):
    generator = torch.Generator().manual_seed(seed)
    image_ND = torch.randn(num_images, width, generator=generator)
    text_CPD = torch.randn(num_classes, num_templates, width, generator=generator) * 3
    return image_ND, text_CPD, np.random.default_rng(seed).integers(0, num_classes, num_images)


@given(seed=st.integers(0, 2**31))
def test_fact_41_one_template_is_retrieval_with_class_ids_as_groups(seed):
    image_ND, text_CPD, labels = toy(seed, num_templates=1)
    text_CD = torch.nn.functional.normalize(text_CPD[:, 0], dim=1)
    rank_N = ranks(Rows(image_ND, labels), Rows(text_CD, np.arange(7)))
    found = accuracies(image_ND, labels, class_vectors(text_CPD))
    expected = {f"acc{k}": pytest.approx(100 * np.mean(rank_N < k)) for k in (1, 5)}
    by_class = [np.mean(rank_N[labels == label] < 1) for label in set(labels.tolist())]
    assert found == expected | {"mean_per_class_recall": pytest.approx(100 * np.mean(by_class))}


@given(seed=st.integers(0, 2**31))
def test_fact_41_several_templates_are_normalized_averaged_and_normalized(seed):
    image_ND, text_CPD, labels = toy(seed)
    rows = []
    for captions in text_CPD.double().numpy():
        mean = np.mean([caption / np.linalg.norm(caption) for caption in captions], axis=0)
        rows.append(mean / np.linalg.norm(mean))
    np.testing.assert_allclose(class_vectors(text_CPD).numpy(), np.array(rows), atol=1e-6)
    said = (image_ND.double().numpy() @ np.array(rows).T).argmax(1)
    found = accuracies(image_ND, labels, class_vectors(text_CPD))
    assert found["acc1"] == pytest.approx(100 * np.mean(said == labels))


def test_top_five_of_five_classes_is_not_reported():
    image_ND, text_CPD, labels = toy(0, num_classes=5)
    assert set(accuracies(image_ND, labels % 5, class_vectors(text_CPD))) == {"acc1", "mean_per_class_recall"}


def test_captions_hold_the_name_in_every_blank():
    names, templates = ["sun {flower}", "rose"], ["a {}", "{} and {}"]
    assert captions_of(names, templates) == [
        "a sun {flower}",
        "sun {flower} and sun {flower}",
        "a rose",
        "rose and rose",
    ]
    with pytest.raises(InputError, match="no place for the name of the class: 'a photo'"):
        captions_of(names, ["a photo"])
    with pytest.raises(InputError, match="there is no template"):
        captions_of(names, [])
