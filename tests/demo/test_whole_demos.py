"""Each demo runs from its raw data to its report, with little data, and ends with what was learned."""

import importlib
import json
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("PIL")
pytest.importorskip("matplotlib")

from pretrainkit.demo import prose, walk
from pretrainkit.demo.catalogue import DEMOS
from support import page_data as data
from support.page_runner import ROOT
from support.warm_python import run_warm

pytestmark = pytest.mark.slow

SMALLER: dict[str, tuple[int, dict[str, Any]]] = {
    "bert": (130, {"VOCAB_SIZE": 500}),
    "clip": (75, {"NUM_TRAIN": 40, "NUM_VALID": 8, "BATCH_SIZE": 16, "MICROBATCH_SIZE": 8}),
    "t5": (75, {"NUM_PRETRAINING": 5}),
    "pixel": (130, {"NUM_PARAGRAPHS": 60, "NUM_TAGGED": 40, "NUM_HELD_OUT": 10}),
    "fourm": (
        135,
        {"NUM_TRAIN": 60, "NUM_VALID": 16, "TOKENIZERS": {"rgb": ("l1", 512, 25), "depth": ("smooth_l1", 256, 25)}},
    ),
}
"""Number of steps, beyond that at which the training is killed, and constants of the demo's module."""


def run(command: list[str], check: bool) -> Any:
    """Run a command of a demo in a process that has loaded torch."""
    ended = run_warm(ROOT / "src/pretrainkit/__main__.py", *command[3:])
    print(ended.stdout)
    assert ended.returncode == 0, ended.stderr
    return ended


@pytest.mark.parametrize("name", DEMOS)
def test_a_demo_ends_with_three_lines(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    demo = importlib.import_module(f"pretrainkit.demo.{name}")
    num_steps, constants = SMALLER[name]
    for constant, value in constants.items():
        monkeypatch.setattr(demo, constant, value)
    monkeypatch.setattr(walk, "subprocess", SimpleNamespace(run=run, Popen=subprocess.Popen))
    more = {}
    if name == "bert":
        data.put_texts(tmp_path / "text", 10)
        monkeypatch.setattr(prose, "MIN_BYTES", 20_000)
        more["text"] = sorted((tmp_path / "text").iterdir())
    folder = tmp_path / "demo"
    numbers = demo.run_demo(folder, num_steps, 1, **more)

    assert json.loads(json.dumps(numbers))["equal_losses_after_resume"] > 0
    *chapters, done, figures = capsys.readouterr().out.strip("\n").split("\n\n")
    assert re.match(
        r"  Done in \d+\.\d minutes\.\n  losses equal after resume +(\d+) of \1, every digit\n", done.strip("\n")
    )
    shown = [Path(path) for path in re.findall(rf"{re.escape(str(folder))}\S+", done.partition("$ ")[0])]
    assert folder / "report.html" in shown
    assert [path for path in shown if not Path(str(path).rstrip(",")).exists()] == []
    lines = figures.split("\n")
    assert len(lines) == 3
    for line in lines:
        assert re.fullmatch(r"  \w.+  .*\d.* \(.+: .*\d.*\).*", line), line
        assert len(line) <= 125
    assert len([chapter for chapter in chapters if re.match(r"\[\d/\d\] ", chapter.lstrip("\n"))]) > 3
