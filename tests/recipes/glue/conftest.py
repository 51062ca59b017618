"""One tiny encoder and all tables of GLUE, written once."""

from pathlib import Path

import pytest

from support.glue_toys import write_encoder, write_glue


@pytest.fixture(scope="session")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT as transformers writes it."""
    return write_encoder(tmp_path_factory.mktemp("encoder") / "bert")


@pytest.fixture(scope="session")
def glue(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of all data sets."""
    return write_glue(tmp_path_factory.mktemp("glue"))
