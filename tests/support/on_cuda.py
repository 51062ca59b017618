"""The suites of `make test-pretended-cuda` on a real GPU: `pytest -p support.on_cuda`, as `make test-cuda` does.

Whatever a test trains or evaluates is on the GPU, also where the test says "cpu". Tests that are left out on pretended
CUDA are left out here, and those of EXCLUDED_HERE.
"""

from collections.abc import Iterator
from contextlib import nullcontext

import pytest
import torch

from pretrainkit.dist import env
from support.pretended_cuda.excluded import DEFAULT_DEVICE, EXCLUDED

EXCLUDED_HERE: dict[str, tuple[str, ...]] = {
    "it draws from a generator of the CPU": (
        "tests/nn/test_linear_cross_entropy.py::"
        "test_a_lookup_in_the_table_of_the_head_has_the_gradient_of_a_plain_one_to_the_bit",
    ),
    "convolutions, and means over the tokens of a text, are not the same to the last bit in each run": (
        "tests/recipes/clip/test_clip_whole_run.py::test_an_export_of_mixed_towers_is_the_run",
        "tests/recipes/glue/test_glue_encoders.py::test_an_export_is_the_run[t5-huggingface]",
        "tests/recipes/glue/test_glue_encoders.py::test_an_export_is_the_run[t5-safetensors]",
    ),
}

if not torch.cuda.is_available():
    raise pytest.UsageError("there is no CUDA device here; make test-pretended-cuda needs none")

_chosen = env._device
env._device = lambda wanted, local_rank: _chosen(None if wanted == "cpu" else wanted, local_rank)


@pytest.fixture(autouse=True)
def default_device(request: pytest.FixtureRequest) -> Iterator[None]:
    """The device of tensors without a named device in a test."""
    with torch.device("cuda") if request.node.nodeid.startswith(DEFAULT_DEVICE) else nullcontext():
        yield


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reasons = {name: reason for reason, names in (EXCLUDED | EXCLUDED_HERE).items() for name in names}
    for item in items:
        file, test = item.nodeid.partition("::")[0], item.nodeid.partition("[")[0]
        for name in {file, test, item.nodeid} & reasons.keys():
            # The reason is that of the table above or of excluded.py.
            item.add_marker(pytest.mark.skip(reason=f"CUDA: {reasons[name]}"))
