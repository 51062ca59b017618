"""The plan of a sweep: its tasks, learning rates and seeds. Imports no torch."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pretrainkit.errors import ConfigError
from pretrainkit.recipes.capabilities import BuildsOnEncoder
from pretrainkit.recipes.registry import first_able

BENCHMARK = first_able(BuildsOnEncoder).benchmark


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One fine-tuning run of a sweep."""

    task: str
    lr: float
    """Peak learning rate."""
    seed: int

    @property
    def name(self) -> str:
        """Path of the run folder within the folder of the sweep."""
        return f"lr{self.lr:g}/{self.task}/seed-{self.seed}"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All fine-tuning runs of a sweep."""

    origin: str
    """The encoder: a run, a checkpoint or an export."""
    tasks: tuple[str, ...] = BENCHMARK.usual
    lrs: tuple[float, ...] = (5e-5, 4e-5, 3e-5, 2e-5)
    num_seeds: int = 3
    """Number of seeds: 0, 1, ..."""
    folders: tuple[str, ...] = ()
    """Data folders of named tasks, as `NAME=DIR`."""
    settings: tuple[str, ...] = ()
    """Overrides for every run, such as data.num_epochs=10."""
    has_intermediate: bool = False
    """True if small tasks start from the chosen run of a large task."""
    device: str | None = None
    """Device of all runs; None for the best available device."""

    def __post_init__(self) -> None:
        known = (*BENCHMARK.tasks, *BENCHMARK.own)
        unknown = [task for task in self.tasks if task not in known]
        problems = [f"{task} is not a task to train on\n  choose from: {', '.join(known)}" for task in unknown]
        if not self.tasks or not self.lrs or self.num_seeds < 1:
            problems.append("a sweep needs at least one task, one learning rate and one seed")
        if len(set(self.tasks)) < len(self.tasks) or len({f"{lr:g}" for lr in self.lrs}) < len(self.lrs):
            problems.append(
                "a task or a learning rate is listed twice (rates that agree in six digits are the same)\n"
                "  list each once"
            )
        if self.has_intermediate and BENCHMARK.intermediate not in self.tasks:
            problems.append(f"an intermediate start needs the task {BENCHMARK.intermediate}\n  add it to --tasks")
        if problems:
            raise ConfigError(problems)

    def cells(self, task: str) -> Iterator[Cell]:
        """Yield the runs of a task: all seeds for each learning rate."""
        for lr in self.lrs:
            for seed in range(self.num_seeds):
                yield Cell(task=task, lr=lr, seed=seed)

    @property
    def stages(self) -> list[tuple[str, ...]]:
        """Groups of tasks that may run at the same time; each group needs the results of the group before."""
        if not self.has_intermediate:
            return [self.tasks]
        later = tuple(task for task in self.tasks if task in BENCHMARK.after_it)
        return [tuple(task for task in self.tasks if task not in later), later]

    def arguments(self, cell: Cell, out: Path, origin: str) -> list[str]:
        """Return the command line of a run, from `finetune` on."""
        data = [argument for folder in self.folders for argument in ("--data", folder)]
        own = [f"optimizer.peak_lr={cell.lr!r}", f"seed={cell.seed}"]
        start = ["finetune", cell.task, *self.settings, *own, "--from", origin, *data]
        start += ["--device", self.device] if self.device is not None else []
        return [*start, "--out", str(out / cell.name), "--resume", "--json"]
