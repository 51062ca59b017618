"""The training loop: the only one. It knows recipes and objectives through their interfaces alone.

One step: take the step's microbatches from the loader, set the learning rate, accumulate gradients, clip, update. What happens at step n is a function of (config, n),
so a run that was stopped and resumed goes on as if it had never stopped.
"""

from __future__ import annotations

import gc
import json
import math
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from pretrainkit.data.loader import Loader
from pretrainkit.dist.env import World
from pretrainkit.dist.parallelize import averages_gradients, gradient_sync, parallelize, unwrap
from pretrainkit.errors import Interrupted, RunError
from pretrainkit.train.accumulate import accumulate, seed_dropout
from pretrainkit.train.checkpoint import CheckpointStore
from pretrainkit.train.ema import Ema
from pretrainkit.train.folder import RunFolder
from pretrainkit.train.metrics import MetricsLog
from pretrainkit.train.objective import AnyObjective, HostBatch, LossSum
from pretrainkit.train.optim import build_optimizer, clip_gradients
from pretrainkit.train.precision import resolve_precision
from pretrainkit.train.run import RunConfig
from pretrainkit.train.schedule import lr_factor
from pretrainkit.train.signals import StopSignal
from pretrainkit.train.throughput import Throughput
from pretrainkit.train.watch import Watcher

Evaluate = Callable[[nn.Module], dict[str, float]]


class Trainer:
    """One run: model, optimiser, loader and the loop over them.

    Args:
        config: Bound to its data (no field left open).
        folder: Where checkpoints and metrics go.
        world: This process among all ranks.
        model: Freshly initialised, on `world.device`.
        objective: Of either kind.
        loader: Of this rank.
        evaluate: Held-out evaluation of a model; None when there is no held-out data.
        watcher: Told what happens, on rank 0.
    """

    def __init__(
        self,
        config: RunConfig,
        folder: RunFolder,
        world: World,
        model: nn.Module,
        objective: AnyObjective,
        loader: Loader,
        evaluate: Evaluate | None,
        watcher: Watcher,
    ) -> None:
        self.config, self.folder, self.world = config, folder, world
        self.objective, self.loader, self.evaluate = objective, loader, evaluate
        self.watcher = watcher if world.rank == 0 else Watcher()
        self.precision = resolve_precision(config.precision, world.device)
        self.num_parameters = sum(p.numel() for p in model.parameters())
        self.model = parallelize(model, config.parallel, world, self.precision.compute_dtype)
        self.optimizer = build_optimizer(self.model, config.optimizer)
        self.ema = Ema(self.model, config.ema_decay) if config.ema_decay else None
        self.store = CheckpointStore(folder.checkpoints, config.checkpoint, world)
        self.step = 0
        self.num_skipped = 0
        self._saved_step = -1

    def restore(self) -> bool:
        """Load the newest valid checkpoint of the run folder. False when there is none.

        Raises:
            CheckpointError: It belongs to another model.
            DataError: Going on would not continue the same data.
        """
        path = self.store.newest_valid()
        if path is None:
            return False
        meta = self.store.load(path, self.model, self.optimizer, self.ema)
        self.loader.check_state(meta["data"])
        self.step, self.num_skipped = int(meta["step"]), int(meta["num_skipped"])
        self._saved_step = self.step
        return True

    def fit(self) -> dict[str, float]:
        """Train from the current step to `num_steps`; returns the last metrics (training and held-out).

        Raises:
            Interrupted: A signal asked to stop; the state was saved.
            RunError: More non-finite steps than allowed, or the disk is full.
        """
        config, log = self.config, None
        if self.world.rank == 0:
            log = MetricsLog(self.folder.path, config.log, resume_step=self.step)
        throughput = Throughput(self.world)
        last: dict[str, float] = {}
        self._event("resumed" if self.step else "started", f"at step {self.step} of {config.num_steps}")
        try:
            with StopSignal() as stop:
                for step, microbatches, waited in self.loader.iterate(self.step, config.num_steps):
                    started = time.perf_counter()
                    sums, norm = self._update(step, microbatches)
                    self.step = step + 1
                    for batch in microbatches:
                        throughput.add(self.objective.cost(batch))
                    throughput.time(time.perf_counter() - started, waited)
                    self.watcher.stepped(self.step, config.num_steps)
                    if self.step % config.log.every_steps == 0 or self.step == config.num_steps:
                        last = self._log(log, sums, norm, throughput)
                    self._after_step(stop)
                    if self.step == 1:
                        gc.freeze()  # what lives now lives to the end; later collections need not look at it
            if self._saved_step != self.step:
                self._save(blocking=True)
            if self.evaluate is not None and not self._evaluates_at(self.step):
                last |= self._evaluate()
        finally:
            gc.unfreeze()
            self.store.close()
            if log is not None:
                log.close()
        self._event("finished", f"at step {self.step}")
        return last

    def _update(self, step: int, host_batches: list[HostBatch]) -> tuple[dict[str, LossSum], Tensor]:
        """One optimizer update on this rank's microbatches. Returns this rank's sums and the gradient norm before clipping."""
        config, device = self.config, self.world.device
        lr = config.optimizer.peak_lr * lr_factor(config.schedule, config.num_steps, step)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.model.train()
        self.optimizer.zero_grad(set_to_none=True)
        sums = accumulate(
            self.objective,
            self.model,
            [to_device(batch, device) for batch in host_batches],
            world=self.world,
            precision=self.precision,
            gradient_sync=lambda enabled: gradient_sync(self.model, enabled),
            averages_gradients=averages_gradients(self.model),
            seed_dropout=lambda microbatch: seed_dropout(config.seed, step, microbatch, self.world.rank, device),
        )
        self.precision.unscale_(self.optimizer)
        norm = clip_gradients(self.model.parameters(), config.optimizer)
        if math.isfinite(float(norm)):
            self.precision.step(self.optimizer)
            if self.ema is not None:
                self.ema.update(self.model)
        else:
            self._skip(step, sums)
        return sums, norm

    def _skip(self, step: int, sums: dict[str, LossSum]) -> None:
        """A non-finite gradient: leave the parameters as they are, and stop when that happened too often."""
        self.precision.skipped()
        self.num_skipped += 1
        records = self.loader.records(step)
        losses = {name: float(term.mean()) for name, term in sums.items()}
        path = None
        if self.world.rank == 0:
            ids = [
                [int(s), int(e), int(i)] for s, e, i in zip(records.source, records.epoch, records.index, strict=True)
            ]
            path = self.folder.write_json(
                f"skipped-step-{step + 1}.json", {"step": step + 1, "losses": str(losses), "records": ids}
            )
        self._event("skipped", f"non-finite gradient at step {step + 1}; losses {losses}; records in {path}")
        if self.num_skipped > self.config.max_skipped_steps:
            raise RunError(
                f"the gradient was not finite at step {step + 1} (losses {losses}); {self.num_skipped} steps skipped, "
                f"allowed: max_skipped_steps={self.config.max_skipped_steps}\n"
                f"  the records of that batch: {path}\n"
                "  lower optimizer.peak_lr, lengthen the warm-up, or resume with a larger max_skipped_steps"
            )

    def _log(
        self, log: MetricsLog | None, sums: dict[str, LossSum], norm: Tensor, throughput: Throughput
    ) -> dict[str, float]:
        """Add up the step's losses over ranks and write a line of metrics."""
        stacked = torch.stack([torch.stack([s.total.float(), s.weight.float()]) for s in sums.values()])
        self.world.all_reduce_(stacked)
        values = stacked.double().cpu()
        terms = {name: float(t / w) if w else math.nan for name, (t, w) in zip(sums, values, strict=True)}
        loss = sum(self.objective.scales[name] * value for name, value in terms.items() if not math.isnan(value))
        metrics = {
            "loss": loss,
            **terms,
            "lr": self.optimizer.param_groups[0]["lr"],
            "grad_norm": float(norm),
            **throughput.metrics(),
            "skipped_steps": float(self.num_skipped),
        }
        if log is not None:
            log.write(self.step, metrics)
        self.watcher.logged(self.step, metrics)
        return metrics

    def _after_step(self, stop: StopSignal) -> None:
        """Evaluate, save and stop where it is time to. Ranks decide together, so that no collective is left hanging."""
        if self._evaluates_at(self.step):
            self._evaluate()
        last = self.step == self.config.num_steps
        if self.world.any(stop.is_set) and not last:
            self._save(blocking=True)
            self._event("stopped", f"signal; saved at step {self.step}")
            raise Interrupted(
                f"stopped at step {self.step} of {self.config.num_steps}; the state is saved\n"
                f"  go on with: pretrainkit resume {self.folder.path}"
            )
        if self.step % self.config.checkpoint.every_steps == 0 and not last:
            self._save(blocking=not self.config.checkpoint.asynchronous)

    def _evaluates_at(self, step: int) -> bool:
        every = self.config.evaluate.every_steps
        return self.evaluate is not None and every is not None and step % every == 0

    def _evaluate(self) -> dict[str, float]:
        assert self.evaluate is not None
        metrics = self.evaluate(self.model)
        if self.ema is not None:
            with self.ema.swapped_in(self.model):
                metrics |= {f"ema_{name}": value for name, value in self.evaluate(self.model).items()}
        if self.world.rank == 0:
            self.folder.evaluation(self.step, metrics)
        self.watcher.evaluated(self.step, metrics)
        return {f"valid_{name}": value for name, value in metrics.items()}

    def _save(self, *, blocking: bool) -> None:
        meta: dict[str, Any] = {
            "step": self.step,
            "num_skipped": self.num_skipped,
            "data": self.loader.state(self.step),
            "recipe": self.config.recipe,
        }
        self.store.save(self.step, self.model, self.optimizer, self.ema, meta=meta, blocking=blocking)
        self._saved_step = self.step
        self._event("checkpoint", f"step {self.step}")

    def _event(self, kind: str, text: str) -> None:
        if self.world.rank == 0:
            self.folder.event(self.step, kind, text)
        self.watcher.event(self.step, kind, text)

    @property
    def plain_model(self) -> nn.Module:
        """The model with clean parameter names, without wrappers."""
        return unwrap(self.model)


def to_device(batch: HostBatch, device: torch.device) -> dict[str, Tensor]:
    """NumPy arrays to tensors on `device`, through pinned memory and without waiting where that is a GPU."""
    tensors = {name: torch.from_numpy(array) for name, array in batch.items()}
    if device.type == "cpu":
        return tensors
    return {name: tensor.pin_memory().to(device, non_blocking=True) for name, tensor in tensors.items()}


def initial_seed(seed: int) -> int:
    """The seed of torch's generator for initial weights: the same on every rank."""
    return stream_seed(seed, "weights")


def stream_seed(seed: int, *names: str | int) -> int:
    """A seed torch accepts (63 bits) for the named stream."""
    from pretrainkit.rng import stream_key

    return stream_key(seed, *names) >> 1


def describe(metrics: dict[str, float]) -> str:
    """Metrics as one JSON line, for logs."""
    return json.dumps({k: round(v, 6) for k, v in metrics.items()})
