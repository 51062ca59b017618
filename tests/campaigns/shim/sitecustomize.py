"""Record, kill or disturb a process at its operations. Every Python with this folder in PYTHONPATH imports it.

Nothing of pretrainkit is changed: the interpreter reports most operations to an audit hook, and `os.fsync` and a few
functions of pretrainkit are wrapped. Only operations on files below CAMPAIGN_ROOT count.

CAMPAIGN_TRACE: file to which each operation is appended, as a line of its kind and path.
CAMPAIGN_KILL: JSON with `kind`, `number` (from 1), `signal`, `scope` (self: this process; all: its process group) and
    `marker` (a file that only one process can create). The signal is sent right before that operation. Signal 0: the
    process does nothing any more.
CAMPAIGN_NAN: JSON with `number`, `times` and `marker`. From that update on, this number of updates has NaN
    gradients.

faults.c has faults of disks and of clocks.
"""

import importlib.abc
import importlib.util
import json
import os
import sys
import threading
import time

FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT
KINDS = {"os.rename": "rename", "os.remove": "remove", "os.rmdir": "rmdir", "os.mkdir": "mkdir"}
POINTS = {
    "pretrainkit.training.trainer": (
        "Trainer._update",
        "Trainer._save",
        "Trainer._evaluate",
        "Trainer._log",
        "accumulate",
    ),
    "pretrainkit.data.prefetch": ("_Thread.ask", "_Thread.answer"),
    "pretrainkit.training.checkpoints.checkpoint": ("CheckpointStore._write", "load"),
}
"""Functions whose calls count as operations: kind `call`, with the name of the function in place of the path."""


class Shim:
    """Counts the operations of this process."""

    def __init__(self, root, trace, kill, nan):
        self.root, self.trace, self.kill, self.nan = root, trace, kill, nan
        self.counts = {}
        self.lock = threading.RLock()
        self.is_busy = threading.local()

    def audit(self, event, arguments):
        if event == "open" and len(arguments) == 3 and isinstance(arguments[0], (str, bytes)):
            flags = arguments[2] or 0
            self.happened("open" if flags & FLAGS else "read", os.fsdecode(arguments[0]))
        elif event in KINDS and isinstance(arguments[0], (str, bytes, os.PathLike)):
            self.happened(KINDS[event], os.fsdecode(arguments[0]))

    def happened(self, kind, path):
        """Count the operation that is about to be done, and do what is due before it."""
        if getattr(self.is_busy, "now", False):
            return
        if kind != "call" and not os.path.abspath(path).startswith(self.root):
            return
        self.is_busy.now = True
        try:
            with self.lock:
                number = self.counts[kind] = self.counts.get(kind, 0) + 1
            if self.trace and kind != "read":
                line = f"{kind} {path}\n".encode()
                descriptor = os.open(self.trace, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
                os.write(descriptor, line)
                os.close(descriptor)
            if self.kill and (kind, number) == (self.kill["kind"], self.kill["number"]):
                self.strike()
        finally:
            self.is_busy.now = False

    def strike(self):
        try:
            os.close(os.open(self.kill["marker"], os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        while not self.kill["signal"]:
            time.sleep(1)
        if self.kill["scope"] == "all":
            os.killpg(0, self.kill["signal"])
        os.kill(os.getpid(), self.kill["signal"])

    def spoil(self, model):
        self.counts["accumulate"] = number = self.counts.get("accumulate", 0) + 1
        if 0 <= number - self.nan["number"] < self.nan["times"]:
            os.close(os.open(self.nan["marker"], os.O_CREAT | os.O_WRONLY))
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.grad.fill_(float("nan"))

    def wrapped(self, function, name):
        def counting(*arguments, **options):
            self.happened("call", name)
            result = function(*arguments, **options)
            if self.nan and name == "accumulate":
                self.spoil(arguments[1])
            return result

        return counting


class Finder(importlib.abc.MetaPathFinder):
    """Wraps the functions of `POINTS` when their module is imported."""

    def __init__(self, shim):
        self.shim = shim

    def find_spec(self, name, path, target=None):
        if name not in POINTS:
            return None
        spec = next(filter(None, (f.find_spec(name, path) for f in sys.meta_path if f is not self)), None)
        if spec is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            for point in POINTS[name]:
                *classes, last = point.split(".")
                owner = getattr(module, classes[0]) if classes else module
                setattr(owner, last, self.shim.wrapped(getattr(owner, last), point))

        spec.loader.exec_module = exec_module
        return spec


def install():
    """Start counting, if the environment requests it."""
    root = os.environ.get("CAMPAIGN_ROOT")
    kill, nan = (json.loads(os.environ.get(f"CAMPAIGN_{name}", "null")) for name in ("KILL", "NAN"))
    trace = os.environ.get("CAMPAIGN_TRACE")
    if not root or not (trace or kill or nan):
        return
    shim = Shim(root, trace, kill, nan)
    real = os.fsync

    def fsync(file):
        descriptor = file if isinstance(file, int) else file.fileno()
        try:
            path = os.readlink(f"/proc/self/fd/{descriptor}")
        except OSError:
            path = root
        shim.happened("fsync", path)
        return real(file)

    os.fsync = fsync
    sys.meta_path.insert(0, Finder(shim))
    sys.addaudithook(shim.audit)


install()
