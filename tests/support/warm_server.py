"""A Python that has loaded torch and what spreads models over ranks, and forks itself for every script it is asked to
run. Started by `warm_python.py`. Nothing of pretrainkit is loaded here, so a script loads all of it, as ever.

A line of standard input is a list of starts in JSON, each with `script`, `arguments`, `environment` (all of it),
`folder` (where standard output and error go, as `out` and `err`) and `working` (the folder to run in). They run side by
side, and the answer is a line with their exit codes. What takes longer than `SECONDS` is killed.
"""

import faulthandler
import gc
import importlib
import json
import os
import runpy
import signal
import sys
import time
from pathlib import Path

LIBRARIES = (
    "numpy.random",
    "pyarrow.compute",
    "pydantic.main",
    "pydantic.types",
    "safetensors.torch",
    "sentencepiece",
    "tokenizers",
    "torch",
    "torch._dynamo",
    "torch.distributed.checkpoint.hf_storage",
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
    "yaml",
)
SECONDS = 240
PATH = sys.path[1:]


def main() -> None:
    gc.disable()
    for name in LIBRARIES:
        importlib.import_module(name)
    gc.freeze()
    gc.enable()
    for line in sys.stdin:
        pids = []
        for start in json.loads(line):
            pid = os.fork()
            if pid == 0:
                run(**start)
                return
            pids.append(pid)
        print(json.dumps(ends(pids)), flush=True)


def ends(pids: list[int]) -> list[int]:
    """Exit codes of processes, once all have ended; negative: the signal that ended it."""
    running, codes = list(pids), []
    signal.signal(signal.SIGALRM, lambda *_: end(running))
    signal.alarm(SECONDS)
    for pid in pids:
        codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        running.remove(pid)
    signal.alarm(0)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    return codes


def end(running: list[int]) -> None:
    """Kill processes that hang, after each has written to its stderr where it is."""
    for number in (signal.SIGUSR1, signal.SIGKILL):
        for pid in running:
            os.kill(pid, number)
        time.sleep(1)


def run(script: str, arguments: list[str], environment: dict[str, str], folder: str, working: str) -> None:
    """Do the work of `python SCRIPT ARGUMENTS...` after its start; then this process ends like that one."""
    for number, path in enumerate((os.devnull, f"{folder}/out", f"{folder}/err")):
        file = os.open(path, os.O_WRONLY | os.O_CREAT if number else os.O_RDONLY)
        os.dup2(file, number)
        os.close(file)
    os.chdir(working)
    os.environ.clear()
    os.environ.update(environment)
    faulthandler.register(signal.SIGUSR1, file=2)
    sys.argv = [script, *arguments]
    sys.path[:] = [str(Path(script).parent), *environment["PYTHONPATH"].split(os.pathsep), *PATH]
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
