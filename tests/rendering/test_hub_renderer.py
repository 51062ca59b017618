"""Renderers by their names on the hub, from a cache as the hub's own client leaves it: no network."""

import shutil
from pathlib import Path

import numpy as np
import pytest

import pretrainkit
from pretrainkit.errors import DataError
from pretrainkit.rendering import save_renderer
from pretrainkit.rendering.folder import is_hub_name

constants = pytest.importorskip("huggingface_hub.constants")
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of a client without a network."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "hub"


def cached(cache: Path, name: str, branch: str = "main") -> Path:
    """Folder of a snapshot that was fetched before."""
    (cache / name / "refs").mkdir(parents=True)
    (cache / name / "refs" / branch).write_text(COMMIT)
    folder = cache / name / "snapshots" / COMMIT
    folder.mkdir(parents=True)
    return folder


@pytest.mark.parametrize(
    ("folder", "inside", "name"),
    [
        ("models--team--pixel", ".", "team/pixel"),
        ("models--team--pixel", ".", "team/pixel@main"),
        ("datasets--team--rows", "renderer", "datasets/team/rows"),
    ],
)
def test_a_name_of_the_hub_opens_its_renderer(cache, renderer, change, folder, inside, name):
    stored = change(renderer, max_seq_length=40)
    save_renderer(stored, cached(cache, folder) / inside)
    opened = pretrainkit.open_renderer(name)
    assert opened.config.max_seq_length == 40
    assert np.array_equal(opened.columns("some text"), stored.columns("some text"))
    assert pretrainkit.open_renderer(name, 20, rgb=True)("some text").pixel_values.shape == (16, 320, 3)


def test_a_published_folder_beside_weights_is_enough(cache, renderer, latin_font):
    place = cached(cache, "models--team--pixel")
    save_renderer(renderer, place)
    (place / "rendering.json").unlink()  # which the original does not write
    shutil.copy(latin_font, place / "pytorch_model.bin")
    assert pretrainkit.open_renderer("team/pixel").config.parity


def test_a_missing_renderer_on_the_hub_is_reported(cache):
    with pytest.raises(DataError, match=r"team/pixel is not a local folder or font.*\n.*a network connection"):
        pretrainkit.open_renderer("team/pixel")
    cached(cache, "models--team--bert")
    with pytest.raises(DataError, match="has no renderer"):
        pretrainkit.open_renderer("team/bert")


def test_only_files_of_a_renderer_are_requested(monkeypatch, renderer, tmp_path):
    asked: list[tuple[str, dict]] = []

    def snapshot(name, **settings):
        asked.append((name, settings))
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    save_renderer(renderer, tmp_path)
    pretrainkit.open_renderer("team/pixel@v1.0")
    ((name, settings),) = asked
    assert (name, settings["revision"], settings["repo_type"]) == ("team/pixel", "v1.0", "model")
    assert not any(pattern.endswith((".bin", ".safetensors", "*")) for pattern in settings["allow_patterns"][:2])
    assert "pytorch_model.bin" not in settings["allow_patterns"]


@pytest.mark.parametrize("name", ["font.ttf", "/a/folder", "a/b/c", "user/name@", "~", "https://host/name"])
def test_other_paths_are_not_names_of_the_hub(name):
    assert not is_hub_name(name)
