"""`python -m support.interpreted FORMAT:CASE...`: the code that Inductor makes for an H200 of each kind of block and
loss of small models, computed on the CPU. Triton's interpreter runs its kernels. CASE is one of `CASES`, FORMAT is
float32 or bfloat16. Prints a JSON object: FORMAT:CASE to

    part        each output and gradient, by name: its relative difference from that of the plain module on the CPU

Tensors of the compiled module are fake, and have shapes alone. What they would contain is kept in `_CONTENTS`, by their
memory. Calls of the generated code read and write that. Needs the package triton.
"""

import os

os.environ["TRITON_INTERPRET"] = "1"

import support.codegen as codegen  # isort: skip  # before torch
from support.pretended_cuda.layouts import of_a_gpu  # isort: skip  # before models

import ast
import importlib.util
import json
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch._C._dynamo.guards as guards
import torch.nn.functional as functional
import triton
import triton.language as tl
from torch import Tensor, nn
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.graph import GraphLowering
from torch._inductor.output_code import CompiledFxGraph
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

import pretrainkit.nn.cuda.attention as cuda
from pretrainkit.dist.parallelize import CompiledApart
from pretrainkit.dist.saved_sums import SaveResidualSums
from pretrainkit.training.accumulate import accumulate
from pretrainkit.training.precision import Precision
from pretrainkit.training.trainer import to_device
from support import fourm_batches, small_work, t5_batches
from support.pretended_cuda import attention
from support.small_work import Work


def _with_batch(work: Work, batch: dict[str, Any]) -> Work:
    return work._replace(batches=[small_work.arrays(batch)])


def _without_dropout() -> Work:
    work = small_work.foreign_towers()
    work.model.eval()
    return work


CASES: dict[str, Callable[[], Work]] = {
    "t5 packed": lambda: small_work.t5(num_heads=2),
    "t5 long rows": lambda: _with_batch(small_work.t5(num_heads=1), t5_batches.long_batch()),
    "fourm": small_work.fourm,
    "fourm long rows": lambda: _with_batch(
        small_work.fourm(), fourm_batches.random_batch(num_rows=2, num_inputs=290, num_targets=270, num_segments=28)
    ),
    "bert packed, with room": lambda: small_work.bert(room=7),
    "bert modern": lambda: small_work.bert(is_modern=True),
    "pixel padded": lambda: small_work.pixel(pad_to=8),
    "clip": small_work.clip,
    "clip of timm and transformers": _without_dropout,
    "image_tokenizer": small_work.CASES["image_tokenizer"],
}
MOST_IN_BLOCK = {"XBLOCK": 64, "YBLOCK": 32, "R0_BLOCK": 128}


# --- Kernels ---


def _is_narrow(handle: TensorHandle) -> bool:
    return handle.dtype.scalar == tl.bfloat16


def _widened(handle: TensorHandle) -> TensorHandle:
    if not _is_narrow(handle):
        return handle
    return TensorHandle((handle.data.astype(np.uint32) << 16).view(np.float32), tl.float32)


def _narrowed(handle: TensorHandle) -> TensorHandle:
    rounded = torch.from_numpy(np.ascontiguousarray(handle.data, np.float32)).bfloat16()
    return TensorHandle(rounded.view(torch.uint16).numpy(), tl.bfloat16)


class _Bfloat16:
    """The interpreter's operations, with bfloat16. Its own compute with the bits of such numbers as integers."""

    binary, unary, dot = InterpreterBuilder.binary_op, InterpreterBuilder.unary_op, InterpreterBuilder.create_dot
    cast = InterpreterBuilder.create_fp_to_fp

    def binary_op(self, one: TensorHandle, other: TensorHandle, operator: Any) -> TensorHandle:
        found = _Bfloat16.binary(self, _widened(one), _widened(other), operator)
        is_narrow = _is_narrow(one) and _is_narrow(other) and found.dtype.scalar == tl.float32
        return _narrowed(found) if is_narrow else found

    def unary_op(self, one: TensorHandle, operator: Any) -> TensorHandle:
        found = _Bfloat16.unary(self, _widened(one), operator)
        return _narrowed(found) if _is_narrow(one) else found

    def create_dot(self, one: TensorHandle, other: TensorHandle, *rest: Any) -> TensorHandle:
        return _Bfloat16.dot(self, _widened(one), _widened(other), *rest)

    def create_fp_to_fp(self, one: TensorHandle, kind: Any, rounding: Any) -> TensorHandle:
        if one.dtype.scalar == tl.float32 and kind.scalar == tl.bfloat16:
            return _narrowed(one)  # the interpreter's own cuts off
        return _Bfloat16.cast(self, one, kind, rounding)


for name in ("binary_op", "unary_op", "create_dot", "create_fp_to_fp"):
    setattr(InterpreterBuilder, name, vars(_Bfloat16)[name])

_LIBDEVICE = SimpleNamespace(
    rsqrt=lambda x: tl.rsqrt(x),
    sqrt=lambda x: tl.sqrt(x),
    erf=lambda x: tl.erf(x),
    exp=lambda x: tl.exp(x),
    exp2=lambda x: tl.exp2(x),
    log=lambda x: tl.log(x),
    log2=lambda x: tl.log2(x),
    tanh=lambda x: 1 - 2 / (tl.exp(2 * x) + 1),
    isnan=lambda x: x != x,
)
"""Functions of CUDA's library, which the interpreter does not know."""


class _Kernel:
    """A Triton kernel of generated code."""

    folder = tempfile.TemporaryDirectory()

    def __init__(self, name: str, source: str) -> None:
        self.signature = ast.literal_eval(re.search(r"'signature': (\{.*?\})", source)[1])
        self.has_own_grid = "'grid_type': 'FixedGrid'" in source
        begin = source.index("@triton.jit")
        end = source.find("\ndef get_args", begin)  # its own benchmark
        path = Path(tempfile.mkdtemp(dir=self.folder.name), f"{name}.py")
        path.write_text(codegen.IMPORTS + source[begin : end if end > 0 else None])
        spec = importlib.util.spec_from_file_location(name, path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        vars(module)["libdevice"] = _LIBDEVICE
        self.function = getattr(module, name)

    def run(self, *args: Any, stream: object) -> None:
        names = [name for name in self.signature if name not in MOST_IN_BLOCK]
        given = dict(zip(names, args, strict=False))
        sizes = {}
        for name in self.signature.keys() - given.keys():
            elements = given["r0_numel" if name == "R0_BLOCK" else f"{name[0].lower()}numel"]
            sizes[name] = min(triton.next_power_of_2(max(elements, 1)), MOST_IN_BLOCK[name])
        grid = args[len(names) :] if self.has_own_grid else self._grid(given, sizes)
        self.function[tuple(grid)](**given, **sizes)

    def _grid(self, given: Mapping[str, Any], sizes: Mapping[str, int]) -> list[int]:
        axes = [axis for axis in "xy" if f"{axis}numel" in given]
        return [triton.cdiv(given[f"{axis}numel"], sizes.get(f"{axis.upper()}BLOCK", 1)) for axis in axes]


AsyncCompile.triton = lambda self, name, source, device_str: _Kernel(name, source)
GraphLowering.save_output_code = staticmethod(lambda code: None)
guards._empty_strided_cuda = guards._empty_strided_cpu
torch.cuda._DeviceGuard = lambda _: nullcontext()


# --- Attention that is not Triton's ---


_on_cpu = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_on_cpu_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def _heads_inside(x_BHTK: Tensor) -> Tensor:
    """In memory, the kernels for GPUs put the heads of a token side by side."""
    return x_BHTK.transpose(1, 2).contiguous().transpose(1, 2)


def _flash(*given: Any, scale: float | None = None) -> tuple[Any, ...]:
    query, key, value, rate, is_causal, _ = (*given, 0.0, False, False)[:6]
    mixed, sums = _on_cpu(query, key, value, rate, is_causal, scale=scale)
    lengths, state = (query.shape[2], key.shape[2]), torch.zeros(2, dtype=torch.uint64)
    return _heads_inside(mixed), sums.contiguous(), None, None, *lengths, state, state.new_zeros(()), sums.new_zeros(0)


def _flash_backward(*given: Any, scale: float | None = None) -> tuple[Tensor, ...]:
    *tensors, _, _, _, _, rate, is_causal, _, _ = given
    return tuple(map(_heads_inside, _on_cpu_backward(*tensors, rate, is_causal, scale=scale)))


def _efficient(*given: Any, scale: float | None = None) -> tuple[Tensor, ...]:
    query, key, value, bias, _, rate, is_causal = (*given, 0.0, False)[:7]
    mixed, sums = _on_cpu(query, key, value, rate, is_causal, attn_mask=bias, scale=scale)
    sums = functional.pad(sums.contiguous(), (0, -sums.shape[2] % 32))
    return _heads_inside(mixed), sums, torch.zeros((), dtype=torch.int64), torch.zeros((), dtype=torch.int64)


def _efficient_backward(*given: Any, scale: float | None = None) -> tuple[Any, ...]:
    grad, query, key, value, bias, mixed, sums, _, _, rate, _, is_causal = (*given, False)[:12]
    sums = sums[:, :, : query.shape[2]]
    grads = _on_cpu_backward(grad, query, key, value, mixed, sums, rate, is_causal, attn_mask=bias, scale=scale)
    return *map(_heads_inside, grads), None


_aten = torch.library.Library("aten", "IMPL")
for name, kernels in {"flash": (_flash, _flash_backward), "efficient": (_efficient, _efficient_backward)}.items():
    _aten.impl(f"_scaled_dot_product_{name}_attention", kernels[0], "CPU")
    _aten.impl(f"_scaled_dot_product_{name}_attention_backward", kernels[1], "CPU")


# --- Contents of fake tensors ---

_CONTENTS: dict[int, Tensor] = {}
"""Contents of fake memories, as bytes, by their addresses."""
_FAKES: list[Tensor] = []
"""Keeps the fake memories, so that no two have the same address."""
MODE = FakeTensorMode(allow_non_fake_inputs=True)


def _memory(fake: Tensor) -> int:
    return fake.untyped_storage()._cdata


def fill(fake: Tensor, contents: Tensor) -> None:
    """Let a fake tensor contain these values."""
    assert (fake.shape, fake.dtype) == (contents.shape, contents.dtype)
    if _memory(fake) not in _CONTENTS:
        _FAKES.append(fake)
        _CONTENTS[_memory(fake)] = torch.zeros(fake.untyped_storage().nbytes(), dtype=torch.uint8)
    once = tuple(slice(None) if stride else slice(1) for stride in fake.stride())  # of repeated values, the first
    contents_of(fake)[once].copy_(contents[once])


def contents_of(fake: Tensor) -> Tensor:
    """Return what a fake tensor contains, with its strides. Both share the memory."""
    flat = _CONTENTS[_memory(fake)].view(fake.dtype)
    return flat.as_strided(fake.shape, fake.stride(), fake.storage_offset())


def _faked(contents: Tensor, fakes: dict[int, Tensor]) -> Tensor:
    """Return a fake tensor for an output. `fakes` has a tensor in each memory that is known, by its real address."""
    storage = contents.untyped_storage()
    if storage.data_ptr() not in fakes:
        with MODE:
            fake = torch.empty(storage.nbytes(), dtype=torch.uint8, device="cuda")
        _FAKES.append(fake)
        _CONTENTS[_memory(fake)] = torch.empty(0, dtype=torch.uint8).set_(storage)
        fakes[storage.data_ptr()] = fake
    with MODE:
        made = torch.empty(0, dtype=contents.dtype, device="cuda")
        return made.set_(
            fakes[storage.data_ptr()].untyped_storage(),
            contents.storage_offset(),
            contents.shape,
            contents.stride(),
        )


def _call(self: CompiledFxGraph, inputs: Sequence[Any]) -> list[Any]:
    """Run the generated code of a forward or backward pass with what its fake inputs contain."""
    with unset_fake_temporarily(), torch.no_grad():
        given = [contents_of(one) if isinstance(one, Tensor) else one for one in inputs]
        fakes = {
            real.untyped_storage().data_ptr(): fake
            for real, fake in zip(given, inputs, strict=True)
            if isinstance(real, Tensor)
        }
        found = self.current_callable(given)
        return [_faked(one, fakes) if isinstance(one, Tensor) else one for one in found]


CompiledFxGraph.__call__ = _call


# --- Comparison ---


def tensors_in(thing: Any, seen: set[int]) -> Iterator[Tensor]:
    """Yield the tensors of arguments in a fixed order: in containers, objects and the functions of masks."""
    if isinstance(thing, Tensor):
        yield thing
    elif isinstance(thing, list | tuple):
        for part in thing:
            yield from tensors_in(part, seen)
    elif isinstance(thing, dict):
        yield from tensors_in(list(thing.values()), seen)
    elif isinstance(thing, FunctionType):
        yield from tensors_in([cell.cell_contents for cell in thing.__closure__ or ()], seen)
    elif hasattr(thing, "__dict__") and not isinstance(thing, type) and id(thing) not in seen:
        seen.add(id(thing))
        yield from tensors_in(vars(thing), seen)


def _calls(work: Work, device: torch.device, dtype: torch.dtype) -> dict[str, tuple[Any, ...]]:
    """Return the first call of each kind of compiled module in an update: the module and its arguments."""
    kinds: dict[str, tuple[Any, ...]] = {}

    def note(module: nn.Module, args: Any, kwargs: Any) -> None:
        kinds.setdefault(codegen.kind(module, args), (module, args, kwargs))

    apart = [module for module in work.model.modules() if isinstance(module, CompiledApart)]
    hooks = [one.register_forward_pre_hook(note, with_kwargs=True) for one in (*work.model.blocks(), *apart)]
    precision = Precision(device, dtype, False, None, has_narrow_residual=True)
    accumulate(work.objective, work.model, [to_device(work.batches[0], device)], precision=precision)
    for hook in hooks:
        hook.remove()
    return kinds


def _results(module: nn.Module, args: Any, kwargs: Any) -> dict[str, Tensor]:
    """Return the module's outputs, and the gradients of all its parameters and inputs, by name, for random gradients
    of the outputs."""
    flat, spec = tree_flatten((args, kwargs))
    flat = [one.detach().requires_grad_(one.requires_grad) if isinstance(one, Tensor) else one for one in flat]
    args, kwargs = tree_unflatten(flat, spec)
    outputs = [one for one in tree_leaves(module(*args, **kwargs)) if isinstance(one, Tensor)]
    inputs = {f"input {place}": one for place, one in enumerate(flat) if isinstance(one, Tensor) and one.requires_grad}
    sources = dict(module.named_parameters()) | inputs
    ends = [output for output in outputs if output.requires_grad]
    grads = [torch.empty_like(output) for output in ends]
    generator = torch.Generator().manual_seed(0)
    for grad in grads:
        with unset_fake_temporarily():
            random = torch.randn(grad.shape, generator=generator).to(grad.dtype)
            fill(grad, random) if grad.is_cuda else grad.copy_(random)
    by_name = {f"output {place}": one.detach() for place, one in enumerate(outputs)}
    if not ends:  # a loss that gives its gradients itself
        return by_name
    found = torch.autograd.grad(ends, list(sources.values()), grads, allow_unused=True)
    return by_name | {name: grad for name, grad in zip(sources, found, strict=True) if grad is not None}


@contextmanager
def _flex(replaced: Callable[..., Tensor]) -> Iterator[None]:
    """Replace FlexAttention, which only compiled code has on a GPU."""
    with patch.object(cuda, "_flex_attention", lambda some: replaced):
        yield


def compare(make: Callable[[], Work], dtype: torch.dtype) -> dict[str, dict[str, float]]:
    """See the top of the file."""
    work, fake_work = make(), make()
    fake_work.model.to("meta")
    is_narrow = dtype != torch.float32
    with of_a_gpu(), _flex(attention.flex_attention):
        real = _calls(work, torch.device("cpu"), dtype)
    with MODE:
        fake_work.model.to_empty(device="cuda")
        with _flex(codegen.plain_flex):
            fake = _calls(fake_work, torch.device("cuda", 0), dtype)
    assert fake.keys() == real.keys()
    found = {}
    for name, (module, args, kwargs) in real.items():
        compiled, *fake_args = fake[name]
        pairs = zip(
            tensors_in([list(compiled.state_dict().values()), fake_args], set()),
            tensors_in([list(module.state_dict().values()), args, kwargs], set()),
            strict=True,
        )
        for one, contents in pairs:
            fill(one.detach(), contents.detach())
        autocast = torch.autocast("cpu", torch.bfloat16, enabled=is_narrow)
        with of_a_gpu(), _flex(attention.flex_attention), autocast:
            expected = _results(module, args, kwargs)
        torch._dynamo.reset()
        compiled.compile(options={"joint_custom_post_pass": SaveResidualSums()})
        with MODE, torch.autocast("cuda", torch.bfloat16, enabled=is_narrow):
            results = _results(compiled, *fake_args)
        assert results.keys() == expected.keys()
        found[name] = _differences({key: contents_of(one) for key, one in results.items()}, expected)
    return found


def _differences(found: dict[str, Tensor], expected: dict[str, Tensor]) -> dict[str, float]:
    """Return the relative difference of each tensor. Small ones, whose true value may be 0, are compared with a
    thousandth of the largest."""
    largest = max(float(one.float().norm()) for one in expected.values())
    return {
        key: float((found[key].float() - one.float()).norm() / (one.float().norm() + 1e-3 * largest))
        for key, one in expected.items()
    }


if __name__ == "__main__":
    answers = {}
    for word in sys.argv[1:]:
        number_format, _, case = word.partition(":")
        answers[word] = compare(CASES[case], getattr(torch, number_format))
    print(json.dumps(answers))
