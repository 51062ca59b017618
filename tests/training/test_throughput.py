"""Rates count real work, and MFU has the right peak or none (performance notes, pitfall 8)."""

import json

import pytest
import torch

from pretrainkit.dist.env import World
from pretrainkit.training.objective import Cost
from pretrainkit.training.precision import Precision
from pretrainkit.training.throughput import Peak, Throughput, peak_flops


@pytest.mark.parametrize(
    ("device_name", "precision_name", "peak"),
    [
        ("NVIDIA H200", "bfloat16", 989.5e12),
        ("NVIDIA H100 80GB HBM3", "bfloat16", 989.5e12),
        ("NVIDIA H100 80GB HBM3", "float16", 989.5e12),
        ("NVIDIA H100 PCIe", "bfloat16", 756e12),
        ("NVIDIA H100 NVL", "bfloat16", 835.5e12),
        ("NVIDIA A100-SXM4-80GB", "bfloat16", 312e12),
        ("NVIDIA A100-PCIE-40GB", "bfloat16", 312e12),
        ("NVIDIA A100-SXM4-80GB", "tf32", 156e12),
        ("NVIDIA A100-SXM4-80GB", "float32", 19.5e12),
        ("NVIDIA A10", "bfloat16", 125e12),
        ("NVIDIA L4", "bfloat16", 121e12),
        ("NVIDIA A1000", "bfloat16", None),
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", "bfloat16", None),
        ("NVIDIA H200", "float8_e4m3fn", None),
        ("NVIDIA GeForce RTX 4090", "bfloat16", 165.2e12),
        ("NVIDIA GeForce RTX 4090 D", "bfloat16", 147.1e12),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "bfloat16", None),
        ("NVIDIA GeForce RTX 4080 SUPER", "bfloat16", None),
        ("NVIDIA RTX 6000 Ada Generation", "tf32", 182.1e12),
        ("NVIDIA H20", "bfloat16", 148e12),
        ("NVIDIA GB200", "bfloat16", 2500e12),
        ("NVIDIA B300 SXM6 AC", "bfloat16", 2250e12),
        ("Tesla V100-SXM2-32GB", "float16", 125e12),
        ("Tesla V100-SXM2-32GB", "bfloat16", None),
        ("Tesla T4", "float16", 65e12),
        ("CPU", "float32", None),
        ("Quantum Accelerator 9", "bfloat16", None),
    ],
)
def test_peaks_are_dense_datasheet_rates_or_unknown(device_name, precision_name, peak) -> None:
    assert peak_flops(device_name, precision_name) == peak


def test_padding_is_not_work_and_waiting_is_time() -> None:
    throughput = Throughput(World(), Peak("NVIDIA H200", "bfloat16", 1000.0))
    for _ in range(4):
        throughput.add(Cost(examples=3, tokens=60, slots=80, flops=100.0))
        throughput.add(Cost(examples=1, tokens=20, slots=80, flops=50.0))
        throughput.time(step_seconds=0.75, wait_seconds=0.25)
    metrics = throughput.metrics()
    of_this_machine = {name: metrics.pop(name) for name in ("memory_gib", "memory_peak_gib", "utilization_share")}
    assert 0 < of_this_machine["memory_gib"] <= of_this_machine["memory_peak_gib"]
    assert 0 <= of_this_machine["utilization_share"] <= 1
    assert metrics == pytest.approx(
        {
            "seconds_per_step": 1.0,
            "examples_per_second": 4.0,
            "tokens_per_second": 80.0,
            "padding_share": 0.5,
            "data_wait_share": 0.25,
            "flops_per_second": 150.0,
            "mfu": 0.15,
        }
    )
    assert throughput.metrics() == {}


def test_work_that_is_not_counted_has_no_rates() -> None:
    throughput = Throughput(World(), Peak("NVIDIA H200", "bfloat16", 1000.0))
    throughput.add(Cost(examples=1, tokens=1, slots=1, flops=0.0))
    throughput.time(1.0, 0.0)
    assert not {"mfu", "flops_per_second"} & throughput.metrics().keys()


def test_a_cpu_has_no_mfu_and_the_log_explains_it() -> None:
    peak = Peak.of(Precision(torch.device("cpu"), torch.float32, uses_tf32=False, scaler=None))
    throughput = Throughput(World(), peak)
    throughput.add(Cost(examples=1, tokens=1, slots=1, flops=1.0))
    throughput.time(1.0, 0.0)
    assert "mfu" not in throughput.metrics()
    assert "is unknown" in peak.describe()


def test_the_formula_is_printed_with_its_denominator() -> None:
    assert "989.5e12 FLOP/s" in Peak("NVIDIA H200", "bfloat16", 989.5e12).describe()


def test_counts_continue_where_an_earlier_process_of_the_run_stopped():
    first, second, whole = (Throughput(World(), Peak("CPU", "float32", None)) for _ in range(3))
    for number, counter in ((3, first), (3, whole)):
        counter.add(Cost(1, 1, 1, 0.0, {"seen": number, "once": 1}))
    second.load_notes(json.loads(json.dumps(first.notes())))
    for counter in (second, whole):
        counter.add(Cost(1, 1, 1, 0.0, {"seen": 4}))
    assert second.notes() == whole.notes() == {"once": 1.0, "seen": 7.0}
