"""Measurement of an encoder on a task without changing it: a linear layer on its features, or a short fine-tuning.

Dimensions: N examples, B examples of a batch, D features.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from pretrainkit.data.loader import Loader
from pretrainkit.data.order import Order
from pretrainkit.dist.env import World
from pretrainkit.dist.parallelize import averages_gradients, gradient_sync, parallelize, unwrap
from pretrainkit.errors import ConfigError
from pretrainkit.eval.evaluator import embed_rows, evaluation_mode
from pretrainkit.eval.linear_probe import fit_linear
from pretrainkit.recipes.capabilities import EncodesText, Evaluator
from pretrainkit.recipes.glue.answers import records_of
from pretrainkit.recipes.glue.config import GlueRun
from pretrainkit.recipes.glue.model import GlueObjective, LinearHead
from pretrainkit.recipes.glue.presets import PRESETS
from pretrainkit.recipes.glue.source import TextSource
from pretrainkit.recipes.glue.tasks import named_task
from pretrainkit.recipes.recipe import Recipe
from pretrainkit.recipes.registry import able
from pretrainkit.rng import stream_key
from pretrainkit.tasks.rates import spread
from pretrainkit.training.accumulate import accumulate, seed_dropout
from pretrainkit.training.evaluate_config import TaskProbeConfig
from pretrainkit.training.optimizers.build import build_optimizer, clip_gradients, set_learning_rate
from pretrainkit.training.optimizers.config import OptimizerConfig, ScheduleConfig
from pretrainkit.training.optimizers.schedule import learning_rate
from pretrainkit.training.precision import Precision
from pretrainkit.training.run import ParallelConfig
from pretrainkit.training.trainer import to_device

_SCHEDULE = ScheduleConfig(warmup_share=0.1)


@dataclass(frozen=True)
class _Probe:
    """Turns an encoder into a model of a task, whose training rows are read once."""

    probe: TaskProbeConfig
    config: GlueRun
    """Bound config of the task."""
    objective: GlueObjective
    source: TextSource
    """Source of the training examples."""
    world: World
    precision: Precision

    def fit(self, model: LinearHead) -> LinearHead:
        """Fit the head to the features of the frozen encoder."""
        rows = np.array(spread(sum(self.source.sizes), self.probe.num_train_examples))

        def features(batch: Mapping[str, Tensor]) -> Tensor:
            with self.precision.autocast():
                vectors_BD = model.features(batch, self.config.data.max_seq_length)
            # Rows are gathered over ranks together with their labels: small whole numbers are exact in float32.
            return torch.cat([vectors_BD.float(), batch["label"].float()[:, None]], dim=1)

        with evaluation_mode(model):
            vectors_ND1 = embed_rows(
                lambda places: self.source.build(records_of(self.source, rows[places])),
                features,
                len(rows),
                batch_size=self.config.evaluate.batch_size,
                world=self.world,
            )
        label_N, classes = vectors_ND1[:, -1], self.config.model.classes or ()
        label_N = label_N.round().long() if classes else label_N
        weight_CD, bias_C = fit_linear(vectors_ND1[:, :-1], label_N, max(1, len(classes)), self.probe.l2)
        # Processors of ranks may differ, and with them the last bits.
        weight, bias = self.world.broadcast_object([weight_CD.tolist(), bias_C.tolist()])
        with torch.no_grad():
            model.head.weight.copy_(torch.tensor(weight))
            model.head.bias.copy_(torch.tensor(bias))
        return model

    def tune(self, model: LinearHead) -> LinearHead:
        """Train encoder and head for a few steps."""
        probe, config, world = self.probe, self.config, self.world
        wrapped = parallelize(model, ParallelConfig(strategy="ddp", compile="off"), world, self.precision.compute_dtype)
        optimizer = build_optimizer(wrapped, config.optimizer)
        order = Order(self.source.sizes, seed=config.seed, batch_size=probe.batch_size, may_repeat=True)
        loader = Loader(
            self.source, order, batch_size=probe.batch_size, rank=world.rank, world_size=world.world_size, prefetch=0
        )
        for step, host_batches, _ in loader.iterate(0, probe.num_steps):
            set_learning_rate(optimizer, learning_rate(_SCHEDULE, probe.peak_lr, probe.num_steps, step))
            wrapped.train()
            optimizer.zero_grad(set_to_none=True)
            accumulate(
                self.objective,
                wrapped,
                [to_device(batch, world.device) for batch in host_batches],
                precision=self.precision,
                world=world,
                gradient_sync=lambda enabled: gradient_sync(wrapped, enabled),
                averages_gradients=averages_gradients(wrapped),
                seed_dropout=lambda index, step=step: seed_dropout(  # type: ignore[misc]
                    config.seed, step, index, world.rank, world.device
                ),
            )
            clip_gradients(wrapped.parameters(), config.optimizer)
            optimizer.step()
        return cast(LinearHead, unwrap(wrapped))


def open_probe(
    glue: Any,
    probe: TaskProbeConfig,
    folders: Mapping[str, str],
    recipe: Recipe,
    encoder_config: Any,
    tokenizer: Path | None,
    world: World,
    precision: Precision,
) -> Evaluator:
    """Open a probe; see `BuildsOnEncoder.open_probe`. `glue` is the recipe of the task."""
    task = named_task(probe.task)
    if not task.valid_splits:
        raise ConfigError(f"evaluate.probes: {probe.task} has no training data\n  choose another task, such as mnli")
    if probe.batch_size % world.world_size:
        raise ConfigError(
            f"evaluate.probes: {probe.task} has batches of {probe.batch_size} examples, which cannot be split over "
            f"{world.world_size} ranks\n  set another batch_size"
        )
    preset = PRESETS[probe.task]()
    reader = able(recipe, EncodesText)
    positions = None if tokenizer is None else reader.text_reader(encoder_config, tokenizer).max_positions
    config = preset.changed(
        seed=stream_key(0, "probe", probe.task) % 2**31,
        model={"pooling": None if probe.pooling == "own" else probe.pooling},
        data={
            "task_folders": dict(folders),
            "max_seq_length": min(probe.max_seq_length, positions or probe.max_seq_length),
            "batch_size": probe.batch_size,
        },
        optimizer=OptimizerConfig(peak_lr=probe.peak_lr),
        evaluate={"num_examples": probe.num_examples},
    )
    config = glue.bind(glue.with_encoder(config, recipe.name, encoder_config, tokenizer))
    evaluator = glue.build_evaluator(config, world, precision)
    own = _Probe(probe, config, glue.build_objective(config), glue.open_data(config, "train"), world, precision)

    def evaluate(trained: nn.Module) -> dict[str, float]:
        """Return held-out metrics in percent. `trained` is a model of `recipe` on the device. Nothing else uses it,
        and its encoder may change. Draws from torch's global generators."""
        model = cast(LinearHead, glue.build_model(config)).to(world.device)
        glue.load_encoder(config, model, recipe.name, encoder_config, trained)
        return evaluator(own.fit(model) if probe.method == "linear" else own.tune(model))

    return evaluate
