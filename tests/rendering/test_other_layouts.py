"""Rendered rows for other programs: the same rows in the same order."""

import io
import json
import tarfile

import numpy as np
import pytest

from pretrainkit.errors import DataError
from pretrainkit.rendering import Renderer, RendererConfig
from pretrainkit.rendering.documents import find_documents
from pretrainkit.rendering.prerender import RenderSettings, prerender
from pretrainkit.rendering.relayout import row_files, to_arrow, to_webdataset

pytest.importorskip("freetype")
parquet = pytest.importorskip("pyarrow.parquet")
ipc = pytest.importorskip("pyarrow.ipc")


@pytest.fixture
def rendered(latin_font, tmp_path):
    """Some 30 rows in two files; with pictures, or text alone."""

    def made(**settings):
        lines = [json.dumps({"text": f"words of document {number} " * 30}) for number in range(8)]
        (tmp_path / "text.jsonl").write_text("\n".join(lines))
        renderer = Renderer(RendererConfig(font_file=latin_font, max_seq_length=30))
        chosen = RenderSettings(shard_characters=3_000, extras=("text",), **settings)
        prerender(find_documents([tmp_path / "text.jsonl"]), renderer, tmp_path / "out", chosen, workers=1)
        return tmp_path / "out" / "train"

    return made


def rows_of(folder):
    return [row for path in row_files(folder) for row in parquet.read_table(path).to_pylist()]


def test_arrow_streams_hold_all_rows(rendered, tmp_path):
    folder = rendered()
    files = to_arrow(folder, tmp_path / "arrow", rows_per_file=10)
    rows = [row for path in files for row in ipc.open_stream(path.read_bytes()).read_all().to_pylist()]
    assert rows == rows_of(folder)
    assert [path.name for path in files][-1] == f"data-{len(files) - 1:05d}-of-{len(files):05d}.arrow"
    state = json.loads((tmp_path / "arrow/state.json").read_text())
    assert [entry["filename"] for entry in state["_data_files"]] == [path.name for path in files]


def test_datasets_loads_the_arrow_folder_with_pictures(rendered, tmp_path):
    datasets = pytest.importorskip("datasets")
    folder = rendered()
    to_arrow(folder, tmp_path / "arrow", split="train", rows_per_file=10)
    loaded = datasets.load_from_disk(str(tmp_path / "arrow"))
    rows = rows_of(folder)
    assert len(loaded) == len(rows)
    assert loaded[11]["num_patches"] == rows[11]["num_patches"]
    assert loaded[11]["pixel_values"].size == (30 * 16, 16)
    assert str(loaded.split) == "train"


@pytest.mark.parametrize("with_pixels", [True, False])
def test_tars_hold_each_row_under_one_key(rendered, tmp_path, with_pixels):
    image = pytest.importorskip("PIL.Image")
    folder = rendered(with_pixels=with_pixels)
    rows = rows_of(folder)
    found: dict[str, dict[str, bytes]] = {}
    if not with_pixels:
        with pytest.raises(DataError):
            to_webdataset(tmp_path, tmp_path / "none")
    files = to_webdataset(folder, tmp_path / "tars", rows_per_file=10)
    again = to_webdataset(folder, tmp_path / "again", rows_per_file=10)
    assert [path.read_bytes() for path in files] == [path.read_bytes() for path in again]
    for path in files:
        with tarfile.open(path) as tar:
            assert len(tar.getnames()) <= 20
            for member in tar:
                key, ending = member.name.split(".")
                found.setdefault(key, {})[ending] = tar.extractfile(member).read()
    assert list(found) == [f"{number:09d}" for number in range(len(rows))]
    for row, parts in zip(rows, found.values(), strict=True):
        assert json.loads(parts["json"]) == {"num_patches": row["num_patches"], "text": row["text"]}
        assert ("png" in parts) == with_pixels
        if with_pixels:
            drawn = np.asarray(image.open(io.BytesIO(parts["png"])))
            assert np.array_equal(drawn, np.asarray(image.open(io.BytesIO(row["pixel_values"]["bytes"]))))
