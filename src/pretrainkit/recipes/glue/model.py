"""A text encoder with a head, and its losses: the common part of all kinds of tasks, and linear heads.

A linear head reads one vector of each example and predicts its class or number, or the first slot of each word and
predicts its class, or every slot and scores that an answer begins or ends there.

Dimensions: B examples (windows), L slots of the longest, T slots of all, N inputs of a head: examples, words or slots;
D width, C classes (1 for numbers).
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretrainkit.dist.autocast import Float32Module, in_float32
from pretrainkit.nn.dropout import dropout
from pretrainkit.nn.initialise import initialise_layer
from pretrainkit.nn.layouts import example_numbers
from pretrainkit.recipes.capabilities import EncodesText
from pretrainkit.recipes.glue.config import GlueRun, encoder_of
from pretrainkit.recipes.glue.kinds.labelled import Arrays
from pretrainkit.recipes.registry import able
from pretrainkit.recipes.text_encoder import TextEncoder
from pretrainkit.training.objective import Batch, Cost, HostBatch, LossSum, SeparableObjective

Outputs = tuple[Tensor, ...]


class HeadedEncoder(nn.Module, ABC):
    """Base class of the trained models: an encoder with a head."""

    def __init__(self, encoder: TextEncoder, head: nn.Module, dropout_rate: float) -> None:
        """`dropout_rate` applies to the encoder's features before the head."""
        super().__init__()
        self.encoder, self.head, self.dropout_rate = encoder, head, dropout_rate

    def blocks(self) -> list[nn.Module]:
        """Return the submodules to compile, shard and recompute one by one."""
        return self.encoder.blocks()

    def initialise_head(self, scale: float) -> None:
        """Draw the weights of linear layers from a normal distribution with this scale, truncated at two scales."""
        for module in self.head.modules():
            initialise_layer(module, scale)

    @abstractmethod
    def forward(self, batch: Batch, max_length: int) -> Outputs:
        """Return the inputs of the loss; for the batch see `ReadExamples.build`. No example is longer than
        `max_length`."""


class GlueObjective(SeparableObjective):
    """Loss of a head's predictions."""

    terms: tuple[str, ...]
    """Names of the loss terms, all with factor 1."""
    options: Mapping[str, Any] = {}
    """Further arguments of the model's `forward`."""

    def __init__(self, config: GlueRun) -> None:
        self._max_length = config.data.max_seq_length
        self._encoder, self._encoder_config = encoder_of(config.model)

    @property
    def scales(self) -> dict[str, float]:
        return dict.fromkeys(self.terms, 1.0)

    def outputs(self, model: nn.Module, batch: Batch) -> Outputs:
        """Return the outputs of the model, floating-point ones in float32."""
        outputs: Outputs = model(batch, self._max_length, **self.options)
        return tuple(output.float() if output.is_floating_point() else output for output in outputs)

    @abstractmethod
    def totals(self, outputs: Outputs, batch: Batch) -> dict[str, Tensor]:
        """Return the sum of each loss term."""

    def num_right(self, outputs: Outputs, batch: Batch) -> Tensor | None:
        """Return the number of right answers, float32, out of the weight of the first loss term; None if not
        applicable."""
        return None

    def losses(self, model: nn.Module, batch: Batch) -> dict[str, LossSum]:
        return self._sums(self.outputs(model, batch), batch)

    @torch.no_grad()
    def metrics(self, model: nn.Module, batch: Batch) -> dict[str, LossSum]:
        """Return the losses and, for classes, the share of right answers."""
        outputs = self.outputs(model, batch)
        metrics = self._sums(outputs, batch)
        if (num_right := self.num_right(outputs, batch)) is not None:
            metrics["accuracy"] = LossSum(num_right, metrics[self.terms[0]].weight)
        return metrics

    def _sums(self, outputs: Outputs, batch: Batch) -> dict[str, LossSum]:
        weights = self.weights(batch)
        return {name: LossSum(total, weights[name]) for name, total in self.totals(outputs, batch).items()}

    @abstractmethod
    def by_example(self, outputs: Outputs, batch: HostBatch) -> list[Arrays]:
        """Return the outputs for each example of the batch, as arguments of `Labelled.predict`."""

    def cost(self, batch: HostBatch) -> Cost:
        lengths_B, config = batch["lengths"], self._encoder_config
        num_tokens, encoder = int(lengths_B.sum()), able(self._encoder, EncodesText)
        return Cost(len(lengths_B), num_tokens, num_tokens, encoder.text_encoder_flops(config, lengths_B))


Pooling = Literal["cls", "mean", "max", "texts"]
Reads = Literal["examples", "words", "spans"]


def pooled_width(width: int, pooling: Pooling | None, *, is_pair: bool) -> int:
    """Return the size of an example's vector for an encoder of this width."""
    return 4 * width if pooling == "texts" and is_pair else width


def pooled(x_TD: Tensor, batch: Batch, pooling: Pooling) -> Tensor:
    """Return (B, D) float32, or (B, 4 D) for the two texts of pairs.

    Args:
        x_TD: The slots of all examples one after another.
        batch: Contains the places where examples begin and end, and where second texts begin; see `ReadExamples.build`.
        pooling: cls: the first slot. mean, max: over all slots of the example, including control tokens. texts: for
            pairs, the means u and v over the slots of either text, |u - v| and u v, as in InferSent (Conneau et al.
            2017, https://arxiv.org/abs/1705.02364) and the baselines of GLUE; for single texts, the mean.
    """
    x_TD, ends = x_TD.float(), batch["cu_seqlens"].long()
    if pooling == "cls":
        return x_TD[ends[:-1]]
    if pooling == "max":
        maxima = x_TD.new_zeros(len(ends) - 1, x_TD.shape[1])
        place_TD = example_numbers(ends, len(x_TD))[:, None].expand_as(x_TD)
        return maxima.scatter_reduce_(0, place_TD, x_TD, "amax", include_self=False)
    if pooling == "mean" or "second_begins" not in batch:
        return _means(x_TD, ends)
    # First slots of all texts, first and second texts alternating: one span of slots for each text.
    bounds = torch.stack([ends[:-1], ends[:-1] + batch["second_begins"]], 1).flatten()
    u_BD, v_BD = _means(x_TD, torch.cat([bounds, ends[-1:]])).unflatten(0, (-1, 2)).unbind(1)
    return torch.cat([u_BD, v_BD, (u_BD - v_BD).abs(), u_BD * v_BD], 1)


def _means(x_TD: Tensor, ends: Tensor) -> Tensor:
    """Return the mean of each span of slots; `ends` is 0 and the end of each."""
    sums = x_TD.new_zeros(len(ends) - 1, x_TD.shape[1])
    return sums.index_add_(0, example_numbers(ends, len(x_TD)), x_TD) / ends.diff()[:, None]


class Float32Linear(nn.Linear, Float32Module):
    """Linear layer in float32. bfloat16 has less than three digits: numbers of a regression would be rounded to
    them."""

    def forward(self, x: Tensor) -> Tensor:
        with in_float32(x):
            return super().forward(x.float())


class LinearHead(HeadedEncoder):
    """Encoder, dropout, linear layer. `reads` determines its input; see `tasks.HEAD_READS`."""

    head: nn.Linear

    def __init__(
        self,
        encoder: TextEncoder,
        num_outputs: int,
        dropout_rate: float,
        reads: Reads,
        pooling: Pooling | None = None,
        *,
        is_pair: bool = False,
    ) -> None:
        """`pooling` of whole examples replaces the encoder's own, which is then not trained."""
        width = pooled_width(encoder.width, pooling, is_pair=is_pair)
        super().__init__(encoder, Float32Linear(width, num_outputs), dropout_rate)
        self.reads, self.pooling = reads, pooling
        if reads != "examples" or pooling is not None:
            encoder.freeze_pooling()

    def features(self, batch: Batch, max_length: int) -> Tensor:
        """Return the input of the head, (N, D); if pooled, the width is that of `pooled_width`."""
        if self.reads == "examples" and self.pooling is None:
            return self.encoder(batch, max_length)
        x_TD = self.encoder.token_features(batch, max_length)
        if self.pooling is not None:
            return pooled(x_TD, batch, self.pooling)
        return x_TD[batch["word_begins"]] if self.reads == "words" else x_TD

    def forward(self, batch: Batch, max_length: int) -> Outputs:
        """Return (N, C): logits of the classes of N examples or words, with C = 1 for numbers; or, for N slots, the
        scores that an answer begins and ends there."""
        x_ND = self.features(batch, max_length)
        return (self.head(dropout(x_ND, self.dropout_rate, is_training=self.training)),)


class TextObjective(GlueObjective):
    """Cross-entropy of classes, or squared error of numbers: the mean over labelled examples, or words, of
    the batch of all ranks."""

    def __init__(self, config: GlueRun) -> None:
        super().__init__(config)
        self.terms = ("cross_entropy" if config.model.classes else "squared_error",)

    def weights(self, batch: Batch) -> dict[str, Tensor]:
        return {self.terms[0]: _has_label(batch["label"]).sum(dtype=torch.float32)}

    def totals(self, outputs: Outputs, batch: Batch) -> dict[str, Tensor]:
        (outputs_BC,), label_B = outputs, batch["label"]
        if label_B.dtype == torch.int64:
            return {self.terms[0]: F.cross_entropy(outputs_BC, label_B, reduction="sum", ignore_index=-1)}
        # Without a label, the error and its gradient are 0.
        error_B = outputs_BC[:, 0] - torch.where(_has_label(label_B), label_B, outputs_BC[:, 0].detach())
        return {self.terms[0]: error_B.square().sum()}

    def num_right(self, outputs: Outputs, batch: Batch) -> Tensor | None:
        is_class = batch["label"].dtype == torch.int64
        return (outputs[0].argmax(1) == batch["label"]).sum().float() if is_class else None

    def by_example(self, outputs: Outputs, batch: HostBatch) -> list[Arrays]:
        return by_words(outputs, batch) if "num_words" in batch else [(row,) for row in outputs[0].cpu().numpy()]


def _has_label(label_B: Tensor) -> Tensor:
    return label_B >= 0 if label_B.dtype == torch.int64 else ~label_B.isnan()


class SpanObjective(GlueObjective):
    """Half the cross-entropy of the first slot plus half of that of the last slot: the mean over the windows of the
    batch of all ranks whose slots are known."""

    terms = ("cross_entropy",)

    def weights(self, batch: Batch) -> dict[str, Tensor]:
        return {"cross_entropy": (batch["first_slot"] >= 0).sum(dtype=torch.float32)}

    def totals(self, outputs: Outputs, batch: Batch) -> dict[str, Tensor]:
        (scores_T2,), begins_B = outputs, batch["cu_seqlens"].long()
        places_B2 = torch.stack([batch["first_slot"], batch["last_slot"]], dim=1)
        # Places count from the window's first slot; unknown places are -1 and get no weight.
        chosen_B2 = scores_T2.gather(0, begins_B[:-1, None] + places_B2.clamp(min=0))
        loss_B2 = (log_totals(scores_T2, begins_B, len(batch["slot_numbers"])) - chosen_B2) * (places_B2[:, :1] >= 0)
        return {"cross_entropy": loss_B2.sum() / 2}

    def by_example(self, outputs: Outputs, batch: HostBatch) -> list[Arrays]:
        scores_T2 = outputs[0].cpu().numpy()
        return [(scores_T2[begin:end],) for begin, end in pairwise(batch["cu_seqlens"].tolist())]


def log_totals(scores_TK: Tensor, ends_B1: Tensor, longest: int) -> Tensor:
    """Return (B, K): the logarithm of the sum of exponentials over the slots of each example. `ends_B1` is (B + 1,), 0
    first; no example has more than `longest` slots."""
    place_T = torch.arange(len(scores_TK), device=scores_TK.device)
    example_T = example_numbers(ends_B1, len(scores_TK))
    # Rows are padded with -inf, which adds nothing to the sum.
    padded_BLK = scores_TK.new_full((len(ends_B1) - 1, longest, scores_TK.shape[1]), -torch.inf)
    padded_BLK[example_T, place_T - ends_B1[example_T]] = scores_TK
    return padded_BLK.logsumexp(1)


def by_words(outputs: Outputs, batch: HostBatch) -> list[Arrays]:
    """Split outputs with an entry for each word by example."""
    ends = np.concatenate([[0], np.cumsum(batch["num_words"])]).tolist()
    arrays = [output.cpu().numpy() for output in outputs]
    return [tuple(array[begin:end] for array in arrays) for begin, end in pairwise(ends)]
