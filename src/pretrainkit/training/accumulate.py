"""Gradient of one step from microbatches, equal to that of the whole batch, for both kinds of objective.

The host never waits for the device here: weights that an objective computes on the host are copied through pinned
memory.

Dimensions: b examples of this rank, B of all ranks, D embedding width.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pretrainkit.dist.autocast import in_float32
from pretrainkit.dist.devices import RandomState, ensure_on, from_host, seed_generators
from pretrainkit.dist.env import World
from pretrainkit.dist.parallelize import gather_root_weights
from pretrainkit.rng import stream_key
from pretrainkit.training.objective import (
    AnyObjective,
    Batch,
    BlockwiseObjective,
    CoupledObjective,
    Embedded,
    LossSum,
    SeparableObjective,
)
from pretrainkit.training.precision import Precision

GradientSync = Callable[[bool], AbstractContextManager[object]]
"""Context for one forward and backward pass; with True, gradients are summed over ranks in the backward pass."""
SeedDropout = Callable[[int], None]
"""Seeds dropout for the microbatch with this index."""

_ALONE = World()


class _CommonArguments(NamedTuple):
    """Arguments that `accumulate` passes on for both kinds of objective."""

    precision: Precision
    world: World
    gradient_sync: GradientSync
    gradient_scale: float
    """1, or the number of ranks if the model's wrapper divides by it."""
    seed_dropout: SeedDropout


def accumulate(
    objective: AnyObjective,
    model: nn.Module,
    microbatches: Sequence[Batch],
    *,
    precision: Precision,
    world: World = _ALONE,
    gradient_sync: GradientSync = nullcontext,
    averages_gradients: bool = False,
    seed_dropout: SeedDropout | None = None,
) -> dict[str, LossSum]:
    """Add the gradient of this step's training loss to the parameters' `.grad`.

    Args:
        microbatches: This rank's slices of the batch, in order, on the model's device. There must be at least one, and
            the same number on all ranks. A microbatch may contain no scored part or no example. Those of a coupled
            objective are read one at a time, the last once and the others twice, and not kept, so each may be copied to
            the device when it is read.
        gradient_sync: Entered for each microbatch. Its argument is True only for the final backward pass and the
            forward pass before it.
        averages_gradients: True if the model's wrapper divides gradients by the number of ranks (DDP, FSDP2). This is
            undone here.
        seed_dropout: Called before each forward pass.
    Returns:
        The loss terms of this rank, detached and on the device. Use `sum_over_ranks` before reading them.
    """
    if not microbatches:
        raise ValueError("a step needs at least one microbatch on every rank")
    scale = float(world.world_size) if averages_gradients else 1.0
    common = _CommonArguments(precision, world, gradient_sync, scale, seed_dropout or (lambda index: None))
    if isinstance(objective, CoupledObjective):
        return accumulate_coupled(objective, model, microbatches, common)
    return accumulate_separable(objective, model, microbatches, common)


def accumulate_separable(
    objective: SeparableObjective, model: nn.Module, microbatches: Sequence[Batch], common: _CommonArguments
) -> dict[str, LossSum]:
    """Do the same as `accumulate`. The global weights are known before the first forward pass, by a small
    all-reduce."""
    precision, world, gradient_sync, gradient_scale, seed_dropout = common
    names = list(objective.scales)
    microbatches = list(microbatches)
    device = precision.device
    weights = add_up(objective.weights(batch) for batch in microbatches)
    _check_terms(names, weights)
    weights = {name: ensure_on(weight, device) for name, weight in weights.items()}
    factors = _term_factors(
        objective.scales, world.all_reduce_(torch.stack([weights[name] for name in names])), gradient_scale
    )

    parts, logged = [], []
    for index, batch in enumerate(microbatches):
        seed_dropout(index)
        with gradient_sync(index == len(microbatches) - 1):
            with precision.autocast():
                terms = objective.losses(model, batch)
            _check_terms([*names, *objective.logged], terms)
            precision.backward(_weighted(names, terms, factors))
        parts.append({name: term.total.detach() for name, term in terms.items()})
        logged.append({name: ensure_on(terms[name].weight.detach(), device) for name in objective.logged})
    totals = add_up(parts)
    weights |= add_up(logged)
    return {name: LossSum(total, weights[name]) for name, total in totals.items()}


def accumulate_coupled(
    objective: CoupledObjective, model: nn.Module, microbatches: Sequence[Batch], common: _CommonArguments
) -> dict[str, LossSum]:
    """Do the same as `accumulate` by decoupled accumulation (GradCache, Gao et al. 2021,
    https://arxiv.org/abs/2101.06983).

    First embed all microbatches, the last one with its graph and the others without. Then gather the embeddings of all
    ranks, compute the loss's gradient at the embeddings, and push the rows of the last microbatch through its graph.
    Then replay each other microbatch with the same dropout and do the same with its rows. Thus activations of only one
    microbatch exist at a time, and a single microbatch is not replayed. Each rank scores its own rows against all B, so
    the gradient at a rank's embeddings is summed over ranks.

    The loss's own parameters (a temperature) get their gradient once, through the graph of the final backward pass.
    Thus the hooks of a wrapper see every parameter in the pass that they synchronize.

    Torch's generators end in the same state as after one forward pass of every microbatch.

    Layers that update statistics in the forward pass (batch norm) see replayed microbatches twice, and never the whole
    batch. With such layers the gradient is not that of the whole batch.
    """
    precision, world, gradient_sync, gradient_scale, seed_dropout = common
    names = list(objective.scales)
    last = len(microbatches) - 1
    # Start with the last one, because its graph still exists.
    backward_order = [last, *range(last)]
    states: list[RandomState] = []
    parts: list[Embedded] = []
    for index in range(len(microbatches)):
        seed_dropout(index)
        states.append(RandomState(precision.device))
        is_kept = index == last
        is_synced = is_kept and index == backward_order[-1]  # a single microbatch, whose backward pass is the final one
        with torch.set_grad_enabled(is_kept), gradient_sync(is_synced), precision.autocast():
            parts.append(objective.embed(model, microbatches[index]))
    after_forward = RandomState(precision.device)
    ends = list(itertools.accumulate(len(next(iter(part.vectors.values()))) for part in parts))

    exchanged = None
    if world.world_size > 1 and isinstance(objective, BlockwiseObjective):
        exchanged = objective.exchanged(world.world_size)
    if exchanged is None:
        terms, slopes_bD, own = _differentiate(objective, names, model, parts, world)
    else:
        blockwise = cast(BlockwiseObjective, objective)
        terms, slopes_bD, own = _differentiate_by_blocks(blockwise, names, model, parts, world, exchanged)
    for index in backward_order:
        is_final = index == backward_order[-1]
        with gradient_sync(is_final):
            vectors = parts[index].vectors
            if index != last:
                states[index].restore()
                with precision.autocast():
                    vectors = objective.embed(model, microbatches[index]).vectors
            # Rows of this microbatch among those of all microbatches of the rank.
            rows = slice(ends[index - 1] if index else 0, ends[index])
            # The gradient of this sum is that of the loss: slopes and own gradients are constants here.
            products = [(_at_least_float32(vectors[key]) * slope_bD[rows]).sum() for key, slope_bD in slopes_bD.items()]
            if is_final:
                gather_root_weights(model)  # the backward passes before freed those that no replay gathers
                products += [(parameter * gradient).sum() for parameter, gradient in own]
            precision.backward(torch.stack(products).sum() * gradient_scale)
    after_forward.restore()
    return terms


def _differentiate(
    objective: CoupledObjective, names: Sequence[str], model: nn.Module, parts: Sequence[Embedded], world: World
) -> tuple[dict[str, LossSum], dict[str, Tensor], list[tuple[nn.Parameter, Tensor]]]:
    """Compute the loss of the whole batch from the embeddings of this rank's microbatches.

    Returns this rank's terms, detached; the gradient of the loss of all ranks at this rank's embeddings, each (b, D);
    and the gradient of this rank's loss at each parameter of the loss itself.
    """
    leaves_BD, labels_B = {}, {}
    for key in parts[0].vectors:
        local_bD = torch.cat([part.vectors[key].detach() for part in parts])
        leaves_BD[key] = _at_least_float32(_gather_rows(local_bD, world)).requires_grad_()
    for key in parts[0].labels:
        labels_B[key] = _gather_rows(torch.cat([part.labels[key] for part in parts]), world)
    num_rows = sum(len(next(iter(part.vectors.values()))) for part in parts)
    rows = slice(world.rank * num_rows, (world.rank + 1) * num_rows)
    gather_root_weights(model)
    with torch.enable_grad():
        terms = objective.loss_from(model, dict(leaves_BD), labels_B, rows)
        _check_terms(names, terms)
        terms = {name: LossSum(total, ensure_on(w.detach(), total.device)) for name, (total, w) in terms.items()}
        weights = torch.stack([terms[name].weight for name in names])
        weights = weights.to(torch.promote_types(weights.dtype, next(iter(leaves_BD.values())).dtype))
        factors = _term_factors(objective.scales, world.all_reduce_(weights), 1.0)
        loss = _weighted(names, terms, factors)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    gradients = torch.autograd.grad(loss, [*leaves_BD.values(), *parameters], allow_unused=True)
    slopes_bD = {
        key: _own_rows_of_sum(torch.zeros_like(leaf) if gradient is None else gradient, world)
        for (key, leaf), gradient in zip(leaves_BD.items(), gradients)
    }
    own = [(p, gradient) for p, gradient in zip(parameters, gradients[len(leaves_BD) :]) if gradient is not None]
    return {name: LossSum(terms[name].total.detach(), terms[name].weight) for name in names}, slopes_bD, own


def _differentiate_by_blocks(
    objective: BlockwiseObjective,
    names: Sequence[str],
    model: nn.Module,
    parts: Sequence[Embedded],
    world: World,
    exchanged: tuple[str, str],
) -> tuple[dict[str, LossSum], dict[str, Tensor], list[tuple[nn.Parameter, Tensor]]]:
    """Do the same as `_differentiate` without gathering. The columns of each rank visit all ranks one after another
    together with their gradient, which is complete when they return (Zhai et al. 2023,
    https://arxiv.org/abs/2303.15343).
    """
    stays, travels = exchanged
    rows_bD, columns_bD = (
        _at_least_float32(torch.cat([part.vectors[key].detach() for part in parts])) for key in exchanged
    )
    rows_bD.requires_grad_()
    num_rows, num_ranks = len(rows_bD), world.world_size
    first_row = world.rank * num_rows
    nearest_column, nearest_row = _Nearest.of(rows_bD), _Nearest.of(columns_bD)
    row_slope_bD, slope_bD = torch.zeros_like(rows_bD), torch.zeros_like(columns_bD)
    gather_root_weights(model)  # before its parameters are listed: gathering replaces them
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    own: dict[nn.Parameter, Tensor] = {}
    loss = rows_bD.new_zeros(())
    for step in range(num_ranks):
        first_column = (world.rank - step) % num_ranks * num_rows
        leaf_bD = columns_bD.detach().requires_grad_()
        with torch.enable_grad():
            block_loss = objective.block_loss(model, rows_bD, leaf_bD, first_row, first_column)
        gradients = torch.autograd.grad(block_loss, [rows_bD, leaf_bD, *parameters], allow_unused=True)
        loss += block_loss.detach()
        for whole, gradient in zip((row_slope_bD, slope_bD), gradients, strict=False):
            if gradient is not None:
                whole += gradient
        for parameter, gradient in zip(parameters, gradients[2:], strict=True):
            if gradient is not None:
                own[parameter] = own[parameter] + gradient if parameter in own else gradient
        _find_nearest(rows_bD.detach(), columns_bD, first_row, first_column, nearest_column, nearest_row)
        if step < num_ranks - 1:
            columns_bD = _pass_on(columns_bD, world)
        slope_bD, nearest_row = _pass_on(slope_bD, world), _Nearest(*(_pass_on(part, world) for part in nearest_row))
    terms = objective.block_terms(model, loss, nearest_column.index_b, nearest_row.index_b, first_row)
    _check_terms(names, terms)
    terms = {name: LossSum(total.detach(), ensure_on(w.detach(), total.device)) for name, (total, w) in terms.items()}
    weights = world.all_reduce_(torch.stack([terms[name].weight for name in names]).to(rows_bD.dtype))
    factor = _term_factors(objective.scales, weights, 1.0).sum()  # only one term has a scale
    slopes = {stays: row_slope_bD * factor, travels: slope_bD * factor}
    return terms, slopes, [(parameter, gradient * factor) for parameter, gradient in own.items()]


class _Nearest(NamedTuple):
    """The most similar vector so far for each of b vectors."""

    score_b: Tensor
    index_b: Tensor
    """int64 index in the batch of all ranks."""

    @classmethod
    def of(cls, vectors_bD: Tensor) -> "_Nearest":
        scores_b = vectors_bD.new_full((len(vectors_bD),), -torch.inf)
        return cls(scores_b, torch.full_like(scores_b, -1, dtype=torch.int64))

    def update(self, score_b: Tensor, index_b: Tensor) -> None:
        """Replace entries by more similar ones; of equally similar ones the lower index is kept."""
        is_better_b = (score_b > self.score_b) | ((score_b == self.score_b) & (index_b < self.index_b))
        self.score_b.copy_(torch.where(is_better_b, score_b, self.score_b))
        self.index_b.copy_(torch.where(is_better_b, index_b, self.index_b))


_SCORES_AT_ONCE = 1 << 24
"""Number of scores computed at once in the search for the nearest vectors."""


@torch.no_grad()
def _find_nearest(
    rows_bD: Tensor, columns_bD: Tensor, first_row: int, first_column: int, of_rows: _Nearest, of_columns: _Nearest
) -> None:
    num_rows = max(1, _SCORES_AT_ONCE // max(1, len(columns_bD)))
    for start in range(0, len(rows_bD), num_rows):
        rows = slice(start, min(start + num_rows, len(rows_bD)))
        with in_float32(rows_bD):
            score_Cb = rows_bD[rows] @ columns_bD.t()
        chunk = _Nearest(of_rows.score_b[rows], of_rows.index_b[rows])
        chunk.update(score_Cb.amax(1), score_Cb.argmax(1) + first_column)
        of_columns.update(score_Cb.amax(0), score_Cb.argmax(0) + first_row + start)


def _pass_on(tensor: Tensor, world: World) -> Tensor:
    """Send a tensor to the next rank and return the one received from the previous rank."""
    received, num_ranks = torch.empty_like(tensor), world.world_size
    sending = dist.P2POp(dist.isend, tensor.contiguous(), (world.rank + 1) % num_ranks)
    receiving = dist.P2POp(dist.irecv, received, (world.rank - 1) % num_ranks)
    for work in dist.batch_isend_irecv([sending, receiving]):
        work.wait()
    return received


def sum_over_ranks(terms: Mapping[str, LossSum], world: World = _ALONE) -> dict[str, LossSum]:
    """Return the loss terms of all ranks, in one all-reduce; for steps that are logged."""
    if world.world_size == 1 or not terms:
        return dict(terms)
    packed = world.all_reduce_(torch.stack([part for term in terms.values() for part in term]))
    return {name: LossSum(*pair) for name, pair in zip(terms, packed.view(-1, 2).unbind())}


def seed_dropout(seed: int, step: int, microbatch: int, rank: int, device: torch.device) -> None:
    """Make the following draws of torch, on the host and on `device`, a function of the arguments alone.

    A resumed run therefore drops the same units as the original one. With another number of ranks or microbatches other
    units are dropped, with the same distribution.
    """
    seed_generators(stream_key(seed, "dropout", step, microbatch, rank), device)


def add_up(parts: Iterable[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Return the sum of dicts of scalars, by name."""
    sums: dict[str, Tensor] = {}
    for part in parts:
        for name, value in part.items():
            sums[name] = sums[name] + value if name in sums else value
    return sums


def _term_factors(scales: Mapping[str, float], weights: Tensor, gradient_scale: float) -> Tensor:
    """Return the factor for each term's sum; 0 if the batch of all ranks does not have the term."""
    scaled = torch.tensor([scale * gradient_scale for scale in scales.values()], dtype=weights.dtype)
    scaled = from_host(scaled, weights.device)
    return torch.where(weights > 0, scaled / weights, 0.0)


def _weighted(names: Sequence[str], terms: Mapping[str, LossSum], factors: Tensor) -> Tensor:
    return (torch.stack([terms[name].total for name in names]) * factors).sum()


def _gather_rows(local: Tensor, world: World) -> Tensor:
    """Gather (b, ...) of each rank to (B, ...) in rank order, without autograd; b is the same on all ranks."""
    if world.world_size == 1:
        return local
    everyone = local.new_empty(world.world_size * len(local), *local.shape[1:])
    dist.all_gather(list(everyone.chunk(world.world_size)), local.contiguous())
    return everyone


def _own_rows_of_sum(tensor_BD: Tensor, world: World) -> Tensor:
    """Sum (B, D) over ranks and return this rank's rows, (b, D)."""
    if world.world_size == 1:
        return tensor_BD
    own_bD = tensor_BD.new_empty(len(tensor_BD) // world.world_size, *tensor_BD.shape[1:])
    dist.reduce_scatter(own_bD, list(tensor_BD.contiguous().chunk(world.world_size)))
    return own_bD


def _at_least_float32(tensor: Tensor) -> Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _check_terms(names: Sequence[str], returned: Mapping[str, object]) -> None:
    if set(returned) != set(names):
        raise ValueError(f"the objective returned the terms {sorted(returned)}, but its scales name {sorted(names)}")
