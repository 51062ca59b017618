"""Rows are written into other files, and to a hub, which is a server of this process."""

import hashlib
import json

import numpy as np
import pytest
from typer.testing import CliRunner

from pretrainkit.cli.main import app_of
from pretrainkit.errors import DataError
from pretrainkit.files.hub import Hub, StoredFile
from pretrainkit.rendering import Renderer, RendererConfig
from pretrainkit.rendering.documents import find_documents
from pretrainkit.rendering.prerender import RenderSettings, prerender
from pretrainkit.rendering.relayout import publish as published
from pretrainkit.rendering.relayout import regroup, row_files
from pretrainkit.running import publish as publishing
from pretrainkit.running.publish import push_data
from support.hub_server import served_hub
from support.remedies import followed

pytest.importorskip("freetype")
parquet = pytest.importorskip("pyarrow.parquet")


@pytest.fixture(scope="module")
def rendered(tmp_path_factory):
    """Some 90 rows in 3 files, and held-out ones."""
    fonts = pytest.importorskip("PIL.ImageFont")
    folder = tmp_path_factory.mktemp("rendered")
    (folder / "latin.ttf").write_bytes(fonts.load_default(12).font_bytes)
    rng = np.random.default_rng(0)
    words = ["many", "a", "word", "that", "is", "drawn"]
    texts = [" ".join(rng.choice(words, 400)) for _ in range(20)]
    (folder / "text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    renderer = Renderer(RendererConfig(font_file=str(folder / "latin.ttf"), max_seq_length=30))
    settings = RenderSettings(shard_characters=15_000, held_out=0.1, extras=("text",))
    prerender(find_documents([folder / "text.jsonl"]), renderer, folder / "out", settings, workers=1)
    return folder / "out"


def all_rows(files):
    return [row for path in files for row in parquet.read_table(path).to_pylist()]


def test_published_names_count_on_but_give_the_files_of_their_chunk(rendered, tmp_path):
    """Fact 18: of 100 000 rows and 500 MiB at full size; here 40 rows, and as many bytes as half of them have."""
    rows = all_rows(row_files(rendered / "train"))
    num_bytes = parquet.read_table(row_files(rendered / "train")[0]).slice(0, 40).nbytes
    files = published(rendered / "train", tmp_path / "set", chunk_rows=40, shard_bytes=num_bytes * 2 // 3)
    names = [path.name for path in files]
    assert len(rows) > 80
    assert names[:4] == [f"train-{index:05d}-of-00002.parquet" for index in range(4)]
    assert [parquet.read_metadata(path).num_rows for path in files[:4]] == [20] * 4
    assert all_rows(files) == rows
    assert all_rows(row_files(tmp_path / "set")) == rows
    infos = json.loads((tmp_path / "set/dataset_infos.json").read_text())["default"]
    assert infos["splits"]["train"]["num_examples"] == len(rows)


def test_publishing_resumes_after_a_crash(rendered, tmp_path):
    files = published(rendered / "train", tmp_path / "set", chunk_rows=40)
    stamps = [path.stat().st_mtime_ns for path in files]
    content = files[1].read_bytes()
    files[1].unlink()
    assert published(rendered / "train", tmp_path / "set", chunk_rows=40) == files
    assert files[1].read_bytes() == content
    assert [path.stat().st_mtime_ns for path in files][::2] == stamps[::2]


def test_regrouped_rows_are_the_same_in_small_groups(rendered, tmp_path):
    rows = all_rows(row_files(rendered / "train"))
    (tmp_path / "large").mkdir()
    table = parquet.read_table(row_files(rendered / "train")[0]).select(["pixel_values", "num_patches"])
    parquet.write_table(table, tmp_path / "large/train-00000-of-00001.parquet")
    manifest = regroup(tmp_path / "large", tmp_path / "small")
    files = row_files(tmp_path / "small")
    assert manifest["num_rows"] == len(table)
    assert manifest["has_pixels"]
    assert all_rows(files) == [{name: row[name] for name in table.column_names} for row in rows[: len(table)]]
    assert parquet.read_metadata(files[0]).row_group(0).num_rows == 32
    assert regroup(tmp_path / "large", tmp_path / "small") == manifest


def test_a_folder_without_rows_is_refused(rendered, tmp_path):
    with pytest.raises(DataError, match="no parquet files") as error:
        regroup(tmp_path, tmp_path / "out")
    assert "pretrainkit render" in followed(error.value, "rendering/relayout.py: … has no parquet files")
    command = ["--renderer", str(rendered / "train" / "renderer"), "--out", str(tmp_path / "rows")]
    result = CliRunner().invoke(app_of("render"), [str(rendered.parent / "text.jsonl"), *command])
    assert result.exit_code == 0, result.output
    assert regroup(tmp_path / "rows" / "train", tmp_path / "out")["num_rows"]
    with pytest.raises(DataError, match="no finished data") as error:
        push_data(rendered.parent, MemoryHub())
    assert "use the output folder of corpus shards, tokenizer encode, render" in str(error.value)
    assert push_data(tmp_path / "rows", MemoryHub())


class MemoryHub(Hub):
    """Keeps what it is given."""

    def __init__(self, fail_after=10**9):
        self.name = "someone/set"
        self.stored: dict[str, bytes] = {}
        self.groups: list[list[str]] = []
        self._fail_after = fail_after

    def files(self):
        return {
            path: StoredFile(len(content), hashlib.sha256(content).hexdigest(), "")
            for path, content in self.stored.items()
        }

    def read(self, path):
        return self.stored[path]

    def add(self, files, message):
        if len(self.groups) == self._fail_after:
            raise KeyboardInterrupt
        self.groups.append(list(files))
        for path, content in files.items():
            self.stored[path] = content if isinstance(content, bytes) else content.read_bytes()


def test_an_upload_in_chunks_resumes_where_it_stopped(rendered, monkeypatch):
    monkeypatch.setattr(publishing, "FILES_PER_COMMIT", 2)
    hub = MemoryHub(fail_after=2)
    with pytest.raises(KeyboardInterrupt):
        push_data(rendered, hub)
    assert [len(group) for group in hub.groups] == [2, 2]
    assert "README.md" not in hub.stored
    hub._fail_after = 10**9
    assert len(push_data(rendered, hub)) == len(hub.stored) - 4
    assert hub.groups[-1][-1] == "README.md"
    assert [path for group in hub.groups for path in group].count("data/train-00000-of-00003.parquet") == 1
    assert {path.split("/")[0] for path in hub.stored} == {"data", "renderer", "README.md"}
    card = hub.stored["README.md"].decode()
    assert "path: data/train-*" in card
    assert "path: data/valid-*" in card
    assert push_data(rendered, hub) == {}


def test_the_command_uploads_to_a_server_that_speaks_as_the_hub_does(rendered, tmp_path):
    """One request is refused, and repeated."""
    pytest.importorskip("huggingface_hub")
    words = ["render", str(rendered / "train"), "--out", str(tmp_path / "set"), "--layout", "published"]
    with served_hub(tmp_path, failures=[503]) as hub:
        laid_out = hub.command(*words)
        first, second = (hub.command("data", "push", str(tmp_path / "set"), "someone/set") for _ in range(2))
    assert laid_out.returncode == first.returncode == second.returncode == 0, first.stderr + second.stderr
    local = sorted(path.name for path in (tmp_path / "set/data").glob("*"))
    assert sorted(hub.stored) == ["README.md", *(f"data/{name}" for name in local), "dataset_infos.json"]
    for name in local:
        assert hub.stored[f"data/{name}"] == (tmp_path / "set/data" / name).read_bytes()
    assert "uploaded README.md" in first.stdout
    assert "nothing has changed" in second.stdout


def test_datasets_reads_the_published_layout_as_pictures(rendered, tmp_path):
    datasets = pytest.importorskip("datasets")
    (file, *_) = published(rendered / "train", tmp_path / "set")
    rows = datasets.load_dataset(str(tmp_path / "set"), cache_dir=str(tmp_path / "cache"), streaming=True)["train"]
    row = next(iter(rows))
    first = parquet.read_table(file).slice(0, 1).to_pylist()[0]
    assert isinstance(rows.features["pixel_values"], datasets.Image)
    assert (row["pixel_values"].size, row["pixel_values"].mode) == ((30 * 16, 16), "L")
    assert (row["num_patches"], row["text"]) == (first["num_patches"], first["text"])
