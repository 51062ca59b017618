"""Choice of attention on a GPU, by its compute capability, the number format and the width of a head."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import pretrainkit.nn.cuda.attention as cuda
from pretrainkit.nn.layouts import best_pairs

HALF, BRAIN, SINGLE = torch.float16, torch.bfloat16, torch.float32
PASCAL, VOLTA, TURING, AMPERE, ADA, HOPPER, BLACKWELL = (6, 1), (7, 0), (7, 5), (8, 0), (8, 9), (9, 0), (10, 0)
FLASH = {
    # (format, width of a head): the cards whose packed examples go through the flash kernel
    (BRAIN, 64): (AMPERE, ADA, HOPPER, BLACKWELL),
    (HALF, 64): (AMPERE, ADA, HOPPER, BLACKWELL),
    (BRAIN, 256): (AMPERE, ADA, HOPPER, BLACKWELL),
    (BRAIN, 264): (),  # wider than the kernel was written for
    (BRAIN, 44): (AMPERE, ADA, HOPPER, BLACKWELL),  # as in the decoder of pixel/small, with zeros up to 48
    (SINGLE, 64): (),
}
PAIRS = {
    # (width of a head, has dropout): the cards that compute T5's bias in FlexAttention
    (64, False): (VOLTA, TURING, AMPERE, ADA, HOPPER, BLACKWELL),
    (64, True): (),
    (8, False): (),
}


@pytest.fixture(params=[PASCAL, VOLTA, TURING, AMPERE, ADA, HOPPER, BLACKWELL], ids=lambda one: f"sm{one[0]}{one[1]}")
def card(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, int]]:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: request.param)
    monkeypatch.setattr(cuda, "_has_compiler", lambda: True)
    cuda._capability.cache_clear()
    yield request.param
    cuda._capability.cache_clear()


def on_card(dtype: torch.dtype, *shape: int) -> Any:
    """Methods of a tensor that are used there."""
    return SimpleNamespace(dtype=dtype, shape=shape, device=torch.device("cuda", 0))


@pytest.mark.parametrize(("dtype", "width"), FLASH, ids=str)
def test_packed_examples(card: tuple[int, int], dtype: torch.dtype, width: int) -> None:
    assert cuda.has_varlen(on_card(dtype, 16, 3, 2, width), card) == (card in FLASH[dtype, width])


@pytest.mark.parametrize(("width", "has_dropout"), PAIRS)
def test_pairs_with_a_bias(card: tuple[int, int], width: int, has_dropout: bool) -> None:
    expected = "flex" if card in PAIRS[width, has_dropout] else "rows"
    assert best_pairs(on_card(BRAIN, 16), width, has_dropout=has_dropout) == expected


def test_pairs_with_a_bias_need_a_compiler(card: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "_has_compiler", lambda: False)
    assert best_pairs(on_card(BRAIN, 16), 64) == "rows"
