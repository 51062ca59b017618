"""One step's gradient from microbatches: equal to that of the whole batch, for both kinds of objective.

Nothing here waits for the device. Dimensions: b examples of this rank, B of all ranks, D embedding width.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pretrainkit.dist.env import World
from pretrainkit.dist.parallelize import gather_root_weights
from pretrainkit.rng import stream_key
from pretrainkit.training.objective import AnyObjective, Batch, CoupledObjective, LossSum, SeparableObjective
from pretrainkit.training.precision import Precision

GradientSync = Callable[[bool], AbstractContextManager[object]]
"""A context for one backward pass, and the forward pass before it: True where gradients are to be summed over ranks."""
SeedDropout = Callable[[int], None]
"""Seeds dropout for the microbatch of this index."""

_ALONE = World()


def no_sync_needed(is_last: bool) -> AbstractContextManager[None]:
    """The `GradientSync` of a model that nothing wraps."""
    return nullcontext()


def accumulate(
    objective: AnyObjective,
    model: nn.Module,
    microbatches: Sequence[Batch],
    *,
    precision: Precision,
    world: World = _ALONE,
    gradient_sync: GradientSync = no_sync_needed,
    averages_gradients: bool = False,
    seed_dropout: SeedDropout | None = None,
) -> dict[str, LossSum]:
    """Add the gradient of this step's training loss to the parameters' `.grad`.

    Args:
        microbatches: This rank's slices of the batch, in order, on the model's device. At least one, and the same
            number on all ranks. One may hold no scored part or no example at all.
        gradient_sync: Entered around each microbatch; its argument is True for the last one only.
        averages_gradients: The model's wrapper divides gradients by the number of ranks (DDP, FSDP2); undone here.
        seed_dropout: Called before each forward pass.

    Returns:
        The loss terms of this rank, detached and on the device. Add ranks with `sum_over_ranks` when they are read.
    """
    if not microbatches:
        raise ValueError("a step needs at least one microbatch on every rank")
    run = accumulate_coupled if isinstance(objective, CoupledObjective) else accumulate_separable
    return run(
        objective,  # type: ignore[arg-type]
        model,
        microbatches,
        precision=precision,
        world=world,
        gradient_sync=gradient_sync,
        gradient_scale=float(world.world_size) if averages_gradients else 1.0,
        seed_dropout=seed_dropout,
    )


def accumulate_separable(
    objective: SeparableObjective,
    model: nn.Module,
    microbatches: Sequence[Batch],
    *,
    precision: Precision,
    world: World,
    gradient_sync: GradientSync,
    gradient_scale: float,
    seed_dropout: SeedDropout | None,
) -> dict[str, LossSum]:
    """As `accumulate`. The global weights are known before the first forward pass, from one small all-reduce."""
    names = list(objective.scales)
    weights = add_up(objective.weights(batch) for batch in microbatches)
    _check_terms(names, weights)
    factors = _term_factors(
        objective.scales, world.all_reduce_(torch.stack([weights[name] for name in names])), gradient_scale
    )

    parts = []
    for index, batch in enumerate(microbatches):
        if seed_dropout is not None:
            seed_dropout(index)
        with gradient_sync(index == len(microbatches) - 1):
            with precision.autocast():
                terms = objective.losses(model, batch)
            _check_terms(names, terms)
            precision.backward(_weighted(names, terms, factors))
        parts.append({name: terms[name].total.detach() for name in names})
    totals = add_up(parts)
    return {name: LossSum(totals[name], weights[name]) for name in names}


def accumulate_coupled(
    objective: CoupledObjective,
    model: nn.Module,
    microbatches: Sequence[Batch],
    *,
    precision: Precision,
    world: World,
    gradient_sync: GradientSync,
    gradient_scale: float,
    seed_dropout: SeedDropout | None,
) -> dict[str, LossSum]:
    """As `accumulate`, by decoupled accumulation (GradCache, Gao et al. 2021, https://arxiv.org/abs/2101.06983).

    Embed all microbatches without graph, gather the embeddings of all ranks, take the loss's gradient at them, then
    replay each microbatch with the same dropout and push its rows of that gradient through. A single microbatch keeps
    its graph and is not replayed. Each rank scores its own rows against all B, so the gradient at a rank's embeddings
    is added up over ranks.

    The loss's own parameters (a temperature) get their gradient once, through the last microbatch's graph, so that a
    wrapper's hooks see every parameter in the one backward pass that they synchronise.

    Layers that update statistics in the forward pass (batch norm) see each microbatch twice, and never the whole batch:
    with those the gradient is not that of the whole batch.
    """
    names = list(objective.scales)
    is_replayed = len(microbatches) > 1
    states: list[_RandomState] = []
    embedded: list[dict[str, Tensor]] = []
    last = len(microbatches) - 1
    for index, batch in enumerate(microbatches):
        if seed_dropout is not None:
            seed_dropout(index)
        if is_replayed:
            states.append(_RandomState(precision.device))
        with torch.set_grad_enabled(not is_replayed), gradient_sync(index == last), precision.autocast():
            embedded.append(objective.embed(model, batch))

    local_bD = {key: torch.cat([part[key].detach() for part in embedded]) for key in embedded[0]}
    num_rows = len(next(iter(local_bD.values())))
    rows = slice(world.rank * num_rows, (world.rank + 1) * num_rows)
    leaves_BD = {key: _at_least_float32(_gather_rows(local, world)).requires_grad_() for key, local in local_bD.items()}
    gather_root_weights(model)
    terms = objective.loss_from(model, dict(leaves_BD), rows)
    _check_terms(names, terms)
    weights = torch.stack([terms[name].weight.detach() for name in names])
    factors = _term_factors(objective.scales, world.all_reduce_(weights), 1.0)
    loss = _weighted(names, terms, factors)

    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    gradients = torch.autograd.grad(loss, [*leaves_BD.values(), *parameters], allow_unused=True)
    slopes_bD = {
        key: world.all_reduce_(torch.zeros_like(leaf) if gradient is None else gradient.contiguous())[rows]
        for (key, leaf), gradient in zip(leaves_BD.items(), gradients)
    }
    own = [(p, gradient) for p, gradient in zip(parameters, gradients[len(leaves_BD) :]) if gradient is not None]

    start = 0
    for index, batch in enumerate(microbatches):
        with gradient_sync(index == last):
            part = embedded[index]
            if is_replayed:
                states[index].restore()
                with precision.autocast():
                    part = objective.embed(model, batch)
            stop = start + len(next(iter(part.values())))
            # The gradient of this sum is the loss's: slopes and own gradients are constants here.
            products = [(_at_least_float32(part[key]) * slopes_bD[key][start:stop]).sum() for key in slopes_bD]
            if index == last:
                products += [(parameter * gradient).sum() for parameter, gradient in own]
            precision.backward(torch.stack(products).sum() * gradient_scale)
            start = stop
    return {name: LossSum(terms[name].total.detach(), terms[name].weight.detach()) for name in names}


def sum_over_ranks(terms: Mapping[str, LossSum], world: World = _ALONE) -> dict[str, LossSum]:
    """The loss terms of all ranks, in one all-reduce: for the steps that are logged."""
    if world.world_size == 1 or not terms:
        return dict(terms)
    packed = world.all_reduce_(torch.stack([part for term in terms.values() for part in term]))
    return {name: LossSum(*pair) for name, pair in zip(terms, packed.view(-1, 2).unbind())}


def seed_dropout(seed: int, step: int, microbatch: int, rank: int, device: torch.device) -> None:
    """Make what torch draws from here on, on the host and on `device`, a function of the arguments alone.

    So a resumed run drops what the run before would have dropped. Another number of ranks or microbatches drops
    other units, with the same distribution.
    """
    key = stream_key(seed, "dropout", step, microbatch, rank)
    torch.default_generator.manual_seed(key)
    if device.type != "cpu":
        torch.get_device_module(device).manual_seed(key)


def add_up(parts: Iterable[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The sum of dicts of scalars, by name."""
    sums: dict[str, Tensor] = {}
    for part in parts:
        for name, value in part.items():
            sums[name] = sums[name] + value if name in sums else value
    return sums


def _term_factors(scales: Mapping[str, float], weights: Tensor, gradient_scale: float) -> Tensor:
    """What to multiply each term's sum by; 0 where no part of the global batch has the term."""
    scaled = torch.tensor([scale * gradient_scale for scale in scales.values()], dtype=weights.dtype)
    scaled = scaled.to(weights.device, non_blocking=True)
    return torch.where(weights > 0, scaled / weights, 0.0)


def _weighted(names: Sequence[str], terms: Mapping[str, LossSum], factors: Tensor) -> Tensor:
    return (torch.stack([terms[name].total for name in names]) * factors).sum()


def _gather_rows(local: Tensor, world: World) -> Tensor:
    """(b, D) of each rank to (B, D) in rank order, without autograd; b is the same on all ranks."""
    if world.world_size == 1:
        return local
    parts = [torch.empty_like(local) for _ in range(world.world_size)]
    dist.all_gather(parts, local.contiguous())
    return torch.cat(parts)


def _at_least_float32(tensor: Tensor) -> Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _check_terms(names: Sequence[str], given: Mapping[str, object]) -> None:
    if set(given) != set(names):
        raise ValueError(f"the objective gave the terms {sorted(given)}, but its scales name {sorted(names)}")


class _RandomState:
    """The state of torch's generators on the host and on one device, to draw the same numbers again."""

    def __init__(self, device: torch.device) -> None:
        self._host = torch.get_rng_state()
        self._module = torch.get_device_module(device) if device.type != "cpu" else None
        self._device = self._module.get_rng_state() if self._module is not None else None

    def restore(self) -> None:
        torch.set_rng_state(self._host)
        if self._module is not None:
            self._module.set_rng_state(self._device)
