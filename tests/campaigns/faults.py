"""The faults of `kill.py --faults`: of disks and clocks, of ranks, of checkpoints, of data, and of numbers."""

import hashlib
import json
import random
import re
import shutil
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from processes import Plan

META_NAME = "meta.json"
ERRORS = {
    "open": ("EIO", "ENOSPC", "EDQUOT", "ESTALE", "EROFS", "ENOENT"),
    "read": ("EIO", "ESTALE", "short", "delay"),
    "write": ("EIO", "ENOSPC", "EDQUOT", "ESTALE", "short", "delay"),
    "sync": ("EIO", "ENOSPC", "EDQUOT", "ESTALE"),
    "rename": ("EIO", "ENOSPC", "EDQUOT", "ESTALE", "EROFS"),
    "mkdir": ("EIO", "ENOSPC", "EDQUOT", "ESTALE", "EROFS"),
    "any": ("gone", "clock"),
}
HARMLESS = ("short", "delay", "clock")
"""Faults that a command must not even notice."""
FOREVER = 10**9


class Damage(NamedTuple):
    """A change of the files of a trial before its command runs."""

    name: str
    is_told: bool
    """True: the command must report it and use something else. False: it may also end with one message."""
    apply: Callable[[Path, random.Random], Path]
    """Damages a file of a folder, and returns it."""


def draw_disk(rng: random.Random, counts: Counter[str]) -> Plan:
    """Draw a fault of a disk or of the clock, at one of the operations of the undisturbed command."""
    kind = rng.choice(sorted(kind for kind in ERRORS if kind == "any" or counts[kind]))
    fault = rng.choice(ERRORS[kind])
    number = rng.randint(1, max(1, counts[kind] if kind != "any" else sum(counts.values())))
    times = {"delay": 1, "clock": rng.choice((1, 10)), "short": rng.choice((1, FOREVER))}
    milliseconds = {"delay": 2000, "gone": rng.choice((200, 2000))}.get(fault, 0)
    return Plan(0, "self", None, kind, number, fault, times.get(fault, rng.choice((1, FOREVER))), milliseconds)


def draw_nan(rng: random.Random, num_updates: int) -> Plan:
    """Gradients of one to three updates that are not numbers."""
    return Plan(0, "self", None, "call", rng.randint(1, num_updates), "NaN", rng.randint(1, 3))


def draw_rank(rng: random.Random, num_calls: int) -> Plan:
    """A rank that the system kills, that is frozen, or that does nothing any more; not before the first checkpoint."""
    number = rng.choice((signal.SIGKILL, signal.SIGSTOP, 0))
    return Plan(number, "self", None, "call", rng.randint(num_calls // 4, 3 * num_calls // 4))


def _flip(path: Path, rng: random.Random, first: int, last: int) -> Path:
    content = bytearray(path.read_bytes())
    content[rng.randrange(first, max(first + 1, min(last, len(content))))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)
    return path


def _header(path: Path) -> tuple[int, dict[str, dict[str, list[int]]]]:
    """Return the position of the first tensor, and the entry of each tensor."""
    content = path.read_bytes()
    begin = 8 + int.from_bytes(content[:8], "little")
    return begin, json.loads(content[8:begin])


def _tensor(kind: str) -> Callable[[Path, random.Random], Path]:
    def apply(checkpoint: Path, rng: random.Random) -> Path:
        path = rng.choice(sorted(checkpoint.glob("*.safetensors")))
        begin, entries = _header(path)
        found = [entry["data_offsets"] for name, entry in entries.items() if name.startswith(kind)]
        first, last = rng.choice([offsets for offsets in found if offsets[0] < offsets[1]])
        return _flip(path, rng, begin + first, begin + last)

    return apply


def _flip_in(pattern: str, first: int = 0, last: int = 1 << 60) -> Callable[[Path, random.Random], Path]:
    return lambda folder, rng: _flip(rng.choice(_files(folder, pattern)), rng, first, last)


def _files(folder: Path, pattern: str) -> list[Path]:
    return sorted(path for path in folder.rglob(pattern) if path.is_file() and path.stat().st_size)


def _cut(folder: Path, rng: random.Random) -> Path:
    path = rng.choice(_files(folder, "*"))
    content = path.read_bytes()
    path.write_bytes(content[: rng.randrange(len(content))])
    return path


def _removed(folder: Path, rng: random.Random) -> Path:
    path = rng.choice(_files(folder, "*"))
    path.unlink()
    return path


def _as_written(change: Callable[[bytes, dict[str, dict[str, list[int]]], random.Random], bytes]) -> Damage:
    """Damage of the optimizer's state of which the checksums know nothing, as by a broken program."""

    def apply(checkpoint: Path, rng: random.Random) -> Path:
        path = rng.choice([p for p in sorted(checkpoint.glob("*.safetensors")) if b'.exp_avg"' in p.read_bytes()])
        path.write_bytes(change(path.read_bytes(), _header(path)[1], rng))
        meta = checkpoint / META_NAME
        content = json.loads(meta.read_text("utf-8"))
        del content["checksum"]
        content["files"][path.name] = {"bytes": path.stat().st_size, "sha256": _sha256(path.read_bytes())}
        checksum = _sha256(json.dumps(content, sort_keys=True).encode())
        meta.write_text(json.dumps(content | {"checksum": checksum}), "utf-8")
        return path

    return Damage(f"optimizer state: {change.__name__}", False, apply)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def not_a_number(content: bytes, entries: dict[str, dict[str, list[int]]], rng: random.Random) -> bytes:
    name = rng.choice([name for name in entries if name.startswith("optimizer.") and name.endswith("exp_avg")])
    begin = len(content) - max(entry["data_offsets"][1] for n, entry in entries.items() if n != "__metadata__")
    at = begin + 4 * rng.randrange(entries[name]["data_offsets"][0] // 4, entries[name]["data_offsets"][1] // 4)
    return content[:at] + bytes.fromhex("0000c07f") + content[at + 4 :]


def another_shape(content: bytes, entries: dict[str, dict[str, list[int]]], rng: random.Random) -> bytes:
    name = rng.choice([n for n in entries if n.startswith("optimizer.") and len(entries[n].get("shape", ())) > 1])
    entries[name]["shape"] = [*reversed(entries[name]["shape"])]
    if entries[name]["shape"][0] == entries[name]["shape"][1]:
        entries[name]["shape"] = [entries[name]["shape"][0] ** 2]
    return _with_header(content, entries)


def missing(content: bytes, entries: dict[str, dict[str, list[int]]], rng: random.Random) -> bytes:
    name = rng.choice([name for name in entries if name.startswith("optimizer.") and name.endswith("exp_avg")])
    entries[f"optimizer.no.such.{name.rpartition('.')[2]}"] = entries.pop(name)
    return _with_header(content, entries)


def _with_header(content: bytes, entries: dict[str, dict[str, list[int]]]) -> bytes:
    header = json.dumps(entries).encode()
    return len(header).to_bytes(8, "little") + header + content[8 + int.from_bytes(content[:8], "little") :]


CHECKPOINT_DAMAGE = (
    Damage("meta.json", True, _flip_in(META_NAME)),
    Damage("length of a header", True, _flip_in("*.safetensors", 0, 8)),
    Damage("header", True, _flip_in("*.safetensors", 8, 500)),
    Damage("weights", True, _tensor("model.")),
    Damage("optimizer state", True, _tensor("optimizer.")),
    Damage("a file is shorter", True, _cut),
    Damage("a file is missing", True, _removed),
    _as_written(not_a_number),
    _as_written(another_shape),
    _as_written(missing),
)
DATA_DAMAGE = (
    Damage("a byte of the data", False, _flip_in("*")),
    Damage("a file of the data is shorter", False, _cut),
    Damage("a file of the data is missing", False, _removed),
)


def checkpoint_damage(checkpoint: Path, rng: random.Random) -> Damage:
    """One of the kinds of damage that this checkpoint can have."""
    has_moments = any(b'.exp_avg"' in path.read_bytes() for path in checkpoint.glob("*.safetensors"))
    return rng.choice([damage for damage in CHECKPOINT_DAMAGE if damage.is_told or has_moments])


def newest_of_two(run: Path) -> Path | None:
    """The newest checkpoint of a run if there is one before it."""
    folders = sorted((run / "checkpoints").glob("step-*"))
    return folders[-1] if len(folders) > 1 else None


def counts_of(path: Path) -> Counter[str]:
    """Return the number of operations of each kind of a command's processes, as counted by faults.c."""
    counts = Counter[str]()
    for kind, number in re.findall(r"(\w+) (\d+)", path.read_text() if path.is_file() else ""):
        counts[kind] += int(number)
    return counts


def copied(source: Path, target: Path) -> None:
    """Replace a folder by a copy of another."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)
