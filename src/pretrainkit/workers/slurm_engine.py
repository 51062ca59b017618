"""Run tasks as an array of SLURM jobs with datatrove's executor. All nodes must have access to the input and output.

The command that submits the jobs waits for them, and cancels them if it fails or is interrupted. If it is killed, the
jobs continue. The same command then stops the remaining jobs, keeps finished results and submits the rest.
"""

import math
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from datatrove.executor.slurm import SlurmPipelineExecutor

from pretrainkit.errors import InputError
from pretrainkit.workers.engine import Resources, Result, Task
from pretrainkit.workers.processes import Progress, check_workers, memory_per_process
from pretrainkit.workers.slurm_config import SlurmJob
from pretrainkit.workers.task_folder import RunTask, TaskFolder, quiet_datatrove

_WORKER_BYTES = 300_000_000
"""Memory of an idle worker, requested from SLURM besides the memory of the task."""
_MAX_JOBS = 1000
"""Maximum size of an array, SLURM's default limit. With more tasks, each job runs several."""
_PAUSE_SECONDS = 1.0
_JOB = "job"
"""File in the folder of the tasks with the id of the job."""


class _Executor(SlurmPipelineExecutor):
    """Executor with only the settings of a SlurmJob, and without datatrove's job that adds up statistics."""

    def get_sbatch_args(self, max_array: int = 1) -> dict[str, Any]:
        options = super().get_sbatch_args(max_array)
        # SLURM accepts only one option for memory: the user's mem-per-cpu, or our mem.
        del options["mem" if "mem-per-cpu" in self._sbatch_args else "mem-per-cpu"]
        return {name: value for name, value in options.items() if value is not None}

    def launch_merge_stats(self) -> None: ...


@dataclass(frozen=True)
class SlurmEngine:
    """Engine that runs each stage as an array of SLURM jobs."""

    settings: SlurmJob = field(default_factory=SlurmJob)
    is_local = False

    def resources(self, workers: int | None, num_tasks: int, num_bytes: int, memory_bytes: int) -> Resources:
        """Let all tasks run at once, if the cluster has enough nodes, or at most `workers`."""
        check_workers(workers)
        if shutil.which("sbatch") is None:
            raise InputError(
                "--engine slurm: there is no sbatch on this machine\n"
                "  submit from a login node of the cluster, or use --engine local"
            )
        return Resources(max(1, min(workers or num_tasks, num_tasks)), memory_per_process(memory_bytes, 1))

    def run(
        self,
        function: Callable[[Task], Result],
        tasks: Sequence[Task],
        resources: Resources,
        work: Path,
        progress: Progress,
    ) -> Iterator[Result]:
        """Run the tasks as in `Engine`. Results are passed through files below `work`."""
        if not tasks:
            return
        for path in (work / "engine").glob(f"*/{_JOB}"):
            _cancel(path.read_text())
        folder = TaskFolder.create(function, tasks, work)
        quiet_datatrove()
        executor = self._executor(folder, len(tasks), resources)
        try:
            executor.launch_job()
        except subprocess.CalledProcessError as error:
            raise InputError(
                "SLURM rejected the job; its message is above\n  change the setting with --slurm NAME=VALUE"
            ) from error
        job_id = str(executor.job_id)
        (folder.path / _JOB).write_text(job_id)
        progress.note(f"SLURM: job {job_id}, {len(tasks)} tasks; squeue --jobs {job_id} shows them")
        try:
            yield from folder.results(len(tasks), lambda: _is_over(job_id), _PAUSE_SECONDS)
        except BaseException:  # also Ctrl-C: no worker may start another task
            folder.stop()
            _cancel(job_id)
            raise
        folder.remove()

    def _executor(self, folder: TaskFolder, num_tasks: int, resources: Resources) -> SlurmPipelineExecutor:
        settings = self.settings
        optional = {
            name: getattr(settings, name) for name in ("account", "constraint", "exclude", "nodelist", "comment")
        }
        needed = math.ceil((resources.memory_bytes + _WORKER_BYTES) / 2**20)
        return _Executor(
            [RunTask(folder)],
            tasks=num_tasks,
            workers=resources.num_workers if resources.num_workers < num_tasks else -1,
            tasks_per_job=math.ceil(num_tasks / _MAX_JOBS),
            time=str(settings.time),
            partition=settings.partition,  # None is removed from the options
            qos=settings.qos,
            cpus_per_task=settings.cpus_per_task or 1,
            sbatch_args={
                "mem": f"{needed}M",
                **{name: value for name, value in optional.items() if value is not None},
                # datatrove writes an empty value as a flag without a value.
                **{
                    name: "" if given is True else given
                    for name, given in settings.sbatch.items()
                    if given is not False
                },
            },
            env_command="\n".join(
                [
                    *settings.setup,
                    f'export PATH="{Path(sys.executable).parent}:$PATH"',
                ]  # to find launch_pickled_pipeline
            ),
            job_name="pretrainkit-corpus",
            logging_dir=str(folder.logs),
        )


def _is_over(job_id: str) -> bool:
    """True if no task of the array is waiting or running."""
    try:
        shown = subprocess.run(
            ["squeue", "--noheader", "--jobs", job_id, "--format", "%T"], capture_output=True, text=True, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        return False  # the controller is busy or unreachable; the caller tries again
    if shown.returncode:
        return "Invalid job id" in shown.stderr  # ended long ago and removed from SLURM's records
    return not shown.stdout.strip()


def _cancel(job_id: str) -> None:
    with suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run(["scancel", job_id], capture_output=True, timeout=60)
