"""Create machines and start runs in clouds with SkyPilot's command `sky`. This module does not import torch.

A task file describes the machines, their setup and the command to run; `sky` does the rest. Every function returns the
commands that it runs, so that they can be inspected without an account.
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

INSTALL_SKY = "pipx install 'skypilot>=0.10'   (in a separate environment, because it needs an older click)"
_REMOTE = "~/pretrainkit-run"
_BUCKET = "/bucket"
_EXTRAS_OF_RUNS = frozenset(("vision", "rendering", "lpips", "text-metrics", "wandb", "hub"))


def _is_address(bucket: str | None) -> str | None:
    if bucket is not None and "://" not in bucket:
        raise ValueError(f"the bucket must be an address, such as s3://{bucket} or gs://{bucket}")
    return bucket


class CloudConfig(Config):
    """Settings that override one of the task files in `launch/tasks`."""

    task: Literal["gpu", "gpu-8", "nodes", "tpu-vm", "tpu-pod", "corpus"] = "gpu"
    """Task file that the other settings override."""
    accelerators: str | None = None
    """Kind and number of accelerators of each machine, such as H100:8 or tpu-v6e-8; null: as in the file."""
    infra: str | None = None
    """Cloud, region and zone, such as gcp/europe-west4/europe-west4-a, or k8s, slurm, ssh; null: the cheapest one."""
    use_spot: bool = False
    """Use cheaper machines that the cloud may take away. The run is then a managed job, which continues elsewhere."""
    cpus: str | None = None
    """CPU cores of each machine, such as 32+; null: as in the file."""
    memory: str | None = None
    """Memory of each machine in GB, such as 128+, or 4x for 4 GB per core; null: as in the file."""
    disk_size: PositiveInt | None = None
    """Disk size of each machine in GB; null: as in the file."""
    image_id: str | None = None
    """Image of the cloud, or docker:NAME; null: SkyPilot's image."""
    runtime_version: str | None = None
    """Runtime version of a TPU; null: as in the file."""
    bucket: Annotated[str | None, AfterValidator(_is_address)] = None
    """Bucket (s3://NAME, gs://NAME, ...), mounted as /bucket on every machine. Runs are written to it, because the
    disks are deleted with the machines."""
    bucket_mode: Literal["MOUNT", "COPY", "MOUNT_CACHED"] = "MOUNT_CACHED"
    """Access to the bucket. MOUNT_CACHED uses a cache on disk and supports renaming folders, which checkpoints need."""
    workdir: str | None = None
    """Folder of this machine, such as a checkout. It is copied to the machines, and the commands run in the copy. null:
    none."""
    setup: tuple[str, ...] = ()
    """Shell commands that run after the setup of the file."""
    autostop: NonNegativeInt | None = None
    """Minutes without a command after which the machines are deleted; null: never."""


def require_name(name: str) -> None:
    """Raise InputError if SkyPilot would reject the name of machines or of a job."""
    if re.fullmatch(r"[a-zA-Z]([-_.a-zA-Z0-9]*[a-zA-Z0-9])?", name) is None:
        raise InputError(
            f"{name!r} cannot be the name of machines: it must consist of letters, digits and - _ ., "
            "begin with a letter, and end with a letter or a digit\n"
            "  choose another name; a run in a cloud has the name of its folder: --out FOLDER"
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
    """Return a SkyPilot task as nested plain values.

    Args:
        num_nodes: Number of machines; None: as in the file.
        processes: Number of ranks of each machine; None: one per GPU.
        max_restarts: Maximum number of restarts of failed ranks on the same machines; None: as in the file.
        files_there: Path on the machines to path on this machine.
    """
    text = files("pretrainkit.launch").joinpath("tasks", f"{config.task}.yaml").read_text(encoding="utf-8")
    task = parse_yaml(text, f"{config.task}.yaml")
    task["name"] = name
    task["num_nodes"] = num_nodes or task["num_nodes"]
    resources = task["resources"]
    names = ("accelerators", "infra", "cpus", "memory", "disk_size", "image_id")
    resources |= {name: value for name in names if (value := getattr(config, name)) is not None}
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
    """Start a run in a cloud: on new machines, or as a managed job with `use_spot`. Return the commands.

    The resolved config, the code and the list of packages are copied from `RUN/launch`. The run is written to the
    bucket.

    Raises:
        InputError: The name of the run's folder is not valid for machines, or SkyPilot is not installed.
        ConfigError: There is no bucket, or the machines have another number of GPUs than ranks.
    """
    config = CloudConfig.model_validate(dict(launch.settings))
    if config.bucket is None:
        raise ConfigError(
            "--launch cloud needs a bucket for the run, because a machine's disk is deleted with the machine\n"
            "  give a bucket: --cloud bucket=s3://NAME (or gs://NAME, ...)"
        )
    if config.use_spot and config.autostop is not None:
        raise ConfigError(
            f"--cloud autostop={config.autostop} has no effect with use_spot=true: the machines of a managed job are "
            "deleted when it ends\n  leave out autostop"
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
    # The shell of the machines expands ~ only if it is not quoted.
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
    """Raise ConfigError if a rank or a device would have no counterpart, or two processes would share a run folder."""
    kind = str(task["resources"].get("accelerators", ""))
    if file in ("tpu-vm", "tpu-pod", "corpus") or kind.startswith("tpu-"):
        if launch.world_size > 1 or num_hosts(task) > 1:
            raise ConfigError(
                f"--cloud task={file} trains as one process on one host, but this launch has {launch.world_size} "
                f"ranks on {num_hosts(task)} hosts\n  leave out --nproc, --nodes and --gpus-per-node, and use a TPU "
                "of one host; or use machines with GPUs: --cloud task=nodes --gpus-per-node 8"
            )
        return
    number = kind.partition(":")[2] or "1"
    if number.isdecimal() and int(number) != launch.processes_per_node:
        raise ConfigError(
            f"machines with {kind} have a rank for each GPU, but {launch.processes_per_node} ranks were requested\n"
            f"  give --gpus-per-node {number}"
        )


def create(name: str, task: dict[str, Any], config: CloudConfig, folder: Path, *, dry_run: bool) -> Commands:
    """Create machines with this name, without installing anything."""
    bare = {key: value for key, value in task.items() if key not in ("setup", "run", "envs")} | {"run": "true"}
    path = write_task(bare, folder / f"{name}-create.yaml")
    return run_all([[*_start(name, config), "--yes", str(path)]], dry_run=dry_run)


def provision(name: str, task: dict[str, Any], config: CloudConfig, folder: Path, *, dry_run: bool) -> Commands:
    """Set up all machines, and make them a git remote: `git push NAME` pushes to all of them, `git fetch NAME` fetches
    from the first. The branch `pushed` is checked out in `~/checkout`.
    """
    path = write_task(task | {"run": "true"}, folder / f"{name}-provision.yaml")
    start = run_all([[*_start(name, config), "--yes", str(path)]], dry_run=dry_run)
    aliases = host_aliases(name, num_hosts(task))
    prepare = "git init -q ~/checkout && cd ~/checkout && git config receive.denyCurrentBranch updateInstead"
    commands = [["ssh", alias, f"{prepare} && git symbolic-ref HEAD refs/heads/pushed"] for alias in aliases]
    first, *others = (f"{alias}:checkout" for alias in aliases)
    # The keys are set one by one, so that the same command can be repeated for machines that have changed.
    remote = [("url", first), ("fetch", f"+refs/heads/*:refs/remotes/{name}/*"), ("pushurl", first)]
    remote.append(("push", "HEAD:refs/heads/pushed"))
    commands += [["git", "config", "--replace-all", f"remote.{name}.{key}", value] for key, value in remote]
    commands += [["git", "config", "--add", f"remote.{name}.pushurl", other] for other in others]
    return start + run_all(commands, dry_run=dry_run)


def run_on(name: str, task: dict[str, Any], folder: Path, *, dry_run: bool) -> Commands:
    """Run the command of a task on all machines in parallel, and show its output."""
    path = write_task({key: value for key, value in task.items() if key != "setup"}, folder / f"{name}-run.yaml")
    return run_all([["sky", "exec", name, str(path)]], dry_run=dry_run)


def delete(name: str, *, dry_run: bool) -> Commands:
    """Delete the machines and all their data."""
    return run_all([["sky", "down", "--yes", name]], dry_run=dry_run)


def status(name: str, *, dry_run: bool) -> Commands:
    """Print the state of the machines and update their names in the ssh config."""
    return run_all([["sky", "status", "--refresh", name]], dry_run=dry_run)


def host_aliases(name: str, num: int) -> list[str]:
    """Return the names of a cluster's hosts in SkyPilot's ssh config, or the expected names of `num` hosts before the
    cluster exists."""
    path = Path(f"~/.sky/generated/ssh/{name}").expanduser()
    if path.is_file():
        return re.findall(r"^Host (\S+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    return [name, *(f"{name}-worker{number}" for number in range(1, num))]


def num_hosts(task: Mapping[str, Any]) -> int:
    """Return the number of hosts of a task's machines. A TPU slice with more than 8 chips or cores has several hosts.

    Source: https://cloud.google.com/tpu/docs/v6e and the pages of the other generations. Hosts of larger slices have 4
    chips. The names of v5p, and of generations before v5e, count 2 cores per chip.
    """
    name = task["resources"].get("accelerators")
    match = re.fullmatch(r"tpu-(v\w+)-(\d+)(?::1)?", str(name))
    if match is None or int(match[2]) <= 8:
        return int(task["num_nodes"])
    # Names of v5e and v6e count chips. The others count cores, of which a host has 8.
    return int(task["num_nodes"]) * (int(match[2]) // (4 if match[1] in ("v5litepod", "v5e", "v6e") else 8))


def cluster_state(job_id: str) -> str:
    """Return the state of a run, or of the machines in machines:NAME, that SkyPilot reports."""
    kind, _, name = job_id.partition(":")
    commands = {"job": ["jobs", "queue"], "machines": ["status", "--refresh", name]}
    command = ["sky", *commands.get(kind, ["queue", name])]
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
    """Write a task file. Raises InputError if it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dump_yaml(dict(task)), encoding="utf-8")
    except OSError as error:
        raise InputError(
            f"cannot write {path}: {error.strerror}\n  run the command in a folder that you may write to"
        ) from None
    return path


def run_all(commands: Commands, *, dry_run: bool) -> Commands:
    """Run commands one after another, or none if `dry_run`. Raises RunError if a command fails."""
    if not dry_run:
        _require_sky()
        for command in commands:
            if code := subprocess.run(command).returncode:
                raise RunError(
                    f"a command failed with exit code {code}: {shlex.join(command)}\n"
                    "  check that your clouds work: sky check"
                )
    return commands


def _require_sky() -> None:
    if shutil.which("sky") is None:
        raise InputError(f"SkyPilot's command sky is not installed\n  install it: {INSTALL_SKY}")


def _start(name: str, config: CloudConfig) -> list[str]:
    ends = [] if config.autostop is None else ["--down", "--idle-minutes-to-autostop", str(config.autostop)]
    return ["sky", "launch", "--cluster", name, *ends]


def _requirements() -> list[str]:
    """Return the requirements of pretrainkit, and the installed packages of extras that a run may import."""
    try:
        requirements = requires("pretrainkit") or []
    except PackageNotFoundError:
        return ["pretrainkit"]
    lines = [line for line in requirements if "extra ==" not in line]
    for line in requirements:
        match = re.match(r"""([\w.-]+)[^;]*;.*extra == ["']([\w-]+)["']""", line)
        if match and match[2] in _EXTRAS_OF_RUNS and match[1] != "pretrainkit":
            with suppress(PackageNotFoundError):
                version(match[1])
                lines.append(line.partition(";")[0].strip())
    return lines
