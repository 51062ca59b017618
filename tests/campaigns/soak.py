"""Train for a long time on several ranks, undisturbed and with random kills, and compare: losses, memory, open files.

    python tests/campaigns/soak.py --minutes 20 --seed 1

For each recipe a run is trained for about `--minutes`, and then another one with equal settings is killed every few
minutes: the launcher, a rank, or all processes. Both must end with equal losses, metrics and tensors, bit for bit.
Of every process the anonymous memory, the open files and the threads are read every two seconds. What it needs for its
first checkpoint and evaluation it has after the first checkpoint: after the first tenth of its life from then on each
must stay flat, memory within 2 %. A call that was stopped continues with the same --work.
"""

import argparse
import json
import math
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from compare import differences
from processes import end_orphans, environment_of, processes_of, revision, signal_to
from stages import STAGES

SOAKED = {name: f"train {name}" for name in ("bert", "clip", "fourm", "t5", "pixel", "image tokenizer")}
KILLS = (
    ("SIGKILL", "rank"),
    ("SIGKILL", "rank"),
    ("SIGKILL", "launcher"),
    ("SIGKILL", "all"),
    ("SIGTERM", "launcher"),
    ("SIGINT", "launcher"),
)
SAMPLE_SECONDS = 2.0
MEMORY_GROWTH = 0.02
MIN_SAMPLES = 100
"""Processes with fewer are not judged: a median of few samples depends on when a checkpoint was written."""


class Sample(NamedTuple):
    """A process at a moment."""

    pid: int
    role: str
    kilobytes: int
    files: int
    threads: int
    cpu_seconds: float
    last_checkpoint: int


class Soak:
    """The two runs of one recipe. Everything is in `folder`, so that a later call continues."""

    def __init__(self, folder: Path, inputs: Path, recipe: str, seed: int, ranks: int) -> None:
        self.folder, self.inputs, self.recipe, self.ranks = folder, inputs, recipe, ranks
        self.rng = random.Random(f"{seed} {recipe}")
        self.is_struck = False
        """True if the present launcher, or a process of it, was killed."""
        folder.mkdir(parents=True, exist_ok=True)

    def num_steps(self, minutes: float) -> int:
        """Steps of about this many minutes. Measured once, by a short run."""
        path = self.folder / "num_steps"
        if not path.is_file():
            for _ in self._train("speed", 300):
                pass
            rows = [json.loads(line) for line in (self.folder / "speed/out/metrics.jsonl").read_text().splitlines()]
            seconds = statistics.median(row["seconds_per_step"] for row in rows[1:])
            path.write_text(str(max(60, round(60 * minutes / seconds / 60) * 60)))
        return int(path.read_text())

    def undisturbed(self, num_steps: int) -> None:
        for _ in self._train("undisturbed", num_steps):
            pass

    def killed(self, num_steps: int, every_minutes: float) -> Counter[str]:
        """Train with kills. Returns how often each was done, in all calls."""
        path = self.folder / "kills.json"
        kills = Counter[str](json.loads(path.read_text()) if path.is_file() else {})
        root = self.folder / "killed"
        due, last = math.inf, _last_checkpoint(root)
        for launcher in self._train("killed", num_steps):
            if due == math.inf and _last_checkpoint(root) != last:  # else a slow machine would never get anywhere
                due = time.monotonic() + 60 * every_minutes * self.rng.uniform(0, 2)
            if time.monotonic() < due:
                continue
            due, last = math.inf, _last_checkpoint(root)
            name, target = self.rng.choice(KILLS)
            ranks = [pid for pid in processes_of(launcher, root) if _variable(pid, "RANK") is not None]
            chosen = {"launcher": [launcher], "rank": self.rng.sample(ranks, min(1, len(ranks)))}
            for pid in chosen.get(target, sorted(processes_of(launcher, root))):
                signal_to(pid, getattr(signal, name))
                self.is_struck = True
            kills[f"{name}, {target}"] += 1
            path.write_text(json.dumps(kills))
        return kills

    def _train(self, kind: str, num_steps: int) -> Iterator[int]:
        """Train until the run is complete, starting it again as often as it ends before. Yields the launcher's process
        id at every sample."""
        root = self.folder / kind
        if (root / "out/summary.json").is_file():
            return
        life = root.with_name(f"{kind}-life")
        (life / "tmp").mkdir(parents=True, exist_ok=True)
        root.mkdir(exist_ok=True)
        every = max(1, num_steps // 60)
        steps = (f"num_steps={num_steps}", f"checkpoint.every_steps={every}", f"evaluate.every_steps={every}")
        words = [word.replace("{in}", str(self.inputs)) for word in STAGES[SOAKED[self.recipe]].words]
        place = words.index("--resume")
        sizes = () if self.ranks == 2 else (f"data.batch_size={2 * self.ranks}", "data.microbatch_size=1")
        words[place:place] = [*steps, *sizes, f"log.every_steps={max(1, num_steps // 3000)}"]
        command = [sys.executable, "-m", "pretrainkit", *words]
        command += ["--launch", "local", "--nproc", str(self.ranks), "--max-restarts", "1000", "--hang-minutes", "2"]
        with (life / "samples.jsonl").open("a") as samples, (life / "output").open("a") as output:
            code = None
            while code != 0:
                self.is_struck = False
                process = subprocess.Popen(
                    command, cwd=root, env=environment_of(root, life), stdout=output, stderr=output, process_group=0
                )
                try:
                    while (code := process.poll()) is None:
                        samples.writelines(json.dumps(one) + "\n" for one in _samples(process.pid, root))
                        yield process.pid
                        time.sleep(SAMPLE_SECONDS)
                finally:
                    if process.poll() is None:  # this call was stopped
                        process.terminate()
                        process.wait()
                if orphans := end_orphans(process.pid, root):
                    raise SystemExit(f"{self.recipe}: processes were left: {orphans}")
                if code in (1, 2) and not self.is_struck:  # a rank killed before any progress ends the launcher
                    raise SystemExit(f"{self.recipe}, {kind}: ended with {code}, see {life / 'output'}")

    def problems(self) -> list[str]:
        """Return what differs between the runs, and what grew in either; empty if all is well."""
        found = differences(self.folder / "killed", self.folder / "undisturbed")
        return found + [
            f"{kind}: {line['role']} {name}: {before:,.0f} -> {after:,.0f}"
            for kind in ("undisturbed", "killed")
            for line in self.lives(kind)
            for name, limit in (("kilobytes", MEMORY_GROWTH), ("files", 0), ("threads", 0))
            for before, after in [line[name]]
            if after > before * (1 + limit)
        ]

    def lives(self, kind: str) -> list[dict[str, Any]]:
        """Return the role of each process that lived long enough after its first checkpoint, and two medians: early and
        late in that time."""
        by_pid = defaultdict(list)
        for one in self._all(kind):
            by_pid[one.pid, one.role].append(one)
        found = []
        for (_, role), life in by_pid.items():
            samples = [one for one in life if one.last_checkpoint != life[0].last_checkpoint]
            tenth = len(samples) // 10
            if len(samples) >= MIN_SAMPLES:
                ends = (samples[tenth : 2 * tenth], samples[-tenth:])
                medians = {
                    name: [statistics.median(getattr(one, name) for one in part) for part in ends]
                    for name in ("kilobytes", "files", "threads")
                }
                found.append({"role": role, "samples": len(samples), **medians})
        return found

    def cpu_hours(self) -> float:
        """CPU hours of all processes of both runs, as far as they were seen."""
        last = {
            (kind, one.pid, one.role): one.cpu_seconds for kind in ("undisturbed", "killed") for one in self._all(kind)
        }
        return sum(last.values()) / 3600

    def _all(self, kind: str) -> Iterable[Sample]:
        path = self.folder / f"{kind}-life/samples.jsonl"
        return (Sample(*json.loads(line)) for line in path.read_text().splitlines())


def _samples(launcher: int, root: Path) -> Iterator[Sample]:
    last_checkpoint = _last_checkpoint(root)
    for pid in sorted(processes_of(launcher, root)):
        with suppress(OSError, ValueError):  # it ended meanwhile
            rank = _variable(pid, "RANK")
            role = "launcher" if pid == launcher else "other" if rank is None else f"rank {rank}"
            place = Path("/proc", str(pid))
            fields = (place / "stat").read_text().rpartition(")")[2].split()
            memory = (place / "smaps_rollup").read_text().partition("Anonymous:")[2].split()[0]
            cpu_seconds = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
            files = len(os.listdir(place / "fd"))
            yield Sample(pid, role, int(memory), files, int(fields[17]), cpu_seconds, last_checkpoint)


def _last_checkpoint(root: Path) -> int:
    return max((int(path.name.removeprefix("step-")) for path in root.glob("out/checkpoints/step-*")), default=-1)


def _variable(pid: int, name: str) -> str | None:
    """Value of an environment variable of a process; None if it has none, or has ended."""
    with suppress(OSError):
        for entry in Path("/proc", str(pid), "environ").read_bytes().split(b"\0"):
            key, _, value = entry.decode("utf-8", "replace").partition("=")
            if key == name:
                return value
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20, help="length of each run: two for each recipe")
    parser.add_argument(
        "--every", type=float, default=2, help="mean of the minutes from a first new checkpoint to a kill"
    )
    parser.add_argument("--recipes", nargs="+", default=list(SOAKED)[:3], choices=list(SOAKED))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work", type=Path, default=Path("build/soak"))
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(130))  # so that the training is stopped as well
    work, failed = options.work.resolve(), False
    print(f"seed {options.seed}, commit {revision()}, work in {work}", flush=True)
    for recipe in options.recipes:
        inputs = work / "inputs"
        inputs.mkdir(parents=True, exist_ok=True)
        for need in STAGES[SOAKED[recipe]].needs:
            if not (inputs / need).exists():
                make = [sys.executable, str(Path(__file__).with_name("inputs.py")), str(inputs), need]
                subprocess.run(make, check=True, env=environment_of(inputs, work / "life"))
        ranks = "" if options.ranks == 2 else f"-{options.ranks}"
        soak = Soak(work / f"{recipe}-{options.seed}{ranks}", inputs, recipe, options.seed, options.ranks)
        num_steps = soak.num_steps(options.minutes)
        print(f"{recipe}: two runs of {num_steps:,} steps", flush=True)
        soak.undisturbed(num_steps)
        kills = soak.killed(num_steps, options.every)
        problems = soak.problems()
        print(f"{recipe}: {kills.total()} kills {dict(kills)}, {soak.cpu_hours():.2f} CPU hours", flush=True)
        for kind in ("undisturbed", "killed"):
            for line in soak.lives(kind):
                print(f"  {kind}, {json.dumps(line)}", flush=True)
        print("\n".join([f"  wrong: {problem}" for problem in problems]) or "  all equal, all flat", flush=True)
        failed = failed or bool(problems)
    sys.exit(failed)


if __name__ == "__main__":
    main()
