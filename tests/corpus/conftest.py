"""Shared by the tests of the corpus room."""

import os

import pytest
from hypothesis import settings

settings.register_profile("corpus", deadline=None)  # the machines of CI have slow days
settings.load_profile("corpus")


@pytest.fixture(autouse=True)
def fast_disk(monkeypatch):
    """No power cuts while testing: syncing thousands of tiny files takes minutes on some disks."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
