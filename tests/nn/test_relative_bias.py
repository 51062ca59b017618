"""Buckets of distances against the original's table, and the table's way into scores and back."""

import math

import pytest
import torch

from pretrainkit.nn.relative_bias import RelativeBias, distance_buckets

T5 = {"num_buckets": 32, "max_distance": 128}
ENCODER_STARTS = [*range(8), 8, 12, 16, 23, 32, 46, 64, 91]
DECODER_STARTS = [*range(16), 16, 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113]


def expected_bucket(starts, distance):
    return max(bucket for bucket, start in enumerate(starts) if distance >= start)


def test_buckets_are_those_of_the_table():
    away = torch.arange(1500)
    before = distance_buckets(-away, **T5, is_bidirectional=True)
    assert before.tolist() == [expected_bucket(ENCODER_STARTS, a) for a in range(1500)]
    after = distance_buckets(away[1:], **T5, is_bidirectional=True)
    assert after.tolist() == [16 + expected_bucket(ENCODER_STARTS, a) for a in range(1, 1500)]
    causal = distance_buckets(-away, **T5, is_bidirectional=False)
    assert causal.tolist() == [expected_bucket(DECODER_STARTS, a) for a in range(1500)]


def test_fact_3_named_buckets():
    found = distance_buckets(torch.tensor([-1, 1, -8, 8, -91, -1000, 1000]), **T5, is_bidirectional=True)
    assert found.tolist() == [1, 17, 8, 24, 15, 15, 31]
    found = distance_buckets(torch.tensor([-1, -15, -16, -112, -113, 5]), **T5, is_bidirectional=False)
    assert found.tolist() == [1, 15, 16, 30, 31, 0]


@pytest.mark.parametrize(("num_buckets", "max_distance"), [(32, 128), (32, 256), (16, 64), (64, 512)])
@pytest.mark.parametrize("is_bidirectional", [True, False])
def test_buckets_equal_exact_arithmetic(num_buckets, max_distance, is_bidirectional):
    side = num_buckets // 2 if is_bidirectional else num_buckets
    exact = side // 2
    for away in range(1500):
        share = math.log(max(away, 1) / exact) / math.log(max_distance / exact) * (side - exact)
        expected = away if away < exact else min(side - 1, exact + math.floor(share + 1e-9))
        found = distance_buckets(
            torch.tensor(-away), num_buckets=num_buckets, max_distance=max_distance, is_bidirectional=is_bidirectional
        )
        assert int(found) == expected


@pytest.mark.parametrize(("num_queries", "num_keys"), [(1, 1), (5, 5), (3, 9), (9, 3)])
def test_every_pair_reads_its_bucket_and_gives_its_gradient_back(num_queries, num_keys):
    torch.manual_seed(0)
    bias = RelativeBias(3, num_buckets=8, max_distance=6, is_bidirectional=True).double()
    bias.weight.data.normal_()
    distance = torch.arange(num_keys) - torch.arange(num_queries)[:, None]
    bucket = distance_buckets(distance, num_buckets=8, max_distance=6, is_bidirectional=True)
    plain = bias.weight[bucket].permute(2, 0, 1)
    ours = bias(num_queries, num_keys)
    assert torch.equal(ours, plain)
    above = torch.randn_like(plain)
    gradients = [torch.autograd.grad((value * above).sum(), bias.weight)[0] for value in (ours, plain)]
    torch.testing.assert_close(*gradients)
