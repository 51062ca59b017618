"""Turn a batch of the data plane into the stream of tokens that the model reads.

Dimensions: B examples, S slots of a row, P predictions per row, T tokens of the stream, K predictions of the batch.

On a CPU the padding of rows is removed here, before the embedding layer, and never added again. On a GPU rows keep it,
because the host cannot know the number of real tokens without waiting for the device; use `packed` batches there.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from pretrainkit.nn.attention import AttentionLayout, PaddedLayout
from pretrainkit.nn.cpu.attention import TiledLayout
from pretrainkit.nn.cpu.dispatch import drops_padding
from pretrainkit.nn.layouts import stream_layout
from pretrainkit.training.objective import Batch


@dataclass(frozen=True, eq=False)
class BertInputs:
    """Inputs of the model."""

    ids_T: Tensor
    """Integer token ids."""
    type_ids_T: Tensor
    """Integer segment of each token, 0 or 1."""
    positions_T: Tensor
    """Integer position of each token within its example."""
    layout: AttentionLayout
    """Boundaries of the examples, for attention."""
    first_B: Tensor
    """int64: index of each example's first token, [CLS]."""
    predicted_K: Tensor
    """int64: index of each token to predict."""


@dataclass(frozen=True, eq=False)
class BertTargets:
    """Targets of the model."""

    token_K: Tensor
    """int64: the true id of each predicted token."""
    weight_K: Tensor
    """float32: 0 for slots without a prediction, else 1."""
    is_swapped_B: Tensor | None
    """int64: 1 where the segments of the example were swapped; None without sentence order."""


def read_batch(batch: Batch, max_length: int) -> tuple[BertInputs, BertTargets]:
    """Return the inputs and targets of a `rows` or `packed` batch on the model's device. A packed batch has the key
    `cu_seqlens`. No example is longer than `max_length`."""
    if "cu_seqlens" not in batch:
        return _read_rows(batch)
    inputs = read_texts(batch, max_length, batch["masked_lm_positions"].long())
    targets = BertTargets(batch["masked_lm_ids"].long(), batch["masked_lm_weights"], batch.get("next_sentence_label"))
    return inputs, targets


def _read_rows(batch: Batch) -> tuple[BertInputs, BertTargets]:
    ids_BS, is_real_BS, slots_BP = batch["input_ids"], batch["input_mask"].bool(), batch["masked_lm_positions"].long()
    (num_rows, length), device = ids_BS.shape, ids_BS.device
    slot_S = torch.arange(length, device=device)
    targets = BertTargets(
        batch["masked_lm_ids"].long().flatten(), batch["masked_lm_weights"].flatten(), batch.get("next_sentence_label")
    )
    if not drops_padding(ids_BS):
        first_B = torch.arange(num_rows, device=device) * length
        inputs = BertInputs(
            ids_T=ids_BS.flatten(),
            type_ids_T=batch["token_type_ids"].flatten(),
            positions_T=slot_S.expand(num_rows, length).flatten(),
            layout=PaddedLayout(num_rows, length, is_real_BS),
            first_B=first_B,
            predicted_K=(first_B[:, None] + slots_BP).flatten(),
        )
        return inputs, targets
    # The last real slot ends the row, so that a random pad token inside a row (as in Sabertooth) stays a token.
    lengths_B = torch.where(is_real_BS, slot_S + 1, 0).amax(1)
    # Indices of the real slots among all slots of all rows. Modulo the row length they are the positions.
    keep_T = (slot_S < lengths_B[:, None]).flatten().nonzero()[:, 0]
    first_B = lengths_B.cumsum(0) - lengths_B
    is_used_K = targets.weight_K > 0
    inputs = BertInputs(
        ids_T=ids_BS.flatten()[keep_T],
        type_ids_T=batch["token_type_ids"].flatten()[keep_T],
        positions_T=keep_T % length,
        layout=TiledLayout(tuple(lengths_B.tolist())),
        first_B=first_B,
        predicted_K=(first_B[:, None] + slots_BP).flatten()[is_used_K],
    )
    return inputs, BertTargets(targets.token_K[is_used_K], targets.weight_K[is_used_K], targets.is_swapped_B)


def read_texts(batch: Batch, max_length: int, predicted_K: Tensor) -> BertInputs:
    """Return the inputs of a `packed` batch. Only `input_ids`, `token_type_ids`, `positions` and `cu_seqlens` are
    read."""
    ids_T, cu_seqlens = batch["input_ids"], batch["cu_seqlens"]
    num_tokens = len(ids_T)
    first_B = cu_seqlens[:-1].long()
    if not len(first_B):
        # A rank gets a microbatch without examples when another rank needs one more. The model then reads padding as
        # one example with weight 0, so that every parameter has a (zero) gradient for the all-reduce.
        cu_seqlens = torch.arange(2, dtype=torch.int32, device=ids_T.device) * min(num_tokens, max_length)
    if drops_padding(ids_T):
        num_tokens = int(cu_seqlens[-1])  # without the padding at the end
    return BertInputs(
        ids_T=ids_T[:num_tokens],
        type_ids_T=batch["token_type_ids"][:num_tokens],
        positions_T=batch["positions"][:num_tokens],
        layout=stream_layout(cu_seqlens, max_length, num_tokens),
        first_B=first_B,
        predicted_K=predicted_K,
    )
