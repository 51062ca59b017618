"""The best tree over the words of a sentence. Torch-free.

Dimensions: W words, M = 1 + W nodes (the root is number 0), K nodes outside of a cycle, C nodes in it.
Source: Chu and Liu 1965; Edmonds 1967, https://doi.org/10.6028/jres.071B.032.
"""

import numpy as np
from numpy.typing import NDArray

from pretrainkit.recipes.text_reader import Ints

Scores = NDArray[np.float64]


def best_tree(scores_WM: Scores) -> Ints:
    """(W,) the head of each word in the tree with the highest sum of scores, all finite, in which one word hangs on the
    root."""
    num_words = len(scores_WM)
    if not num_words:
        return np.empty(0, np.int64)
    scores_MM = np.full((num_words + 1, num_words + 1), -np.inf)
    scores_MM[1:] = scores_WM
    # Dearer than anything else could gain: as few words as possible hang on the root, and one always can.
    scores_MM[1:, 0] -= 1 + num_words * (scores_WM.max() - scores_WM.min())
    np.fill_diagonal(scores_MM, -np.inf)
    return _arborescence(scores_MM)[1:]


def _arborescence(scores_MM: Scores) -> Ints:
    """(M,) the head of each node in the best tree from node 0, whose own entry says nothing."""
    head_M = scores_MM.argmax(1)
    cycle_C = _cycle(head_M)
    if cycle_C is None:
        return head_M
    others_K = np.setdiff1d(np.arange(len(head_M)), cycle_C)
    inner_C = scores_MM[cycle_C, head_M[cycle_C]]
    # One node for the cycle: to hang it elsewhere, one of its nodes gives up its head.
    entering_CK = scores_MM[np.ix_(cycle_C, others_K)] - inner_C[:, None]
    leaving_KC = scores_MM[np.ix_(others_K, cycle_C)]
    K = len(others_K)
    smaller = np.full((K + 1, K + 1), -np.inf)
    smaller[:K, :K] = scores_MM[np.ix_(others_K, others_K)]
    smaller[:K, K], smaller[K, :K] = leaving_KC.max(1), entering_CK.max(0)
    found = _arborescence(smaller)
    # Node K stands for the cycle: nodes outside that hang on it go to the node in it that they like best.
    into_cycle_K = found[:K] == K
    head_M[others_K] = np.where(into_cycle_K, cycle_C[leaving_KC.argmax(1)], others_K[np.minimum(found[:K], K - 1)])
    # The node by which the cycle is entered gives up its head in it.
    head_M[cycle_C[entering_CK[:, found[K]].argmax()]] = others_K[found[K]]
    return head_M


def _cycle(head_M: Ints) -> Ints | None:
    """Nodes that are their own ancestors; None: there are none."""
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
