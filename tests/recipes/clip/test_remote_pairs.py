"""Archives of pairs in object storage and on web servers: `memory://` of fsspec, and a server of this process."""

import json
import sys

import fsspec
import pytest

from pretrainkit import api
from pretrainkit.data import tar
from pretrainkit.errors import DataError, MissingPackageError
from pretrainkit.recipes.clip.config import ClipSourceConfig
from pretrainkit.recipes.clip.open_pairs import open_pairs
from pretrainkit.training.watch import Watcher
from support.command_line import succeed
from support.pair_sets import as_json, caption, make_tokenizer, png, rows, write_csv_set, write_samples
from support.range_server import served_folder
from support.remedies import followed

NUM_ARCHIVES, NUM_SAMPLES = 3, 5


def samples_of(archive: int):
    """Return samples as img2dataset writes them: an image, its caption and its metadata."""
    first = archive * NUM_SAMPLES
    return [
        {"png": png(n), "txt": caption(n).encode(), "json": as_json(caption=caption(n), status="success")}
        for n in range(first, first + NUM_SAMPLES)
    ]


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PRETRAINKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(tar, "_RETRY_SECONDS", (0.0, 0.0))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("archives")
    for number in range(NUM_ARCHIVES):
        write_samples(folder / "train" / f"{number:05d}.tar", samples_of(number))
    write_samples(folder / "valid" / "00000.tar", samples_of(NUM_ARCHIVES))
    return folder


@pytest.fixture
def bucket(folder):
    for path in folder.glob("*/*.tar"):
        fsspec.filesystem("memory").pipe_file(f"/pairs/{path.relative_to(folder)}", path.read_bytes())
    return "memory://pairs"


@pytest.fixture
def web(folder):
    pytest.importorskip("aiohttp", reason="aiohttp is not installed: pip install 'pretrainkit[http]'")
    with served_folder(folder) as served:
        yield served


def opened(path, split="train", **settings):
    return open_pairs(ClipSourceConfig(path=str(path), **settings), split)


def content(pairs):
    return [(pairs.caption(row), pairs.read_image(row)) for row in range(len(pairs))]


@pytest.mark.parametrize("pattern", ["/train/{00000..00002}.tar", "/train/*.tar", "/train", "", "/"])
def test_patterns_and_folders_of_object_storage_equal_those_of_a_disk(folder, bucket, pattern):
    near, far = opened(f"{folder}{pattern}"), opened(f"{bucket}{pattern}")
    assert len(far) == NUM_ARCHIVES * NUM_SAMPLES
    assert content(far) == content(near)
    assert far.fingerprint == near.fingerprint
    assert far.describe(7).endswith("row 7 (00002.png in 00001.tar)")
    assert len(opened(bucket, "valid")) == NUM_SAMPLES
    assert len(opened(bucket, format="img2dataset")) == len(far)


def test_braces_are_written_out_without_listing_anything(bucket, monkeypatch):
    memory = type(fsspec.filesystem("memory"))
    for name in ("ls", "find", "glob", "walk"):
        monkeypatch.setattr(memory, name, lambda *_, **__: pytest.fail("a folder is listed"))
    assert len(opened(f"{bucket}/train/{{00000..00002}}.tar")) == NUM_ARCHIVES * NUM_SAMPLES
    with pytest.raises(DataError, match=r"2 of 4 archives are missing or cannot be reached, such as .*/00003\.tar"):
        opened(f"{bucket}/train/{{00001..00004}}.tar")


def test_an_archive_is_indexed_once_until_it_changes(folder, bucket, own_cache, monkeypatch):
    pattern = f"{bucket}/train/{{00000..00002}}.tar"
    first = content(opened(pattern))
    with monkeypatch.context() as changed:
        changed.setattr("pretrainkit.recipes.clip.tar_pairs.index_archive", lambda *_: pytest.fail("indexed again"))
        assert content(opened(pattern)) == first
    assert len(list(own_cache.rglob("*.index"))) == NUM_ARCHIVES
    write_samples(folder.parent / "other.tar", samples_of(7)[:2])
    fsspec.filesystem("memory").put(str(folder.parent / "other.tar"), "/pairs/train/00001.tar")
    assert content(opened(pattern))[NUM_SAMPLES][0] == caption(7 * NUM_SAMPLES)


def test_an_archive_that_breaks_off_is_reported_as_on_a_disk(folder, bucket):
    files = fsspec.filesystem("memory")
    whole = files.cat_file("/pairs/train/00001.tar")
    files.pipe_file("/pairs/train/00001.tar", whole[:5000])
    pairs = opened(f"{bucket}/train")
    assert len(pairs.torn) == 1
    assert pairs.torn[0].startswith("00001.tar: ")
    assert pairs.num_lost > 0
    files.pipe_file("/pairs/train/00001.tar", b"not an archive" * 99)
    assert len(opened(f"{bucket}/train").torn) == 1


@pytest.mark.parametrize(("protocol", "package"), [("s3", "s3fs"), ("gs", "gcsfs"), ("https", "aiohttp")])
@pytest.mark.parametrize("pattern", ["set/{00000..00099}.tar", "set/*.tar", "set"])
def test_a_missing_driver_is_named_with_its_install_line(protocol, package, pattern, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, "fsspec.implementations.http", raising=False)
    with pytest.raises(MissingPackageError, match=rf"needs the package '{package}'\n.*pip install 'pretrainkit\["):
        opened(f"{protocol}://{pattern}")


def test_sets_in_columns_are_read_from_a_disk_only_or_as_archives(tmp_path):
    with pytest.raises(DataError) as refused:
        opened("memory://tables/set", format="csv")
    remedy = followed(refused.value, "recipes/clip/open_pairs.py: data.…: …: sets of format csv")
    near = write_csv_set(tmp_path / "set", "train", rows(4, 1))
    words = remedy.split("archives: ")[1].replace("SET", str(near)).replace("FOLDER", str(tmp_path / "packed"))
    succeed(*words.split()[1:])
    files = fsspec.filesystem("memory")
    for path in (tmp_path / "packed" / "train").glob("*.tar"):
        files.pipe_file(f"/tables/set/train/{path.name}", path.read_bytes())
    assert content(opened("memory://tables/set")) == content(opened(near))


def test_archives_of_a_web_server_are_read_once_and_then_by_ranges(folder, web):
    pattern = f"{web.address}/train/{{00000..00002}}.tar"
    near = opened(folder)
    far = opened(pattern)
    assert {method for method, _, _ in web.requests} == {"HEAD", "GET"}
    assert web.num_bytes <= sum(path.stat().st_size for path in (folder / "train").glob("*.tar"))
    web.requests.clear()
    web.num_bytes = 0
    assert content(far) == content(near)
    assert len(web.requests) == len(far)
    assert all(wanted.startswith("bytes=") for _, _, wanted in web.requests)
    assert web.num_bytes == sum(len(image) for _, image in content(near))
    web.requests.clear()
    opened(pattern)
    assert [method for method, _, _ in web.requests] == ["HEAD"] * NUM_ARCHIVES
    assert len(opened(f"{web.address}/train/00000.tar?download=true")) == NUM_SAMPLES


def test_a_request_that_fails_is_tried_again_and_does_not_become_a_broken_image(folder, web, caplog):
    far, near = opened(f"{web.address}/train/00000.tar"), opened(f"{folder}/train/00000.tar")
    web.failures[:] = [503, 500]
    assert far.read_image(2) == near.read_image(2)
    assert sum("trying again" in record.message for record in caplog.records) == 2
    web.failures[:] = [503] * 3
    with pytest.raises(DataError, match=r"00000\.tar cannot be read: 503"):
        far.read_image(2)


def test_a_server_without_ranges_is_refused_with_the_reason(folder, web):
    web.has_ranges = False
    pairs = opened(f"{web.address}/train/00000.tar")  # small: it fits in what is fetched at once
    with pytest.raises(DataError, match=r"were requested, but [\d,]+ bytes were received\n.*copy it"):
        pairs.read_image(1)
    write_samples(folder / "large.tar", [{"png": bytes(3_000_000), "txt": b"a"}] * 4)
    with pytest.raises(DataError, match=r"large\.tar cannot be read in parts: .*\n.*range requests.*copy the archives"):
        opened(f"{web.address}/large.tar")


class Killed(Exception):
    """Raised in place of the end of the process."""


class KilledAt(Watcher):
    def stepped(self, step: int, num_steps: int) -> None:
        if step == 3:
            raise Killed


def losses_of(run):
    return [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_a_run_on_object_storage_is_that_on_a_disk_and_resumes_exactly(folder, bucket, tmp_path):
    settings = [
        "model.image={image_size: 16, patch_size: 8, hidden_size: 24, num_heads: 3, intermediate_size: 32}",
        "model.text={hidden_size: 16, num_heads: 2, intermediate_size: 32}",
        *("model.projection.dim=12", "data.batch_size=4", "data.num_epochs=null", "num_steps=5"),
        "data.train_transforms=[{op: random_resize_crop, size: 16}]",
        "data.valid_transforms=[{op: resize, size: 16}]",
        *("schedule.warmup_share=null", "schedule.num_warmup_steps=1", "log.every_steps=1"),
        *("checkpoint.every_steps=2", "checkpoint.asynchronous=false", "precision.compute=float32"),
        f"data.tokenizer={make_tokenizer(tmp_path / 'tokenizer')}",
    ]
    near = api.load_config("clip/tiny", [*settings, f"data.train={folder}/train", f"data.valid={folder}/valid"])
    api.train(near, tmp_path / "near", device="cpu")
    sets = [f"data.train={bucket}/train/{{00000..00002}}.tar", f"data.valid={bucket}/valid/00000.tar"]
    far = api.load_config("clip/tiny", [*settings, *sets])
    with pytest.raises(Killed):
        api.train(far, tmp_path / "far", device="cpu", watcher=KilledAt())
    api.resume(tmp_path / "far", device="cpu")
    assert losses_of(tmp_path / "far") == losses_of(tmp_path / "near")
    assert len(losses_of(tmp_path / "far")) == 5
