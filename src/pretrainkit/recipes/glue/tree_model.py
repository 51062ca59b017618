"""A biaffine head on words: the head of each word (another word or the root), and the relation to it.

The vector of a word is the mean of its slots, that of the root is the encoder's vector of the example.

Dimensions: B examples, T slots, W words of all examples (below, of one), M candidate heads (the root, which is number
0, and the words) of the longest example, D width, R relations; K nodes outside of a cycle, C nodes in it.
Sources: Dozat and Manning 2017, https://arxiv.org/abs/1611.01734; without hidden layers: Glavaš and Vulić 2021,
https://arxiv.org/abs/2008.06788. For the best tree: Chu and Liu 1965; Edmonds 1967,
https://doi.org/10.6028/jres.071B.032.
"""

from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from pretrainkit.nn.dropout import dropout
from pretrainkit.recipes.glue.config import GlueRun
from pretrainkit.recipes.glue.kinds.labelled import Arrays
from pretrainkit.recipes.glue.model import GlueObjective, HeadedEncoder, Outputs, by_words
from pretrainkit.recipes.text_encoder import TextEncoder
from pretrainkit.recipes.text_reader import Ints
from pretrainkit.training.objective import Batch, HostBatch

_ARC, _RELATION = "arc_cross_entropy", "relation_cross_entropy"


class Biaffine(nn.Module):
    """Biaffine scores of pairs of words. All weights start at zero."""

    def __init__(self, width: int, num_relations: int) -> None:
        super().__init__()
        self.arc = nn.Parameter(torch.zeros(width + 1, width))
        self.relation = nn.Parameter(torch.zeros(num_relations, width + 1, width + 1))

    def arcs(self, x_WD: Tensor, heads_BMD: Tensor, example_W: Tensor) -> Tensor:
        """Return (W, M) float32: the scores of each word with every candidate head of its example."""
        # The 1 appended to a word's vector has its own row of weights: the score of a head independent of the word.
        query_WD = (_with_one(x_WD) @ self.arc.to(x_WD.dtype)).float()
        return torch.einsum("wd,wmd->wm", query_WD, heads_BMD.float()[example_W])

    def relations(self, x_WD: Tensor, head_WD: Tensor) -> Tensor:
        """Return (W, R) float32: the scores of each word with its head."""
        query_WRD = torch.einsum("wd,rde->wre", _with_one(x_WD), self.relation.to(x_WD.dtype))
        return torch.einsum("wre,we->wr", query_WRD.float(), _with_one(head_WD).float())


class TreeHead(HeadedEncoder):
    """Encoder, dropout, biaffine head."""

    head: Biaffine

    def __init__(self, encoder: TextEncoder, num_relations: int, dropout_rate: float) -> None:
        super().__init__(encoder, Biaffine(encoder.width, num_relations), dropout_rate)

    def initialise_head(self, scale: float) -> None:
        """Set all weights to zero, independent of `scale`."""
        nn.init.zeros_(self.head.arc)
        nn.init.zeros_(self.head.relation)

    def forward(self, batch: Batch, max_length: int, *, makes_trees: bool = False) -> Outputs:
        """Return (W, M) scores of heads, -inf where an example has no such word, and (W, R) scores of relations with
        the true heads (arbitrary if these are unknown).

        In evaluation mode, also return (W,) the predicted heads and (W, R) the scores of relations with these. The
        predicted heads are the most likely head of each word, or with `makes_trees` those of the most likely tree of
        each example.

        The batch has `word_begins`, `word_ends`, `num_words`, `head` and `candidates`; see `TreeExamples.truths`.
        """
        root_BD, x_TD = self.encoder.vectors_and_tokens(batch, max_length)
        x_WD = spans_mean(x_TD, batch["word_begins"], batch["word_ends"])
        root_BD, x_WD = (
            dropout(x.to(x_TD.dtype), self.dropout_rate, is_training=self.training) for x in (root_BD, x_WD)
        )
        num_B, candidate_M = batch["num_words"], batch["candidates"]
        arange = partial(torch.arange, device=num_B.device)
        # Sizes come from shapes, so the host does not wait for the device.
        example_W = arange(len(num_B)).repeat_interleave(num_B, output_size=len(x_WD))
        # Number of each word in its example, counted from 1, because 0 is the root.
        place_W = arange(len(example_W)) - (num_B.cumsum(0) - num_B)[example_W] + 1
        heads_BMD = x_WD.new_zeros(len(num_B), len(candidate_M), x_WD.shape[1]).index_put(
            (torch.cat([arange(len(num_B)), example_W]), torch.cat([torch.zeros_like(num_B), place_W])),
            torch.cat([root_BD, x_WD]),
        )
        is_valid_BM = candidate_M <= num_B[:, None]
        arc_WM = self.head.arcs(x_WD, heads_BMD, example_W).masked_fill(~is_valid_BM[example_W], -torch.inf)
        true_WR = self.head.relations(x_WD, heads_BMD[example_W, batch["head"].clamp(min=0)])
        if self.training:
            return arc_WM, true_WR
        head_W = _trees(arc_WM, num_B) if makes_trees else arc_WM.argmax(1)
        return arc_WM, true_WR, head_W, self.head.relations(x_WD, heads_BMD[example_W, head_W])


class TreeObjective(GlueObjective):
    """Cross-entropy of heads, plus that of relations with the true heads. Each is the mean over the words with a
    known target in the batch of all ranks."""

    terms = (_ARC, _RELATION)

    def __init__(self, config: GlueRun) -> None:
        super().__init__(config)
        self.options = {"makes_trees": config.data.heads == "tree"}

    def weights(self, batch: Batch) -> dict[str, Tensor]:
        return {
            _ARC: (batch["head"] >= 0).sum(dtype=torch.float32),
            _RELATION: (batch["relation"] >= 0).sum(dtype=torch.float32),
        }

    def totals(self, outputs: Outputs, batch: Batch) -> dict[str, Tensor]:
        arc_WM, true_WR, *_ = outputs
        return {
            _ARC: F.cross_entropy(arc_WM, batch["head"], reduction="sum", ignore_index=-1),
            _RELATION: F.cross_entropy(true_WR, batch["relation"], reduction="sum", ignore_index=-1),
        }

    def by_example(self, outputs: Outputs, batch: HostBatch) -> list[Arrays]:
        return by_words(outputs, batch)


def spans_mean(x_TD: Tensor, begins_W: Tensor, ends_W: Tensor) -> Tensor:
    """Return (W, D) float32: the mean of the slots `begins_W` … `ends_W` - 1 of each word, at least one slot.

    Words are in the order of their slots, so each slot belongs to at most one word.
    """
    num_words, slot_T = len(begins_W), torch.arange(len(x_TD), device=x_TD.device)
    if not num_words:
        return x_TD.new_zeros(0, x_TD.shape[1], dtype=torch.float32)
    word_T = torch.searchsorted(begins_W, slot_T, right=True) - 1
    is_in_T = (word_T >= 0) & (slot_T < ends_W[word_T.clamp(min=0)])
    # Slots that belong to no word are added up in an extra row at the end.
    sum_WD = x_TD.new_zeros(num_words + 1, x_TD.shape[1], dtype=torch.float32)
    sum_WD = sum_WD.index_add(0, word_T.where(is_in_T, num_words), x_TD.float())[:-1]
    return sum_WD / (ends_W - begins_W)[:, None]


def _trees(arc_WM: Tensor, num_B: Tensor) -> Tensor:
    """Return (W,): the heads of the most likely tree of each example with `num_B` words."""
    parts = arc_WM.double().cpu().split(num_B.tolist())
    heads = [torch.from_numpy(best_tree(part[:, : len(part) + 1].numpy())) for part in parts]
    return torch.cat(heads).to(arc_WM.device)


def _with_one(x_WD: Tensor) -> Tensor:
    return F.pad(x_WD, (0, 1), value=1.0)


def best_tree(scores_WM: NDArray[np.float64]) -> Ints:
    """Return (W,): the head of each word in the tree with the highest sum of scores in which exactly one word has the
    root as its head. All scores must be finite."""
    num_words = len(scores_WM)
    if not num_words:
        return np.empty(0, np.int64)
    scores_MM = np.full((num_words + 1, num_words + 1), -np.inf)
    scores_MM[1:] = scores_WM
    # The penalty exceeds any possible gain, so as few words as possible get the root as head; one always can.
    scores_MM[1:, 0] -= 1 + num_words * (scores_WM.max() - scores_WM.min())
    np.fill_diagonal(scores_MM, -np.inf)
    return _arborescence(scores_MM)[1:]


def _arborescence(scores_MM: NDArray[np.float64]) -> Ints:
    """Return (M,): the head of each node in the best tree from node 0. The entry of node 0 has no meaning."""
    head_M = scores_MM.argmax(1)
    cycle_C = _cycle(head_M)
    if cycle_C is None:
        return head_M
    others_K = np.setdiff1d(np.arange(len(head_M)), cycle_C)
    inner_C = scores_MM[cycle_C, head_M[cycle_C]]
    # Contract the cycle to one node. If it gets a head outside, one of its nodes loses its head in the cycle.
    entering_CK = scores_MM[np.ix_(cycle_C, others_K)] - inner_C[:, None]
    leaving_KC = scores_MM[np.ix_(others_K, cycle_C)]
    K = len(others_K)
    smaller = np.full((K + 1, K + 1), -np.inf)
    smaller[:K, :K] = scores_MM[np.ix_(others_K, others_K)]
    smaller[:K, K], smaller[K, :K] = leaving_KC.max(1), entering_CK.max(0)
    heads = _arborescence(smaller)
    # Node K is the cycle. Nodes outside of the cycle that have it as their head get the best of its nodes as head.
    into_cycle_K = heads[:K] == K
    head_M[others_K] = np.where(into_cycle_K, cycle_C[leaving_KC.argmax(1)], others_K[np.minimum(heads[:K], K - 1)])
    # The node at which the cycle is entered loses its head in the cycle.
    head_M[cycle_C[entering_CK[:, heads[K]].argmax()]] = others_K[heads[K]]
    return head_M


def _cycle(head_M: Ints) -> Ints | None:
    """Return the nodes of a cycle, or None if there is none."""
    is_done = np.zeros(len(head_M), bool)
    is_done[0] = True
    for start in range(1, len(head_M)):
        path: list[int] = []
        node = start
        while not is_done[node]:
            is_done[node] = True
            path.append(node)
            node = int(head_M[node])
        if node in path:
            return np.array(path[path.index(node) :], np.int64)
    return None
