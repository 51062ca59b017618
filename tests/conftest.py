"""Settings of all tests: time limits of hypothesis off (busy machines), no waiting for disks, the path of sample data,
and no network."""

import ctypes
import gc
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import settings

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
with suppress(OSError):  # before tests import freetype-py; why: `_import_freetype` in rendering/freetype_engine.py
    ctypes.CDLL("libfreetype.so.6")
settings.register_profile("pretrainkit", deadline=None)
settings.load_profile("pretrainkit")


def pytest_collection() -> None:
    """Disable the collector until the first test: all objects stay until then, and searching them takes seconds."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Freeze loaded modules, so that the garbage collector only visits objects of tests."""
    gc.freeze()
    gc.enable()
    gc.set_threshold(50_000, 20, 50)  # a thirtieth of the time goes into the usual 700 and 10


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish() -> None:
    """Collect unreferenced objects once, and not five times at pytest's end."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def fast_disk() -> Iterator[None]:
    """No power cuts while testing: syncing thousands of tiny files takes minutes on some disks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="session")
def transformers() -> ModuleType:
    """The package, in working order beside a CPU-only torch with torchvision too."""
    from pretrainkit.exporting.torchvision_shim import import_transformers

    return import_transformers()


@pytest.fixture(scope="session")
def sample_data() -> Path:
    """Folder of real sample text beside the checkout; tests that need it skip by name where it is absent."""
    folder = Path(os.environ.get("PRETRAINKIT_SAMPLE_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data")
    if not folder.is_dir():
        pytest.skip("sample data not present: set PRETRAINKIT_SAMPLE_DATA")
    return folder


@pytest.fixture(scope="session")
def latin_font(tmp_path_factory) -> str:
    """The font that Pillow brings: Latin only."""
    fonts = pytest.importorskip("PIL.ImageFont")
    path = tmp_path_factory.mktemp("fonts") / "latin.ttf"
    path.write_bytes(fonts.load_default(12).font_bytes)
    return str(path)
