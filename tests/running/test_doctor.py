"""Findings of the doctor where a package is broken, and where compiled helpers are missing."""

import json
import os
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from itertools import chain
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pretrainkit.cli.main import app
from pretrainkit.running.doctor import EXTRAS, NEEDED, finding_of, installed_version
from pretrainkit.running.exercises import MODULES, Outcome, exercise

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
HELPERS = """
import json
from pretrainkit.running.doctor import helpers_built, helpers_finding
from pretrainkit.running.exercises import exercise
finding = helpers_finding(exercise(helpers_built()))
print(json.dumps([finding.state, finding.text, finding.fix]))
"""


def test_every_extra_of_a_user_is_looked_at() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(EXTRAS) == set(project["optional-dependencies"]) - {"bench", "dev", "docs"}


def test_every_package_is_imported_by_the_name_of_its_module() -> None:
    packages = packages_distributions()
    for name in (*NEEDED, *chain(*EXTRAS.values())):
        module = MODULES.get(name, name).partition(".")[0]
        if installed_version(name):
            assert name.replace("_", "-") in {package.replace("_", "-") for package in packages[module]}, name


def test_a_package_that_fails_or_ends_the_process_is_named_and_the_others_are_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "simplejpeg.py").write_text("raise ImportError('libjpeg.so.62: cannot open shared object file')")
    (tmp_path / "zstandard.py").write_text("import os; os._exit(9)")
    (tmp_path / "loud.py").write_text("print('{not ours}')")
    source = Path(sys.modules["pretrainkit"].__path__[0]).parent
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (tmp_path, source))))
    found = exercise(["simplejpeg", "loud", "zstandard", "tokenizers", "nobody_has_this"])
    assert found == {
        "simplejpeg": Outcome(fault="ImportError: libjpeg.so.62: cannot open shared object file"),
        "loud": Outcome(),
        "zstandard": Outcome(fault="ends the process with code 9"),
        "tokenizers": Outcome(),
        "nobody_has_this": Outcome(fault="ModuleNotFoundError: No module named 'nobody_has_this'"),
    }
    finding = finding_of("zstandard", found["zstandard"])
    assert (finding.name, finding.state) == ("zstandard", "broken")
    assert finding.text == "ends the process with code 9"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The sources, nothing built."""
    folder = tmp_path / "check out"
    ignored = shutil.ignore_patterns("*.so", "*.pyd", "__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src" / "pretrainkit", folder / "src" / "pretrainkit", ignore=ignored)
    for name in ("setup.py", "pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, folder)
    return folder


def python(checkout: Path, *words: str, **environment: str) -> str:
    settings = os.environ | {"PYTHONPATH": str(checkout / "src")} | environment
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, env=settings, timeout=200)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no compiler")
def test_a_missing_helper_is_named_with_the_reason_and_the_command_builds_it(checkout: Path) -> None:
    state, text, fix = json.loads(python(checkout, "-c", HELPERS, CC="/nowhere/cc"))
    assert state == "limited"
    assert text.startswith("not built: corpus._words, recipes.fourm._keep, recipes.pixel._masks, recipes.t5._spans; ")
    assert "is slower (factors of CPU time" in text
    assert fix.startswith("no compiler /nowhere/cc: apt install gcc")

    fix = json.loads(python(checkout, "-c", HELPERS, CC="cc"))[2]
    subprocess.run(fix, shell=True, check=True, capture_output=True, env=os.environ | {"CC": "cc"})
    state, text, fix = json.loads(python(checkout, "-c", HELPERS, CC="cc"))
    assert (state, fix) == ("good", "")


def test_installed_and_missing_packages_are_named() -> None:
    shown = CliRunner().invoke(app, ["doctor"]).stdout
    names = ("accelerator", "bfloat16", "torch.compile", "attention", "collectives", "Pango", "[slurm]", "SkyPilot")
    for name in names:
        assert name in shown
