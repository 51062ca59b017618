"""What `make test-pretended-cuda` leaves out is still there; see `support.pretended_cuda.excluded`."""

import pytest

from support import SUPPORT
from support.pretended_cuda.excluded import EXCLUDED


@pytest.mark.parametrize("name", [name for names in EXCLUDED.values() for name in names])
def test_what_is_left_out_exists(name: str) -> None:
    path, _, test = name.partition("[")[0].partition("::")
    source = (SUPPORT.parent.parent / path).read_text("utf-8")
    assert not test or f"\ndef {test}(" in source
