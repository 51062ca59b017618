"""A SLURM cluster of two nodes on loopback, in a folder: munge, slurmctld and two slurmd, started as root.

Debian's slurmd serves several nodes of one machine. Their names are those that the machine has for itself, so that
ranks find each other.
"""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "scancel")
CONFIG = """
ClusterName=loopback
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SlurmctldPort={controller}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
JobAcctGatherType=jobacct_gather/none
ReturnToService=2
KillWait=10
MinJobAge=600
SchedulerParameters=batch_sched_delay=0,sched_interval=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmdParameters=config_overrides
NodeName={host} NodeAddr=127.0.0.1 Port={node} CPUs=2 RealMemory=1000 State=UNKNOWN
NodeName=localhost NodeHostname={host} NodeAddr=127.0.0.1 Port={other} CPUs=1 RealMemory=1000 State=UNKNOWN
PartitionName=low Nodes={host} Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=60
PartitionName=high Nodes={host} MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
PartitionName=both Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=1
"""


def why_not() -> str | None:
    """Why there can be no cluster here; None: there can."""
    if os.environ.get("PRETRAINKIT_TEST_SLURM") != "1":
        return "takes minutes: set PRETRAINKIT_TEST_SLURM=1"
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        return f"no {', '.join(missing)}: apt-get install --no-install-recommends slurmctld slurmd slurm-client munge"
    return None if os.geteuid() == 0 else "SLURM's daemons need root"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(folder: Path) -> Iterator[Path]:
    """A cluster with the partitions low (requeued when somebody comes to high) and high on one node, and both on two;
    gives its slurm.conf."""
    host = socket.gethostname().partition(".")[0]
    nodes = (host, "localhost")
    for name in ("munge", "state", *(f"spool-{node}" for node in nodes)):
        (folder / name).mkdir()
    (folder / "munge").chmod(0o700)
    key = folder / "munge/key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    munge = {"key-file": key, "socket": folder / "munge.socket", "pid-file": folder / "munge/pid"}
    munge |= {"log-file": folder / "munge/log", "seed-file": folder / "munge/seed"}
    config = folder / "slurm.conf"
    ports = {"controller": _free_port(), "node": _free_port(), "other": _free_port()}
    config.write_text(CONFIG.format(host=host, folder=folder, **ports))
    environment = os.environ | {"SLURM_CONF": str(config)}
    try:
        subprocess.run(["munged", "--force", *(f"--{name}={path}" for name, path in munge.items())], check=True)
        for daemon in (["slurmctld"], *(["slurmd", "-N", node] for node in nodes)):
            subprocess.run(daemon, env=environment, check=True)
            time.sleep(1)
        deadline = time.monotonic() + 60
        idle = ["sinfo", "--noheader", "--Node", "--partition=both", "--states=idle"]
        while len(subprocess.run(idle, env=environment, capture_output=True, text=True).stdout.splitlines()) < 2:
            assert time.monotonic() < deadline, (folder / "slurmctld.log").read_text()[-2000:]
            time.sleep(0.5)
        yield config
    finally:
        subprocess.run(["scancel", "--user=root"], env=environment, capture_output=True)
        deadline = time.monotonic() + 30  # a step that outlives its controller stays for ever
        while subprocess.run(["squeue", "--noheader"], env=environment, capture_output=True, text=True).stdout.strip():
            if time.monotonic() > deadline:
                break
            time.sleep(0.5)
        for path in (
            *(folder / f"slurmd-{node}.pid" for node in nodes),
            folder / "slurmctld.pid",
            folder / "munge/pid",
        ):
            with suppress(OSError, ValueError):
                os.kill(int(path.read_text()), signal.SIGTERM)
