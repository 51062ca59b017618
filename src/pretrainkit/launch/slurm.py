"""Submit SLURM jobs with submitit. This module does not import torch.

The ranks of a job are its tasks, one per GPU. A job runs exactly what was submitted: the resolved config and a copy of
the code are in `RUN/launch`, so the checkout may change while the job waits.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr, suppress
from dataclasses import replace
from io import StringIO
from pathlib import Path
from shlex import quote
from typing import Any

from pretrainkit.errors import InputError, RunError, import_optional
from pretrainkit.launch.folder import Launch, LaunchFolder
from pretrainkit.launch.slurm_rank import RankJob
from pretrainkit.workers.slurm_config import SlurmConfig

_ENDED = frozenset(
    ("COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE", "OUT_OF_MEMORY")
)
_DEAF_PYTHON = f"""/bin/sh -c 'trap "" TERM USR2; exec "$0" "$@"' {quote(sys.executable)}"""
"""Command that ignores signals until Python handles them. Otherwise an early signal would end the job for good. The
scheduler's warnings are repeated, so a lost one does no harm."""


def submit(
    runs: Sequence[Path], launches: Sequence[Launch], home: Path, *, name: str, cluster: str = "slurm"
) -> list[str]:
    """Submit one job for each run, as an array if there are several. Return the job ids, which are also recorded in the
    run folders.

    Args:
        runs: Run folders on a file system that all nodes share.
        launches: The launch of each run; they differ only in their arguments.
        home: Folder of the run, or of the sweep. Its folder `launch` gets the code and the scheduler's logs.
        cluster: "slurm", or "local" for submitit's processes on this machine.

    Raises:
        MissingPackageError: submitit is not installed.
        InputError: There is no SLURM here, it rejected the job, it already has a job of one of the runs, or `home` has
            a %.
    """
    submitit = import_optional("submitit", "slurm", "--launch slurm")
    if cluster == "slurm" and shutil.which("sbatch") is None:
        raise InputError(
            "--launch slurm: there is no sbatch on this machine\n"
            "  submit from a login node of the cluster, or start here with --launch local"
        )
    if "%" in str(home.absolute()):
        raise InputError(
            f"{home.absolute()} has a % in its path, which SLURM replaces in the paths of logs (%j by the job's id)\n"
            "  use a folder without % in its path"
        )
    first, settings = launches[0], SlurmConfig.model_validate(dict(launches[0].settings))
    folders = [LaunchFolder(run.absolute()) for run in runs]
    for folder in folders:
        require_idle(folder)
    for folder in folders:
        folder.prepare()
    place = LaunchFolder(home.absolute()).path
    # Waiting jobs of a sweep keep the code with which they were submitted.
    code = copy_code(place, is_shared=home not in runs)
    options = {"slurm_python": _DEAF_PYTHON} if cluster == "slurm" else {}
    executor: Any = submitit.AutoExecutor(folder=str(place / "jobs"), cluster=cluster, **options)
    executor.update_parameters(**_parameters(first, settings, name, code, cluster))
    jobs = [
        RankJob(launch.words_again, str(folder.run), launch.max_restarts, settings.max_timeouts, launch.hang_minutes)
        for folder, launch in zip(folders, launches, strict=True)
    ]
    try:
        with redirect_stderr(StringIO()):  # the error includes the messages of sbatch
            if len(jobs) == 1:
                submitted = [executor.submit(jobs[0])]
            else:
                with executor.batch():
                    submitted = [executor.submit(job) for job in jobs]
    except (submitit.core.utils.FailedJobError, submitit.core.utils.FailedSubmissionError) as error:
        raise InputError(
            f"SLURM rejected the job: {str(error).strip()}\n  change the setting with --slurm NAME=VALUE"
        ) from None
    for folder, launch, job in zip(folders, launches, submitted, strict=True):
        folder.add(replace(launch, job_ids=(job.job_id,)))
    return [job.job_id for job in submitted]


def _parameters(launch: Launch, settings: SlurmConfig, name: str, code: Path, cluster: str) -> dict[str, Any]:
    """Return the parameters of submitit's executor."""
    setup = [
        *settings.setup,
        f"export PYTHONPATH={quote(str(code))}${{PYTHONPATH:+:$PYTHONPATH}}",
        f"export PRETRAINKIT_REVISION={quote(str(launch.code.get('git') or 'unknown'))}",
    ]
    common: dict[str, Any] = {
        "name": name,
        "timeout_min": settings.time,
        "nodes": launch.num_nodes,
        "tasks_per_node": launch.processes_per_node,
        "stderr_to_stdout": True,
    }
    if cluster == "local":
        return common | {"local_setup": setup}
    named = ("partition", "account", "qos", "constraint", "exclude", "nodelist", "comment")
    optional = {f"slurm_{name}": getattr(settings, name) for name in named}
    optional |= {"cpus_per_task": settings.cpus_per_task, "mem_gb": settings.mem_gb}
    optional |= {"gpus_per_node": launch.gpus_per_node or None}
    return {
        **common,
        **{name: value for name, value in optional.items() if value is not None},
        "slurm_setup": setup,
        "slurm_signal_delay_s": settings.signal_seconds,
        "slurm_array_parallelism": settings.array_parallelism,
        "slurm_wckey": "pretrainkit",
        "slurm_srun_args": ["--kill-on-bad-exit=1"],
        "slurm_additional_parameters": {"requeue": True, **settings.sbatch},
    }


def copy_code(folder: Path, *, is_shared: bool = False) -> Path:
    """Copy this package with its compiled parts to `folder/code`, from where a job imports it. Return the path.

    An older copy is replaced, unless it `is_shared` with other jobs. Then the new copy is `folder/code-2`, and so on.
    """
    import pretrainkit

    source, code = Path(pretrainkit.__file__).parent, folder / "code"
    number = 1
    while is_shared and code.exists():
        number += 1
        code = folder / f"code-{number}"
    partial = folder / f".code-{os.getpid()}"
    shutil.copytree(source, partial / "pretrainkit", ignore=shutil.ignore_patterns("__pycache__", "*.c"))
    shutil.rmtree(code, ignore_errors=True)
    os.replace(partial, code)
    return code


def living_job(folder: LaunchFolder) -> str | None:
    """Return the job of a run that is waiting, running or ending; None if there is none."""
    launches = folder.launches()
    ids = launches[-1].job_ids if launches and launches[-1].kind == "slurm" else ()
    # A job that the scheduler no longer knows ended long ago.
    return next((job_id for job_id in ids if state(job_id).split(" ")[0] not in {*_ENDED, "UNKNOWN"}), None)


def require_idle(folder: LaunchFolder) -> None:
    """Raise InputError if the scheduler has a job of the run, because two jobs would write to the same folder."""
    if job_id := living_job(folder):
        run = quote(str(folder.run))
        raise InputError(
            f"job {job_id} of {folder.run} is in the queue: {state(job_id)}\n"
            f"  it continues automatically; show it: pretrainkit launch status {run}\n"
            f"  or end it: pretrainkit launch cancel {run}"
        )


def state(job_id: str) -> str:
    """Return the state of a job, such as RUNNING or PENDING (BeginTime); UNKNOWN if the scheduler no longer has it, and
    UNREACHABLE (reason) if the scheduler does not answer."""
    with suppress(FileNotFoundError):
        shown = subprocess.run(["scontrol", "show", "job", job_id], capture_output=True, text=True)
        if match := re.search(r"JobState=(\w+) Reason=(\w+)", shown.stdout):
            return match[1] if match[2] == "None" else f"{match[1]} ({match[2]})"
        if shown.returncode and "Invalid job id" not in shown.stderr:
            return f"UNREACHABLE ({shown.stderr.strip().splitlines()[-1] if shown.stderr.strip() else 'scontrol'})"
    with suppress(FileNotFoundError):
        command = ["sacct", "-X", "--noheader", "--parsable2", "--format=State", "--jobs", job_id]
        words = subprocess.run(command, capture_output=True, text=True, timeout=60).stdout.split()
        if words:
            return words[0]
    return "UNKNOWN"


def cancel(job_id: str, *, now: bool) -> None:
    """End a job. Running ranks save first, unless `now`. Raises RunError if the scheduler reports an error."""
    is_running = state(job_id).startswith("RUNNING")
    command = ["scancel", *(["--signal=TERM"] if is_running and not now else []), job_id]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if done.returncode:
        raise RunError(f"scancel {job_id} failed: {done.stderr.strip()}\n  check your jobs: squeue --me")
