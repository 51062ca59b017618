"""Machines and runs in clouds, through SkyPilot's command `sky`. Torch-free.

A task file says which machines, how they are set up and what runs on them; `sky` does the rest. Every function gives
the commands it would run, so that they can be looked at without an account.
"""

import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, NonNegativeInt, PositiveInt

from pretrainkit.config.base import Config
from pretrainkit.config.yaml import dump_yaml, parse_yaml
from pretrainkit.errors import ConfigError, InputError, RunError
from pretrainkit.launch.folder import Launch, LaunchFolder
from pretrainkit.launch.slurm import copy_code

Commands = list[list[str]]

INSTALL_SKY = "pipx install 'skypilot>=0.10'   (in an environment of its own: it needs an older click)"
_REMOTE = "~/pretrainkit-run"
_BUCKET = "/bucket"
_EXTRAS_OF_RUNS = frozenset(("vision", "rendering", "lpips", "text-metrics", "wandb", "hub"))


def _is_address(bucket: str | None) -> str | None:
    if bucket is not None and "://" not in bucket:
        raise ValueError(f"write the bucket as an address, such as s3://{bucket} or gs://{bucket}")
    return bucket


class CloudConfig(Config):
    """Settings that override one of the task files in `launch/tasks`."""

    task: Literal["gpu", "gpu-8", "nodes", "tpu-vm", "tpu-pod", "corpus"] = "gpu"
    """The file to begin with."""
    accelerators: str | None = None
    """Kind and number for each machine, such as H100:8 or tpu-v6e-8; null: as in the file."""
    infra: str | None = None
    """Cloud, region, zone, such as gcp/europe-west4/europe-west4-a, or k8s, slurm, ssh; null: the cheapest there is."""
    use_spot: bool = False
    """Use cheaper machines that may be taken away. The run is then a managed job, which continues elsewhere."""
    cpus: str | None = None
    """CPU cores of each machine, such as 32+; null: as in the file."""
    memory: str | None = None
    """Memory of each machine in GB, such as 128+ or 4x the cores; null: as in the file."""
    disk_size: PositiveInt | None = None
    """GB of each machine's disk; null: as in the file."""
    image_id: str | None = None
    """An image of the cloud, or docker:NAME; null: SkyPilot's."""
    runtime_version: str | None = None
    """Runtime version of a TPU; null: as in the file."""
    bucket: Annotated[str | None, AfterValidator(_is_address)] = None
    """s3://NAME, gs://NAME, ...: seen as /bucket on every machine. Runs are written there: disks go with machines."""
    bucket_mode: Literal["MOUNT", "COPY", "MOUNT_CACHED"] = "MOUNT_CACHED"
    """MOUNT_CACHED: read and written through a cache on disk, which takes renamed folders, as checkpoints need."""
    workdir: str | None = None
    """A folder of this machine that the commands run in, such as a checkout; null: none."""
    setup: tuple[str, ...] = ()
    """Lines of shell after the setup of the file."""
    autostop: NonNegativeInt | None = None
    """Minutes without a command after which the machines are deleted; null: never."""


def require_name(name: str) -> None:
    """Raises InputError where SkyPilot would refuse it as the name of machines or of a job."""
    if re.fullmatch(r"[a-zA-Z]([-_.a-zA-Z0-9]*[a-zA-Z0-9])?", name) is None:
        raise InputError(
            f"{name!r} cannot be the name of machines: it takes a letter first, then letters, digits and - _ .\n"
            "  choose another name; a run of a cloud has that of its folder: --out FOLDER"
        )


def task_of(
    config: CloudConfig,
    *,
    name: str,
    command: Sequence[str],
    num_nodes: int | None = None,
    processes: int | None = None,
    max_restarts: int | None = None,
    files_there: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """A task of SkyPilot as nested plain values.

    Args:
        num_nodes: Machines; None: as in the file.
        processes: Ranks of each machine; None: one per GPU.
        max_restarts: Of the ranks, after a failure, while the machines live; None: as in the file.
        files_there: Path on the machines to path here.
    """
    text = files("pretrainkit.launch").joinpath("tasks", f"{config.task}.yaml").read_text(encoding="utf-8")
    task = parse_yaml(text, f"{config.task}.yaml")
    task["name"] = name
    task["num_nodes"] = num_nodes or task["num_nodes"]
    resources = task["resources"]
    given = ("accelerators", "infra", "cpus", "memory", "disk_size", "image_id")
    resources |= {name: value for name in given if (value := getattr(config, name)) is not None}
    if config.use_spot:
        resources["use_spot"] = True
    if config.runtime_version is not None:
        resources["accelerator_args"] = {"runtime_version": config.runtime_version}
    if config.workdir is not None:
        task["workdir"] = config.workdir
    if config.setup:
        task["setup"] = "\n".join([task["setup"].rstrip(), *config.setup, ""])
    task["envs"]["COMMAND"] = shlex.join(command)
    if processes is not None:
        task["envs"]["PROCESSES"] = str(processes)
    if max_restarts is not None:
        task["run"] = task["run"].replace("--max-restarts 3", f"--max-restarts {max_restarts}")
    mounts: dict[str, Any] = dict(files_there or {})
    if config.bucket is not None:
        mounts[_BUCKET] = {"source": config.bucket, "mode": config.bucket_mode}
    if mounts:
        task["file_mounts"] = mounts
    return dict(task)


def launch_run(run: Path, launch: Launch, *, dry_run: bool = False) -> Commands:
    """Start a run in a cloud: on machines of its own, or as a managed job where they may be taken away.

    The resolved config, the code and the list of packages travel from `RUN/launch`; the run is written to the bucket.
    Returns the commands. Raises InputError where the run's folder has a name that machines cannot have, or SkyPilot is
    not installed, ConfigError where there is no bucket to write to, or the machines have another number of GPUs than
    ranks.
    """
    config = CloudConfig.model_validate(dict(launch.settings))
    if config.bucket is None:
        raise ConfigError(
            "--launch cloud has nowhere to write the run: a machine's disk goes with the machine\n"
            "  give a bucket: --cloud bucket=s3://NAME (or gs://NAME, ...)"
        )
    if config.use_spot and config.autostop is not None:
        raise ConfigError(
            f"--cloud autostop={config.autostop} is not read with use_spot=true: the machines of a managed job go when "
            "it ends\n  leave out autostop"
        )
    require_name(run.name)
    folder = LaunchFolder(run.absolute())
    folder.path.mkdir(parents=True, exist_ok=True)
    copy_code(folder.path)
    (folder.path / "requirements.txt").write_text("\n".join(_requirements()) + "\n", encoding="utf-8")
    command = ["train", f"{_REMOTE}/config.yaml", "--origins", f"{_REMOTE}/origins.json"]
    command += ["--out", f"{_BUCKET}/runs/{run.name}", "--resume", "--json"]
    there = {name: str(folder.path / name) for name in ("config.yaml", "origins.json", "requirements.txt", "code")}
    task = task_of(
        config,
        name=run.name,
        command=command,
        num_nodes=launch.num_nodes,
        processes=launch.processes_per_node if launch.gpus_per_node == 0 else None,
        max_restarts=launch.max_restarts,
        files_there={f"{_REMOTE}/{name}": path for name, path in there.items()},
    )
    # The shell of the machines fills in ~ only where it is not quoted.
    task["envs"]["COMMAND"] = " ".join(word if word.startswith("~") else shlex.quote(word) for word in command)
    if launch.gpus_per_node and config.accelerators is None and config.task in ("gpu", "gpu-8", "nodes"):
        kind = task["resources"]["accelerators"].partition(":")[0]
        task["resources"]["accelerators"] = f"{kind}:{launch.gpus_per_node}"
    _require_places(config.task, task, launch)
    if config.use_spot:
        task["resources"]["job_recovery"] = {"max_restarts_on_errors": launch.max_restarts}
    path = write_task(task, folder.path / "task.yaml")
    start = ["sky", "jobs", "launch", "--name", run.name] if config.use_spot else _start(run.name, config)
    commands = [[*start, "--yes", "--detach-run", str(path)]]
    if dry_run:
        return commands
    folder.add(replace(launch, job_ids=(f"{'job' if config.use_spot else 'cluster'}:{run.name}",)))
    return run_all(commands, dry_run=False)


def _require_places(file: str, task: Mapping[str, Any], launch: Launch) -> None:
    """Raises ConfigError where a rank would have no device, a device no rank, or two processes one run folder."""
    kind = str(task["resources"].get("accelerators", ""))
    if file in ("tpu-vm", "tpu-pod", "corpus") or kind.startswith("tpu-"):
        if launch.world_size > 1 or num_hosts(task) > 1:
            raise ConfigError(
                f"--cloud task={file} trains as one process on one host, and this would be {launch.world_size} "
                f"ranks on {num_hosts(task)} hosts\n  leave out --nproc, --nodes and --gpus-per-node, and take a TPU "
                "of one host; or take machines with GPUs: --cloud task=nodes --gpus-per-node 8"
            )
        return
    number = kind.partition(":")[2] or "1"
    if number.isdecimal() and int(number) != launch.processes_per_node:
        raise ConfigError(
            f"machines with {kind} have a rank for each GPU, and {launch.processes_per_node} were asked for\n"
            f"  give --gpus-per-node {number}"
        )


def create(name: str, task: dict[str, Any], config: CloudConfig, folder: Path, *, dry_run: bool) -> Commands:
    """Get machines under this name; nothing is installed yet."""
    bare = {key: value for key, value in task.items() if key not in ("setup", "run", "envs")} | {"run": "true"}
    path = write_task(bare, folder / f"{name}-create.yaml")
    return run_all([[*_start(name, config), "--yes", str(path)]], dry_run=dry_run)


def provision(name: str, task: dict[str, Any], config: CloudConfig, folder: Path, *, dry_run: bool) -> Commands:
    """Set up all machines, and make each a git remote: `git push NAME` goes to all of them, `git fetch NAME` comes from
    the first. What is pushed to the branch `pushed` is checked out in `~/checkout`.
    """
    path = write_task(task | {"run": "true"}, folder / f"{name}-provision.yaml")
    start = run_all([[*_start(name, config), "--yes", str(path)]], dry_run=dry_run)
    aliases = host_aliases(name, num_hosts(task))
    prepare = "git init -q ~/checkout && cd ~/checkout && git config receive.denyCurrentBranch updateInstead"
    commands = [["ssh", alias, f"{prepare} && git symbolic-ref HEAD refs/heads/pushed"] for alias in aliases]
    first, *others = (f"{alias}:checkout" for alias in aliases)
    # Written key by key, so that the same command may be given again, for machines that have changed.
    remote = [("url", first), ("fetch", f"+refs/heads/*:refs/remotes/{name}/*"), ("pushurl", first)]
    remote.append(("push", "HEAD:refs/heads/pushed"))
    commands += [["git", "config", "--replace-all", f"remote.{name}.{key}", value] for key, value in remote]
    commands += [["git", "config", "--add", f"remote.{name}.pushurl", other] for other in others]
    return start + run_all(commands, dry_run=dry_run)


def run_on(name: str, task: dict[str, Any], folder: Path, *, dry_run: bool) -> Commands:
    """Run the command of a task on all machines, side by side, and show what it prints."""
    path = write_task({key: value for key, value in task.items() if key != "setup"}, folder / f"{name}-run.yaml")
    return run_all([["sky", "exec", name, str(path)]], dry_run=dry_run)


def delete(name: str, *, dry_run: bool) -> Commands:
    """Delete the machines and all that is on them."""
    return run_all([["sky", "down", "--yes", name]], dry_run=dry_run)


def status(name: str, *, dry_run: bool) -> Commands:
    """Print the state of the machines and update their names in the ssh config."""
    return run_all([["sky", "status", "--refresh", name]], dry_run=dry_run)


def host_aliases(name: str, num: int) -> list[str]:
    """The names that SkyPilot gave the hosts of a cluster in the ssh config; before that, those it gives to `num`."""
    path = Path(f"~/.sky/generated/ssh/{name}").expanduser()
    if path.is_file():
        return re.findall(r"^Host (\S+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    return [name, *(f"{name}-worker{number}" for number in range(1, num))]


def num_hosts(task: Mapping[str, Any]) -> int:
    """Hosts of a task's machines: a slice of a TPU has several where it has more than 8 chips or cores.

    Source: https://cloud.google.com/tpu/docs/v6e and the pages of the other generations. Hosts of larger slices have 4
    chips, and names before v5e, and v5p, count 2 cores for each.
    """
    name = task["resources"].get("accelerators")
    match = re.fullmatch(r"tpu-(v\w+)-(\d+)(?::1)?", str(name))
    if match is None or int(match[2]) <= 8:
        return int(task["num_nodes"])
    # Names of v5e and v6e count chips, the others cores, of which a host has 8.
    return int(task["num_nodes"]) * (int(match[2]) // (4 if match[1] in ("v5litepod", "v5e", "v6e") else 8))


def cluster_state(job_id: str) -> str:
    """Return the state of a run as reported by SkyPilot."""
    kind, _, name = job_id.partition(":")
    command = ["sky", "jobs", "queue"] if kind == "job" else ["sky", "queue", name]
    _require_sky()
    shown = subprocess.run(command, capture_output=True, text=True)
    if shown.returncode:
        return f"UNKNOWN ({shown.stderr.strip().splitlines()[-1] if shown.stderr.strip() else 'sky failed'})"
    lines = [line for line in shown.stdout.splitlines() if name in line.split()]
    return lines[0].strip() if lines else "UNKNOWN"


def cancel_jobs(job_id: str) -> Commands:
    """End a run; its ranks save first."""
    kind, _, name = job_id.partition(":")
    words = ["jobs", "cancel", "--yes", "--name"] if kind == "job" else ["cancel", "--yes", "--all"]
    return run_all([["sky", *words, name]], dry_run=False)


def write_task(task: Mapping[str, Any], path: Path) -> Path:
    """Write a task file. Raises InputError where it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dump_yaml(dict(task)), encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}\n  work in a folder that may be written") from None
    return path


def run_all(commands: Commands, *, dry_run: bool) -> Commands:
    """Run commands one after another. Raises RunError when one fails; nothing is run where it is dry."""
    if not dry_run:
        _require_sky()
        for command in commands:
            if code := subprocess.run(command).returncode:
                raise RunError(
                    f"this command failed with {code}: {shlex.join(command)}\n  sky check tells which clouds work"
                )
    return commands


def _require_sky() -> None:
    if shutil.which("sky") is None:
        raise InputError(f"a cloud needs SkyPilot's command sky\n  install it: {INSTALL_SKY}")


def _start(name: str, config: CloudConfig) -> list[str]:
    ends = [] if config.autostop is None else ["--down", "--idle-minutes-to-autostop", str(config.autostop)]
    return ["sky", "launch", "--cluster", name, *ends]


def _requirements() -> list[str]:
    """Return the requirements of pretrainkit, and the installed packages of extras that a run may import."""
    try:
        found = requires("pretrainkit") or []
    except PackageNotFoundError:
        return ["pretrainkit"]
    lines = [line for line in found if "extra ==" not in line]
    for line in found:
        match = re.match(r"""([\w.-]+)[^;]*;.*extra == ["']([\w-]+)["']""", line)
        if match and match[2] in _EXTRAS_OF_RUNS and match[1] != "pretrainkit":
            with suppress(PackageNotFoundError):
                version(match[1])
                lines.append(line.partition(";")[0].strip())
    return lines
