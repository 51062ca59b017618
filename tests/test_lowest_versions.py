"""The constraints of `make test-lowest`."""

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from lowest_versions import lowest_versions


def test_every_dependency_and_extra_has_its_lowest_version() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found = dict(one.split("==") for one in lowest_versions(project))
    assert {"torch", "transformers", "datasets", "torchvision", "pytest"} <= found.keys()
    assert project["name"] not in found


def test_packages_of_the_tests_are_among_the_tested_versions() -> None:
    """constraints.txt pins all packages that `make` installs; a missing package is installed in its newest version."""
    root = Path(__file__).parents[1]
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    left, needed = [*project["dependencies"], *extras["dev"]], set()
    while left:
        one = Requirement(left.pop())
        if one.name == project["name"]:
            left += [more for extra in one.extras for more in extras[extra]]
        else:
            needed.add(canonicalize_name(one.name))
    lines = (root / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {canonicalize_name(line.partition("==")[0]) for line in lines if "==" in line}
    assert needed - pinned == set()


def test_without_a_bound_it_is_refused() -> None:
    project = {"name": "own", "dependencies": ["one[extra]>=1.2", "own[two]"], "optional-dependencies": {"two": ["b"]}}
    with pytest.raises(ValueError, match="b has no lower bound"):
        lowest_versions(project)
    assert lowest_versions({**project, "optional-dependencies": {"two": ["c==3.*"]}}) == ["one==1.2"]
