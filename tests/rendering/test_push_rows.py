"""Rows that are uploaded while they are rendered: equal to those on a disk, complete after a break, none twice."""

import hashlib
import json
import os
import subprocess
import sys

import numpy as np
import pytest

from pretrainkit.errors import DataError
from pretrainkit.files.hub import Hub, StoredFile
from pretrainkit.rendering import Renderer, RendererConfig
from pretrainkit.rendering.documents import find_documents
from pretrainkit.rendering.hub import push_rows
from pretrainkit.rendering.prerender import RenderSettings, prerender
from support.hub_server import served_hub
from support.remedies import followed
from support.toy_words import WORDS

pytest.importorskip("freetype")
pyarrow = pytest.importorskip("pyarrow")

SETTINGS = RenderSettings(shard_characters=600, extras=("text",), held_out=0.3)


class CountingHub(Hub):
    """Keeps what it is given, counts its calls, and breaks."""

    def __init__(self):
        self.name = "someone/set"
        self.stored: dict[str, bytes] = {}
        self.sent: list[str] = []
        self.commits_left = 10**9

    def files(self):
        return {path: StoredFile(len(content), None, "") for path, content in self.stored.items()}

    def read(self, path):
        return self.stored[path]

    def add(self, files, message):
        if not self.commits_left:
            raise KeyboardInterrupt
        self.commits_left -= 1
        self.sent += files
        self.stored |= {
            path: content if isinstance(content, bytes) else content.read_bytes() for path, content in files.items()
        }

    def data(self):
        return {path: content for path, content in self.stored.items() if path.startswith("data/")}


@pytest.fixture(scope="module")
def given(tmp_path_factory, latin_font):
    rng = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("text") / "documents.jsonl"
    texts = [" ".join(rng.choice(WORDS, 40)) for _ in range(30)]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return find_documents([path]), Renderer(RendererConfig(font_file=latin_font, max_seq_length=30))


@pytest.fixture(scope="module")
def whole(given):
    hub = CountingHub()
    return hub, push_rows(*given, hub, SETTINGS, workers=1, files_per_commit=3)


def test_the_hub_has_the_files_that_a_disk_would_have(given, whole, tmp_path):
    hub, manifests = whole
    stored = prerender(*given, tmp_path / "rows", SETTINGS, workers=1)
    for split in ("train", "valid"):
        on_disk = [(tmp_path / "rows" / split / shard["name"]).read_bytes() for shard in stored[split]["shards"]]
        assert [content for path, content in sorted(hub.data().items()) if f"/{split}-" in path] == on_disk
        assert len(on_disk) > 3
        for name in ("num_rows", "num_patches", "num_words", "fingerprint", "plan"):
            assert manifests[split][name] == stored[split][name]
    assert hub.sent[-1] == "README.md"
    assert "path: data/valid-*" in hub.stored["README.md"].decode()
    assert "renderer/text_renderer_config.json" in hub.stored


@pytest.mark.parametrize("num_commits", [0, 1, 2, 3])
def test_after_a_break_nothing_comes_twice_and_nothing_is_missing(given, whole, num_commits):
    hub = CountingHub()
    hub.commits_left = num_commits
    with pytest.raises(KeyboardInterrupt):
        push_rows(*given, hub, SETTINGS, workers=1, files_per_commit=3)
    assert "README.md" not in hub.stored
    hub.commits_left = 10**9
    again = push_rows(*given, hub, SETTINGS, workers=1, files_per_commit=3)
    assert hub.stored == whole[0].stored
    assert len(hub.sent) == len(set(hub.sent))
    assert again == whole[1]


def test_at_most_the_files_of_one_commit_are_on_the_disk(given, monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    most = 0

    class Watching(CountingHub):
        def add(self, files, message):
            nonlocal most
            most = max(most, len(list(tmp_path.glob("*/*/*.parquet"))))
            super().add(files, message)

    push_rows(*given, Watching(), SETTINGS, workers=1, files_per_commit=2)
    assert 2 <= most <= 4  # two files of documents, each with a training and a held-out part
    assert list(tmp_path.iterdir()) == []


def test_a_finished_set_is_left_as_it_is(given, whole):
    hub, manifests = whole
    num_data = sum(path.startswith("data/") for path in hub.sent)
    assert push_rows(*given, hub, SETTINGS, workers=1) == manifests
    assert sum(path.startswith("data/") for path in hub.sent) == num_data


def test_a_file_that_was_deleted_on_the_hub_is_written_again(given, whole):
    hub = CountingHub()
    hub.stored = dict(whole[0].stored)
    del hub.stored["data/train-00002.parquet"]
    push_rows(*given, hub, SETTINGS, workers=1)
    assert hub.stored == whole[0].stored
    assert [path for path in hub.sent if path.startswith("data/train")] == ["data/train-00002.parquet"]


def test_a_set_with_other_rows_is_refused(given, whole):
    other = RenderSettings(shard_characters=900)
    with pytest.raises(DataError, match="has rows of other documents") as error:
        push_rows(*given, whole[0], other, workers=1)
    advice = followed(error.value, "rendering/hub.py: the data set on the hub has rows of other")
    assert "another data set with --push" in advice
    assert push_rows(*given, CountingHub(), other, workers=1)
    foreign = CountingHub()
    foreign.stored["data/train-00000-of-00003.parquet"] = hashlib.sha256(b"").digest()
    with pytest.raises(DataError, match="has rows of other documents"):
        push_rows(*given, foreign, SETTINGS, workers=1)


def test_the_command_continues_with_the_files_of_a_server(given, whole, latin_font, tmp_path):
    """The records of an earlier attempt are read over HTTP."""
    pytest.importorskip("huggingface_hub")
    source = given[0]["train"].sources[0].address
    words = ["render", source, "--renderer", latin_font, "--max-patches", "30", "--column", "text", "--heldout", "0.3"]
    words += ["--shard-characters", "600", "--workers", "1", "--push", "someone/set"]
    with served_hub(tmp_path) as hub:
        hub.stored.update(whole[0].stored)
        for name in ("data/train-00002.parquet", "README.md"):
            del hub.stored[name]
        done = hub.command(*words)
    assert done.returncode == 0, done.stderr
    assert hub.stored == whole[0].stored
    assert len(hub.commits) == 2
    assert "7 of 8 files were rendered before" in done.stderr
    assert "someone/set/train:" in done.stdout


def test_a_hub_that_cannot_be_reached_is_one_message(tmp_path):
    """Whichever library the hub's own speaks with. Nothing listens at port 9."""
    pytest.importorskip("huggingface_hub")
    code = """
from pretrainkit.files import hub
hub._TRIES, hub._FIRST_WAIT_SECONDS = 2, 0.0
try:
    hub.Hub("someone/set", private=False).files()
except hub.RunError as error:
    print(error)
"""
    environment = os.environ | {"HF_HUB_OFFLINE": "0", "HF_ENDPOINT": "http://127.0.0.1:9", "HF_TOKEN": "none"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=60)
    assert "the hub cannot be reached" in done.stdout, done.stderr
