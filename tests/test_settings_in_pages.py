"""Settings, options, presets and Python names that pages name beside those of other projects exist."""

import functools
import importlib
import re
from pathlib import Path

import pytest

from pretrainkit.config.explain import fields_under
from pretrainkit.recipes.registry import entries, find_recipe
from support.page_runner import ROOT
from test_documentation import parse


@functools.cache
def all_fields() -> frozenset[str]:
    return frozenset(path for name in entries() for path in fields_under(find_recipe(name).config_class))


def problem(code: str) -> str | None:
    """Say what is wrong with a name in backticks; None: it exists, or is no name of ours."""
    name = code.partition("=")[0]
    if code.startswith("pretrainkit "):
        return None  # test_documentation parses it
    if code.startswith("--"):
        known = " ".join(option for words in (["train", "bert/tiny"],) for option in parse(words)[1])
        return None if name[2:].replace("-", "_") in known.split() else f"train has no option {code}"
    if code.startswith("pretrainkit."):
        module, _, attribute = code.rpartition(".")
        return None if hasattr(importlib.import_module(module), attribute) else f"there is no {code}"
    if "/" in code and (recipe := code.partition("/"))[0] in entries():
        return None if recipe[2] in find_recipe(recipe[0]).presets else f"there is no preset {code}"
    first = name.partition(".")[0]
    if "." in name and first in {path.partition(".")[0] for path in all_fields()} and not name.endswith((".yaml", "/")):
        return None if name in all_fields() else f"no recipe has a setting {name}"
    return None


def names_here(page: Path) -> list[str]:
    """The names in the last column of the page's tables, and in the first of tables of settings."""
    found, column = [], -1
    for line in page.read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")] if line.startswith("|") else []
        if cells and cells[0] == "setting":
            column = 0
        elif cells and "here" in cells[-1].split():
            column = -1
        elif cells and column is not None:
            found += re.findall(r"`([^`]+)`", cells[column])
        elif not cells:
            column = None
    return found


PAGES = ["docs/coming-from.md", "docs/how-to/when-a-run-goes-wrong.md"]


@pytest.mark.parametrize("page", PAGES)
def test_names_in_pages_exist(page: str) -> None:
    names = names_here(ROOT / page)
    assert len(names) > 10
    assert [wrong for name in names if (wrong := problem(name))] == []


def test_names_that_do_not_exist_are_detected() -> None:
    for name in ("optimizer.lr", "--nope", "bert/nope", "pretrainkit.tasks.task.Nope"):
        assert problem(name), name
    for name in ("optimizer.peak_lr=1", "--out", "bert/tiny", "pretrainkit.tasks.task.Task", "config.json"):
        assert problem(name) is None, name
