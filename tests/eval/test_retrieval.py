"""Retrieval is exact: equal to a slow reference, whatever the chunks and the number of ranks."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pretrainkit.dist.env import World
from pretrainkit.errors import DataError
from pretrainkit.eval.retrieval import (
    Rows,
    first_of_each,
    first_of_each_up_to,
    nearest,
    normalised,
    ranks,
    retrieval,
    whole_numbers,
)
from support.remedies import followed


def slow_ranks(queries, query_ids, gallery, gallery_ids):
    """Sorts every row in plain Python; scores are whole numbers here, so there is nothing to round."""
    found = []
    for query, wanted in zip(queries.tolist(), query_ids.tolist()):
        scores = [sum(a * b for a, b in zip(query, row)) for row in gallery.tolist()]
        order = sorted(range(len(scores)), key=lambda i: (-scores[i], i))
        places = [place for place, i in enumerate(order) if gallery_ids[i] == wanted]
        if places:
            found.append(places[0])
    return found


def toy_set(seed, num_images, width=3, most=7):
    """Images with 1..7 captions each, of small whole numbers, so that many scores are equal."""
    rng = np.random.default_rng(seed)
    ids = rng.permutation(10**12 + np.arange(num_images) * 7)
    text_ids = rng.permutation(np.repeat(ids, rng.integers(1, most + 1, num_images)))
    images = rng.integers(-3, 4, (num_images, width)).astype(np.float32)
    texts = rng.integers(-3, 4, (len(text_ids), width)).astype(np.float32)
    return Rows(torch.from_numpy(images), ids), Rows(torch.from_numpy(texts), text_ids)


@given(seed=st.integers(0, 2**31), num_images=st.integers(1, 30))
def test_ranks_equal_those_of_a_slow_sort(seed, num_images):
    images, texts = toy_set(seed, num_images)
    for queries, gallery in ((images, texts), (texts, images)):
        slow = slow_ranks(queries.vectors_ND, queries.ids_N, gallery.vectors_ND, gallery.ids_N)
        assert ranks(queries, gallery).tolist() == slow


@given(seed=st.integers(0, 2**31), num_images=st.integers(1, 25))
def test_fact_40_the_six_percentages_equal_those_of_a_slow_count(seed, num_images):
    images, texts = toy_set(seed, num_images)
    found = retrieval(images, texts, with_ranks=True)
    total = 0.0
    for name, queries, gallery in (("I2T", images, texts), ("T2I", texts, images)):
        slow = slow_ranks(queries.vectors_ND, queries.ids_N, gallery.vectors_ND, gallery.ids_N)
        for k in (1, 5, 10):
            value = 100 * sum(rank < k for rank in slow) / len(slow)
            assert found[f"{name}-R@{k}"] == value
            total += value
        assert found[f"{name}-mean_rank"] == pytest.approx(1 + sum(slow) / len(slow), rel=1e-12)
        assert found[f"{name}-median_rank"] == 1 + np.median(slow)
    assert found["RSUM"] == pytest.approx(total, rel=1e-12)


def real_valued(num_images=60, width=24, seed=0):
    """Unit vectors with repeated captions and images: equal scores that float32 products would separate."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.nn.functional.normalize(torch.randn(num_images, width, generator=generator), dim=1)
    images[num_images // 2 :] = images[: num_images // 2]
    ids = np.arange(num_images)
    text_ids = np.repeat(ids, 4)
    texts = torch.nn.functional.normalize(torch.randn(len(text_ids), width, generator=generator), dim=1)
    texts[1::4] = texts[2]
    texts[2::4] = texts[2]
    return Rows(images, ids), Rows(texts, text_ids)


class OneOf(World):
    """A rank whose sums with the others are added up by the test."""

    def all_reduce_(self, tensor, op="sum"):
        return tensor


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_fact_39_the_shares_of_all_ranks_add_up_to_the_ranks_of_one(world_size):
    images, texts = real_valued()
    for queries, gallery in ((images, texts), (texts, images)):
        alone = ranks(queries, gallery)
        shares = [ranks(queries, gallery, world=OneOf(rank=r, world_size=world_size)) for r in range(world_size)]
        assert np.array_equal(sum(shares), alone)


def test_fact_39_the_size_of_the_chunks_changes_nothing(monkeypatch):
    images, texts = real_valued()
    whole = [ranks(images, texts), ranks(texts, images)]
    for num_bytes in (2**20, 2**14, 2**11, 700):
        monkeypatch.setattr("pretrainkit.eval.retrieval._BYTES_PER_SCORE", 2**40 // num_bytes)
        assert [r.tolist() for r in (ranks(images, texts), ranks(texts, images))] == [r.tolist() for r in whole]


def test_no_array_of_all_pairs_is_allocated():
    images, texts = toy_set(3, 600, most=2)
    peak = 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal peak
            out = func(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor):
                peak = max(peak, out.numel() * out.element_size())
            return out

    with Watch():
        retrieval(images, texts, megabytes=1)
    assert peak <= 2**20 < 8 * len(images.ids_N) * len(texts.ids_N)


def test_fact_38_a_perfect_model_has_rsum_600_and_rank_1():
    vectors = torch.eye(40)
    ids = np.arange(40)[::-1].copy()
    texts = Rows(vectors.repeat_interleave(5, 0), ids.repeat(5))
    found = retrieval(Rows(vectors, ids), texts, with_ranks=True)
    assert found["RSUM"] == 600
    assert found["I2T-median_rank"] == found["T2I-mean_rank"] == 1


def test_fact_38_images_count_once_and_captions_each_time():
    images, texts = toy_set(1, 12)
    again = np.r_[np.arange(12), 3, 3, 7]
    assert retrieval(images.take(again), texts) == retrieval(images, texts)
    twice = np.r_[np.arange(len(texts.ids_N)), 0]
    count = lambda rows: round(retrieval(images, rows)["T2I-R@1"] * len(rows.ids_N) / 100)  # noqa: E731
    assert count(texts.take(twice)) - count(texts) in (0, 1)
    assert len(ranks(texts.take(twice), images)) == len(texts.ids_N) + 1


def test_queries_without_a_match_do_not_count_but_are_in_the_way():
    images = Rows(torch.tensor([[1.0, 0], [0, 1.0]]), np.array([0, 1]))
    texts = Rows(torch.tensor([[0.5, 0], [1.0, 0]]), np.array([0, 99]))
    assert ranks(images, texts).tolist() == [1]
    assert ranks(texts, images).tolist() == [0]


def test_having_nothing_to_retrieve_is_refused():
    rows = Rows(torch.ones(2, 3), np.array([0, 1]))
    with pytest.raises(DataError, match="no image has a caption"):
        retrieval(rows, Rows(torch.ones(2, 3), np.array([5, 6])))
    with pytest.raises(DataError, match="2 images are too few for 3 folds") as error:
        retrieval(rows, rows, num_folds=3)
    assert "num_folds=1" in followed(error.value, "eval/retrieval.py: … images are too few")
    assert retrieval(rows, rows, num_folds=1)["RSUM"] > 0


def test_a_model_that_has_diverged_scores_nan_not_chance():
    images, texts = toy_set(1, 12)
    images.vectors_ND[3, 1] = torch.nan
    assert np.isnan(list(retrieval(images, texts, with_ranks=True).values())).all()


@given(seed=st.integers(0, 2**31), num_folds=st.integers(1, 5))
def test_folds_are_scored_alone_and_averaged(seed, num_folds):
    images, texts = toy_set(seed, 17)
    slow = []
    for rows in np.array_split(np.arange(17), num_folds):
        ids = images.ids_N[rows]
        slow.append(retrieval(images.take(rows), texts.take(np.flatnonzero(np.isin(texts.ids_N, ids))))["RSUM"])
    assert retrieval(images, texts, num_folds=num_folds)["RSUM"] == pytest.approx(np.mean(slow), rel=1e-12)


@given(ids=st.lists(st.integers(-3, 3), max_size=20), limit=st.integers(1, 4))
def test_first_occurrences(ids, limit):
    array = np.array(ids, np.int64)
    slow = [i for i, value in enumerate(ids) if ids[:i].count(value) < limit]
    assert first_of_each_up_to(array, limit).tolist() == slow
    assert first_of_each(array).tolist() == [i for i, value in enumerate(ids) if value not in ids[:i]]
    assert first_of_each_up_to(array, None).tolist() == list(range(len(ids)))


def test_vectors_are_divided_by_their_length_and_zeros_stay():
    vectors = torch.tensor([[[3.0, 4.0], [0.0, 0.0], [-0.5, 0.0]]])
    torch.testing.assert_close(normalised(vectors), torch.tensor([[[0.6, 0.8], [0.0, 0.0], [-1.0, 0.0]]]))


def test_nearest_lists_equal_scores_by_index():
    query = torch.tensor([[1.0, 0.0]])
    gallery = torch.tensor([[0.5, 9.0], [0.7, 0.0], [0.5, -1.0], [0.5, 0.0], [0.7, 3.0]])
    index, score = nearest(query, gallery, 4)
    assert index.tolist() == [[1, 4, 0, 2]]
    assert score[0] == pytest.approx([0.7, 0.7, 0.5, 0.5])


def test_rounding_moves_scores_of_unit_vectors_less_than_float32_products_do():
    generator = torch.Generator().manual_seed(0)
    a, b = torch.nn.functional.normalize(torch.randn(2, 200, 512, generator=generator), dim=2)
    exact = a.double() @ b.double().T
    whole_a, whole_b = whole_numbers(a), whole_numbers(b)
    scale = (whole_a.norm(dim=1) * whole_b.norm(dim=1)).mean()
    moved = ((whole_a @ whole_b.T) / scale - exact).abs().max()
    assert moved < ((a @ b.T).double() - exact).abs().max()
