"""A linear head on every slot: how likely an answer begins, and ends, there.

Dimensions: B windows, L slots of the longest, T slots of all, D width.
"""

from itertools import pairwise

import torch
from torch import Tensor, nn

from pretrainkit.nn.dropout import dropout
from pretrainkit.recipes.glue.kinds.labelled import Arrays
from pretrainkit.recipes.glue.model import HeadedEncoder
from pretrainkit.recipes.glue.objective import GlueObjective, Outputs
from pretrainkit.recipes.text_encoder import TextEncoder
from pretrainkit.training.objective import Batch, HostBatch, LossSum

_NAME = "cross_entropy"


class SpanHead(HeadedEncoder):
    """Encoder, dropout, linear."""

    def __init__(self, encoder: TextEncoder, num_outputs: int, dropout_rate: float) -> None:
        """`num_outputs` is not read: there are two."""
        super().__init__(encoder, nn.Linear(encoder.width, 2), dropout_rate)
        encoder.freeze_pooling()

    def forward(self, batch: Batch, max_length: int) -> Outputs:
        """(T, 2) scores of the first and the last slot of an answer."""
        x_TD = self.encoder.token_features(batch, max_length)
        return (self.head(dropout(x_TD, self.dropout_rate, is_training=self.training)),)


class SpanObjective(GlueObjective):
    """Half the cross-entropy of the first slot and half of that of the last one: the mean over the windows of the
    global batch of which it is known."""

    @property
    def scales(self) -> dict[str, float]:
        return {_NAME: 1.0}

    def weights(self, batch: Batch) -> dict[str, Tensor]:
        return {_NAME: (batch["first_slot"] >= 0).sum(dtype=torch.float32)}

    def losses(self, model: nn.Module, batch: Batch) -> dict[str, LossSum]:
        (scores_T2,) = self.outputs(model, batch)
        begins_B, places_B2 = batch["cu_seqlens"].long(), torch.stack([batch["first_slot"], batch["last_slot"]], dim=1)
        has_answer_B = places_B2[:, 0] >= 0
        log_total_B2 = log_totals(scores_T2, begins_B)
        chosen_B2 = scores_T2.gather(0, begins_B[:-1, None] + places_B2.clamp(min=0))
        total = ((log_total_B2 - chosen_B2) * has_answer_B[:, None]).sum() / 2
        return {_NAME: LossSum(total, has_answer_B.sum(dtype=torch.float32))}

    @torch.no_grad()
    def metrics(self, model: nn.Module, batch: Batch) -> dict[str, LossSum]:
        """The loss."""
        return self.losses(model, batch)

    def by_example(self, outputs: Outputs, batch: HostBatch) -> list[Arrays]:
        scores_T2 = outputs[0].cpu().numpy()
        return [(scores_T2[begin:end],) for begin, end in pairwise(batch["cu_seqlens"].tolist())]


def log_totals(scores_TK: Tensor, ends_B1: Tensor) -> Tensor:
    """(B, K): the logarithm of the sum of exponentials over the slots of each example.

    Args:
        scores_TK: Of all slots.
        ends_B1: (B + 1,) int64, 0 and where each example ends.
    """
    lengths_B = ends_B1.diff()
    num_examples, most = len(lengths_B), int(lengths_B.max()) if len(lengths_B) else 0
    place_T = torch.arange(len(scores_TK), device=scores_TK.device)
    example_T = torch.searchsorted(ends_B1[1:], place_T, right=True)
    padded_BLK = scores_TK.new_full((num_examples, most, scores_TK.shape[1]), -torch.inf)
    padded_BLK[example_T, place_T - ends_B1[example_T]] = scores_TK
    return padded_BLK.logsumexp(1)
