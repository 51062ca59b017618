"""Held-out losses of the whole mixture, and of each of its tasks or denoisers alone."""

from collections.abc import Iterator

import numpy as np
from torch import nn

from pretrainkit.data.order import Order
from pretrainkit.data.source import Records
from pretrainkit.dist.env import World
from pretrainkit.eval.evaluator import dealt, evaluate
from pretrainkit.recipes.capabilities import Evaluator
from pretrainkit.recipes.t5.config import T5Run
from pretrainkit.recipes.t5.objective import T5Objective
from pretrainkit.recipes.t5.source import open_source
from pretrainkit.recipes.t5.task_source import warn_of_lacking
from pretrainkit.training.precision import Precision

OF_EACH = ("nll_per_target_token", "accuracy")
"""What is told of a single component."""


def build_evaluator(config: T5Run, world: World, precision: Precision) -> Evaluator | None:
    """Metrics on `evaluate.num_examples` of the mixture in proportion to sizes, and as `metric/NAME` those `OF_EACH` on
    `evaluate.num_examples_per_task` of each component, else an equal part of so many. None where there is only one
    component: the house does it then."""
    if world.is_main:
        warn_of_lacking(config, "valid")
    source = open_source(config, "valid")
    if len(source.sizes) == 1:
        return None
    objective, size = T5Objective(config), config.evaluate.batch_size
    whole = Order(source.sizes, weights=[None] * len(source.sizes), mode="shuffle", seed=0, batch_size=1)
    most = config.evaluate.num_examples
    share = config.evaluate.num_examples_per_task or max(1, most // len(source.sizes))

    def scored(model: nn.Module, order: Order, component: int | None, num_examples: int) -> dict[str, float]:
        numbers, num_counted = dealt(-(-num_examples // size), world)

        def batches() -> Iterator[dict[str, np.ndarray]]:
            for number in numbers:
                records = order.records(np.arange(number * size, min((number + 1) * size, num_examples)))
                if component is not None:
                    own = np.full(len(records), component)
                    records = Records(own, records.epoch, records.index, records.key)
                yield source.build(records)

        return evaluate(objective, model, batches(), precision=precision, world=world, num_counted=num_counted)

    def run(model: nn.Module) -> dict[str, float]:
        found = scored(model, whole, None, min(most, sum(source.sizes)))
        for component, (name, num) in enumerate(zip(source.names, source.sizes, strict=True)):
            alone = scored(model, Order([num], seed=0), component, min(share, num))
            found |= {f"{metric}/{name}": alone[metric] for metric in OF_EACH}
        return found

    return run
