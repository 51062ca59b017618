"""Training objective: cross-entropy of targets given inputs, with label smoothing, and the z-loss, as weighted sums.

Dimensions: R rows, Q slots of a decoder row, K target tokens, G numbers of examples, V vocabulary.
Source of the losses: T5X (`t5x/losses.py`). With label smoothing it subtracts a constant so that a perfect prediction
scores 0.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pretrainkit.nn.layouts import best_pairs
from pretrainkit.recipes.t5.config import T5ModelConfig, T5Run
from pretrainkit.recipes.t5.inputs import T5Targets, read_batch, target_examples
from pretrainkit.recipes.t5.model import TokenScores
from pretrainkit.training.objective import Batch, Cost, HostBatch, LossSum, SeparableObjective

CROSS_ENTROPY, Z_LOSS = "cross_ent_loss", "z_loss"
PER_TOKEN, ACCURACY = "loss_per_nonpadding_target_token", "accuracy"


class TokenLosses(NamedTuple):
    """Losses of each target token, float32, before weights."""

    cross_entropy_K: Tensor
    z_K: Tensor

    @property
    def both_K(self) -> Tensor:
        """The training loss of each token, without gradient."""
        return (self.cross_entropy_K + self.z_K).detach()


def token_losses(scores: TokenScores, vocab_size: int, *, label_smoothing: float, z_loss: float) -> TokenLosses:
    """Return both losses of each token; the training loss is their sum.

    With probability 1 - s on the target and q = s / (V - 1) on every other token, the cross-entropy is logsumexp(x) -
    (1 - s - q) x_target - q sum(x), minus the entropy of that distribution. s is `label_smoothing`, in [0, 1); if it is
    not 0, `scores` must have `logit_sum_K`. `z_loss` is the factor of logsumexp(x) ** 2.
    """
    log_sum_K = scores.loss.log_sum_K
    z_K = z_loss * log_sum_K.square() if z_loss else torch.zeros_like(log_sum_K)
    if not label_smoothing:
        return TokenLosses(scores.loss.nll_K, z_K)
    if scores.logit_sum_K is None:
        raise ValueError(f"label_smoothing is {label_smoothing}, but the scores have no logit_sum_K")
    other = label_smoothing / (vocab_size - 1)
    # nll = logsumexp - x_target, so no logits have to be stored.
    target_logit_K = log_sum_K - scores.loss.nll_K
    soft_K = log_sum_K - (1 - label_smoothing - other) * target_logit_K - other * scores.logit_sum_K
    return TokenLosses(soft_K - smoothed_entropy(label_smoothing, vocab_size), z_K)


def smoothed_entropy(label_smoothing: float, vocab_size: int) -> float:
    """Return the entropy of the smoothed target, in nats."""
    kept, other = 1 - label_smoothing, label_smoothing / (vocab_size - 1)
    return -(kept * math.log(kept) + (vocab_size - 1) * other * math.log(other + 1e-20))


def _sum_by_example(value: Tensor, example: Tensor, num_groups: int) -> Tensor:
    return value.new_zeros(num_groups).index_add(0, example, value)


class T5Objective(SeparableObjective):
    """Training loss: (cross-entropy + z-loss) / the divisor `objective.normalize_by`, over the batch of all ranks."""

    def __init__(self, config: T5Run, components: Sequence[str] = ()) -> None:
        """`components`: names of the training mixture's components, whose losses and target tokens are logged
        separately; batches then have `components`."""
        assert config.model.vocab_size is not None
        self._config = config
        self._vocab_size = config.model.vocab_size
        self._side = "encoder" if config.model.kind == "encoder_only" else "decoder"
        self._components = tuple(components)
        self._component_losses = tuple(f"loss/{name}" for name in components)
        # The weights count the examples of a step if the divisor is "none" or a number; the scale corrects for that.
        normalize_by, num_examples = config.objective.normalize_by, config.data.batch_size
        self._scale = float(num_examples) if normalize_by == "none" else 1.0
        if isinstance(normalize_by, float):
            self._scale = num_examples / normalize_by

    @property
    def scales(self) -> dict[str, float]:
        return {CROSS_ENTROPY: 1.0, Z_LOSS: 1.0}

    @property
    def logged(self) -> tuple[str, ...]:
        is_per_token = self._config.objective.normalize_by == "real_target_tokens"
        return (*(() if is_per_token else (PER_TOKEN,)), ACCURACY, *self._component_losses)

    def weights(self, batch: Batch) -> dict[str, Tensor]:
        return dict.fromkeys((CROSS_ENTROPY, Z_LOSS), self._weight(batch))

    def losses(self, model: nn.Module, batch: Batch) -> dict[str, LossSum]:
        scores, targets, losses = self._scored(model, batch)
        sums = self._loss_sums(losses, targets, batch)
        with torch.no_grad():
            notes = self._per_token(losses, scores, targets)
            if self._components:
                notes |= self._by_component(losses, targets)
        return sums | {name: notes[name] for name in self.logged}

    @torch.no_grad()
    def metrics(self, model: nn.Module, batch: Batch) -> dict[str, LossSum]:
        """Return the losses, and per target token: their sum, the negative log-likelihood, and the accuracy."""
        scores, targets, losses = self._scored(model, batch)
        sums = self._loss_sums(losses, targets, batch) | self._per_token(losses, scores, targets)
        weight_K = targets.weight_K
        sums["nll_per_target_token"] = LossSum((scores.loss.nll_K * weight_K).sum(), weight_K.sum())
        return sums

    def cost(self, batch: HostBatch) -> Cost:
        cost = count_cost(self._config.model, batch)
        if not self._components:
            return cost
        is_target = batch[f"{self._side}_loss_weights"] > 0
        counts = np.bincount(batch["components"][is_target], minlength=len(self._components)).tolist()
        names = [f"target_tokens/{name}" for name in self._components]
        return replace(cost, notes=dict(zip(names, counts, strict=True)))

    def _scored(self, model: nn.Module, batch: Batch) -> tuple[TokenScores, T5Targets, TokenLosses]:
        config, objective = self._config, self._config.objective
        layout = best_pairs(
            batch[f"{self._side}_loss_weights"],
            config.model.head_size,
            has_dropout=model.training and config.model.dropout > 0,
            has_static_shapes=config.parallel.compile == "on",
        )
        inputs, targets = read_batch(batch, config.model.kind, layout=layout)
        smoothing = objective.label_smoothing
        scores = model(inputs, targets.token_K, has_logit_sum=smoothing > 0)
        losses = token_losses(scores, self._vocab_size, label_smoothing=smoothing, z_loss=objective.z_loss)
        return scores, targets, losses

    def _loss_sums(self, losses: TokenLosses, targets: T5Targets, batch: Batch) -> dict[str, LossSum]:
        """Return both losses, to be summed over microbatches and ranks.

        The training loss of a step is the sum of their means over its `data.batch_size` examples."""
        weight, weight_K = self._weight(batch), targets.weight_K
        if self._config.objective.normalize_by == "average_per_sequence":  # the weights of each example add up to 1
            sums = _sum_by_example(weight_K, targets.example_K, targets.num_groups)
            weight_K = weight_K / sums[targets.example_K].clamp(min=torch.finfo(torch.float32).tiny)
        return {
            CROSS_ENTROPY: LossSum((losses.cross_entropy_K * weight_K).sum() * self._scale, weight),
            Z_LOSS: LossSum((losses.z_K * weight_K).sum() * self._scale, weight),
        }

    def _per_token(self, losses: TokenLosses, scores: TokenScores, targets: T5Targets) -> dict[str, LossSum]:
        """Return both losses together and the accuracy, per target token and without gradient."""
        weight_K = targets.weight_K
        total = weight_K.sum()
        return {
            PER_TOKEN: LossSum((losses.both_K * weight_K).sum(), total),
            ACCURACY: LossSum((scores.loss.is_right_K * weight_K).sum(), total),
        }

    def _by_component(self, losses: TokenLosses, targets: T5Targets) -> dict[str, LossSum]:
        """Return both losses together per target token of each component, by metric name and without gradient."""
        names = self._component_losses
        if targets.component_K is None:
            raise ValueError(f"the batch has no components, but {len(names)} of them are logged")
        totals = _sum_by_example(losses.both_K * targets.weight_K, targets.component_K, len(names))
        weights = _sum_by_example(targets.weight_K, targets.component_K, len(names))
        return {name: LossSum(*pair) for name, *pair in zip(names, totals.unbind(), weights.unbind(), strict=True)}

    def _weight(self, batch: Batch) -> Tensor:
        """Return the contribution of a microbatch to the divisor of the loss, a float32 scalar."""
        normalize_by, weight_RQ = self._config.objective.normalize_by, batch[f"{self._side}_loss_weights"]
        if normalize_by == "real_target_tokens":
            return weight_RQ.sum(dtype=torch.float32)
        if normalize_by == "average_per_sequence":
            example_RQ = target_examples(batch, self._side)
            num_groups = len(example_RQ) * (example_RQ.shape[1] + 1)
            sums = _sum_by_example(weight_RQ.float().flatten(), example_RQ.flatten(), num_groups)
            return (sums > 0).sum(dtype=torch.float32)
        if "num_examples" in batch and normalize_by != "total_target_tokens":
            return batch["num_examples"].sum(dtype=torch.float32)  # packed rows hold several examples
        num = weight_RQ.numel() if normalize_by == "total_target_tokens" else len(weight_RQ)
        return torch.full((), num, dtype=torch.float32, device=weight_RQ.device)


def count_cost(model: T5ModelConfig, batch: HostBatch) -> Cost:
    """Return matmul FLOPs of forward and backward over real tokens: 6 per weight and token, 12 x inner width per
    pair."""
    width, inner = model.hidden_size, model.num_heads * model.head_size
    assert model.vocab_size is not None
    feed_forward = (len(model.activations) + 1) * width * model.intermediate_size
    stacks = {"encoder": model.num_encoder_layers, "decoder": model.num_decoder_layers}
    num_layers = {side: num for side, num in stacks.items() if num is not None}
    lengths = {side: _lengths(batch, side) for side in num_layers}
    flops = 0.0
    for side, own in lengths.items():
        flops += 6 * num_layers[side] * (4 * width * inner + feed_forward) * float(own.sum())
        # A decoder's tokens attend to half of the pairs: the earlier tokens.
        seen = float((own**2).sum()) / (2 if side == "decoder" else 1)
        flops += 12 * num_layers[side] * inner * seen
    if len(lengths) == 2:
        keys, queries = lengths["encoder"], lengths["decoder"]
        crossed = float((keys * queries).sum())
        # Cross-attention: queries and output over the decoder's tokens, keys and values over the encoder's.
        both = 2 * width * inner * float(keys.sum() + queries.sum())
        flops += num_layers["decoder"] * (6 * both + 12 * inner * crossed)
    last = list(lengths)[-1]
    flops += 6.0 * np.count_nonzero(batch[f"{last}_loss_weights"]) * width * model.vocab_size
    return Cost(
        examples=int(np.count_nonzero(lengths[last])),
        tokens=int(sum(own.sum() for own in lengths.values())),
        slots=sum(int(batch[f"{side}_input_tokens"].size) for side in lengths),
        flops=flops,
    )


def _lengths(batch: HostBatch, side: str) -> NDArray[np.float64]:
    """Return (rows, examples of a row): the number of real tokens of each example; 0 if a row has fewer examples."""
    if f"{side}_segment_ids" in batch:
        segments = np.asarray(batch[f"{side}_segment_ids"])
        # Both sides have the same number of columns, so that an example has the same column on both.
        num = 1 + max(int(batch[name].max(initial=0)) for name in batch if name.endswith("_segment_ids"))
        numbers = segments + num * np.arange(len(segments))[:, None]
        counts = np.bincount(numbers.ravel(), minlength=num * len(segments)).reshape(-1, num)
        return counts[:, 1:].astype(np.float64)
    name = f"{side}_target_tokens" if f"{side}_target_tokens" in batch else f"{side}_input_tokens"
    is_token = np.asarray(batch[name]) != 0
    # An example extends to the last id of its row that is not 0.
    last = np.where(is_token.any(1), is_token.shape[1] - np.argmax(is_token[:, ::-1], axis=1), 0)
    return last[:, None].astype(np.float64)
