"""Runs the commands and snippets of a page of documentation, in their order, in a folder with small data.

A command is run as the shell would read it, in this process where it is ours. A list beside the page makes it small:
replacements in its text, and settings after it. A command that cannot run here is named with its reason; there
is no third kind. A block that writes where an earlier one of the page wrote is another way to the same thing, and finds
its place empty.
"""

import contextlib
import functools
import importlib.util
import io
import os
import re
import shutil
import signal
import subprocess
import sys
import traceback
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from pretrainkit.cli.main import main
from support.warm_python import run_warm

ROOT = Path(__file__).parents[2]
LONGEST = 100
"""Seconds of a command, on a busy machine."""


class Block(NamedTuple):
    """A fenced block of a page."""

    page: Path
    line: int
    language: str
    text: str

    @property
    def name(self) -> str | None:
        """The file that it shows, according to its first line: `# mine.yaml`."""
        match = re.match(r"# ?(\S+\.\w+)\n", self.text)
        return match[1] if match else None

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


@functools.cache
def make_pages() -> types.ModuleType:
    """The script that gathers the sources of the documentation site."""
    spec = importlib.util.spec_from_file_location("make_pages", ROOT / "docs" / "make_pages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def cells_of(page: Path) -> list[Block]:
    """Return the code cells of a tutorial's notebook, as blocks."""
    blocks = []
    for number, cell in enumerate(make_pages().notebook(page)["cells"]):
        first, _, rest = cell["source"].partition("\n")
        if cell["cell_type"] != "code":
            continue
        if first == "%%bash":
            blocks.append(Block(page, number, "bash", f"{rest}\n"))
        elif file := re.match(r"%%writefile (\S+\.(py|yaml))", first):
            blocks.append(Block(page, number, {"py": "python"}.get(file[2], file[2]), f"# {file[1]}\n{rest}\n"))
        else:
            blocks.append(Block(page, number, "python", f"{cell['source']}\n"))
    return blocks


def blocks_of(page: Path) -> list[Block]:
    """All of a page, in their order."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(page, text.count("\n", 0, match.start()) + 1, match[1], match[2])
        for match in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    ]


class Walk(NamedTuple):
    """Instructions to run the commands of a page."""

    page: str
    prepare: Callable[[Path], None]
    """Puts what the page takes for granted into a folder."""
    smaller: Mapping[str, str] = {}
    """Pattern to replacement, on the text of commands and snippets."""
    behind: Mapping[str, str] = {}
    """Pattern to arguments that are appended to the commands that match it."""
    not_here: Mapping[str, str] = {}
    """Pattern of commands and snippets that cannot run here to the reason."""
    failing: Mapping[str, str] = {}
    """Pattern of commands that are known to fail to the words of their message."""
    before: Mapping[str, Callable[[Path], None]] = {}
    """Pattern of commands to what happened in the folder before, such as that a run was killed."""


class Ended(NamedTuple):
    code: int
    out: str
    err: str


def walk(this: Walk, folder: Path) -> list[str]:
    """Run the page in `folder`. Return its differences from the page; empty: all of it works."""
    page, wrong, used = ROOT / this.page, [], set()
    names: dict[str, Any] = {"__name__": "page", "__file__": str(folder / "page.py")}
    for block in cells_of(page) if page.parent.name == "tutorials" else blocks_of(page):
        written: set[Path] = set()
        if block.language in ("yaml", "python") and block.name:
            (folder / block.name).write_text(_changed(block.text, this.smaller, used), encoding="utf-8")
        elif block.language == "python":
            if skipped := [pattern for pattern in this.not_here if re.search(pattern, block.text)]:
                used.update(skipped)
                continue
            code = _changed(block.text, this.smaller, used)
            for place in re.findall(r'(?:train|export|render)\(.*"(\S+)"\)$', code, re.MULTILINE):
                _make_room(folder / place, written)
            try:
                with contextlib.redirect_stdout(io.StringIO()):
                    exec(compile(code, str(block), "exec"), names)
            except Exception as error:
                wrong.append(f"{block}: {type(error).__name__}: {error}")
        elif block.language in ("bash", "sh"):
            for line in block.text.replace("\\\n", " ").splitlines():
                if line.strip():
                    wrong += _command(this, folder, line.strip(), used, written, at=str(block))
    patterns = {*this.smaller, *this.behind, *this.not_here, *this.failing, *this.before}
    return wrong + [f"{this.page}: nothing has {pattern!r} any more" for pattern in sorted(patterns - used)]


def _command(this: Walk, folder: Path, line: str, used: set[str], written: set[Path], at: str) -> list[str]:
    found = next((pattern for pattern in this.not_here if re.search(pattern, line)), None)
    if found:
        used.add(found)
        return []
    for pattern, happens in this.before.items():
        if re.search(pattern, line):
            used.add(pattern)
            happens(folder)
    behind = [pattern for pattern in this.behind if re.search(pattern, line)]
    known = next((pattern for pattern in this.failing if re.search(pattern, line)), None)
    used |= {*behind, *([known] if known else [])}
    text = line.partition(" #")[0]
    text = _changed(text, this.smaller, used)
    text = " ".join([text.strip(), *(this.behind[pattern] for pattern in behind)])
    into = re.search(r" > (\S+)", text)
    given = re.search(r" < (\S+)", text)
    for place in filter(None, (into, given)):
        text = text.replace(place[0], "")
    shown = subprocess.run(["bash", "-c", f"printf '%s\\0' {text}"], cwd=folder, capture_output=True, text=True)
    words = shown.stdout.split("\0")[:-1]
    if "--out" in words:
        _make_room(folder / words[words.index("--out") + 1], written)
    if words[0] == "pretrainkit":
        ended = run_here(words[1:], (folder / given[1]).read_text("utf-8") if given else None)
    else:
        done = subprocess.run(["bash", "-c", text], cwd=folder, capture_output=True, text=True)
        ended = Ended(done.returncode, done.stdout, done.stderr)
    if into:
        (folder / into[1]).write_text(ended.out, "utf-8")
    if known:
        if ended.code and this.failing[known] in ended.err:
            return []
        return [f"{at}: known to fail, but ended with {ended.code}: {text}\n{ended.err}"]
    return [f"{at}: {text}\n{ended.out}{ended.err}"] if ended.code else []


def _make_room(place: Path, written: set[Path]) -> None:
    """Removes what other blocks left there; what this one wrote stays."""
    if place not in written:
        shutil.rmtree(place) if place.is_dir() else place.unlink(missing_ok=True)
    written.add(place)


def _changed(text: str, smaller: Mapping[str, str], used: set[str]) -> str:
    for pattern, replacement in smaller.items():
        text, times = re.subn(pattern, replacement, text)
        if times:
            used.add(pattern)
    return text


def _too_long(*_: object) -> None:
    raise TimeoutError(f"the command takes more than {LONGEST} seconds: say beside its page what makes it smaller")


def run_here(words: Sequence[str], given: str | None = None) -> Ended:
    """`pretrainkit WORDS...` within this process: starting Python and torch again costs seconds."""
    out, err = io.StringIO(), io.StringIO()
    code: Any = 0
    argv = mock.patch.object(sys, "argv", ["pretrainkit", *words])
    before = signal.signal(signal.SIGALRM, _too_long)
    signal.alarm(LONGEST)
    stdin = mock.patch.object(sys, "stdin", io.StringIO(given or ""))
    with mock.patch.dict(os.environ), argv, stdin, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            code = end.code
        except Exception:  # a traceback is a finding: the page's test shows it beside the command
            return Ended(1, out.getvalue(), err.getvalue() + traceback.format_exc())
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, before)
    return Ended(0 if code is None else int(code), out.getvalue(), err.getvalue())


def run_warm_verb(worker: object, words: Sequence[str], log: Path) -> int:
    """Run the command of a sweep's process in a process that has loaded torch."""
    ended = run_warm(ROOT / "src" / "pretrainkit" / "__main__.py", *words)
    log.write_text(ended.stdout + ended.stderr, "utf-8")
    return ended.returncode


@contextlib.contextmanager
def within(folder: Path) -> Iterator[None]:
    """The working folder, with a cache of its own in it."""
    environment = {"PRETRAINKIT_CACHE": str(folder / ".cache")}
    with contextlib.chdir(folder), mock.patch.dict(os.environ, environment):
        yield
