"""Shared by the tests of the corpus room."""

import os

import pytest


@pytest.fixture(autouse=True)
def fast_disk(monkeypatch):
    """No power cuts while testing: syncing thousands of tiny files takes minutes on some disks."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
