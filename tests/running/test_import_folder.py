"""Folders that `pretrainkit import` refuses."""

import pytest

from pretrainkit import api
from pretrainkit.errors import DataError
from support.page_data import copy
from support.remedies import followed


def test_a_run_is_not_imported_but_read_directly(tmp_path):
    copy("bert", tmp_path / "run")
    with pytest.raises(DataError, match=r"has no config\.json") as error:
        api.import_model(tmp_path / "run", "bert", tmp_path / "imported")
    followed(error.value, "running/exchange.py: … is not a folder written by transformers")
    assert api.open_model(tmp_path / "run").config.recipe == "bert"
    assert not (tmp_path / "imported").exists()
