"""Paths of a config become absolute, at any depth, and nothing else changes."""

from typing import Annotated

import pytest

from pretrainkit.config.base import Config
from pretrainkit.config.paths import IsPath, absolute_paths, moved_paths, without_paths


class Source(Config):
    """One of several."""

    path: Annotated[str, IsPath()]
    """Place of the data."""
    name: str = "name"
    """Name of the data."""


class Own(Config):
    """An object by its name, or in a file."""

    reader: Annotated[str, IsPath(".py")]
    """Name, or file.py:NAME."""


class Settings(Config):
    """A tree of paths."""

    sources: tuple[Source, ...] = ()
    """Below a tuple."""
    start: Annotated[str | None, IsPath()] = None
    """May be missing."""
    several: Annotated[tuple[str, ...], IsPath()] = ()
    """Several in one field."""
    modules: Annotated[tuple[str, ...], IsPath(".py")] = ()
    """Names of modules, or paths."""
    readers: tuple[Own, ...] = ()
    """Objects in files."""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("name", "folder", "home/mine"):
        (tmp_path / name).mkdir(parents=True)
    return tmp_path


def test_paths_at_any_depth_become_absolute_and_names_stay(here) -> None:
    config = Settings(
        sources=(Source(path="folder"), Source(path="name")), start="./folder/../name", several=("~/mine",)
    )
    found = absolute_paths(config)
    assert [source.path for source in found.sources] == [f"{here}/folder", f"{here}/name"]
    assert [source.name for source in found.sources] == ["name", "name"]
    assert (found.start, found.several) == (f"{here}/name", (f"{here}/home/mine",))
    assert absolute_paths(found) == found


def test_patterns_become_absolute_though_nothing_has_their_name(here) -> None:
    assert absolute_paths(Settings(start="folder/part-{00..03}.tar")).start == f"{here}/folder/part-{{00..03}}.tar"
    assert absolute_paths(Settings(start="folder/*.tar")).start == f"{here}/folder/*.tar"


def test_names_without_the_ending_of_a_path_stay_though_a_folder_is_called_so(here) -> None:
    (here / "mine.py").touch()
    found = absolute_paths(Settings(modules=("folder", "mine.py", "gone.py")))
    assert found.modules == ("folder", f"{here}/mine.py", "gone.py")


@pytest.mark.parametrize("value", ["s3://bucket/folder", "some-user/some-set", None])
def test_addresses_and_names_of_a_hub_stay(value) -> None:
    config = Settings(start=value)
    assert absolute_paths(config) is config


def test_paths_that_moved_together_with_a_run_are_resolved(here) -> None:
    (here / "there/data").mkdir(parents=True)
    (here / "there/data/part-00.tar").touch()
    before = "/gone/project/runs/first"
    tree = {"data": [{"path": "/gone/project/data"}], "glob": "/gone/project/data/*.tar", "kept": str(here / "folder")}
    names = {"lost": "/gone/project/other", "hub": "google/bert", "step": 3}
    assert moved_paths(tree | names, before, here / "there/runs/first") == {
        "data": [{"path": f"{here}/there/data"}],
        "glob": f"{here}/there/data/*.tar",
        "kept": f"{here}/folder",
        **names,
    }
    assert moved_paths(tree, None, here / "there/runs/first") == tree


def test_files_of_objects_are_found_after_a_move_and_shared_without_their_folder(here) -> None:
    (here / "mine.py").touch()
    config = absolute_paths(Settings(readers=(Own(reader="mine.py:READER"), Own(reader="name"))))
    assert [one.reader for one in config.readers] == [f"{here}/mine.py:READER", "name"]
    moved = moved_paths(config.model_dump(), "/gone/runs/first", here / "runs/first")
    assert moved["readers"][0]["reader"] == f"{here}/mine.py:READER"
    gone = {"reader": "/gone/mine.py:READER"}
    assert moved_paths(gone, "/gone/runs/first", here / "runs/first") == {"reader": f"{here}/mine.py:READER"}
    assert [one.reader for one in without_paths(config).readers] == ["mine.py:READER", "name"]
