"""Options that several verbs share."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Option

from pretrainkit.errors import ConfigError, InputError, import_optional

if TYPE_CHECKING:
    from pretrainkit.workers.engine import Engine

TextKey = Annotated[str, Option(help="Key (JSONL) or column (parquet) that holds the text.")]
MaxBad = Annotated[
    int, Option(min=0, help="Number of broken lines and the like that may be skipped; they are counted.")
]
Workers = Annotated[int | None, Option(help="Number of processes. Default: all cores.")]
Json = Annotated[bool, Option("--json", help="Print the manifest or result as JSON.")]
Origin = Annotated[
    Path, Option("--from", metavar="RUN|EXPORT", help="The encoder: a run, a checkpoint in it, or an export.")
]
Lengths = Annotated[str | None, Option(help="Tokens per feature, such as inputs=512,targets=114. Default: no limit.")]
Private = Annotated[bool, Option("--private/--public", help="Of an upload: who may see a new repository.")]
Branch = Annotated[str | None, Option(help="Of an upload: branch to write to, created if there is none.")]
DryPush = Annotated[bool, Option("--dry-run", help="List what would be uploaded; send nothing.")]
Averaged = Annotated[bool, Option("--averaged", help="Use the moving average of the weights (ema_decay).")]
Data = Annotated[
    list[str] | None,
    Option(
        "--data",
        metavar="NAME=DIR",
        help="Folder with the data of named tasks: glue=DIR, glue/cola=DIR, or DIR alone for a folder with one folder "
        "for each benchmark; may be repeated. Default: as in the run, or the hub.",
    ),
]
Module = Annotated[
    list[str] | None,
    Option(
        "--module",
        metavar="MODULE",
        help="Python module of yours that defines tasks: a dotted name or a .py file; may be repeated.",
    ),
]


@dataclass(frozen=True, kw_only=True)
class Decoding:
    """The way from a model's probabilities to answers."""

    beams: Annotated[int | None, Option(min=1)] = None
    """T5: beam search with this many beams."""
    alpha: float | None = None
    """T5: exponent of the brevity penalty of beam search. Default: 0.6."""
    temperature: float | None = None
    """T5, 4M: sample from the logits divided by this."""
    top_k: Annotated[int | None, Option(min=0)] = None
    """T5, 4M: sample from the k most likely tokens."""
    top_p: float | None = None
    """T5, 4M: sample from the most likely tokens with this total probability."""
    seed: Annotated[int | None, Option(min=0)] = None
    """T5, 4M: seed of the samples. Default: 0."""
    max_length: Annotated[int | None, Option(min=1)] = None
    """T5: maximum length of an answer in tokens. Default: data.target_length of the run."""

    def given(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class Execution:
    """Processes, memory and engine that run the tasks of a command."""

    workers: int | None = None
    """Processes; None: all cores."""
    memory: str = "1GB"
    """Memory, such as 300MB or 4GB: of all processes here, or of each task on a cluster."""
    engine: Literal["local", "slurm", "ray"] = "local"
    """local: this machine. slurm: an array of jobs. ray: tasks of a cluster."""
    slurm: Annotated[tuple[str, ...], Option(metavar="NAME=VALUE")] = ()
    """Settings of the jobs, such as partition=cpu; docs/corpus.md."""
    ray: Annotated[str | None, Option(metavar="HOST:PORT")] = None
    """Address of the cluster; None: RAY_ADDRESS, or this machine."""

    def means(self) -> dict[str, Any]:
        """Arguments `workers`, `memory_bytes` and `engine` of what does the work."""
        from pretrainkit.workers.processes import parse_bytes

        return {"workers": self.workers, "memory_bytes": parse_bytes(self.memory), "engine": self.open_engine()}

    def open_engine(self) -> "Engine":
        """Open what runs the tasks. Raises InputError where options do not go together: none is ignored."""
        for option, given in (("slurm", " ".join(self.slurm[:1])), ("ray", self.ray)):
            if given and self.engine != option:
                raise InputError(
                    f"--{option} {given} is only read by --engine {option}\n  add that, or leave out --{option}"
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


def print_upload(url: str, sent: dict[str, int], *, dry_run: bool, as_json: bool, **more: Any) -> None:
    """Print the files of an upload with their sizes, `sent` in bytes, and the address of the repository."""
    if as_json:
        print(json.dumps({**more, "url": url, "files": sent, "dry_run": dry_run}))
        return
    for name, num_bytes in sent.items():
        print(f"{'would upload' if dry_run else 'uploaded'} {name}  {num_bytes / 1e6:,.1f} MB")
    print(f"{url}{'' if sent else ': nothing has changed'}")


def print_path(path: Path | str, as_json: bool, **more: Any) -> None:
    """Print what a command wrote: the path, or with `--json` an object with `out` and what else there is to report."""
    print(json.dumps({"out": str(path), **more}) if as_json else path)


def data_settings(data: list[str] | None) -> list[str]:
    """The words of `--data` as settings."""
    from pretrainkit.tasks.named_data import task_folders

    return [f"data.task_folders={json.dumps(task_folders(data))}"] if data else []


def shard_of(text: str) -> tuple[int, int]:
    """Number and count of `0/4`."""
    number, slash, num_shards = text.partition("/")
    if not (slash and number.isdecimal() and num_shards.isdecimal()):
        raise InputError(f"--shard is {text!r}\n  write it like 0/4, the first of four parts")
    return int(number), int(num_shards)


def lengths_of(text: str | None) -> dict[str, int] | None:
    """Tokens per feature from `inputs=512,targets=114`. Raises InputError where it is written otherwise."""
    if text is None:
        return None
    found = {}
    for part in text.split(","):
        name, _, number = part.partition("=")
        if not name.strip() or not number.strip().isdigit():
            raise InputError(f"--lengths is {text!r}\n  write it like inputs=512,targets=114")
        found[name.strip()] = int(number)
    return found


Device = Annotated[str | None, Option(help="Torch device: cpu, cuda, ... Default: the best one of this machine.")]
GoOn = Annotated[bool, Option("--resume", help="Resume if the run folder already has a checkpoint.")]
WAYS = ("none", "local", "slurm", "cloud")


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The way a run is launched."""

    launch: str = "none"
    """none: this process. local: processes of this machine. slurm: a job. cloud: a cluster there."""
    nodes: Annotated[int, Option(min=1)] = 1
    """Machines of a job."""
    nproc: Annotated[int | None, Option(min=1)] = None
    """Processes of each machine; left out: one per GPU."""
    gpus_per_node: Annotated[int, Option(min=0)] = 0
    """GPUs of each machine, and so processes."""
    max_restarts: Annotated[int, Option(min=0)] = 3
    """Restart automatically after at most this many failures. Only runs that made progress are restarted."""
    slurm: Annotated[tuple[str, ...], Option(metavar="NAME=VALUE")] = ()
    """Settings of a SLURM job, such as partition=gpu; docs/launching.md."""
    cloud: Annotated[tuple[str, ...], Option(metavar="NAME=VALUE")] = ()
    """Settings of a cloud's machines, such as accelerators=H100:8."""
    sweep: Annotated[tuple[str, ...], Option(metavar="PATH=A,B")] = ()
    """With --launch slurm: a run for each value, as an array of jobs."""
    dry_run: bool = False
    """With --launch cloud: show the task file and the commands, and start nothing."""

    @property
    def processes_per_node(self) -> int:
        return self.nproc or self.gpus_per_node or 1

    @property
    def world_size(self) -> int:
        """Ranks."""
        return self.nodes * self.processes_per_node

    def check(self) -> None:
        """Raises ConfigError where options do not go together: nothing is accepted and ignored."""
        problems = []
        if self.launch not in WAYS:
            problems.append(f"--launch {self.launch!r} is not known\n  ways to launch: {', '.join(WAYS)}")
        if self.launch == "none" and self.world_size != 1:
            problems.append(
                f"--launch none is one process, and {self.world_size} were asked for\n"
                "  add --launch local, or leave out --nproc, --nodes and --gpus-per-node"
            )
        if self.launch == "local" and self.nodes != 1:
            problems.append(
                f"--launch local is this machine, and --nodes {self.nodes} asks for more\n"
                "  use --launch slurm or cloud, or start torchrun on every machine by hand: docs/launching.md"
            )
        if self.nproc and self.gpus_per_node and self.nproc != self.gpus_per_node:
            problems.append(
                f"--nproc {self.nproc} and --gpus-per-node {self.gpus_per_node} differ: each process has one GPU\n"
                "  leave out --nproc"
            )
        for name, given in (("slurm", self.slurm), ("cloud", self.cloud)):
            if given and self.launch != name:
                problems.append(
                    f"--{name} {given[0]} is only read by --launch {name}\n  add that, or leave out --{name}"
                )
        if self.sweep and self.launch != "slurm":
            problems.append(
                f"--sweep {self.sweep[0]} is only read by --launch slurm, which makes an array of jobs of it\n"
                "  on one machine start the runs one after another"
            )
        if self.dry_run and self.launch != "cloud":
            problems.append("--dry-run is only read by --launch cloud\n  leave it out, or see: pretrainkit plan --help")
        if problems:
            raise ConfigError(problems)


JsonLines = Annotated[bool, Option("--json", help="One JSON object per line on standard output.")]
