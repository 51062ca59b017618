"""`python -m support.codegen PRESET=EXAMPLES[,SETTING...] ...`: the code that Inductor and Triton make for an H200 of
each kind of block, and of the loss, of presets in their real sizes, without a GPU; ptxas, which the triton package
brings, compiles it. Prints a JSON object: preset to

    cost        floating point operations of an update as MFU counts them
    products    those that products of matrices do
    attention   and those of attention kernels; FlexAttention's as if it skipped nothing
    parameters  numbers in the model
    parts       by kind of module, for `count` modules, `forward` and `backward`:
        kernels     of Triton: name to the bytes that its calls read and write
        calls       of other kernels, such as products, by name
        atomics     additions of that kind in Triton code
        spilled     of each kernel of FlexAttention: bytes per thread that do not fit into its registers

Tensors are fake: they have shapes alone. Needs the package triton, which torch's build for CPUs comes without.
"""

from support.pretended_cuda import load  # isort: skip  # before torch

import ast
import importlib.util
import json
import math
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

assert load
os.environ |= {"TORCHINDUCTOR_COMPILE_THREADS": "1", "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}

import torch  # noqa: E402

_H200 = SimpleNamespace(
    name="NVIDIA H200",
    major=9,
    minor=0,
    total_memory=141 << 30,
    multi_processor_count=132,
    regs_per_multiprocessor=65_536,
    max_threads_per_multi_processor=2_048,
    max_threads_per_block=1_024,
    warp_size=32,
    shared_memory_per_block=48 << 10,
    shared_memory_per_block_optin=227 << 10,
    shared_memory_per_multiprocessor=228 << 10,
    L2_cache_size=50 << 20,
    gcnArchName="",
)
_CUDA = {
    "is_available": True,
    "device_count": 1,
    "current_device": 0,
    "is_initialized": True,
    "is_current_stream_capturing": False,
    "get_device_name": _H200.name,
    "get_device_capability": (9, 0),
    "get_device_properties": _H200,
    "is_bf16_supported": True,
    **dict.fromkeys(("_lazy_init", "synchronize", "set_device", "manual_seed", "manual_seed_all", "set_rng_state")),
    **dict.fromkeys(("_exchange_device", "_maybe_exchange_device"), 0),
}
for name, answer in _CUDA.items():
    setattr(torch.cuda, name, lambda *_, answer=answer, **__: answer)
torch.cuda.get_rng_state = lambda *_: torch.get_rng_state()
torch.version.cuda = "13.0"
for name, answer in {
    "_cuda_getCurrentRawStream": 0,
    "_cuda_getDevice": 0,
    "_cuda_getDeviceCount": 1,
    "_cuda_exchangeDevice": 0,
    "_cuda_maybeExchangeDevice": 0,
    "_cuda_getCompiledVersion": 13_000,
    **dict.fromkeys(("_cuda_setDevice", "_cuda_synchronize")),
}.items():
    setattr(torch._C, name, lambda *_, answer=answer: answer)

import torch._functorch.config  # noqa: E402
import torch._inductor.config as inductor  # noqa: E402
import torch._inductor.fx_passes.fuse_attention  # noqa: E402
import torch._inductor.fx_passes.misc_patterns  # noqa: E402
import torch._inductor.fx_passes.pad_mm  # noqa: E402
import torch.nn.attention.varlen  # noqa: E402
import torch.nn.functional as functional  # noqa: E402
import triton  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch._inductor.graph import GraphLowering  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.backends.nvidia.driver import CudaDriver  # noqa: E402


class _Utils:
    """Driver without a card: a kernel is compiled, and never loaded."""

    def load_binary(self, *_: object) -> tuple[int, ...]:
        return 1, 1, 32, 0, 1_024

    def get_device_properties(self, _: object) -> dict[str, int]:
        return {
            "max_shared_mem": _H200.shared_memory_per_block_optin,
            "multiprocessor_count": _H200.multi_processor_count,
            "max_num_regs": _H200.regs_per_multiprocessor,
            "warpSize": _H200.warp_size,
            "sm_clock_rate": 1_980_000,
            "mem_clock_rate": 3_200_000,
            "mem_bus_width": 6_144,
        }


CudaDriver.__init__ = lambda self: None
CudaDriver.is_active = staticmethod(lambda: True)
CudaDriver.utils = _Utils()
CudaDriver.launcher_cls = lambda self, src, metadata: lambda *_, **__: None
for name, answer in {
    "get_current_target": GPUTarget("cuda", 90, 32),
    "get_active_torch_device": torch.device("cuda", 0),
    "get_device_interface": torch.cuda,
    "get_current_device": 0,
    "get_current_stream": 0,
    "set_current_device": None,
    "get_device_capability": (9, 0),
}.items():
    setattr(CudaDriver, name, lambda *_, answer=answer: answer)
CudaDriver.map_python_to_cpp_type = lambda self, kind: kind
CudaDriver.get_benchmarker = lambda self: lambda *_, **__: 1.0

# Patterns are detected by tracing small examples on the device, which is missing.
torch._inductor.fx_passes.fuse_attention._sfdp_init = lambda *_, **__: None
torch._inductor.fx_passes.misc_patterns._misc_patterns_init = lambda *_, **__: None
torch._inductor.fx_passes.pad_mm._pad_mm_init = lambda *_, **__: None
inductor.shape_padding = False
inductor.fx_graph_cache = False
inductor.joint_graph_constant_folding = False
inductor.use_static_triton_launcher = False
inductor.profile_bandwidth = False
inductor.benchmark_kernel = True  # writes into each kernel how many bytes it moves
torch._functorch.config.force_non_lazy_backward_lowering = True

_codes: list[str] = []
GraphLowering.save_output_code = staticmethod(_codes.append)


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    **_: object,
) -> Tensor:
    """The kernel that torch would choose on the card, which it does not detect here."""
    if query.device.type == "cpu":
        return plain_attention(query, key, value, attn_mask, dropout_p, is_causal, scale=scale)
    if attn_mask is None:
        return torch.ops.aten._scaled_dot_product_flash_attention(
            query, key, value, dropout_p, is_causal, False, scale=scale
        )[0]
    if attn_mask.dtype == torch.bool:
        attn_mask = torch.where(attn_mask, 0.0, -torch.inf).to(query.dtype)
    shape = (*query.shape[:3], key.shape[2])
    return torch.ops.aten._scaled_dot_product_efficient_attention(
        query, key, value, attn_mask.expand(shape), True, dropout_p, is_causal, scale=scale
    )[0]


plain_attention = functional.scaled_dot_product_attention
functional.scaled_dot_product_attention = _attention
Tensor.pin_memory = lambda self, *_: self  # a fake tensor has none
torch._subclasses.fake_tensor.CONSTANT_NUMEL_LIMIT = 0  # else numbers in small tensors are kept, and copied to the card


def _forward(q_THK: Any, *args: Any, **_: object) -> int:
    """Operations of packed examples: each token sees as many as the longest example has."""
    return 4 * math.prod(q_THK) * args[4]


def _backward(gradient_THK: Any, *args: Any, **_: object) -> int:
    return 10 * math.prod(gradient_THK) * args[7]


_PACKED = {
    torch.ops.torch_attn._varlen_attn: _forward,
    torch.ops.aten._flash_attention_forward: _forward,
    torch.ops.torch_attn._varlen_attn_backward: _backward,
    torch.ops.aten._flash_attention_backward: _backward,
}
"""torch's own counts every entry of the list of ends as an example of the greatest length."""


def plain_flex(query: Tensor, key: Tensor, value: Tensor, **_: object) -> Tensor:
    """Replace FlexAttention where nothing is compiled: as many operations, of all pairs."""
    return _attention(query, key, value)


def kind(module: nn.Module, args: Any) -> str:
    """Return the name of all modules of this kind, which have the same code."""
    shapes = [tuple(one.shape) for one in (*module.parameters(), *(one for one in args if isinstance(one, Tensor)))]
    return f"{type(module).__name__} {shapes[0]}, {len(shapes)} tensors"


def measure(preset: str, num: int, words: list[str]) -> dict[str, Any]:
    """See the top of the file."""
    import pretrainkit.nn.cuda.attention as cuda
    from pretrainkit.api import load_config
    from pretrainkit.dist.parallelize import CompiledApart
    from pretrainkit.recipes.registry import find_recipe
    from pretrainkit.training.accumulate import accumulate
    from pretrainkit.training.precision import Precision
    from pretrainkit.training.trainer import to_device

    recipe: Any = find_recipe(preset.partition("/")[0])
    config, _ = recipe.without_data(load_config(preset, words))
    batch = recipe.assumed_batch(config, num)
    device, kinds, counts = torch.device("cuda", 0), dict[str, tuple[Any, ...]](), Counter[str]()

    def note(module: nn.Module, args: Any, kwargs: Any) -> None:
        name = kind(module, args)
        kinds.setdefault(name, (module, args, kwargs))
        counts[name] += 1

    objective = recipe.build_objective(config)
    cost = objective.cost(batch).flops
    with torch.device("meta"):
        model = recipe.build_model(config).train()
    with FakeTensorMode(allow_non_fake_inputs=True):
        model.to_empty(device=device)
        apart = [module for module in model.modules() if isinstance(module, CompiledApart)]
        flex, cuda._flex_attention = cuda._flex_attention, lambda some: plain_flex
        hooks = [one.register_forward_pre_hook(note, with_kwargs=True) for one in (*model.blocks(), *apart)]
        with FlopCounterMode(display=False, custom_mapping=_PACKED) as operations:
            accumulate(
                objective,
                model,
                [to_device(batch, device)],
                precision=Precision(device, torch.bfloat16, False, None, has_narrow_residual=True),
            )
        for hook in hooks:
            hook.remove()
        cuda._flex_attention = flex
        by_operator = {str(operator): num for operator, num in operations.get_flop_counts()["Global"].items()}
        attention = sum(num for operator, num in by_operator.items() if "attention" in operator or "attn" in operator)
        return {
            "cost": cost,
            "products": operations.get_total_flops() - attention,
            "attention": attention,
            "parameters": sum(one.numel() for one in model.parameters()),
            "parts": {name: {"count": counts[name], **_compiled(*called)} for name, called in kinds.items()},
        }


def _compiled(module: nn.Module, args: Any, kwargs: Any) -> dict[str, Any]:
    from pretrainkit.dist.saved_sums import SaveResidualSums

    torch._dynamo.reset()
    _codes.clear()
    module.compile(options={"joint_custom_post_pass": SaveResidualSums()})
    try:
        with torch.autocast("cuda", torch.bfloat16):
            module(*args, **kwargs)
    except Exception as error:  # the code was made; it cannot run
        if not _codes:
            raise
        if "for the specified device" not in str(error):
            print(f"{type(module).__name__}: {error}"[:300], file=sys.stderr)
    module._compiled_call_impl = None
    return {re.search(r"AOT ID: \['\d*_?(\w+)'\]", code)[1]: _told(code) for code in _codes}


def _told(code: str) -> dict[str, Any]:
    calls = Counter(re.findall(r"extern_kernels\.(\w+)\(|= (?:torch\.ops|aten)\.([\w.]+)\(", code))
    kernels = {}
    for part in code.split("async_compile.triton(")[1:]:
        moved = re.search(r"'kernel_num_gb': ([\d.e-]+)", part)
        name = part.split("'")[1]
        num_calls = len(re.findall(rf"\b{name}\.run\((?!\*args)", code))  # its own benchmark passes *args
        kernels[name] = num_calls * round(1e9 * float(moved[1])) if moved else 0
    return {
        "spilled": {name: _spilled(name, source) for name, source in re.findall(_TEMPLATE, code, re.DOTALL)},
        "kernels": kernels,
        "calls": {name or other: number for (name, other), number in calls.items()},
        "atomics": code.count("tl.atomic_add("),
    }


_TEMPLATE = r"async_compile\.triton\('(triton_tem\w+)', '''(.*?)''', device_str"
IMPORTS = """import triton
import triton.language as tl
from torch._inductor.runtime import triton_helpers
from torch._inductor.runtime.triton_helpers import libdevice, math as tl_math
"""


def _spilled(name: str, source: str) -> int:
    """Compile a kernel from a template of Inductor, which is not compiled before it is first called."""
    meta = re.sub(r"DeviceProperties\([^)]*\)", "None", re.search(r"triton_meta=(\{.*\}),\n", source)[1])
    described = ast.literal_eval(meta)
    options = {key: int(re.search(rf"{key}=(\d+)", source)[1]) for key in ("num_warps", "num_stages")}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"{name}.py")
        path.write_text(IMPORTS + source[source.index("@triton.jit") :])
        spec = importlib.util.spec_from_file_location(name, path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        function, aligned = getattr(module, name), described["configs"][0]
        kernel = triton.compiler.ASTSource(function, described["signature"], described["constants"], aligned)
        binary = Path(folder, "cubin")
        binary.write_bytes(triton.compile(kernel, target=GPUTarget("cuda", 90, 32), options=options).asm["cubin"])
        tool = Path(triton.__file__).with_name("backends") / "nvidia/bin/cuobjdump"
        told = subprocess.run([tool, "--dump-resource-usage", binary], capture_output=True, text=True, check=True)
    return int(re.search(r"STACK:(\d+)", told.stdout)[1])


if __name__ == "__main__":
    answers = {}
    for word in sys.argv[1:]:
        preset, _, rest = word.partition("=")
        num, *settings = rest.split(",")
        answers[word] = measure(preset, int(num), settings)
    print(json.dumps(answers))
