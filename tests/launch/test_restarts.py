"""A run that fails is started again as long as it gets further, and never for ever."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretrainkit.launch.folder import Restarts


@pytest.mark.parametrize(
    ("left", "code", "before", "now", "goes_on"),
    [
        (1, 1, None, "step-00000004", True),
        (1, 1, "step-00000004", "step-00000008", True),
        (1, 1, "step-00000004", "step-00000004", False),
        (1, 1, None, None, False),
        (0, 1, None, "step-00000004", False),
        (1, 2, None, "step-00000004", False),
        (1, 130, None, "step-00000004", False),
        (1, 0, None, "step-00000004", False),
    ],
)
def test_only_a_failure_after_progress_leads_to_a_restart(left, code, before, now, goes_on):
    assert (Restarts(left, before).after_failure(code, now) is not None) == goes_on


@given(left=st.integers(0, 5), steps=st.lists(st.integers(0, 9), max_size=20))
def test_a_run_fails_at_most_so_often(left, steps):
    restarts, failures = Restarts(left, None), 0
    for step in steps:
        following = restarts.after_failure(1, f"step-{step:08d}")
        if following is None:
            break
        restarts, failures = following, failures + 1
    assert failures <= left
