"""The training loop. There is only one, and it knows recipes and objectives only through their interfaces.

One step: take the step's microbatches from the loader, set the learning rate, accumulate gradients, clip, update. Step
n is a function of (config, n), so a run that was stopped and resumed gives the same result as one that never stopped.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Any

import torch
from torch import Tensor, nn

from pretrainkit import __version__
from pretrainkit.config.base import architecture
from pretrainkit.data.loader import Loader
from pretrainkit.dist.compiled import UncompiledFunctions
from pretrainkit.dist.devices import from_host, reads_at_once
from pretrainkit.dist.env import World
from pretrainkit.dist.parallelize import averages_gradients, gradient_sync, parallelize, unwrap
from pretrainkit.dist.weights import require_same_architecture
from pretrainkit.errors import ConfigError, Interrupted, RunError
from pretrainkit.files.manifest import fingerprint
from pretrainkit.launch.rank import Progress
from pretrainkit.rng import stream_key
from pretrainkit.training.accumulate import accumulate, seed_dropout, sum_over_ranks
from pretrainkit.training.background import Background
from pretrainkit.training.checkpoints.best import BestSteps, EarlyStopping
from pretrainkit.training.checkpoints.checkpoint import CheckpointStore, load
from pretrainkit.training.checkpoints.files import Checkpoint, read_checkpoint
from pretrainkit.training.diagnostics import Diagnostics, Spikes
from pretrainkit.training.ema import Ema
from pretrainkit.training.folder import EVALUATIONS, RunFolder
from pretrainkit.training.memory import freed_memory_kept
from pretrainkit.training.metrics import MetricsLog, cut_after
from pretrainkit.training.objective import AnyObjective, Batch, HostBatch, LossSum
from pretrainkit.training.optimizers.build import (
    build_optimizer,
    clip_gradients,
    learning_rates,
    parameters_of,
    set_learning_rate,
    step_if_finite,
)
from pretrainkit.training.optimizers.schedule import learning_rate
from pretrainkit.training.precision import resolve_precision, set_matmul_precision
from pretrainkit.training.run import RunConfig
from pretrainkit.training.signals import StopSignal
from pretrainkit.training.throughput import Peak, Throughput
from pretrainkit.training.watch import Evaluation, Sample, Watcher


class Trainer:
    """One run: model, optimizer, loader and the loop over them.

    `config` is bound to its data (no field left open), and `model` is freshly initialized on `world.device`. `watcher`
    receives events on rank 0 only. After each evaluation, `sample` copies what it needs from the model and returns a
    function that returns held-out examples with the model's answers, as in `Recipe.sample`; None: no examples are
    shown.
    """

    def __init__(
        self,
        config: RunConfig,
        folder: RunFolder,
        world: World,
        model: nn.Module,
        objective: AnyObjective,
        loader: Loader,
        evaluations: Sequence[Evaluation],
        watcher: Watcher,
        sample: Callable[[nn.Module], Callable[[], Sequence[Sample]]] | None = None,
    ) -> None:
        self.config, self.folder, self.world, self.sample = config, folder, world, sample
        self.objective, self.loader, self.evaluations = objective, loader, tuple(evaluations)
        self.watcher = watcher if world.rank == 0 else Watcher()
        self.precision = resolve_precision(config.precision, world.device)
        set_matmul_precision(self.precision)
        self.num_parameters = sum(p.numel() for p in model.parameters())
        num_updates = config.total_steps - config.first_step
        self.model = parallelize(model, config.parallel, world, self.precision.compute_dtype, num_updates)
        self.optimizer = build_optimizer(self.model, config.optimizer)
        self.diagnostics = Diagnostics(self.model) if config.log.diagnostics else None
        self.ema = Ema(self.model, config.ema_decay) if config.ema_decay else None
        self.store = CheckpointStore(folder.checkpoints, config.checkpoint, world)
        self.store.check_space(self.model, num_copies=3 + (self.ema is not None))
        self.peak = Peak.of(self.precision)
        self.throughput = Throughput(world, self.peak)
        keep_best, early_stopping = config.checkpoint.keep_best, config.evaluate.early_stopping
        self.best = None if keep_best is None else BestSteps(keep_best)
        self.early_stopping = None if early_stopping is None else EarlyStopping(early_stopping)
        self.step = config.first_step
        self.num_skipped = 0
        self._is_best = False
        self._evaluated: dict[Evaluation, set[str]] = {}
        self._saved_step = -1
        self._restored_step = -1
        self._metrics_log: MetricsLog | None = None
        self._spikes: Spikes | None = None
        self._showing = Background[None]("samples")
        self._progress = Progress()
        self._given_up = UncompiledFunctions()
        self._bad_steps = torch.zeros((), device=world.device)

    def restore(self) -> bool:
        """Load the newest valid checkpoint of the run folder. Returns False if there is none. Raises CheckpointError if
        it belongs to another model, and DataError if the run would not continue with the same data."""
        path = self.store.newest_valid()
        if path is None:
            return False
        checkpoint = self._load(path)
        self.loader.check_state(checkpoint.meta["data"])
        self.step, self.num_skipped = checkpoint.step, int(checkpoint.meta["num_skipped"])
        self._saved_step = self._restored_step = self.step
        self.throughput.load_notes(checkpoint.meta.get("notes", {}))
        if self.best is not None:
            self.best.load_state(checkpoint.meta.get("best_steps", []))
        if self.early_stopping is not None and "early_stopping" in checkpoint.meta:
            self.early_stopping.load_state(checkpoint.meta["early_stopping"])
        return True

    def continue_from(self, path: Path) -> None:
        """Take over model, optimizer and step counter from a verified checkpoint of another run. Raises CheckpointError
        if it belongs to another model or optimizer or is damaged, and DataError if `init.data` is "continue" and the
        checkpoint was made with other data."""
        checkpoint = self._load(path)
        if self.config.init.data == "continue":
            self.loader.check_state(checkpoint.meta["data"])
        self.step = checkpoint.step

    def _load(self, path: Path) -> Checkpoint:
        saved = read_checkpoint(path).meta.get("architecture", {})
        require_same_architecture(architecture(self.config.model), saved, f"checkpoint {path}")
        checkpoint = load(path, self.world, self.model, self.optimizer, extra=self._extra_tensors(), verify=False)
        self.precision.load_state_dict(checkpoint.meta["precision"])
        return checkpoint

    @property
    def is_over(self) -> bool:
        """True if there is nothing left to train."""
        return self.step >= self.config.total_steps or self.stopped_early is not None

    @property
    def stopped_early(self) -> str | None:
        """Reason why the run ends before its last step; None: it does not."""
        stopping = self.early_stopping
        return stopping.describe() if stopping is not None and stopping.is_over else None

    def fit(self) -> dict[str, float]:
        """Train from the current step to `num_steps`, and return the last metrics (training and held-out).

        Raises ConfigError if no evaluation gives the metric that decides which checkpoints are kept or when to stop,
        Interrupted if a signal asked to stop (after saving), and RunError after more non-finite updates than allowed or
        if the disk is full.
        """
        config = self.config
        was_over = self.is_over  # the run stopped between its last checkpoint and its last evaluation
        last = self._resume_logs(was_over)
        is_new = self.step == config.first_step
        self._event("started" if is_new else "resumed", f"at step {self.step} of {config.total_steps}")
        try:
            if is_new and self.config.evaluate.before_training:
                last |= self._evaluate(self.evaluations)
            with StopSignal() as stop, self._given_up, freed_memory_kept(self.world.device):
                end = self.step if was_over else config.total_steps
                for step, microbatches, waited in self.loader.iterate(self.step, end):
                    began = time.perf_counter()
                    is_logged = (step + 1) % config.log.every_steps == 0 or step + 1 == config.total_steps
                    sums, norm = self._update(step, microbatches, self.diagnostics if is_logged else None)
                    self.step = step + 1
                    if not is_logged and reads_at_once(self.world.device):
                        self._count_skipped(sums)
                    fetched = self._fetch(sums, norm) if is_logged else None  # waits for the device
                    self.throughput.time(time.perf_counter() - began, waited)
                    for batch in microbatches:
                        self.throughput.add(self.objective.cost(batch))
                    self._progress.updated()
                    self.watcher.stepped(self.step, config.total_steps)
                    if fetched is not None:
                        last |= self._log(fetched, sums)
                    last |= self._between_steps(stop)
                    if self.stopped_early is not None:
                        break
            done = [] if was_over else self._due
            remaining = [evaluation for evaluation in self.evaluations if evaluation not in done]
            if self.best is not None and remaining:  # the best value decides what the last save deletes
                last |= self._evaluate(remaining)
                remaining = []
            if self._saved_step != self.step:
                self._save(blocking=True)
            if remaining:
                last |= self._evaluate(remaining)
            self._showing.wait()
        finally:
            self._progress.paused()
            gc.unfreeze()
            self._showing.close()
            if self._metrics_log is not None:
                self._metrics_log.close()
            self.store.close()
        early = f" of {config.total_steps}: {self.stopped_early}" if self.stopped_early is not None else ""
        self._event("finished", f"at step {self.step}{early}")
        return last

    def _resume_logs(self, was_over: bool) -> dict[str, float]:
        """Open the logs and delete the lines that will be written again. Returns the last metrics if the run was
        over."""
        if not self.world.is_main:
            return {}
        cut_after(self.folder.path / EVALUATIONS, self.step - 1 if was_over else self.step)
        run_config = self.config.model_dump(mode="json")
        self._metrics_log = MetricsLog(self.folder.path, self.config.log, self.step, run_config=run_config)
        self._spikes = Spikes(self.config.log.spikes, (row.get("loss") for row in self._metrics_log.earlier))
        last = self._metrics_log.earlier[-1:] if was_over else []
        return {name: value for row in last for name, value in row.items() if name != "step"}

    def _update(
        self, step: int, host_batches: list[HostBatch], diagnostics: Diagnostics | None
    ) -> tuple[dict[str, LossSum], Tensor]:
        """Make one update on this rank's microbatches. Returns the loss sums of this rank and the gradient norm before
        clipping."""
        config, device = self.config, self.world.device
        set_learning_rate(self.optimizer, self._lr(step))
        self.model.train()
        self.optimizer.zero_grad(set_to_none=True)
        sums = accumulate(
            self.objective,
            self.model,
            _OnDevice(host_batches, device),
            precision=self.precision,
            world=self.world,
            gradient_sync=lambda enabled: gradient_sync(self.model, enabled),
            averages_gradients=averages_gradients(self.model),
            seed_dropout=lambda index: seed_dropout(config.seed, step, index, self.world.rank, device),
        )
        self.precision.unscale_(self.optimizer)
        if diagnostics is not None:
            diagnostics.before_update()
        norm = clip_gradients(parameters_of(self.optimizer), config.optimizer)
        is_skipped = step_if_finite(self.optimizer, self.precision, norm)
        if diagnostics is not None:
            diagnostics.after_update()
        if not self.precision.can_scale_down:  # otherwise only the loss scale was too large
            self._bad_steps += is_skipped
        with torch.no_grad():
            self.objective.after_update(self.model)
        if self.ema is not None:
            self.ema.update(self.model)
        return sums, norm

    def _lr(self, step: int) -> float:
        config = self.config
        return learning_rate(config.schedule, config.optimizer.peak_lr, config.total_steps, step)

    def _count_skipped(self, sums: dict[str, LossSum]) -> None:
        """Count updates that were skipped for a non-finite gradient. Raises RunError if there were too many."""
        count, step = int(self._bad_steps), self.step - 1
        if not count:
            return
        self._bad_steps.zero_()
        self.num_skipped += count
        losses = {name: float(term.mean()) for name, term in sum_over_ranks(sums, self.world).items()}
        path = None
        if self.world.is_main:
            path = self._write_records("skipped", step + 1, losses)
        self._event("skipped", f"non-finite gradient at step {step + 1} or before; losses {losses}; records in {path}")
        if self.num_skipped > self.config.max_skipped_steps:
            raise RunError(
                f"the gradient was not finite at step {step + 1} or before (losses {losses})\n"
                f"  number of skipped updates: {self.num_skipped}, "
                f"allowed: max_skipped_steps={self.config.max_skipped_steps}\n"
                f"  the records of that batch are in {path}\n"
                "  lower optimizer.peak_lr, lengthen the warm-up, or resume with a larger max_skipped_steps"
            )

    def _write_records(self, kind: str, step: int, losses: Mapping[str, float]) -> Path:
        """Write the losses of update number `step` and the ids of the records of its batch to a file of the run."""
        records = self.loader.global_records(step - 1)
        ids = list(zip(records.source.tolist(), records.epoch.tolist(), records.index.tolist(), strict=True))
        row = {"step": step, "losses": {name: str(loss) for name, loss in losses.items()}, "records": ids}
        return self.folder.write_json(f"{kind}-step-{step}.json", row)

    def _fetch(self, sums: dict[str, LossSum], norm: Tensor) -> dict[str, float]:
        """Return the loss, its terms over all ranks and the gradient norm as numbers."""
        terms = sum_over_ranks(sums, self.world)
        parts = [norm, *(part.float() for term in terms.values() for part in term)]
        grad_norm, *pairs = torch.stack([part.to(self.world.device) for part in parts]).tolist()
        means = {n: t / w if w else math.nan for n, t, w in zip(terms, pairs[::2], pairs[1::2], strict=True)}
        # A term that does not occur in the batch is left out; a term that is NaN makes the loss NaN.
        scales = self.objective.scales
        counted = {name for name, weight in zip(terms, pairs[1::2], strict=True) if weight}
        loss = sum(scale * means[name] for name, scale in scales.items() if name in counted)
        shown = {name: mean for name, mean in means.items() if name in scales or name in counted}
        return {"loss": loss, **shown, "grad_norm": grad_norm}

    def _log(self, fetched: dict[str, float], sums: dict[str, LossSum]) -> dict[str, float]:
        """Write a line of metrics; report blocks that are no longer compiled, and skipped updates."""
        metrics = {**fetched, "lr": self._lr(self.step - 1), **self.throughput.metrics()}
        if self.diagnostics is not None:
            metrics |= self.diagnostics.metrics() | learning_rates(self.optimizer)
        if self._metrics_log is not None:
            self._metrics_log.write(self.step, metrics)
        self.watcher.logged(self.step, metrics)
        for text in self._given_up.take():
            self._event("uncompiled", text)
        if self._showing.has_failed:
            self._showing.wait()
        self._count_skipped(sums)
        if self._spikes is not None and (spike := self._spikes.describe(fetched["loss"])) is not None:
            losses = {name: value for name, value in fetched.items() if name != "grad_norm"}
            path = self._write_records("spike", self.step, losses)
            self._event("spike", f"{spike}; gradient norm {fetched['grad_norm']:.4g}; records in {path}")
        return metrics

    def _between_steps(self, stop: StopSignal) -> dict[str, float]:
        """Evaluate, stop and save if it is time to. Ranks decide together, so that none waits in a collective
        forever."""
        metrics: dict[str, float] = {}
        is_first = self.step == self.config.first_step + 1
        if is_first:
            gc.freeze()  # objects that exist now live until the end, so later collections can ignore them
        self._is_best = False
        if due := self._due:
            metrics = self._evaluate(due)
        is_last = self.is_over
        each_step = self.world.world_size == 1 or reads_at_once(self.world.device)
        # If a save in the background has failed, the run ends now, not when the next save is due.
        if stop.agreed(self.world.max, wish=self.store.has_failed, each_step=each_step) and not is_last:
            self._save(blocking=True)
            by = stop.name or "a signal to another rank"
            self._event("stopped", f"by {by}; saved at step {self.step}")
            raise Interrupted(
                f"stopped by {by} at step {self.step} of {self.config.total_steps}; the state is saved\n"
                f"  resume it with: pretrainkit resume {quote(str(self.folder.path))}"
            )
        # Also save after the first update, to notice immediately if the disk cannot be written.
        is_time = is_first or self.step % self.config.checkpoint.every_steps == 0 or self._is_best
        if is_time and not is_last:
            self._save(blocking=not self.config.checkpoint.asynchronous)
        return metrics

    @property
    def _due(self) -> list[Evaluation]:
        """Evaluations that are due after this update; after the last update all of them."""
        due = [evaluation for evaluation in self.evaluations if evaluation.is_due(self.step)]
        return list(self.evaluations) if due and self.step == self.config.total_steps else due

    def _evaluate(self, evaluations: Sequence[Evaluation]) -> dict[str, float]:
        metrics: dict[str, float] = {}
        self._progress.paused()
        for evaluation in evaluations:
            values = evaluation.run(self.model, f"{self.step:06d}")
            if self.ema is not None:
                with self.ema.swapped_in(self.model):
                    averaged = evaluation.run(self.model, f"{self.step:06d}-ema")
                values = values | {f"ema_{name}": value for name, value in averaged.items()}
            self._evaluated[evaluation] = set(values)
            metrics |= values
        if not metrics:
            return {}
        if self.world.is_main:
            self.folder.evaluation(self.step, metrics)
        self.watcher.evaluated(self.step, metrics)
        named = {f"valid_{name}": value for name, value in metrics.items()}
        if self._metrics_log is not None:
            self._metrics_log.draw(self.step, named)
            if self.sample is not None:
                self._show(self.sample, self._metrics_log)
        self._decide(metrics)
        return named

    def _show(self, sample: Callable[[nn.Module], Callable[[], Sequence[Sample]]], log: MetricsLog) -> None:
        """Show examples with the answers of the current model. If another device trains, this runs in the
        background."""
        self._showing.wait()
        step, draw = self.step, sample(self.plain_model)

        def show() -> None:
            samples = draw()
            self.folder.samples(step, samples)
            log.show(step, samples)

        if reads_at_once(self.world.device):
            show()
        else:
            self._showing.start(show)

    def _decide(self, metrics: dict[str, float]) -> None:
        """Use the metrics of an evaluation to decide which checkpoints to keep and whether to end the run."""
        if self.step == self._restored_step:
            return  # decided before the checkpoint was written
        if self.best is not None and self.step:
            self._is_best = self.best.record(self.step, metrics)
        if self.early_stopping is not None:
            self.early_stopping.record(self.step, metrics)
        if len(self._evaluated) < len(self.evaluations):
            return  # evaluations that are still to come may have the metric
        known = set().union(*self._evaluated.values())
        for path, config in (
            ("checkpoint.keep_best", self.config.checkpoint.keep_best),
            ("evaluate.early_stopping", self.config.evaluate.early_stopping),
        ):
            if config is not None and config.metric not in known:
                if self.step > self.config.first_step and self._saved_step != self.step:
                    self._save(blocking=True)
                raise ConfigError(
                    f"{path}.metric={config.metric} is not a held-out metric of this run\n"
                    f"  its metrics: {', '.join(sorted(known))}"
                )

    def _save(self, *, blocking: bool) -> None:
        meta: dict[str, Any] = {
            "step": self.step,
            "num_skipped": self.num_skipped,
            "data": self.loader.state(self.step),
            "recipe": self.config.recipe,
            "config": fingerprint(self.config.model_dump(mode="json")),
            "architecture": architecture(self.config.model),
            "version": __version__,
            "precision": self.precision.state_dict(),
            "notes": self.throughput.notes(),
        }
        if self.best is not None:
            meta["best_steps"] = self.best.state()
        if self.early_stopping is not None:
            meta["early_stopping"] = self.early_stopping.state()
        keep = () if self.best is None else self.best.steps
        extra = self._extra_tensors()
        self.store.save(
            self.step, self.model, self.optimizer, extra=extra, meta=meta, keep_steps=keep, blocking=blocking
        )
        self._saved_step = self.step
        self._event("checkpoint", f"step {self.step}")

    def _extra_tensors(self) -> dict[str, Tensor]:
        """Return the tensors of a checkpoint besides model and optimizer."""
        return {f"ema.{name}": tensor for name, tensor in self.ema.state_dict().items()} if self.ema else {}

    def _event(self, kind: str, text: str) -> None:
        if self.world.is_main:
            self.folder.event(self.step, kind, text)
        self.watcher.event(self.step, kind, text)

    @property
    def plain_model(self) -> nn.Module:
        """The model with clean parameter names, without wrappers."""
        return unwrap(self.model)


class _OnDevice(Sequence[Batch]):
    """Host batches that are copied to the device when they are accessed, so that it need not hold them all."""

    def __init__(self, batches: Sequence[HostBatch], device: torch.device) -> None:
        self._batches, self._device = batches, device

    def __len__(self) -> int:
        return len(self._batches)

    def __getitem__(self, index: Any) -> Any:
        return to_device(self._batches[index], self._device)


def to_device(batch: HostBatch, device: torch.device) -> dict[str, Tensor]:
    """Copy NumPy arrays to tensors on `device`; see `from_host`."""
    return {name: from_host(array, device) for name, array in batch.items()}


def initial_seed(seed: int) -> int:
    """Return the seed of torch's generator for initial weights, the same on every rank."""
    return stream_key(seed, "weights")
