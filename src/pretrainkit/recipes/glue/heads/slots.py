"""Linear heads on slots: on the first one of each word for its class, or on every one for how likely an answer begins,
and ends, there.

Dimensions: B examples (windows), L slots of the longest, T slots of all, W words of all, D width, C classes.
"""

from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from pretrainkit.recipes.glue.heads.texts import TextObjective
from pretrainkit.recipes.glue.kinds.labelled import Arrays
from pretrainkit.recipes.glue.model import GlueObjective, LinearOnEncoder, Outputs
from pretrainkit.recipes.text_encoder import TextEncoder
from pretrainkit.training.objective import Batch, HostBatch


class TagHead(LinearOnEncoder):
    """The first slot of each word, and (W, C) logits."""

    def __init__(self, encoder: TextEncoder, num_outputs: int, dropout_rate: float) -> None:
        super().__init__(encoder, nn.Linear(encoder.width, num_outputs), dropout_rate)
        encoder.freeze_pooling()

    def features(self, batch: Batch, max_length: int) -> Tensor:
        """(W, D)"""
        return self.encoder.token_features(batch, max_length)[batch["word_begins"]]


class SpanHead(TagHead):
    """The same on all slots: (T, 2) scores of the first and the last slot of an answer."""

    def features(self, batch: Batch, max_length: int) -> Tensor:
        """(T, D)"""
        return self.encoder.token_features(batch, max_length)


class TagObjective(TextObjective):
    """Cross-entropy: the mean over the words of the global batch that have a label."""

    def by_example(self, outputs: Outputs, batch: HostBatch) -> list[Arrays]:
        return by_words(outputs, batch)


class SpanObjective(GlueObjective):
    """Half the cross-entropy of the first slot and half of that of the last one: the mean over the windows of the
    global batch of which it is known."""

    terms = ("cross_entropy",)

    def weights(self, batch: Batch) -> dict[str, Tensor]:
        return {"cross_entropy": (batch["first_slot"] >= 0).sum(dtype=torch.float32)}

    def totals(self, outputs: Outputs, batch: Batch) -> dict[str, Tensor]:
        (scores_T2,), begins_B = outputs, batch["cu_seqlens"].long()
        places_B2 = torch.stack([batch["first_slot"], batch["last_slot"]], dim=1)
        # Places count from the window's first slot; unknown ones are -1, and get no weight.
        chosen_B2 = scores_T2.gather(0, begins_B[:-1, None] + places_B2.clamp(min=0))
        loss_B2 = (log_totals(scores_T2, begins_B) - chosen_B2) * (places_B2[:, :1] >= 0)
        return {"cross_entropy": loss_B2.sum() / 2}

    def by_example(self, outputs: Outputs, batch: HostBatch) -> list[Arrays]:
        scores_T2 = outputs[0].cpu().numpy()
        return [(scores_T2[begin:end],) for begin, end in pairwise(batch["cu_seqlens"].tolist())]


def log_totals(scores_TK: Tensor, ends_B1: Tensor) -> Tensor:
    """(B, K): the logarithm of the sum of exponentials over the slots of each example, whose ends are (B + 1,), 0
    first."""
    lengths_B = ends_B1.diff()
    num_examples, most = len(lengths_B), int(lengths_B.max()) if len(lengths_B) else 0
    place_T = torch.arange(len(scores_TK), device=scores_TK.device)
    example_T = torch.searchsorted(ends_B1[1:], place_T, right=True)
    # Into rows with -inf for padding, which adds nothing to the sum.
    padded_BLK = scores_TK.new_full((num_examples, most, scores_TK.shape[1]), -torch.inf)
    padded_BLK[example_T, place_T - ends_B1[example_T]] = scores_TK
    return padded_BLK.logsumexp(1)


def by_words(outputs: Outputs, batch: HostBatch) -> list[Arrays]:
    """Outputs with an entry for each word, cut by example."""
    ends = np.concatenate([[0], np.cumsum(batch["num_words"])]).tolist()
    arrays = [one.cpu().numpy() for one in outputs]
    return [tuple(array[begin:end] for array in arrays) for begin, end in pairwise(ends)]
