"""Global shuffle: peak memory of all processes and bytes written, compared with the size of the corpus.

    python benchmarks/shuffle.py [--size 400MB] [--memory 300MB] [--workers 2] [--compress none] [--folder DIR]
        [--quick]

The corpus is generated (JSONL, documents of log-normal length around 3 kB) and removed afterwards, like the output. The
benchmark runs the command `pretrainkit corpus shuffle`. Memory is the sum of the resident sizes of its processes,
sampled every 20 ms (shared pages count for each process). Bytes written are those that the kernel wrote to storage
(`ru_oublock`), including deleted files.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from pretrainkit.workers.processes import parse_bytes

NUM_FILES = 16


def make_corpus(folder: Path, num_bytes: int) -> tuple[int, int]:
    """Write JSONL files to `folder`. Return the numbers of documents and of bytes."""
    rng = np.random.default_rng(0)
    words = [bytes(rng.choice(np.frombuffer(b"etaoinshrdlu", np.uint8), size=1 + n % 9)) for n in range(20_000)]
    text = b" ".join(words[index] for index in np.minimum(rng.zipf(1.3, 4_000_000), 20_000) - 1).decode()
    num_documents = total = 0
    for number in range(NUM_FILES):
        with open(folder / f"{number:02d}.jsonl", "w") as file:
            written = 0
            while written < num_bytes // NUM_FILES:
                length = int(min(rng.lognormal(8, 1), 200_000))
                start = int(rng.integers(len(text) - length))
                written += file.write(json.dumps({"text": f"{num_documents} {text[start : start + length]}"}) + "\n")
                num_documents += 1
            total += written
    return num_documents, total


def tree_resident_bytes(root: int) -> int:
    """Return the resident size of a process and all its descendants (Linux)."""
    children: dict[int, list[int]] = {}
    sizes: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        children.setdefault(int(fields[1]), []).append(int(entry.name))
        sizes[int(entry.name)] = int(fields[21]) * os.sysconf("SC_PAGESIZE")
    total, todo = 0, [root]
    while todo:
        process = todo.pop()
        total += sizes.get(process, 0)
        todo += children.get(process, [])
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="400MB")
    parser.add_argument("--memory", default="300MB")
    parser.add_argument("--workers", default="2")
    parser.add_argument("--num-shards", default="16")
    parser.add_argument("--compress", default="none")
    parser.add_argument("--folder", help="folder for all files; by default the system's folder for temporary files")
    parser.add_argument("--quick", action="store_true", help="small sizes: a test that it runs")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.size = "40MB"
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder = Path(name)
        (folder / "in").mkdir()
        num_documents, size = make_corpus(folder / "in", parse_bytes(arguments.size))
        options = [
            f"--{key.replace('_', '-')}={getattr(arguments, key)}" for key in ("memory", "workers", "num_shards")
        ]
        command = [sys.executable, "-m", "pretrainkit", "corpus", "shuffle", str(folder / "in")]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        began, peak = time.perf_counter(), 0
        process = subprocess.Popen(
            [*command, f"--out={folder / 'out'}", *options, f"--compress={arguments.compress}"],
            stdout=subprocess.DEVNULL,
        )
        while process.poll() is None:
            peak = max(peak, tree_resident_bytes(process.pid))
            time.sleep(0.02)
        elapsed, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
        if process.returncode:
            sys.exit(process.returncode)
        written = (after.ru_oublock - before.ru_oublock) * 512
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print("| corpus MB | documents | memory given | workers | peak RSS MB | written / corpus ", end="")
    print("| CPU-s | wall s | MB / CPU-s |")
    print("|---|---|---|---|---|---|---|---|---|")
    print(
        f"| {size / 1e6:.0f} | {num_documents} | {arguments.memory} | {arguments.workers} | {peak / 1e6:.0f} "
        f"| {written / size:.2f} | {cpu:.1f} | {elapsed:.1f} | {size / 1e6 / cpu:.1f} |"
    )


if __name__ == "__main__":
    main()
