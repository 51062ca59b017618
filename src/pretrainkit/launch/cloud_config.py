"""Machines of a cloud, as SkyPilot gets them. Torch-free."""

from typing import Annotated, Literal

from pydantic import AfterValidator, NonNegativeInt, PositiveInt

from pretrainkit.config.base import Config


def _is_address(bucket: str | None) -> str | None:
    if bucket is not None and "://" not in bucket:
        raise ValueError(f"write the bucket as an address, such as s3://{bucket} or gs://{bucket}")
    return bucket


class CloudConfig(Config):
    """What is laid over one of the task files in `launch/tasks`."""

    task: Literal["gpu", "gpu-8", "nodes", "tpu-vm", "tpu-pod", "corpus"] = "gpu"
    """The file to begin with."""
    accelerators: str | None = None
    """Kind and number for each machine, such as H100:8 or tpu-v6e-8; null: as in the file."""
    infra: str | None = None
    """Cloud, region, zone, such as gcp/europe-west4/europe-west4-a, or k8s, slurm, ssh; null: the cheapest there is."""
    use_spot: bool = False
    """Machines that may be taken away, for less money. A run is then a managed job, which goes on elsewhere."""
    cpus: str | None = None
    """Of each machine, such as 32+; null: as in the file."""
    memory: str | None = None
    """GB of each machine, such as 128+ or 4x the cores; null: as in the file."""
    disk_size: PositiveInt | None = None
    """GB of each machine's disk; null: as in the file."""
    image_id: str | None = None
    """An image of the cloud, or docker:NAME; null: SkyPilot's."""
    runtime_version: str | None = None
    """Of a TPU; null: as in the file."""
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
