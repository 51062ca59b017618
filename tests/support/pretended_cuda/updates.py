"""`python -m support.pretended_cuda.updates [CASE...]`: updates of small models of every recipe on pretended CUDA,
beside those of the CPU. Prints a JSON object: case to results (see `compare`)."""

import support.pretended_cuda.device as pretended  # isort: skip  # before torch
from support.pretended_cuda.layouts import of_a_gpu  # isort: skip  # before models

import copy
import json
import sys
import traceback
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from pretrainkit.dist.devices import to_device as move
from pretrainkit.dist.env import World
from pretrainkit.training.accumulate import accumulate, seed_dropout
from pretrainkit.training.ema import Ema
from pretrainkit.training.optimizers.build import build_optimizer, clip_gradients, parameters_of, step_if_finite
from pretrainkit.training.optimizers.config import AdafactorConfig, OptimizerConfig
from pretrainkit.training.optimizers.muon import Muon
from pretrainkit.training.precision import resolve_precision
from pretrainkit.training.run import PrecisionConfig
from pretrainkit.training.trainer import to_device
from support.small_work import CASES, Work, bert, worst_difference

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adamw": {},
    "scaled adamw": {"scale_by_parameter_rms": True},
    "lamb": {"name": "lamb"},
    "lars": {"name": "lars"},
    "lion": {"name": "lion"},
    "muon": {"name": "muon"},
    "sgd": {"name": "sgd"},
    "adafactor": {"name": "adafactor", "adafactor": AdafactorConfig(min_dim_size_to_factor=8)},
    "adafactor with momentum, without NaN": {
        "name": "adafactor",
        "adafactor": AdafactorConfig(min_dim_size_to_factor=8, beta1=0.9, step_offset=1, skip_nan_updates=True),
    },
}


ONLY_HALF = {
    "clip of timm and transformers",
    "glue tree of transformers",
    "bert packed, dropout",
    "bert modern",
    "pixel",
    "pixel dropout",
    "t5 1.0, dropout",
}
"""Cases of which another one shows in float32 what they would."""


def gradients(model: nn.Module) -> dict[str, Tensor]:
    found = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    return {name: (grad.host if isinstance(grad, pretended.OnCuda) else grad).clone() for name, grad in found.items()}


def two_updates(work: Work, device: torch.device, compute: str) -> dict[str, Tensor]:
    """Return the gradients of the first update; the events of the second are recorded. A CPU only has to return
    gradients and makes no update."""
    model, objective, batches, settings = work
    model.train()
    # As on a GPU, also where the CPU computes what is expected there.
    precision = resolve_precision(PrecisionConfig(compute=compute, residual="compute"), device)
    optimizer, ema = build_optimizer(model, settings), Ema(model, 0.9)
    first: dict[str, Tensor] = {}
    on_device = [to_device(batch, device) for batch in batches]
    for step in range(2):
        optimizer.zero_grad(set_to_none=True)
        if step:
            pretended.RECORD.clear()
        accumulate(
            objective,
            model,
            on_device,
            precision=precision,
            world=World(device=device),
            seed_dropout=lambda index, step=step: seed_dropout(0, step, index, 0, device),  # type: ignore[misc]
        )
        first = first or gradients(model)
        if device.type == "cpu":
            break
        norm = clip_gradients(parameters_of(optimizer), settings)
        step_if_finite(optimizer, precision, norm)
        with torch.no_grad():
            objective.after_update(model)
        ema.update(model)
    return first


def formats(name: str) -> tuple[str, ...]:
    """Optimizers compute in float32, whatever the model does; kernels for half precision see every other case once."""
    if name.startswith("optimizer"):
        return ("float32",)
    return ("bfloat16",) if name in ONLY_HALF else ("float32", "bfloat16")


def compare(make: Callable[[], Work], computes: tuple[str, ...]) -> dict[str, Any]:
    """Return for each number format: `worst` relative difference of a gradient from the CPU's and its `name`;
    `not_finite` and `missing` gradients; `waits` of the second update and where; the number of its `operators` that
    launch work, and which of them are `attention`, forward. Or the `error`.

    The CPU has its own layouts in float32, and those of a GPU in bfloat16, which rounds wherever a layout begins a new
    sum. Where both formats are seen, `rounding` is what bfloat16 changes in a gradient at worst: here, and on the CPU
    with its own layouts.
    """
    work, cpu = make(), torch.device("cpu")
    found: dict[str, Any] = {}
    wide: dict[str, Tensor] = {}
    for compute in computes:
        with of_a_gpu() if compute == "bfloat16" else nullcontext():
            expected = two_updates(copy.deepcopy(work), cpu, compute)
        own = copy.deepcopy(work)
        move(own.model, pretended.CUDA)
        try:
            with pretended.RECORD.on() as record:
                grads = two_updates(own, pretended.CUDA, compute)
        except Exception as error:
            told = traceback.format_exc().splitlines()[-4:]
            found[compute] = {"error": f"{type(error).__name__}: {error}", "at": told}
            continue
        worst, name = worst_difference(grads, expected)
        found[compute] = {
            "worst": worst,
            "name": name,
            "not_finite": [name for name, grad in grads.items() if not grad.isfinite().all()],
            "missing": [name for name in expected if name not in grads],
            "waits": dict(record.waits),
            "operators": launches(record),
            "attention": [name for name in record.operators if "attention_forward" in name or "_attn.default" in name],
        }
        if compute == "float32":
            wide = expected
        elif wide:
            both = grads, two_updates(copy.deepcopy(work), cpu, compute)
            found[compute]["rounding"] = [worst_difference(one, wide)[0] for one in both]
    return found


_WITHOUT_KERNEL = {
    *("alias", "as_strided", "detach", "expand", "permute", "select", "slice", "split", "split_with_sizes", "squeeze"),
    *("t", "transpose", "unbind", "unsqueeze", "view", "_unsafe_view", "_reshape_alias"),
    *("empty", "empty_like", "new_empty"),
}
"""Views, and memory that nothing is written to: no work for the device."""


def launches(record: pretended.Record) -> int:
    """Operators of the record that launch work."""
    return sum(num for name, num in record.operators.items() if name.split(".")[1] not in _WITHOUT_KERNEL)


def on_host(tensors: Iterable[Tensor]) -> list[Tensor]:
    return [(one.host if isinstance(one, pretended.OnCuda) else one).detach().clone() for one in tensors]


def like_t5_base() -> nn.Module:
    """Tiny, with as many different shapes as T5 1.1 base and half its layers: a call per layer would be seen."""
    from pretrainkit.recipes.t5.config import T5ModelConfig
    from pretrainkit.recipes.t5.model import build

    shape = {"hidden_size": 16, "num_heads": 2, "head_size": 8, "intermediate_size": 24}
    return build(T5ModelConfig(vocab_size=40, num_encoder_layers=6, num_decoder_layers=6, **shape))


def updates_alone(model: nn.Module, settings: dict[str, Any]) -> dict[str, Any]:
    """Four updates by random gradients. Before the second, state goes through a state_dict; the third has a gradient
    that is not finite.

    Returns the number of `operators` that launch work in the fourth, with the decision whether it is left out, without
    clipping; `waits` of the last two; how many parameters and tensors of state the third `changed`; and the `worst`
    relative difference of a parameter from the CPU's in the end, and how far the one `moved` that moved least.
    """
    config = OptimizerConfig(**({"peak_lr": 1e-2} | settings))
    found: dict[str, Any] = {"changed": 0, "waits": {}}
    ends = []
    for device in (torch.device("cpu"), pretended.CUDA):
        own = copy.deepcopy(model)
        move(own, device)
        optimizer = build_optimizer(own, config)
        if isinstance(optimizer, Muon):
            optimizer.dtype = torch.bfloat16  # as on a GPU; a CPU may have another format
        precision = resolve_precision(PrecisionConfig(compute="float32"), device)
        generator = torch.Generator().manual_seed(1)
        for step in range(4):
            if step == 1:
                optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
            for parameter in own.parameters():
                grad = torch.randn(parameter.shape, generator=generator)
                parameter.grad = pretended.OnCuda(grad) if device.type == "cuda" else grad
            if step == 2:
                parameter.grad.mul_(torch.inf)
            norm = clip_gradients(parameters_of(optimizer), config)
            kept = [*own.parameters(), *(value for state in optimizer.state.values() for value in state.values())]
            before = on_host(kept)
            with pretended.RECORD.on() as record:
                step_if_finite(optimizer, precision, norm)
            if step == 2:
                found["changed"] += sum(not torch.equal(a, b) for a, b in zip(before, on_host(kept), strict=True))
            if step >= 2:
                found["waits"] |= record.waits
        ends.append(on_host(own.parameters()))
    found["operators"] = launches(record)
    found["moved"] = min(float((a - b).norm()) for a, b in zip(ends[1], on_host(model.parameters()), strict=True))
    found["worst"] = max(float((a - b).norm() / (a.norm() + 1e-6)) for a, b in zip(*ends, strict=True))
    return found


def alone(settings: dict[str, Any]) -> dict[str, Any]:
    """An optimizer with a deep model, and with one some of whose parameters hold several matrices."""
    torch.manual_seed(0)
    return {"deep": updates_alone(like_t5_base(), settings), "stacked": updates_alone(bert().model, settings)}


if __name__ == "__main__":
    torch.set_num_threads(1)
    wanted = sys.argv[1:]
    cases = {name: lambda make=make, name=name: compare(make, formats(name)) for name, make in CASES.items()}
    cases |= {f"alone {name}": lambda of=settings: alone(of) for name, settings in OPTIMIZERS.items()}
    print(json.dumps({name: run() for name, run in cases.items() if not wanted or name in wanted}))
