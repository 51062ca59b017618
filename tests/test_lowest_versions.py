"""The constraints of `make test-lowest`."""

import tomllib
from pathlib import Path

import pytest

from lowest_versions import lowest_versions


def test_every_dependency_and_extra_has_its_lowest_version() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found = dict(one.split("==") for one in lowest_versions(project))
    assert {"torch", "transformers", "datasets", "torchvision", "pytest"} <= found.keys()
    assert project["name"] not in found


def test_without_a_bound_it_is_refused() -> None:
    project = {"name": "own", "dependencies": ["one[extra]>=1.2", "own[two]"], "optional-dependencies": {"two": ["b"]}}
    with pytest.raises(ValueError, match="b has no lower bound"):
        lowest_versions(project)
    assert lowest_versions({**project, "optional-dependencies": {"two": ["c==3.*"]}}) == ["one==1.2"]
