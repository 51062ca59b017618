"""The compiled module keeps the same tokens as NumPy."""

import numpy as np
import pytest

from pretrainkit import rng
from pretrainkit.recipes.fourm import sequences as module
from pretrainkit.recipes.fourm.sequences import Ragged

compiled = pytest.importorskip("pretrainkit.recipes.fourm._keep", reason="there was no compiler at installation")


@pytest.mark.parametrize("is_chunked", [False, True])
def test_the_compiled_helper_keeps_the_same_tokens(is_chunked):
    generator = np.random.default_rng(0)
    lengths = generator.integers(0, 40, 50)
    total = int(lengths.sum())
    units = np.concatenate([np.arange(length) // 3 for length in lengths]).astype(np.int32) if is_chunked else None
    sequences = Ragged(np.zeros(total, np.int32), lengths, units)
    keys, keep = rng.fold(7, np.arange(50)), generator.random(50)
    budgets, attempts = generator.integers(0, 12, 50), generator.integers(0, 3, 50)
    wanted = module.kept_by_numpy(sequences, keys, keep, budgets, attempts)
    found = np.zeros(total, np.bool_)
    none = np.empty(0, np.int32)
    compiled.keep(keys, keep, budgets, attempts, lengths, module._FADED, none if units is None else units, found)
    assert 0 < found.sum() < total
    np.testing.assert_array_equal(found, wanted)


def test_the_compiled_helper_refuses_arrays_that_do_not_fit():
    keys, whole, keep = np.zeros(2, np.uint64), np.ones(2, np.int64), np.ones(2)
    with pytest.raises(ValueError, match="do not match"):
        compiled.keep(keys, keep, whole, whole, 2 * whole, module._FADED, np.empty(0, np.int32), np.zeros(3, np.bool_))
