"""Classification by the vote of the nearest training images.

Dimensions: Q images to classify, N training images, K neighbours, C classes, D width of the features.

Source: Wu et al. 2018, section 3.4, https://arxiv.org/abs/1805.01978: each of the K nearest by cosine votes for its
class with the weight exp(cosine / temperature).
"""

import torch
from torch import Tensor

from pretrainkit.eval.fixed_point import whole_numbers


@torch.no_grad()
def knn_accuracy(
    query_QD: Tensor,
    query_label_Q: Tensor,
    train_ND: Tensor,
    train_label_N: Tensor,
    *,
    num_classes: int,
    num_neighbours: int = 20,
    temperature: float = 0.07,
    megabytes: int = 128,
) -> float:
    """The percentage of queries whose class gets most votes; at a tie the class with the lower number does.

    Of equally near training images the first ones vote. With fewer training images than neighbours all of them vote.
    """
    num_neighbours = min(num_neighbours, len(train_ND))
    query, train = (whole_numbers(_normalised(vectors)) for vectors in (query_QD, train_ND))
    unit = float(query.norm(dim=1).max() * train.norm(dim=1).max())
    at_once = max(1, megabytes * 2**20 // (20 * len(train_ND)))
    num_right = 0
    for rows in torch.arange(len(query), device=query.device).split(at_once):
        score_QN = query[rows] @ train.T
        last_Q1 = score_QN.topk(num_neighbours, dim=1).values[:, -1:]
        is_above_QN, is_equal_QN = score_QN > last_Q1, score_QN == last_Q1
        num_left_Q1 = num_neighbours - is_above_QN.sum(1, keepdim=True)
        votes_QN = is_above_QN | (is_equal_QN & (is_equal_QN.cumsum(1) <= num_left_Q1))
        who_QK = votes_QN.nonzero()[:, 1].view(len(rows), num_neighbours)
        weight_QK = (score_QN.gather(1, who_QK) / unit / temperature - 1 / temperature).exp()
        total_QC = torch.zeros(len(rows), num_classes, dtype=weight_QK.dtype, device=query.device)
        total_QC.scatter_add_(1, train_label_N[who_QK], weight_QK)
        num_right += int((total_QC.argmax(1) == query_label_Q[rows]).sum())
    return 100 * num_right / len(query)


def _normalised(vectors: Tensor) -> Tensor:
    return vectors / (torch.linalg.vector_norm(vectors, dim=-1, keepdim=True) + 1e-8)
