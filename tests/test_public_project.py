"""Files of a public project agree with each other and with the code: versions, commands, names, paths."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

import pretrainkit
from pretrainkit import errors
from pretrainkit.recipes.registry import entries, find_recipe
from pretrainkit.running.doctor import HELPERS, factor

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
WORKFLOWS = {path.stem: yaml.safe_load(path.read_text("utf-8")) for path in (ROOT / ".github/workflows").iterdir()}
C_FILES = sorted((ROOT / "src").rglob("*.[ch]"))
NOT_FOR_USERS = {"bench", "dev", "docs"}
"""Extras of those who work on the project."""


def read(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def steps(workflow: str) -> list[dict]:
    return [step for job in WORKFLOWS[workflow]["jobs"].values() for step in job["steps"]]


def test_the_version_is_the_same_everywhere() -> None:
    version = PROJECT["project"]["version"]
    assert pretrainkit.__version__ == version
    assert yaml.safe_load(read("CITATION.cff"))["version"] == version
    changelog = read("CHANGELOG.md")
    assert re.search(rf"^## \[{re.escape(version)}\] - (\d{{4}}-\d\d-\d\d|not released yet)$", changelog, re.MULTILINE)
    headings = re.findall(r"^## \[(.+?)\]", changelog, re.MULTILINE)
    assert headings == re.findall(r"^\[(.+?)\]: https:", changelog, re.MULTILINE)
    assert headings[:2] == ["Unreleased", version]


def test_the_versions_of_python_are_the_same_everywhere() -> None:
    classifiers = PROJECT["project"]["classifiers"]
    versions = [match[1] for one in classifiers if (match := re.fullmatch(r".*Python :: (3\.\d+)", one))]
    assert PROJECT["project"]["requires-python"] == f">={versions[0]}"
    assert re.search(r"^PYTHONS \?= (.+)$", read("Makefile"), re.MULTILINE)[1].split() == [
        f"python{version}" for version in versions
    ]
    assert WORKFLOWS["ci"]["jobs"]["test"]["strategy"]["matrix"]["python"] == versions
    assert WORKFLOWS["release"]["jobs"]["try"]["strategy"]["matrix"]["python"] == versions
    assert PROJECT["tool"]["cibuildwheel"]["build"] == [f"cp{version.replace('.', '')}-*" for version in versions]
    used = {step["with"]["python-version"] for name in WORKFLOWS for step in steps(name) if "setup-python" in str(step)}
    assert used <= {*versions, "${{ matrix.python }}"}


def test_each_wheel_is_tried_where_it_was_built() -> None:
    jobs = WORKFLOWS["release"]["jobs"]
    assert jobs["wheels"]["strategy"]["matrix"]["os"] == jobs["try"]["strategy"]["matrix"]["os"]


@pytest.mark.parametrize("workflow", WORKFLOWS)
def test_workflows_use_existing_commands(workflow: str) -> None:
    # The target docs belongs to the documentation site.
    targets = {*re.findall(r"^([a-z][\w/.-]*):", read("Makefile"), re.MULTILINE), "docs"}
    commands = "\n".join(step.get("run", "") for step in steps(workflow))
    assert set(re.findall(r"\bmake ([\w/.-]+)", commands)) <= targets
    paths = [*re.findall(r"(?<![\w/])\.ci/[\w-]+", commands)]
    paths += [f"{step['uses']}/action.yml" for step in steps(workflow) if step.get("uses", "").startswith("./")]
    assert paths
    assert [path for path in paths if not (ROOT / path).is_file()] == []
    assert WORKFLOWS[workflow]["permissions"] == {"contents": "read"}
    assert all("timeout-minutes" in job for job in WORKFLOWS[workflow]["jobs"].values())


def test_ci_runs_the_checks_of_every_change() -> None:
    ours = set(re.findall(r"^make (\S+)$", read(".ci/run"), re.MULTILINE))
    assert ours
    assert ours <= set(re.findall(r"\bmake ([\w-]+)", "\n".join(step.get("run", "") for step in steps("ci"))))


def test_hooks_use_the_versions_that_were_tested() -> None:
    pinned = set(read("constraints.txt").splitlines())
    hooks = yaml.safe_load(read(".pre-commit-config.yaml"))["repos"][0]["hooks"]
    needed = {one for hook in hooks for one in hook["additional_dependencies"]}
    assert {one for one in needed if one.startswith("ruff")} <= pinned
    assert all("==" in one for one in needed)


def test_the_image_is_built_from_files_that_exist_and_are_not_ignored() -> None:
    copied = [
        name for line in re.findall(r"^COPY (.+) \S+$", read("Dockerfile"), re.MULTILINE) for name in line.split()
    ]
    allowed = [line[1:] for line in read(".dockerignore").splitlines() if line.startswith("!")]
    assert sorted(copied) == sorted(allowed)
    assert all((ROOT / name).exists() for name in copied)
    extras = re.search(r"^ARG EXTRAS=(.+)$", read("Dockerfile"), re.MULTILINE)[1].split(",")
    assert set(extras) <= PROJECT["project"]["optional-dependencies"].keys()


def test_every_extra_is_on_the_page_about_installing() -> None:
    table = read("docs/installing.md").partition("## Extras")[2]
    names = {name for row in re.findall(r"^\| (`.+?) \|", table, re.MULTILINE) for name in re.findall(r"`(.+?)`", row)}
    assert names == PROJECT["project"]["optional-dependencies"].keys() - NOT_FOR_USERS


@pytest.mark.parametrize(
    "page", ["CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "docs/installing.md", "docs/stability.md"]
)
def test_files_that_a_page_names_exist(page: str) -> None:
    named = re.findall(r"`([\w./-]+/[\w./-]*|[\w-]+\.(?:cff|md|py|toml|txt|yml))`", read(page))
    presets = {f"{recipe}/{preset}" for recipe in entries() for preset in find_recipe(recipe).presets}
    known = presets | {"vocab.txt"}  # a file of tokenizers
    assert [name for name in named if name not in known and not (ROOT / name).exists()] == []


def test_the_stable_names_are_those_of_the_package() -> None:
    page = read("docs/stability.md")
    table = page.partition("| for | names |")[2].partition("\n\n")[0]
    assert sorted(re.findall(r"`(\w+)`", table)) == sorted(pretrainkit.__all__)
    codes = {int(code) for code in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)}
    classes = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, Exception)]
    assert codes == {0, *(one.exit_code for one in classes)}


def test_compiled_helpers_are_listed_and_need_only_the_c_library() -> None:
    """Release wheels are also built by Apple's clang, which has no OpenMP, and must run without further libraries."""
    names = {name.removeprefix("pretrainkit.") for name in HELPERS}
    assert all(re.fullmatch(r"[\w ]+ [\d.]+", factor(name)) for name in names)
    page = read("docs/installing.md")
    assert set(re.findall(r"^\| `([\w.]+\._\w+)` \|", page, re.MULTILINE)) == names
    included = {
        header for path in C_FILES for header in re.findall(r"#include [<\"](.+)[>\"]", path.read_text("utf-8"))
    }
    own = {path.name for path in C_FILES}
    assert included - own <= {"Python.h", "math.h", "stdbool.h", "stddef.h", "stdint.h", "stdlib.h", "string.h"}
