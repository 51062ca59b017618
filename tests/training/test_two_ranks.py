"""One rank = two ranks = four: gradients, clipping, updates, averages, evaluation. One start of two processes, and one
of four, do all checks."""

import pytest
import torch

from pretrainkit.dist.env import World
from support import SUPPORT
from support.two_processes import run_ranks, run_two
from support.two_ranks import checks

CASES = [
    "separable ddp adamw",
    "coupled ddp adamw",
    "separable fsdp2 adamw",
    "separable fsdp2 lamb",
    "separable fsdp2 lars",
    "separable fsdp2 lion",
    "separable fsdp2 muon",
    "separable fsdp2 relative adamw",
    "separable fsdp2 adafactor",
    "coupled fsdp2 adafactor",
    "coupled fsdp2 adamw",
]
CASES_OF_FOUR = [
    "separable hsdp adamw",
    "separable hsdp lamb",
    "separable hsdp muon",
    "separable hsdp adafactor",
    "coupled hsdp adamw",
]


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> list[dict]:
    folder = tmp_path_factory.mktemp("two-ranks")
    run_two(SUPPORT / "two_ranks.py", str(folder))
    return [torch.load(folder / f"rank-{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.fixture(scope="module")
def four(tmp_path_factory) -> list[dict]:
    folder = tmp_path_factory.mktemp("four-ranks")
    run_ranks(4, SUPPORT / "two_ranks.py", str(folder))
    return [torch.load(folder / f"rank-{rank}.pt", weights_only=True) for rank in range(4)]


@pytest.fixture(scope="module")
def alone() -> dict:
    return checks(World())


@pytest.mark.parametrize("case", CASES)
def test_fact_37_two_ranks_make_the_update_of_one(case, pair, alone) -> None:
    assert_same_update([found[case] for found in pair], alone[case])


@pytest.mark.parametrize("case", CASES_OF_FOUR)
def test_two_sharded_copies_make_the_update_of_one_rank(case, four, alone) -> None:
    assert_same_update([found[case] for found in four], alone[case.replace("hsdp", "fsdp2")])


def assert_same_update(ranks: list[dict], expected: dict) -> None:
    for found in ranks:
        for part in ("grads", "clipped", "params", "ema"):
            assert found[part].keys() == expected[part].keys()
            for name, value in expected[part].items():
                # The order of additions differs between one and two ranks; LAMB and Adam divide by small roots.
                torch.testing.assert_close(
                    found[part][name], value, rtol=1e-4, atol=1e-6, msg=lambda text, at=(part, name): f"{at}: {text}"
                )
        torch.testing.assert_close(found["norm"], expected["norm"], rtol=1e-5, atol=0)
        for name, (total, weight) in expected["terms"].items():
            torch.testing.assert_close(found["terms"][name][0], total, rtol=1e-5, atol=1e-6)
            assert torch.equal(found["terms"][name][1], weight)


@pytest.mark.parametrize("case", CASES)
def test_clipping_takes_the_norm_of_the_whole_gradient_and_scales_it(case, pair) -> None:
    for rank in range(2):
        grads = torch.cat([value.flatten() for value in pair[rank][case]["grads"].values()])
        clipped = torch.cat([value.flatten() for value in pair[rank][case]["clipped"].values()])
        assert pair[rank][case]["norm"].item() == pytest.approx(grads.norm().item(), rel=1e-5)
        assert clipped.norm().item() == pytest.approx(0.05, rel=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_both_ranks_hold_the_same_parameters(case, pair) -> None:
    for name, value in pair[0][case]["params"].items():
        assert torch.equal(value, pair[1][case]["params"][name])


def test_the_first_step_of_a_process_adds_the_gradients_of_ranks_in_the_order_of_later_steps(four) -> None:
    for found in four:
        first, second = found["two passes"]
        assert first.keys() == second.keys()
        assert all(torch.equal(first[name], second[name]) for name in first)


def test_evaluation_on_two_ranks_is_that_of_all_batches(pair, alone) -> None:
    for rank in range(2):
        assert pair[rank]["evaluation"] == pytest.approx(alone["evaluation"], rel=1e-6)


def test_throughput_adds_work_over_ranks_not_time(pair) -> None:
    for rank in range(2):
        rates = pair[rank]["throughput"]
        # Each rank took 1 or 1.25 s: 1.125 s on the mean. Two ranks could have done 2 x 100 FLOP/s.
        assert rates["examples_per_second"] == pytest.approx(5 / 1.125)
        assert rates["tokens_per_second"] == pytest.approx(20 / 1.125)
        assert rates["data_wait_share"] == pytest.approx(0.25 / 2.25)
        assert rates["mfu"] == pytest.approx(100 / (2.25 * 100))
