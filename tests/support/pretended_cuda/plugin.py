"""Existing suites on pretended CUDA: `pytest -p support.pretended_cuda.plugin`, as `make test-pretended-cuda` does.

Whatever a test trains, evaluates or asks is on the device, also where the test says "cpu", which most say to be alike
on all machines. What is left out, and where tensors of the tests themselves are on the device, is in excluded.py.
"""

import support.pretended_cuda.device as pretended  # isort: skip  # before torch

from collections.abc import Iterator
from contextlib import nullcontext

import pytest

from pretrainkit.dist import env
from support.pretended_cuda.excluded import DEFAULT_DEVICE, EXCLUDED

_chosen = env._device
env._device = lambda wanted, local_rank: _chosen(None if wanted == "cpu" else wanted, local_rank)


@pytest.fixture(autouse=True)
def default_device(request: pytest.FixtureRequest) -> Iterator[None]:
    """The device of tensors without a named device in a test."""
    with pretended.CUDA if request.node.nodeid.startswith(DEFAULT_DEVICE) else nullcontext():
        yield


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reasons = {name: reason for reason, names in EXCLUDED.items() for name in names}
    for item in items:
        file, test = item.nodeid.partition("::")[0], item.nodeid.partition("[")[0]
        for name in {file, test, item.nodeid} & reasons.keys():
            item.add_marker(pytest.mark.skip(reason=f"pretended CUDA: {reasons[name]}"))
