"""benchmarks/RESULTS.md: a run of one benchmark changes its own section and rows alone."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"

STEP = """`python benchmarks/step.py` (9 rounds) and, run after it, `--shape large --rounds 3`, 2026-11-21, 2 cores

| shape | rows | fill | ours_ms | transformers_ms | ratio | gflops_per_second |
|---|---|---|---|---|---|---|
| mini | full | 1.0 | 320.3 | 1220.3 | 3.81 | 89.0 |
| mini | mixed | 0.58 | 216.3 | 1202.8 | 5.56 | 87.6 |"""
RETIRED = "`python benchmarks/retired.py`, 2025-01-01, a machine\n\n| what | seconds |\n|---|---|\n| all | 1 |"
BY_HAND = "## By hand\n\nNo GPU was at hand.\n\n## More by hand\n\nLeft as it is."
RAN = "print('| command | CPU-s |\\n|---|---|\\n| pretrainkit --help | 0.06 |')"


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """run.py over a folder of its own, in which the benchmark `start` prints one row and `words` fails."""
    monkeypatch.syspath_prepend(str(FOLDER))
    spec = importlib.util.spec_from_file_location("run_of_benchmarks", FOLDER / "run.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "FOLDER", tmp_path)
    (tmp_path / "start.py").write_text(RAN)
    (tmp_path / "words.py").write_text("raise SystemExit(3)")
    return module


def test_a_run_of_one_benchmark_keeps_all_others(
    runner: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    old = ["# Speed", "## Targets", "| what |\n|---|\n| gone |", "## step", STEP, "## retired", RETIRED, BY_HAND]
    (tmp_path / "RESULTS.md").write_text("\n\n".join(old) + "\n")
    monkeypatch.setattr(sys, "argv", ["run.py", "--only", "start", "words", "--write"])
    assert runner.main() == 1
    written = (tmp_path / "RESULTS.md").read_text()
    assert f"## step\n\n{STEP}\n" in written
    assert f"## retired\n\n{RETIRED}\n" in written
    assert written.endswith(f"{BY_HAND}\n")
    assert "| train step, 4 x 256, full rows: times transformers | >= 3.30 | 3.81 | yes | step |" in written
    assert "| pretrainkit --help: CPU-s | <= 0.15 | 0.06 | yes | start |" in written
    assert "## start\n\n`python benchmarks/start.py`, " in written
    assert "## words" not in written
    assert "| <= 0.40 | no figure ( pretrainkit config CPU-s) | ? | start |" in written
    assert "| shuffle: peak memory, MB | <= 300 | *not measured* | ? | shuffle |" in written

    # The output only describes the requested benchmarks.
    printed = capsys.readouterr().out
    assert "| pretrainkit --help: CPU-s | <= 0.15 | 0.06 | yes | start |" in printed
    assert "| word counts: times" in printed
    assert "| shuffle" not in printed

    # Again, and nothing else changes.
    runner.main()
    assert (tmp_path / "RESULTS.md").read_text() == written


def test_every_target_has_its_row_in_the_file(runner: ModuleType) -> None:
    text = (FOLDER / "RESULTS.md").read_text()
    missing = [target.text for target in sys.modules["results"].TARGETS if f"| {target.text} | " not in text]
    assert not missing
