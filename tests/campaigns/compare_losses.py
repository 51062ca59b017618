"""`python compare_losses.py REV`: train a small model of each recipe with the code of REV and with that of this folder.

Shows the first step at which their losses, gradient norms or held-out metrics part. Both read the same data, which the
code of this folder makes. A commit that only moves code must show no difference.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from processes import SOURCE, TESTS
from stages import STAGES

RUNS = [name for name in STAGES if name.startswith(("train ", "fine-tune ")) and not STAGES[name].has_children]
ROOT = SOURCE.parent
CLOCK = ("_per_second", "seconds", "memory", "mfu", "time", "wait", "utilization", "hours", "gib")
"""Parts of the names of metrics that a clock or the machine decides."""


@contextmanager
def source_of(revision: str) -> Iterator[Path]:
    """Yield the folder `src` of a revision, with the compiled helpers of this one where their source is the same."""
    with TemporaryDirectory() as folder:
        tree = Path(folder, "tree")
        subprocess.run(["git", "-C", ROOT, "worktree", "add", "-q", "--detach", tree, revision], check=True)
        try:
            for built in SOURCE.rglob("*.so"):
                own = built.with_name(built.name.partition(".")[0] + ".c")
                other = tree / "src" / own.relative_to(SOURCE)
                if other.is_file() and other.read_bytes() == own.read_bytes():
                    shutil.copy(built, other.parent)
            yield tree / "src"
        finally:
            subprocess.run(["git", "-C", ROOT, "worktree", "remove", "--force", tree], check=True)


def run(source: Path, words: list[str]) -> str:
    """Run a Python command with the package in `source`. Return its output, or end with it if it fails."""
    path = os.pathsep.join((str(source), str(TESTS)))
    done = subprocess.run(
        [sys.executable, *words], env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True
    )
    if done.returncode:
        sys.exit(f"failed with the code in {source}: {' '.join(words)}\n{done.stderr[-3000:]}")
    return done.stdout


def rows(folder: Path) -> dict[tuple[str, int], dict[str, float]]:
    """Return the metrics of a run by file and step, without those that a clock decides."""
    return {
        (name, line["step"]): {
            key: value for key, value in line.items() if not any(part in key.lower() for part in CLOCK)
        }
        for name in ("metrics.jsonl", "eval.jsonl")
        if (folder / name).is_file()
        for line in map(json.loads, (folder / name).read_text("utf-8").splitlines())
    }


def difference(before: Path, after: Path) -> str:
    """Return where two runs part first, or an empty string. Metrics that only one of them has do not count."""
    old, new = rows(before), rows(after)
    for place in sorted(old.keys() & new.keys(), key=lambda place: place[1]):
        for key in sorted(old[place].keys() & new[place].keys()):
            if old[place][key] != new[place][key]:
                return f"step {place[1]}: {key} {old[place][key]} became {new[place][key]}"
    return "" if old.keys() == new.keys() else f"only one has {sorted(old.keys() ^ new.keys())[0]}"


def main() -> None:
    """Compare all recipes and print a line for each. Ends with 1 if a loss differs."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("revision", help="commit, branch or tag to compare with")
    parser.add_argument("--only", nargs="+", choices=RUNS, default=RUNS, help="runs to compare")
    arguments = parser.parse_args()
    has_parted = False
    with TemporaryDirectory() as folder, source_of(arguments.revision) as earlier:
        inputs = Path(folder, "inputs")
        inputs.mkdir()
        for need in dict.fromkeys(need for name in arguments.only for need in STAGES[name].needs):
            run(SOURCE, [str(Path(__file__).with_name("inputs.py")), str(inputs), need])
        for name in arguments.only:
            outs = []
            for source in (earlier, SOURCE):
                out = Path(folder, f"{len(outs)} {name}")
                words = [word.replace("{in}", str(inputs)) for word in STAGES[name].words]
                run(source, ["-m", "pretrainkit", *words[:-1], str(out)])  # the last word is the output
                outs.append(out)
            parted = difference(*outs)
            has_parted |= bool(parted)
            print(f"{name}: {parted or 'equal'}", flush=True)
    sys.exit(has_parted)


if __name__ == "__main__":
    main()
