"""The tests that `make test-pretended-cuda` leaves out still exist; see `support.pretended_cuda.excluded`."""

import pytest

from support import SUPPORT
from support.pretended_cuda.excluded import EXCLUDED


@pytest.mark.parametrize("name", [name for names in EXCLUDED.values() for name in names])
def test_left_out_tests_exist(name: str) -> None:
    path, _, test = name.partition("[")[0].partition("::")
    source = (SUPPORT.parent.parent / path).read_text("utf-8")
    assert not test or f"\ndef {test}(" in source
