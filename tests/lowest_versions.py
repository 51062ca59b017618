"""Prints the lowest versions that pyproject.toml allows, as constraints for pip; `make test-lowest` installs them."""

import re
import tomllib
from pathlib import Path


def lowest_versions(project: dict) -> list[str]:
    """`name==version` of every direct dependency and of every extra, from `name>=version`.

    Raises:
        ValueError: One has no lower bound.
    """
    found = {}
    extras = [one for some in project["optional-dependencies"].values() for one in some]
    for requirement in [*project["dependencies"], *extras]:
        match = re.match(r"([\w.-]+)(?:\[[^]]*\])?(?:(>=|==)([\w.]+))?", requirement)
        name, relation, version = match.groups()
        if name == project["name"] or relation == "==":
            continue
        if version is None:
            raise ValueError(f"{requirement} has no lower bound")
        found[name] = version
    return [f"{name}=={version}" for name, version in sorted(found.items())]


if __name__ == "__main__":
    pages = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
    print("\n".join(lowest_versions(pages["project"])))
