"""`python benchmarks/scale.py PART`: estimate what runs on 256 and 1,024 GPUs and a corpus of 10 TB need.

Part `training` makes two updates as rank 0 of a process group whose collectives do nothing, with models of full
width and short examples (collectives do not depend on the lengths). A dispatch mode counts the collectives of the
second update, and the bytes that they pass. Each layer of a sharded model adds the same ones, so one to three layers
are enough. Memory and operations are those of `pretrainkit plan` for the full model and examples of full length.
`exchange_seconds` says how the time is estimated. Takes about a quarter of an hour and 8 GB on two cores.

Part `corpus` measures the processor time of each stage on real text, given as files. Then it plans the stages for 10 TB
of files that have a size but no content, with runs whose indexes are short, and measures what the planning takes.

Each part prints a table for docs/scale.md.
"""

import argparse
import json
import math
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

MFU, GPUS_PER_NODE = 0.4, 8
WITHIN, NIC, LATENCY = 300e9, 40e9, 20e-6
"""Assumed bytes per second of a GPU within a machine (450e9 on paper for an H100) and through its own network card
(50e9 on paper), and seconds that a collective takes for each doubling of the ranks."""
SMALL_PAIRS = (
    "model.image.image_size=32",
    "data.train_transforms=[{op: resize, size: 32}]",
    "data.valid_transforms=[{op: resize, size: 32}]",
    "data.max_length=8",
)
SHORT_TEXT = ("data.input_length=16", "data.target_length=8")
RANKS = (256, 1024)


class Workload(NamedTuple):
    """A run to be simulated."""

    preset: str
    settings: tuple[str, ...]
    short: tuple[str, ...]
    """Further settings, which make the examples short in the updates that are run here."""
    pairs: int = 0
    """Batch size if the sizes of collectives depend on it; 0: one example per rank is enough."""
    num_layers: int | None = None
    """Layers of each side, if runs with one to three layers are to show what each of them adds."""


WORKLOADS = {
    "T5 XXL, fsdp2": Workload("t5/1.1-xxl", ("parallel.strategy=fsdp2",), SHORT_TEXT, num_layers=24),
    "T5 XXL, hsdp": Workload(
        "t5/1.1-xxl", ("parallel.strategy=hsdp", "parallel.shard_ranks=8"), SHORT_TEXT, num_layers=24
    ),
    "4M-21 XL, fsdp2": Workload("fourm/xl-21", ("parallel.strategy=fsdp2",), (), num_layers=24),
    "CLIP B/16, ddp": Workload("clip/vit-b-16", ("data.batch_size=65536",), SMALL_PAIRS, 65_536),
    "SigLIP B/16, ddp": Workload("clip/siglip", ("data.batch_size=65536",), SMALL_PAIRS, 65_536),
}


class Collective(NamedTuple):
    """Data that one call passes between the ranks."""

    name: str
    num_bytes: int
    """Bytes of the larger side: of all ranks together if the call gathers or scatters."""
    num_ranks: int


class Collectives(TorchDispatchMode):
    """Notes all collectives that are called while it is active."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Collective] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            groups = [value for value in args if isinstance(value, torch.ScriptObject)]
            ranks = dist.ProcessGroup.unbox(groups[0]).size()
            name, num_bytes = func._schema.name.split("::")[1].strip("_"), max(map(_bytes, args))
            if name == "allgather_base":  # FSDP's weights: float32 on this CPU, bfloat16 on a GPU
                name, num_bytes = "allgather", num_bytes // 2
            self.calls.append(Collective(name.replace("_base", ""), num_bytes, ranks))
        return func(*args, **(kwargs or {}))


def _bytes(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return value.nbytes
    return sum(map(_bytes, value)) if isinstance(value, (list, tuple)) else 0


def _count_bucket(collectives: Collectives, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Note DDP's all-reduce instead of doing it: the fake process group cannot answer it."""
    collectives.calls.append(Collective("allreduce", bucket.buffer().nbytes, dist.get_world_size()))
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


def _zeros_here(module: torch.nn.Module, device: torch.device) -> torch.nn.Module:
    """Fill what is on "meta" with zeros, in place. The system gives zeros no memory until they are written."""
    return module._apply(lambda tensor: torch.zeros_like(tensor, device=device) if tensor.is_meta else tensor)


def collectives_of(work: Workload, num_ranks: int, settings: Sequence[str]) -> list[Collective]:
    """Make two updates as rank 0 of `num_ranks`. Return the collectives of the second: DDP's first one differs.
    `settings` are added to those of the workload."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from pretrainkit.config.loader import resolve
    from pretrainkit.dist import parallelize as layouts
    from pretrainkit.dist.env import World
    from pretrainkit.recipes.capabilities import PlansWithoutData
    from pretrainkit.recipes.registry import Recipes, able, find_recipe
    from pretrainkit.training.accumulate import accumulate
    from pretrainkit.training.optimizers.build import build_optimizer, clip_gradients, parameters_of, step_if_finite
    from pretrainkit.training.precision import Precision

    config = resolve(work.preset, [*work.settings, *work.short, *settings], Recipes()).config
    recipe = find_recipe(config.recipe)
    planning = able(recipe, PlansWithoutData)
    config, _ = planning.without_data(config)
    dist.init_process_group("fake", rank=0, world_size=num_ranks, store=FakeStore())
    world = World(0, num_ranks, local_world_size=GPUS_PER_NODE, backend="fake")
    with torch.device("meta"):
        model = recipe.build_model(config)
    with mock.patch.object(layouts, "to_device", _zeros_here):
        model = layouts.parallelize(model, config.parallel.changed(compile="off"), world, torch.float32)
    collectives = Collectives()
    if isinstance(model, torch.nn.parallel.DistributedDataParallel):
        model.register_comm_hook(collectives, _count_bucket)
    optimizer, objective = build_optimizer(model, config.optimizer), recipe.build_objective(config)
    host_batch = planning.assumed_batch(config, max(1, work.pairs // num_ranks))
    batch = {name: torch.from_numpy(array) for name, array in host_batch.items()}
    precision = Precision(torch.device("cpu"), torch.float32, False, None)
    for _ in range(2):
        collectives.calls.clear()
        optimizer.zero_grad(set_to_none=True)
        with collectives:
            accumulate(
                objective,
                model,
                [batch],
                precision=precision,
                world=world,
                gradient_sync=lambda enabled: layouts.gradient_sync(model, enabled),
                averages_gradients=layouts.averages_gradients(model),
            )
            norm = clip_gradients(parameters_of(optimizer), config.optimizer)
            step_if_finite(optimizer, precision, norm)
    return collectives.calls


def collectives_at_full_depth(name: str, num_ranks: int) -> list[Collective]:
    """Return the collectives of an update. Raises RuntimeError if the third layer adds others than the second."""
    num_layers = WORKLOADS[name].num_layers

    def counted(*settings: str) -> Counter[Collective]:
        calls = json.loads(_output(__file__, "collectives", name, str(num_ranks), *settings))
        return Counter(Collective(*call) for call in calls)

    if num_layers is None:
        return list(counted().elements())
    shallow, two, three = (
        counted(f"model.num_encoder_layers={layers}", f"model.num_decoder_layers={layers}") for layers in (1, 2, 3)
    )
    added = (two - shallow) & (three - two)
    # Calls that are as many but larger with each layer, such as the one for the sums of all parameters.
    growing = [
        sorted((calls - rest).elements())
        for calls, rest in ((shallow, two), (two, shallow + added), (three, two + added))
    ]
    grown = []
    for first, second, third in zip(*growing, strict=True):
        num_bytes = second.num_bytes - first.num_bytes
        if first.name != second.name or third != second._replace(num_bytes=second.num_bytes + num_bytes):
            raise RuntimeError(f"{name}: layers do not add the same: {first}, {second}, {third}")
        grown.append(first._replace(num_bytes=first.num_bytes + (num_layers - 1) * num_bytes))
    return [*(shallow & two).elements(), *grown, *list(added.elements()) * (num_layers - 1)]


def exchange_seconds(calls: Sequence[Collective], num_ranks: int) -> float:
    """Return the time of the collectives one after another, each at the speed of its slowest link.

    Rings pass B (n - 1) / n bytes through each link, an all-reduce twice as many. A group within a machine has WITHIN.
    A group of all ranks has the cards of all GPUs of a machine at once. A group with one rank of each machine has one
    card for each of its members.
    """
    seconds = 0.0
    for name, num_bytes, ranks in calls:
        per_machine = GPUS_PER_NODE if ranks == num_ranks else 1
        link = WITHIN if ranks <= GPUS_PER_NODE else min(WITHIN, NIC * per_machine)
        if name in ("send", "recv"):  # to the neighbour, of which one in eight is on another machine
            seconds += (num_bytes / NIC + LATENCY) / 2  # both at the same time
            continue
        rounds = 2 if name == "allreduce" else 1
        seconds += rounds * num_bytes * (ranks - 1) / ranks / link + LATENCY * math.log2(ranks)
    return seconds


def training(names: Sequence[str]) -> None:
    """Print a row for each workload and number of ranks. Each runs in a process of its own."""
    print(
        "| run | GPUs | GiB per GPU | collectives in an update | GB passed | seconds computing | exchanging | hours |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for name in names or WORKLOADS:
        for num_ranks in RANKS:
            work = WORKLOADS[name]
            command = ("-m", "pretrainkit", "plan", work.preset, "--gpus", str(num_ranks), "--hardware", "h100")
            plan = json.loads(_output(*command, "--mfu", str(MFU), "--json", *work.settings))
            calls = collectives_at_full_depth(name, num_ranks)
            kinds = sorted({call.name for call in calls})
            counts = ", ".join(f"{sum(call.name == kind for call in calls)} {kind}" for kind in kinds)
            strategy = name.rpartition(" ")[2]
            computing, exchanging = plan["step_seconds"], exchange_seconds(calls, num_ranks)
            steps = plan["num_steps"] / 3600
            hours = f"{steps * max(computing, exchanging):,.0f} to {steps * (computing + exchanging):,.0f}"
            print(
                f"| {name} | {num_ranks:,} | {sum(plan['memory'][strategy].values()) / 2**30:.1f} | {counts} "
                f"| {sum(call.num_bytes for call in calls) / 1e9:.2f} | {computing:.3f} | {exchanging:.3f} | {hours} |",
                flush=True,
            )


def _output(*arguments: str) -> str:
    return subprocess.run([sys.executable, *arguments], check=True, capture_output=True, text=True).stdout


CORPUS_BYTES, FILES, SHARDS, WORKERS, MEMORY = 10e12, 10_000, 10_000, 100, 4_000_000_000
DOCUMENT_BYTES = 5_000
"""Assumed mean length of a document."""


class _Counting:
    """Engine that counts tasks. Those of pass 1 return records of runs whose indexes have a few documents."""

    is_local = True

    def __init__(self) -> None:
        self.tasks: dict[str, int] = {}

    def resources(self, workers: int | None, num_tasks: int, num_bytes: int, memory_bytes: int) -> Any:
        from pretrainkit.workers.engine import Resources

        return Resources(WORKERS, memory_bytes)

    def run(self, function: Any, tasks: Sequence[Any], resources: Any, work: Path, progress: Any) -> Iterator[Any]:
        from pretrainkit.corpus.shards import GatherTask
        from pretrainkit.files.skips import Skips

        stage = "writing" if isinstance(tasks[0][1], GatherTask) else "reading"
        self.tasks[stage] = len(tasks)
        if stage == "writing":
            self.tasks["cuts"] = sum(path.stat().st_size for path in tasks[0][1].cuts.iterdir())
            raise _Planned
        rng = np.random.default_rng(0)
        for number, task in tasks:
            runs = []
            for run in range(math.ceil(task.num_bytes / (0.7 * MEMORY))):
                task.folder.mkdir(parents=True, exist_ok=True)
                keys = np.sort(rng.integers(0, 2**64 - 1, 16, dtype=np.uint64))
                name = f"train-{run:05d}.run"
                (task.folder / f"{name}.index").write_bytes(
                    keys.tobytes() + np.arange(1, 17, dtype=np.uint64).tobytes()
                )
                runs.append([name, 16, 16])
            self.tasks["runs"] = self.tasks.get("runs", 0) + len(runs)
            record = {"key": task.key, "runs": {"train": runs}, "num_bytes": {"train": 16, "valid": 0}}
            yield number, record | {"skips": Skips().as_dict(), "lowest_share": 1.0, "folder": task.folder.name}


def _joining_seconds(folder: Path, num_runs: int = 8, num_pairs: int = 500_000) -> float:
    """Return the processor time for each document of a column of signatures. One in ten has a copy."""
    from pretrainkit.corpus.duplicates import JoinTask, join_column
    from pretrainkit.corpus.pairs import PairRun

    rng, runs = np.random.default_rng(0), []
    for number in range(num_runs):
        keys = rng.integers(0, num_runs * num_pairs * 5, num_pairs, dtype=np.uint64)
        documents = np.arange(number * num_pairs, (number + 1) * num_pairs, dtype=np.uint64)
        path = folder / f"{number}.pairs"
        np.stack([keys, documents], axis=1)[np.lexsort((documents, keys))].tofile(path)
        runs.append(PairRun(path, num_pairs))
    begin = time.process_time()
    join_column(JoinTask(tuple(runs), folder / "join", MEMORY, ""))
    return (time.process_time() - begin) / (num_runs * num_pairs)


class _Planned(Exception):
    """Raised when the tasks of the last pass are planned."""


def corpus(texts: Sequence[str]) -> None:
    """Print a row for each stage."""
    from pretrainkit.corpus.build_settings import BuildSettings
    from pretrainkit.corpus.duplicates import DuplicateRule
    from pretrainkit.corpus.minhash import MinHash
    from pretrainkit.corpus.shards import build_corpus
    from pretrainkit.files.sources import find_sources
    from pretrainkit.files.spans import group_sources

    sources = find_sources(texts)
    size = sum(source.num_bytes for source in sources)
    near = MinHash()
    hours = {}
    with TemporaryDirectory() as folder:
        for stage, settings in {
            "shards": BuildSettings(num_shards=4),
            "dedup": BuildSettings(num_shards=4, duplicates=DuplicateRule(minhash=near)),
        }.items():
            begin = time.process_time()
            build_corpus(sources, Path(folder, stage), settings, workers=1)
            seconds = time.process_time() - begin
            hours[stage] = CORPUS_BYTES / size * seconds / 3600 / WORKERS
            print(f"{stage}: {size / seconds / 1e6:.1f} MB/s of {size / 1e6:.0f} MB by one core", file=sys.stderr)
        joining = CORPUS_BYTES / DOCUMENT_BYTES * _joining_seconds(Path(folder)) / 3600
        inputs = Path(folder, "inputs")
        inputs.mkdir()
        for number in range(FILES):
            with open(inputs / f"{number:05d}.jsonl.zst", "wb") as file:
                file.truncate(int(CORPUS_BYTES / FILES))
        engine, begin = _Counting(), time.process_time()
        large = find_sources([inputs])
        try:
            build_corpus(large, Path(folder, "large"), BuildSettings(num_shards=SHARDS), engine=engine)
        except _Planned:
            seconds = time.process_time() - begin
        groups = len(group_sources(large))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    columns, documents = 1 + near.num_bands, CORPUS_BYTES / DOCUMENT_BYTES
    print("| stage | tasks | files between the passes | disk | hours on 100 workers |\n|---|---|---|---|---|")
    tasks = engine.tasks
    print(
        f"| `corpus shards` | {tasks['reading']:,} + {tasks['writing']:,} | {2 * tasks['runs']:,} runs and indexes, "
        f"{tasks['cuts'] / 1e6:.0f} MB of cuts | {2 * CORPUS_BYTES / 1e12:.0f} TB | {hours['shards']:.1f} |"
    )
    print(
        f"| `corpus dedup` | {groups:,} + {columns} + the above | signatures | "
        f"{documents * columns * 16 / 1e12:.2f} TB + {2 * CORPUS_BYTES / 1e12:.0f} TB "
        f"| {hours['dedup']:.1f} + {joining:.1f} |"
    )
    print(f"\nplanning: {seconds:.0f} s and at most {peak / 1e9:.2f} GB in the process that gives the command")


def main() -> None:
    """Run a part."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("part", choices=("training", "corpus", "collectives"))
    parser.add_argument(
        "names",
        nargs="*",
        help="for training, names of workloads; for corpus, text files; for collectives, NAME RANKS SETTING...",
    )
    arguments = parser.parse_args()
    if arguments.part == "collectives":
        name, num_ranks, *settings = arguments.names
        print(json.dumps(collectives_of(WORKLOADS[name], int(num_ranks), settings)))
    else:
        {"training": training, "corpus": corpus}[arguments.part](arguments.names)


if __name__ == "__main__":
    main()
