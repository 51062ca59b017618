"""Retrieval (how often the right text is among the K nearest of an image, and the reverse) and zero-shot
classification (the class whose captions are nearest to an image).

Dimensions: N rows or images, Q queries, G gallery rows, M matches of a query, C classes, P templates, D width of the
embeddings.

A query and a gallery row match if their ids are equal. Rank 0 is the nearest gallery row. The rank of a query is that
of its *first* match, so an image counts as retrieved if any of its captions is. Of equally near rows the one with the
lower index comes first.

The ranks are exact: they do not depend on chunk size, number of ranks, or device; see `whole_numbers`. (Float32
products of equal captions differ in the last bit with their place in the matrix, which breaks ties at random.)

Sources: Cui et al. 2022, https://arxiv.org/abs/2112.09331, and the retrieval protocol of Karpathy's splits; for
classification Radford et al. 2021, section 3.1.4, https://arxiv.org/abs/2103.00020.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pretrainkit.dist.env import World
from pretrainkit.errors import DataError, InputError

ALONE = World()
KS = (1, 5, 10)
"""Values of K for R@K."""

BLANK = "{}"
"""Placeholder for the class name in a template."""
_BYTES_PER_SCORE = 12
"""Bytes of a score and the comparisons on it."""
_BITS = 26


class Rows(NamedTuple):
    """Embeddings of images or of texts."""

    vectors_ND: Tensor
    """Vectors of any float dtype."""
    ids_N: NDArray[np.int64]
    """Id of the content: rows with equal ids belong together."""

    def take(self, rows: NDArray[np.int64]) -> "Rows":
        return Rows(self.vectors_ND[torch.from_numpy(rows).to(self.vectors_ND.device)], self.ids_N[rows])


def normalised(vectors: Tensor) -> Tensor:
    """Divide each vector by its length; zero vectors stay zero."""
    return vectors / (torch.linalg.vector_norm(vectors, dim=-1, keepdim=True) + 1e-8)


def whole_numbers(vectors_ND: Tensor) -> Tensor:
    """Scale by a power of two and round to whole numbers, as float64 (N, D), such that rows have a length of about
    2**26.

    By the Cauchy-Schwarz inequality, every partial sum of a dot product of two rows is then a whole number below 2**53,
    which float64 represents exactly. So the product does not depend on the order of its additions, on how the matrix is
    cut, or on the device. The rounding is finer than the resolution of a float32 product of unit vectors.
    """
    wide_ND = vectors_ND.double()
    longest = float(torch.linalg.vector_norm(wide_ND, dim=1).max())
    return (wide_ND * 2.0 ** (_BITS - math.frexp(longest)[1])).round()


def first_of_each(ids_N: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the rows in which an id occurs for the first time, ascending."""
    return np.sort(np.unique(ids_N, return_index=True)[1])


def first_of_each_up_to(ids_N: NDArray[np.int64], limit: int | None) -> NDArray[np.int64]:
    """Return the rows in which an id occurs for at most the `limit`-th time, ascending; None: all rows."""
    if limit is None:
        return np.arange(len(ids_N))
    by_id = np.argsort(ids_N, kind="stable")
    ordered = ids_N[by_id]
    place_in_group = np.arange(len(ordered)) - np.searchsorted(ordered, ordered)  # counted from the start of the group
    return np.sort(by_id[place_in_group < limit])


def retrieval(
    images: Rows,
    texts: Rows,
    *,
    num_folds: int = 1,
    with_ranks: bool = False,
    megabytes: int = 64,
    world: World = ALONE,
) -> dict[str, float]:
    """Return the recall in both directions, in percent. Raises DataError if no image has a text, or there are fewer
    images than folds.

    Args:
        images: All images, on every rank. Rows with the id of an earlier row are left out.
        texts: All texts, on every rank. A text that occurs twice counts twice.
        num_folds: Split the images, in order, into this number of parts whose sizes differ by at most one, score each
            with its own texts only, and average (COCO's 5,000 images in 5 folds are "COCO 1k").
        with_ranks: Also return the mean and the median rank of the first match; 1 is best.
        megabytes: Approximate maximum size of a chunk of scores; a chunk has at least one row.
        world: Each rank scores its share of the queries.

    Returns:
        `I2T-R@1`, `I2T-R@5`, `I2T-R@10`, `T2I-R@1`, ..., and `RSUM`, the sum of the six (at most 600), the same on all
        ranks; with `with_ranks` also `I2T-mean_rank` and so on. All values are NaN if an embedding is not finite.
    """
    images = images.take(first_of_each(images.ids_N))
    if num_folds > len(images.ids_N):
        raise DataError(f"{len(images.ids_N)} images are too few for {num_folds} folds\n  set evaluate.num_folds=1")
    if num_folds == 1:
        return _one_fold(images, texts, with_ranks, megabytes, world)
    metrics_by_fold = []
    for rows in np.array_split(np.arange(len(images.ids_N)), num_folds):
        of_fold = np.flatnonzero(np.isin(texts.ids_N, images.ids_N[rows]))
        metrics_by_fold.append(_one_fold(images.take(rows), texts.take(of_fold), with_ranks, megabytes, world))
    return {name: float(np.mean([metrics[name] for metrics in metrics_by_fold])) for name in metrics_by_fold[0]}


def _one_fold(images: Rows, texts: Rows, with_ranks: bool, megabytes: int, world: World) -> dict[str, float]:
    metrics: dict[str, float] = {}
    for name, queries, gallery in (("I2T", images, texts), ("T2I", texts, images)):
        rank_Q = ranks(queries, gallery, megabytes=megabytes, world=world)
        metrics |= {f"{name}-R@{k}": recall(rank_Q, k) for k in KS}
        if with_ranks:
            metrics[f"{name}-mean_rank"] = math.nan if rank_Q is None else 1 + float(rank_Q.mean())
            metrics[f"{name}-median_rank"] = math.nan if rank_Q is None else 1 + float(np.median(rank_Q))
    return metrics | {"RSUM": sum(metrics[f"{name}-R@{k}"] for name in ("I2T", "T2I") for k in KS)}


def recall(rank_Q: NDArray[np.int64] | None, k: int) -> float:
    """Return the percentage of ranks below `k`; NaN if the ranks are unknown."""
    return math.nan if rank_Q is None else 100 * int((rank_Q < k).sum()) / len(rank_Q)


@torch.no_grad()
def ranks(queries: Rows, gallery: Rows, *, megabytes: int = 64, world: World = ALONE) -> NDArray[np.int64] | None:
    """Return the rank of the first match of each query that has one, in the order of the queries, the same on all
    ranks.

    Returns None if an embedding is not finite. Raises DataError if no query has a match.
    """
    has_match_Q = np.isin(queries.ids_N, gallery.ids_N)
    if not has_match_Q.any():
        raise DataError("no image has a caption: there is nothing to retrieve\n  check image_id in data.valid")
    queries = queries.take(np.flatnonzero(has_match_Q))
    if not (queries.vectors_ND.isfinite().all() and gallery.vectors_ND.isfinite().all()):
        return None
    device = queries.vectors_ND.device
    query_QD, gallery_DG = whole_numbers(queries.vectors_ND), whole_numbers(gallery.vectors_ND).T
    # Rows with equal ids are adjacent in `by_id_G`: the matches of a query are the `num_Q` rows from `start_Q` on.
    by_id_G = np.argsort(gallery.ids_N, kind="stable")
    ordered_G = gallery.ids_N[by_id_G]
    start_Q = np.searchsorted(ordered_G, queries.ids_N)
    num_Q = np.searchsorted(ordered_G, queries.ids_N, "right") - start_Q
    num_queries, num_gallery = len(queries.ids_N), len(gallery.ids_N)
    at_once = max(1, megabytes * 2**20 // (_BYTES_PER_SCORE * num_gallery))
    first, last = (num_queries * r // world.world_size for r in (world.rank, world.rank + 1))
    index_G = torch.arange(num_gallery, device=device)

    rank_Q = torch.zeros(num_queries, dtype=torch.int64, device=device)
    for start in range(first, last, at_once):
        rows = slice(start, min(start + at_once, last))
        score_QG = query_QD[rows] @ gallery_DG
        # The number of columns is the largest number of matches of a query; others repeat their last match.
        place_M, start_Q1, num_Q1 = np.arange(num_Q[rows].max()), start_Q[rows, None], num_Q[rows, None]
        match_QM = torch.from_numpy(by_id_G[start_Q1 + np.minimum(place_M, num_Q1 - 1)]).to(device)
        of_match_QM = score_QG.gather(1, match_QM)
        where_Q1 = of_match_QM.argmax(1, keepdim=True)  # the first one in a tie
        best_Q1, place_Q1 = of_match_QM.gather(1, where_Q1), match_QM.gather(1, where_Q1)
        is_equal_QG = (score_QG == best_Q1) & (index_G < place_Q1)
        rank_Q[rows] = (score_QG > best_Q1).sum(1) + is_equal_QG.sum(1)
    return world.all_reduce_(rank_Q).cpu().numpy()


@torch.no_grad()
def nearest(query_QD: Tensor, gallery_GD: Tensor, num: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return indices and scores of the `num` (at most G) nearest gallery rows of each query, (Q, num), nearest first.

    Of equally near rows the lower index comes first. Scores are dot products. For few queries only: it is not chunked.
    """
    query, gallery = whole_numbers(query_QD), whole_numbers(gallery_GD)
    order_QG = torch.sort(query @ gallery.T, dim=1, descending=True, stable=True).indices[:, :num]
    exact_QG = query_QD.double() @ gallery_GD.double().T
    return order_QG.cpu().numpy(), exact_QG.gather(1, order_QG).cpu().numpy()


def captions_of(class_names: Sequence[str], templates: Sequence[str]) -> list[str]:
    """Return one caption for each class and template, class by class. Raises InputError if there is no template, or one
    without a placeholder for the name."""
    if not templates:
        raise InputError(f"there is no template for captions\n  use one with {BLANK} for the name of the class")
    if wrong := [template for template in templates if BLANK not in template]:
        raise InputError(f"a template has no place for the name of the class: {wrong[0]!r}\n  write {BLANK} there")
    return [template.replace(BLANK, name) for name in class_names for template in templates]


def class_vectors(text_CPD: Tensor) -> Tensor:
    """Normalize the embeddings of the captions of each class, average them over the templates, and normalize again.
    Returns (C, D) float32."""
    return normalised(normalised(text_CPD.float()).mean(dim=1))


def accuracies(
    image_ND: Tensor, label_N: NDArray[np.int64], class_CD: Tensor, *, megabytes: int = 64, world: World = ALONE
) -> dict[str, float]:
    """Return `acc1`, the percentage of images whose class is the nearest one; with more than five classes `acc5`, whose
    class is among the five nearest; and `mean_per_class_recall`, the mean of acc1 over the classes of the images. Of
    equally near classes the first one counts as nearer.

    Args:
        image_ND: All embeddings, on every rank.
        label_N: Index of the class in `class_CD` of each image; `class_CD` comes from `class_vectors`.
        megabytes, world: As in `retrieval`.
    """
    num_classes = len(class_CD)
    classes = Rows(class_CD, np.arange(num_classes))
    rank_N = ranks(Rows(image_ND, label_N), classes, megabytes=megabytes, world=world)
    result = {f"acc{k}": recall(rank_N, k) for k in (1, 5) if k == 1 or num_classes > k}
    recalls = [math.nan if rank_N is None else recall(rank_N[label_N == label], 1) for label in np.unique(label_N)]
    return result | {"mean_per_class_recall": float(np.mean(recalls))}
