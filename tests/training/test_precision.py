"""Choice of the number format of a device, and refused formats."""

import logging

import pytest
import torch

import pretrainkit.training.precision as precision_module
from pretrainkit.errors import ConfigError
from pretrainkit.training.precision import cpu_has_fast_bfloat16, resolve_precision
from pretrainkit.training.run import PrecisionConfig
from support.remedies import followed

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("fpu sse avx2 avx512f avx512_bf16", True),
        ("fpu amx_tile amx_bf16 amx_int8", True),
        ("fpu sse avx2 avx512f avx512_vnni amx_tile", False),
        ("fpu sse avx2", False),
        ("", False),
    ],
)
def test_fast_bfloat16_is_read_from_the_cpu_flags(flags, expected) -> None:
    assert (
        cpu_has_fast_bfloat16(f"processor\t: 0\nmodel name\t: avx512_bf16 amx_bf16\nflags\t\t: {flags}\n") is expected
    )


@pytest.mark.parametrize(("is_fast", "expected"), [(True, torch.bfloat16), (False, torch.float32)])
def test_auto_on_a_cpu_is_bfloat16_only_in_hardware(monkeypatch, caplog, is_fast, expected) -> None:
    monkeypatch.setattr(precision_module, "cpu_has_fast_bfloat16", lambda: is_fast)
    resolved = resolve_precision(PrecisionConfig(), CPU)
    assert resolved.compute_dtype is expected
    assert resolved.scaler is None
    assert resolved.name == str(expected).removeprefix("torch.")
    assert not caplog.records
    with resolved.autocast():
        product = torch.ones(2, 2) @ torch.ones(2, 2)
    assert product.dtype is expected


def test_explicit_bfloat16_on_a_slow_cpu_warns_with_the_factor(monkeypatch, caplog) -> None:
    monkeypatch.setattr(precision_module, "cpu_has_fast_bfloat16", lambda: False)
    with caplog.at_level(logging.WARNING):
        assert resolve_precision(PrecisionConfig(compute="bfloat16"), CPU).compute_dtype is torch.bfloat16
    advice = followed(caplog.messages[0], "training/precision.py: precision.compute=bfloat16 on a CPU")
    caplog.clear()
    resolve_precision(PrecisionConfig(compute=advice.partition("compute=")[2]), CPU)
    assert not caplog.messages


def test_float16_on_a_cpu_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"float16.*'cpu'"):
        resolve_precision(PrecisionConfig(compute="float16"), CPU)


def test_a_plain_step_uses_the_same_calls_as_a_scaled_one() -> None:
    resolved = resolve_precision(PrecisionConfig(compute="float32"), CPU)
    weight = torch.nn.Parameter(torch.tensor([3.0]))
    optimizer = torch.optim.SGD([weight], lr=0.5)
    resolved.backward((2 * weight).sum())
    resolved.unscale_(optimizer)
    resolved.step(optimizer)
    assert weight.item() == 2.0
    assert resolved.state_dict() == {}
    resolved.load_state_dict({})


@pytest.mark.gpu
def test_float16_on_a_gpu_scales_and_skips_overflow() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    resolved = resolve_precision(PrecisionConfig(compute="float16"), torch.device("cuda", 0))
    weight = torch.nn.Parameter(torch.ones(1, device="cuda"))
    optimizer = torch.optim.SGD([weight], lr=0.5)
    for gradient, expected in ((1.0, 0.5), (float("inf"), 0.5)):
        optimizer.zero_grad()
        scale = resolved.state_dict()["scale"]
        resolved.backward((gradient * weight).sum())
        resolved.unscale_(optimizer)
        resolved.step(optimizer)
        assert weight.item() == expected
    assert resolved.state_dict()["scale"] == scale / 2


def test_the_residual_stream_is_narrow_on_gpus_in_bfloat16_and_if_configured(monkeypatch) -> None:
    monkeypatch.setattr(precision_module, "has_fast_bfloat16", lambda device: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    cuda = torch.device("cuda")
    for device, compute, residual, expected in (
        (cuda, "auto", "auto", True),
        (cuda, "float32", "auto", False),
        (cuda, "auto", "float32", False),
        (CPU, "auto", "auto", False),
        (CPU, "auto", "compute", True),
    ):
        config = PrecisionConfig(compute=compute, residual=residual)
        assert resolve_precision(config, device).has_narrow_residual is expected
