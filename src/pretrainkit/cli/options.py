"""Options that several verbs share, and functions that parse and print for them."""

import json
import re
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Argument, Option

from pretrainkit.errors import ConfigError, InputError, import_optional

if TYPE_CHECKING:
    from pretrainkit.workers.engine import Engine

ConfigSource = Annotated[
    str, Argument(metavar="PRESET|FILE.yaml", help="A preset, see `pretrainkit recipes`, or a YAML file.")
]
TextKey = Annotated[str, Option(help="JSONL key or parquet column of the text.")]
SKIPPED = "Skip at most this many broken records, and report them; with more, the command fails."
"""Help of --max-bad."""
MaxBad = Annotated[int, Option(min=0, help=SKIPPED)]
Workers = Annotated[int | None, Option(help="Number of processes. Default: one per core.")]
Json = Annotated[bool, Option("--json", help="Print the result as JSON.")]
Origin = Annotated[
    Path, Option("--from", metavar="RUN|EXPORT", help="The encoder: a run folder, a checkpoint in it, or an export.")
]
Lengths = Annotated[
    str | None, Option(help="Maximum number of tokens per feature, such as inputs=512,targets=114. Default: no limit.")
]
Private = Annotated[bool, Option("--private/--public", help="Make a new repository private or public.")]
Branch = Annotated[str | None, Option(help="Branch to upload to. It is created if it does not exist.")]
DryPush = Annotated[bool, Option("--dry-run", help="List the files that would be uploaded, and upload nothing.")]
Averaged = Annotated[bool, Option("--averaged", help="Use the moving average of the weights (ema_decay).")]
Data = Annotated[
    list[str] | None,
    Option(
        "--data",
        metavar="NAME=DIR",
        help="Folder with the data of named tasks: glue=DIR for a benchmark, glue/cola=DIR for a task, or DIR for a "
        "folder with a subfolder per benchmark. May be repeated. Default: the run's setting, else the hub.",
    ),
]
Module = Annotated[
    list[str] | None,
    Option(
        "--module",
        metavar="MODULE",
        help="Your Python module that defines tasks: a dotted name or a .py file. May be repeated.",
    ),
]


@dataclass(frozen=True, kw_only=True)
class Decoding:
    """Options of decoding: how a model's probabilities become answers."""

    beams: Annotated[int | None, Option(min=1)] = None
    """T5: beam search with this many beams."""
    alpha: float | None = None
    """T5: exponent of the brevity penalty of beam search. Default: 0.6."""
    temperature: float | None = None
    """T5, 4M: sample, with the logits divided by this temperature."""
    top_k: Annotated[int | None, Option(min=0)] = None
    """T5, 4M: sample from the k most likely tokens."""
    top_p: float | None = None
    """T5, 4M: sample from the most likely tokens whose total probability is at least this (nucleus sampling)."""
    seed: Annotated[int | None, Option(min=0)] = None
    """T5, 4M: seed of the sampling. Default: 0."""
    max_length: Annotated[int | None, Option(min=1)] = None
    """T5: maximum length of an answer in tokens. Default: data.target_length of the run."""

    def given(self) -> dict[str, Any]:
        """Return the options that the user gave."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class Execution:
    """Options of processing: processes, memory and the engine that runs the tasks of a command."""

    workers: int | None = None
    """Number of processes. Default: one per core."""
    memory: str = "1GB"
    """Memory limit, such as 300MB or 4GB: for all processes of this machine together, or for each task on a cluster."""
    engine: Literal["local", "slurm", "ray"] = "local"
    """local: processes of this machine. slurm: an array of SLURM jobs. ray: tasks of a Ray cluster."""
    slurm: Annotated[tuple[str, ...], Option(metavar="NAME=VALUE")] = ()
    """Setting of the SLURM jobs, such as partition=cpu; see docs/corpus.md. May be repeated."""
    ray: Annotated[str | None, Option(metavar="HOST:PORT")] = None
    """Address of the Ray cluster. Default: RAY_ADDRESS, or a cluster on this machine."""

    def arguments(self) -> dict[str, Any]:
        """Return the arguments `workers`, `memory_bytes` and `engine` of the functions that process a corpus."""
        from pretrainkit.workers.processes import parse_bytes

        return {"workers": self.workers, "memory_bytes": parse_bytes(self.memory), "engine": self.open_engine()}

    def open_engine(self) -> "Engine":
        """Open the engine. Raises InputError if an option of another engine is given, instead of ignoring it."""
        for option, given in (("slurm", " ".join(self.slurm[:1])), ("ray", self.ray)):
            if given and self.engine != option:
                raise InputError(
                    f"--{option} {given} has an effect only with --engine {option}\n"
                    f"  add that option, or leave out --{option}"
                )
        if self.engine == "local":
            from pretrainkit.workers.engine import LOCAL

            return LOCAL
        import_optional("datatrove", self.engine, f"--engine {self.engine}")
        if self.engine == "slurm":
            from pretrainkit.config.loader import config_from_overrides
            from pretrainkit.workers.slurm_config import SlurmJob
            from pretrainkit.workers.slurm_engine import SlurmEngine

            return SlurmEngine(config_from_overrides(SlurmJob, self.slurm, "--slurm"))
        from pretrainkit.workers.ray_engine import RayEngine

        return RayEngine(self.ray)


def print_json(value: Any, indent: int | None = None) -> None:
    """Print a value as JSON. NaN and infinity, which JSON does not have, become null. Characters that standard output
    cannot show, and bytes of paths that are not UTF-8, are escaped."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, indent=indent)
    except ValueError:
        value = json.loads(json.dumps(value), parse_constant=lambda _: None)
        text = json.dumps(value, ensure_ascii=False, indent=indent)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        text = json.dumps(value, indent=indent)
    print(text, flush=True)


def print_upload(url: str, sent: dict[str, int], *, dry_run: bool, as_json: bool, **more: Any) -> None:
    """Print the files of an upload, with their sizes (`sent`, in bytes), and the address of the repository."""
    if as_json:
        print_json({**more, "url": url, "files": sent, "dry_run": dry_run})
        return
    for name, num_bytes in sent.items():
        print(f"{'would upload' if dry_run else 'uploaded'} {name}  {num_bytes / 1e6:,.1f} MB")
    print(f"{url}{'' if sent else ': nothing has changed, so nothing was uploaded'}")


def print_path(path: Path | str, as_json: bool, **more: Any) -> None:
    """Print the path that a command wrote; with `--json` an object with `out` and the results in `more`."""
    if as_json:
        print_json({"out": str(path), **more})
    else:
        print(path)


def renamed(old: str, new: str, words: str) -> None:
    """Report the new name of an option, and what to write."""
    print(f"note: {old} is now called {new}; write {words}", file=sys.stderr)


def data_settings(data: list[str] | None) -> list[str]:
    """Return the values of `--data` as overrides."""
    from pretrainkit.tasks.named_data import task_folders

    return [f"data.task_folders={json.dumps(task_folders(data))}"] if data else []


def shard_of(text: str) -> tuple[int, int]:
    """Return the index and the count of parts from text such as `0/4`. Raises InputError for other text."""
    number, slash, num_shards = text.partition("/")
    if not (slash and number.isdecimal() and num_shards.isdecimal()):
        raise InputError(
            f"--shard is {text!r}, but needs the form I/N\n  write for example 0/4, the first of four parts"
        )
    return int(number), int(num_shards)


def lengths_of(text: str | None) -> dict[str, int] | None:
    """Return the tokens per feature from text such as `inputs=512,targets=114`. Raises InputError for other text."""
    if text is None:
        return None
    lengths = {}
    for part in text.split(","):
        name, _, number = part.partition("=")
        if not name.strip() or not number.strip().isdigit():
            raise InputError(
                f"--lengths is {text!r}, but needs the form NAME=TOKENS\n  write for example inputs=512,targets=114"
            )
        lengths[name.strip()] = int(number)
    return lengths


Device = Annotated[
    str | None, Option(help="Torch device, such as cpu or cuda. Default: the best device of this machine.")
]
Resume = Annotated[bool, Option("--resume", help="Resume if the run folder already has a checkpoint.")]
LAUNCHERS = ("none", "local", "slurm", "cloud")


@dataclass(frozen=True, kw_only=True)
class LaunchOptions:
    """Options that start a run in other processes than this one."""

    launch: str = "none"
    """none: in this process. local: processes of this machine. slurm: a SLURM job. cloud: machines of a cloud."""
    nodes: Annotated[int, Option(min=1)] = 1
    """Number of machines."""
    nproc: Annotated[int | None, Option(min=1)] = None
    """Processes per machine. Default: one per GPU (--gpus-per-node)."""
    gpus_per_node: Annotated[int, Option(min=0)] = 0
    """GPUs per machine. Each gets a process."""
    max_restarts: Annotated[int, Option(min=0)] = 3
    """Restart automatically after at most this many failures. Only runs that made progress are restarted."""
    hang_minutes: Annotated[float, Option(min=0)] = 30
    """Minutes without an update after which the ranks count as failed. 0: never. Evaluations and the time before the
    first update do not count."""
    elastic: Annotated[str | None, Option(metavar="MIN:MAX")] = None
    """With --launch local: train on MIN to MAX machines, and start this command on each of them. The run continues when
    machines join or leave."""
    meet: Annotated[str | None, Option(metavar="HOST:PORT")] = None
    """With --elastic: address at which the machines meet: a machine that stays until the end, and a free port of it."""
    slurm: Annotated[tuple[str, ...], Option(metavar="NAME=VALUE")] = ()
    """Setting of the SLURM job, such as partition=gpu; see docs/launching.md. May be repeated."""
    cloud: Annotated[tuple[str, ...], Option(metavar="NAME=VALUE")] = ()
    """Setting of the cloud machines, such as accelerators=H100:8. May be repeated."""
    sweep: Annotated[tuple[str, ...], Option(metavar="PATH=A,B")] = ()
    """With --launch slurm: train a run for each value, as an array of jobs. Repeated: for each combination of values.
    To fine-tune with several learning rates and seeds and to choose the best, use `pretrainkit sweep`."""
    dry_run: bool = False
    """With --launch cloud: print the task file and the commands, and start nothing."""

    @property
    def processes_per_node(self) -> int:
        return self.nproc or self.gpus_per_node or 1

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.nodes * self.processes_per_node

    @property
    def elastic_sizes(self) -> list[int]:
        """Numbers of ranks of MIN to MAX machines, ascending. Raises ConfigError if --elastic has another form."""
        sizes = re.fullmatch(r"(\d+):(\d+)", self.elastic or "1:1")
        fewest, most = map(int, sizes.groups()) if sizes else (0, 0)
        if not 1 <= fewest <= most:
            raise ConfigError(
                f"--elastic is {self.elastic!r}, but needs the form MIN:MAX\n  write for example --elastic 1:4"
            )
        return [machines * self.processes_per_node for machines in range(fewest, most + 1)]

    def check(self) -> None:
        """Raise ConfigError if options contradict each other or would have no effect."""
        problems = []
        if self.launch not in LAUNCHERS:
            problems.append(f"--launch {self.launch!r} is not known\n  give one of: {', '.join(LAUNCHERS)}")
        if self.launch == "none" and self.world_size != 1:
            problems.append(
                f"--launch none is a single process, and {self.world_size} are requested\n"
                "  add --launch local, or leave out --nproc, --nodes and --gpus-per-node"
            )
        if self.launch == "local" and self.nodes != 1:
            problems.append(
                f"--launch local uses only this machine, and --nodes is {self.nodes}\n"
                "  use --launch slurm or cloud, or start torchrun on every machine by hand: docs/launching.md"
            )
        if self.nproc and self.gpus_per_node and self.nproc != self.gpus_per_node:
            problems.append(
                f"--nproc {self.nproc} and --gpus-per-node {self.gpus_per_node} differ: each process has one GPU\n"
                "  leave out --nproc"
            )
        if self.elastic and (self.launch != "local" or not self.meet):
            problems.append(
                f"--elastic {self.elastic} needs --launch local and --meet HOST:PORT on every machine\n"
                "  add --launch local --meet localhost:29500, with the name of one of the machines instead of localhost"
            )
        for name, given in (("slurm", self.slurm), ("cloud", self.cloud)):
            if given and self.launch != name:
                problems.append(
                    f"--{name} {given[0]} has an effect only with --launch {name}\n"
                    f"  add that option, or leave out --{name}"
                )
        if self.sweep and self.launch != "slurm":
            problems.append(
                f"--sweep {self.sweep[0]} has an effect only with --launch slurm, which submits an array of jobs\n"
                "  on a machine without SLURM, start the runs one after another"
            )
        if self.dry_run and self.launch != "cloud":
            problems.append(
                "--dry-run has an effect only with --launch cloud\n  leave it out; to check the sizes of a run, see: "
                "pretrainkit plan --help"
            )
        if problems:
            raise ConfigError(problems)


JsonLines = Annotated[bool, Option("--json", help="Print one JSON object per line.")]
