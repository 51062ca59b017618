"""Fixtures of the tests of the clip recipe: optional packages, or skips that name them."""

import pytest

from pretrainkit.exporting.torchvision_shim import import_torchvision


@pytest.fixture(scope="session")
def timm():
    try:
        import_torchvision()
    except ImportError:
        pytest.skip("torchvision is not installed: pip install 'pretrainkit[vision]'")
    return pytest.importorskip("timm", reason="timm is not installed: pip install 'pretrainkit[vision]'")
