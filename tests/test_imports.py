"""The arrows of docs/architecture.md, walked: who may import whom, and what must stay light."""

import ast
import re
import subprocess
import sys
from fnmatch import fnmatch
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
SOURCE = TESTS.parent / "src" / "pretrainkit"

LEVELS = [
    {"cli"},
    {"demo", "sweep"},
    {"api"},
    {"project"},
    {"running"},
    {"recipes"},
    {"eval", "exporting", "report"},
    {"training"},
    {"data", "tasks", "dist", "nn"},
    {"corpus", "tokenizers", "images", "rendering", "launch", "formats"},
    {"workers", "files"},
    {"config", "rng", "errors"},
]
LEVEL = {room: level for level, rooms in enumerate(LEVELS) for room in rooms}

SIDEWAYS = {
    ("tokenizers", "corpus"),
    ("rendering", "corpus"),
    ("tasks", "data"),
    ("workers", "files"),
    ("config", "errors"),
    ("rng", "errors"),
    ("report", "eval"),
    ("exporting", "report"),
    ("nn", "dist"),
}
"""Arrows between rooms of one level that are meant."""

TORCH_FREE = (
    "config",
    "corpus",
    "images",
    "rendering",
    "launch",
    "formats",
    "files",
    "workers",
    "data",
    "tasks",
    "rng.py",
    "errors.py",
    "running",
    "api.py",
)
"""No module here may import torch when it is imported itself."""


@cache
def imports(path: Path, top_level_only: bool = False, with_types: bool = False) -> frozenset[str]:
    """Dotted names a file imports; TYPE_CHECKING blocks do not count but `with_types`."""
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            if not with_types and isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                continue
            if top_level_only and isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
                continue
            if isinstance(child, ast.Import):
                found.update(alias.name for alias in child.names)
            elif isinstance(child, ast.ImportFrom) and child.module:
                assert child.level == 0, f"{path}: imports are absolute"
                found.add(child.module)
                found.update(f"{child.module}.{alias.name}" for alias in child.names)
            visit(child)

    visit(ast.parse(path.read_text(encoding="utf-8")))
    return frozenset(found)


def room_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


RECIPES = {path.parent.name for path in SOURCE.glob("recipes/*/recipe.py")}
FILES = sorted(p for p in SOURCE.rglob("*.py") if p.parent != SOURCE or p.stem not in ("__init__", "__main__"))


def upwards(path: Path) -> list[str]:
    """Imports of a file that are no arrow of the page."""
    room, wrong = room_of(path), []
    for name in sorted(imports(path)):
        parts = name.split(".")
        if parts[0] != "pretrainkit" or len(parts) < 2 or parts[1] not in LEVEL or parts[1] == room:
            continue
        other = parts[1]
        down = LEVEL[other] > LEVEL[room] or (room, other) in SIDEWAYS
        if not down or (other == "nn" and room != "recipes"):  # only recipes import nn
            wrong.append(name)
    inside = path.relative_to(SOURCE).parts
    if room == "recipes" and len(inside) > 2:  # nor does one recipe import another
        others = {f"pretrainkit.recipes.{name}" for name in RECIPES - {inside[1]}}
        wrong += [name for name in sorted(imports(path)) if ".".join(name.split(".")[:3]) in others]
    return wrong


def test_imports_point_downwards():
    wrong = [f"{path.relative_to(SOURCE)} must not import {name}" for path in FILES for name in upwards(path)]
    assert not wrong, "\n".join(wrong)


NAMELESS = ("api", "project", "running", "sweep", "cli", "eval", "report")


def names_of_recipes(path: Path) -> set[str]:
    """Return the names of recipes that a file imports, or has as a string or as the first part of one."""
    named = {one.split(".")[2] for one in imports(path, with_types=True) if one.startswith("pretrainkit.recipes.")}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            named.add(node.value.split("/")[0])
    return named & RECIPES - {"huggingface"}  # which is a format, too


def test_nothing_above_the_recipes_names_one():
    named = {path.relative_to(SOURCE).as_posix(): names_of_recipes(path) for path in FILES if room_of(path) in NAMELESS}
    assert {name: found for name, found in named.items() if found} == {}


def test_files_do_not_import_each_other_in_circles():
    """Imports inside functions and for types alone also count: files that need each other are one file, or have a
    third."""
    files = {".".join(path.relative_to(SOURCE.parent).with_suffix("").parts): path for path in FILES}
    below = {name: imports(path, with_types=True) & files.keys() - {name} for name, path in files.items()}
    try:
        TopologicalSorter(below).prepare()
    except CycleError as error:
        pytest.fail(f"a circle of imports: {' imports '.join(reversed(error.args[1]))}")


def test_torch_free_rooms_do_not_import_torch_on_import():
    heavy = {"torch", "transformers", "datasets", "nltk", "PIL", "freetype"}
    found = {
        str(path.relative_to(SOURCE)): wrong
        for path in FILES
        if path.relative_to(SOURCE).parts[0] in TORCH_FREE
        and (wrong := {name.split(".")[0] for name in imports(path, top_level_only=True)} & heavy)
    }
    assert not found, f"imported at module level: {found}"


def loaded_after(statement: str) -> set[str]:
    """Names of the top-level packages in sys.modules after `statement` in a fresh interpreter."""
    code = f"import sys\n{statement}\nprint(' '.join({{m.split('.')[0] for m in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize(
    ("statement", "heavy"),
    [
        ("import pretrainkit.cli.main", {"torch", "numpy", "pydantic", "rich", "yaml"}),
        ("import pretrainkit; pretrainkit.load_config('bert/tiny')", {"torch", "numpy", "pyarrow", "sentencepiece"}),
        ("import pretrainkit.cli.corpus, pretrainkit.cli.tokenizer", {"torch", "numpy", "pyarrow"}),
        ("import pretrainkit.training.trainer, pretrainkit.recipes.bert.model", {"transformers", "datasets", "pandas"}),
    ],
)
def test_modules_that_stay_light(statement, heavy):
    assert not loaded_after(statement) & heavy


def test_the_names_of_the_package_are_those_of_its_api():
    """Lazily loaded, visible to type checkers, and public in the API."""
    import pretrainkit
    from pretrainkit import api

    assert "pretrainkit.api.*" in imports(SOURCE / "__init__.py", with_types=True)
    assert pretrainkit.__all__ == sorted(pretrainkit.__all__)
    assert {*pretrainkit.__all__} <= {*api.__all__}
    assert all(getattr(pretrainkit, name) is getattr(api, name) for name in pretrainkit.__all__)
    assert api.__all__ == sorted(api.__all__)
    assert all(hasattr(api, name) for name in api.__all__)


DEVICE_TEST = re.compile(r"""device\.type (==|!=|in|not in)|\.is_cuda|[!=]= "(cpu|cuda|meta|mps|xpu)\"""")
DEVICE_PLACES = r"dist/.*|nn/(cpu|cuda)/.*|nn/initialise\.py|launch/.*|training/precision\.py|running/(doctor|plan)\.py"
DEVICE_PLACES += r"|sweep/memory\.py"


def test_devices_are_distinguished_in_few_places() -> None:
    """All other code asks these files, so that a new kind of device is added in one place."""
    found = {
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        if DEVICE_TEST.search(path.read_text(encoding="utf-8"))
    }
    assert {path for path in found if not re.fullmatch(DEVICE_PLACES, path)} == set()
    assert len(found) <= 12


def test_pytest_passes_over_no_folder_of_tests(pytestconfig: pytest.Config) -> None:
    folders = {folder.name for file in TESTS.rglob("test_*.py") for folder in file.parents if TESTS in folder.parents}
    left_out = [name for name in folders for one in pytestconfig.getini("norecursedirs") if fnmatch(name, one)]
    assert not left_out
    assert "dist" in folders


def test_tests_import_no_private_names() -> None:
    wrong = [
        f"{path.name}: {name}"
        for path in TESTS.rglob("*.py")
        for name in imports(path)
        if name.startswith("pretrainkit.") and name.rpartition(".")[2].startswith("_") and name not in COMPILED
    ]
    assert not wrong


COMPILED = {"pretrainkit.corpus._words", "pretrainkit.corpus._words.WordTable"}
"""Compiled helpers. Their names announce that Python has the same."""
