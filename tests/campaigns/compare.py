"""Compare what a disturbed command left with what an undisturbed one left."""

import json
import re
from pathlib import Path
from typing import Any

HISTORY = re.compile(
    r"(.*/)?(events\.jsonl|provenance\.json|logs/.*|launch(/.*)?|tensorboard(/.*)?|.*tfevents.*|.*\.log)|"
    r"(.*/)?checkpoints/step-\d+(/.*)?|(.*/)?(skipped|spike)-step-\d+\.json"
)
"""Files with the history of a run, and checkpoints, which also depend on when it was stopped."""
CLOCK = re.compile(r".*(second|_wait|padding|mfu|memory|utilization|time|started|command|git|bytes_free|hours).*")
"""Names of values that a clock or the machine decides."""


def differences(trial: Path, reference: Path) -> list[str]:
    """Return a line for each difference that an interruption must not make; empty if all is equal."""
    ours, theirs = _tree(trial), _tree(reference)
    problems = [f"missing: {name}" for name in sorted(theirs - ours) if not HISTORY.fullmatch(name)]
    problems += [f"left over: {name}" for name in sorted(ours - theirs) if not HISTORY.fullmatch(name)]
    for name in sorted(ours & theirs):
        if not HISTORY.fullmatch(name) and (trial / name).is_file() and not _is_equal(trial / name, reference / name):
            problems.append(f"different: {name}")
    for last in sorted(_last_checkpoints(reference)):
        problems += [
            f"different: {last}/{name}" if name in here and name in there else f"missing: {last}/{name}"
            for here, there in [(_all_tensors(trial / last), _all_tensors(reference / last))]
            for name in sorted(here.keys() | there.keys())
            if here.get(name) != there.get(name)
        ]
    for folder in trial.rglob("checkpoints/*"):
        if not re.fullmatch(r"step-\d+|\.lock", folder.name):
            problems.append(f"left over: {folder.relative_to(trial)}")
    return problems


def _tree(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")}


def _last_checkpoints(folder: Path) -> list[str]:
    """The last checkpoint of every run in a folder."""
    runs: dict[Path, str] = {}
    for path in sorted(folder.rglob("checkpoints/step-*")):
        runs[path.parent] = path.relative_to(folder).as_posix()
    return list(runs.values())


def _is_equal(path: Path, other: Path) -> bool:
    contents = path.read_bytes(), other.read_bytes()
    if contents[0] == contents[1] or path.name == ".lock":
        return True
    try:
        if path.suffix == ".jsonl":
            rows = [_by_step(content) for content in contents]
        elif path.suffix == ".safetensors":
            rows = [_tensors(content) for content in contents]
        elif path.suffix == ".json":
            rows = [_without_clock(json.loads(content)) for content in contents]
        else:
            return False
    except ValueError:
        return False
    return rows[0] == rows[1]


def _tensors(content: bytes) -> list[Any]:
    """Names, types, shapes and bytes of all tensors. The order of the file's notes is arbitrary."""
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    return [{name: entry for name, entry in header.items() if name != "__metadata__"}, content[8 + length :]]


def _all_tensors(checkpoint: Path) -> dict[str, Any]:
    """Type, shape and bytes of every tensor. Which file has it depends on when ranks were started."""
    found = {}
    for path in sorted(checkpoint.glob("*.safetensors")):
        entries, content = _tensors(path.read_bytes())
        for name, entry in entries.items():
            first, last = entry["data_offsets"]
            found[name] = entry["dtype"], entry["shape"], content[first:last]
    return found


def _by_step(content: bytes) -> list[Any]:
    rows = [_without_clock(json.loads(line)) for line in content.decode().splitlines()]
    if rows and all(isinstance(row, dict) and "step" in row for row in rows):
        # A step that was repeated after a kill may be listed again, with the same values.
        unique = {json.dumps(row, sort_keys=True): row for row in rows}
        return sorted(unique.values(), key=lambda row: json.dumps(row, sort_keys=True))
    return rows


def _without_clock(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_clock(item) for name, item in value.items() if not CLOCK.fullmatch(name)}
    if isinstance(value, list):
        return [_without_clock(item) for item in value]
    return value
