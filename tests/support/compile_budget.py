"""`python -m support.compile_budget [CASE...]`: training and evaluation of small models of every recipe, compiled as on
a GPU, by a compiler that only counts: it runs what torch.compile traces as it is. Prints a JSON object: case to results
(see `measure`).

Tensors are the CPU's. Layouts are those of a GPU, with the kernels of `pretended_cuda.attention`: tensors of pretended
CUDA itself cannot be traced.
"""

import gc

gc.disable()  # a sixth of the time, and the process ends soon

import pretrainkit.nn.cpu.dispatch as dispatch  # noqa: E402

dispatch.drops_padding = lambda some: False
dispatch.chunks_vocabulary = lambda weight_VD: False
dispatch.has_cheap_dropout = lambda x: False

import pretrainkit.nn.cuda.attention as cuda  # noqa: E402  # imports the functions above by name

cuda.has_varlen = lambda qkv_T3HK, card: True
cuda.has_flex = lambda some, head_width: head_width >= 16

import json  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402
from collections.abc import Callable, Iterator  # noqa: E402
from contextlib import contextmanager  # noqa: E402
from typing import Any, NamedTuple  # noqa: E402

import numpy as np  # noqa: E402
import torch  # noqa: E402
import torch.nn.attention.flex_attention as flex  # noqa: E402
from functorch.compile import min_cut_rematerialization_partition  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch._dynamo.backends.common import aot_autograd  # noqa: E402
from torch._dynamo.utils import counters  # noqa: E402
from torch._inductor.decomposition import select_decomp_table  # noqa: E402
from torch._inductor.fx_passes.joint_graph import joint_graph_passes  # noqa: E402

from pretrainkit.dist.compiled import UncompiledFunctions  # noqa: E402
from pretrainkit.dist.env import World  # noqa: E402
from pretrainkit.dist.parallelize import parallelize  # noqa: E402
from pretrainkit.nn.linear_cross_entropy import LinearCrossEntropy  # noqa: E402
from pretrainkit.recipes.clip.losses import Matches, ScoreProducts, SigmoidScore, SoftmaxScore  # noqa: E402
from pretrainkit.training.accumulate import accumulate, seed_dropout  # noqa: E402
from pretrainkit.training.precision import Precision  # noqa: E402
from pretrainkit.training.run import ParallelConfig  # noqa: E402
from pretrainkit.training.trainer import to_device  # noqa: E402
from support import bert_batches, fourm_batches, pixel_batches  # noqa: E402
from support.pretended_cuda.attention import (  # noqa: E402
    flash_backward,
    flash_forward,
    varlen_backward,
    varlen_forward,
)
from support.small_work import Work, arrays, bert, clip, fourm, pixel, preset, t5  # noqa: E402

flex._validate_device = lambda query, key, value: None
torch.library.register_kernel("torch_attn::_varlen_attn", "cpu", varlen_forward)
torch.library.register_kernel("torch_attn::_varlen_attn_backward", "cpu", varlen_backward)
ATEN = torch.library.Library("aten", "IMPL")
ATEN.impl("_flash_attention_forward", flash_forward, "CPU")
ATEN.impl("_flash_attention_backward", flash_backward, "CPU")
CPU = torch.device("cpu")
NUM_STEPS = 5

MakeBatch = Callable[[int], dict[str, np.ndarray]]


def lengths(seed: int, most: int, num: int) -> list[int]:
    return np.random.default_rng(seed).integers(most // 3, most, num).tolist()


def bert_packed(seed: int) -> dict[str, np.ndarray]:
    """Return a batch of six examples, or of seven for some seeds."""
    return arrays(bert_batches.packed_batch(bert_batches.row_batch(lengths(seed, 24, 6 + seed // 2 % 2), seed=seed)))


def bert_rows(seed: int) -> dict[str, np.ndarray]:
    return arrays(bert_batches.row_batch(lengths(seed, 24, 6), seed=seed))


def pixel_packed(seed: int) -> dict[str, np.ndarray]:
    return arrays(pixel_batches.batch_of(seed, lengths(seed, 16, 4)))


def convolutions() -> Work:
    coder = '{"kind": "conv", "width": 16, "multipliers": [1, 2, 2, 2], "has_attention": false}'
    words = ("model.image_size=32", f"model.encoder={coder}", f"model.decoder={coder}")
    return preset("image_tokenizer/tiny-conv", *words)


def random_fourm(seed: int) -> dict[str, np.ndarray]:
    return fourm_batches.random_batch(seed=seed)


class Case(NamedTuple):
    make: Callable[[], Work]
    batch: MakeBatch | None = None
    """None: the two of the work in turns."""
    is_recomputed: bool = False


CASES: dict[str, Case] = {
    "bert packed": Case(bert, bert_packed),
    "bert rows, recomputed": Case(lambda: bert(dropout=0.1, rows=True), bert_rows, is_recomputed=True),
    "bert modern": Case(lambda: bert(is_modern=True), bert_packed),
    "pixel dropout": Case(lambda: pixel(dropout=0.1), pixel_packed),
    "t5 decoder": Case(lambda: t5("lm")),
    "t5 1.0, dropout": Case(lambda: t5("1.0", dropout=0.1)),
    "fourm": Case(lambda: fourm(num_heads=2), random_fourm),  # FlexAttention, slow to trace, is in "t5 decoder"
    "clip": Case(clip),
    "image_tokenizer convolutions": Case(convolutions),
}
"""Layouts of which another case shows all are left out: all together take 15 CPU-seconds."""


class Counted:
    """Replaces `torch.compile`."""

    def __init__(self) -> None:
        self.graphs = 0
        """Compiled so far."""
        self.calls = 0
        """Calls of compiled functions."""
        self.runs = 0
        """Runs of graphs: equal to the calls if nothing runs uncompiled and no graph is broken."""
        self._compile = torch.compile

    def __call__(self, function: Any, **_: Any) -> Callable[..., Any]:
        compiled = self._compile(function, backend=self._backend)

        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            return compiled(*args, **kwargs)

        return call

    def _backend(self, graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        self.graphs += 1

        def run(*args: Any) -> Any:
            self.runs += 1
            return graph.forward(*args)

        return run


@contextmanager
def counting() -> Iterator[Counted]:
    torch._dynamo.reset()
    counters.clear()
    counted = Counted()
    torch.compile = counted
    try:
        yield counted
    finally:
        torch.compile = counted._compile


def measure(case: Case) -> dict[str, Any]:
    """Five steps of two microbatches, evaluation, and a step again: `graphs` compiled in each of them, `calls` of what
    is to be compiled, `runs` of graphs, graph `breaks`; or the `error`."""
    work = case.make()
    make_batch = case.batch or (lambda seed: work.batches[seed % 2])
    precision = Precision(CPU, torch.bfloat16, False, None, has_narrow_residual=True)
    config = ParallelConfig(compile="on", activation_checkpointing=case.is_recomputed)
    graphs: list[int] = []
    error = None
    with counting() as counted:
        model = parallelize(work.model, config, World(), torch.bfloat16)

        def step(number: int) -> None:
            model.train().zero_grad()
            accumulate(
                work.objective,
                model,
                [to_device(make_batch(2 * number + index), CPU) for index in (0, 1)],
                precision=precision,
                seed_dropout=lambda index: seed_dropout(0, number, index, 0, CPU),
            )

        def evaluate(number: int) -> None:
            model.eval()
            with torch.no_grad(), precision.autocast():
                for index in (0, 1):
                    work.objective.metrics(model, to_device(make_batch(index), CPU))

        try:
            for number, act in enumerate([*[step] * NUM_STEPS, evaluate, step]):
                before = counted.graphs
                act(number)
                graphs.append(counted.graphs - before)
        except Exception as raised:
            error = f"{type(raised).__name__}: {str(raised)[:3000]}"
    breaks = dict(counters["graph_break"])
    found = {"graphs": graphs, "calls": counted.calls, "runs": counted.runs, "breaks": breaks}
    return found if error is None else found | {"error": error}


def compiler_with(change: Callable[[torch.fx.GraphModule], object], backward: Callable[..., Any]) -> Any:
    """Return a compiler that changes the graph of both passes, divides it as Inductor does, gives `backward` the second
    part, and runs both as they are."""

    def partition(joint: torch.fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
        change(joint)
        return min_cut_rematerialization_partition(joint, *args, **kwargs)

    return aot_autograd(
        fw_compiler=lambda graph, inputs: graph.forward,
        bw_compiler=backward,
        partition_fn=partition,
        decompositions=select_decomp_table(),
    )


def backward_of_head(compute: torch.dtype) -> dict[str, list[str]]:
    """Describe the compiled loss's backward pass, as Inductor is given it: `kept`, the types of the matrices (K, V)
    that it is handed; `scatters`, its operators that Inductor does not fuse with others; both for any number K."""
    found: dict[str, list[str]] = {"kept": [], "scatters": []}

    def backward(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        for node in graph.graph.nodes:
            value = node.meta.get("val")
            if node.op == "placeholder" and isinstance(value, Tensor) and value.ndim == 2 and value.shape[1] == 70:
                found["kept"].append(str(value.dtype).removeprefix("torch."))
            if "scatter" in str(node.target) or "index_put" in str(node.target):
                found["scatters"].append(str(node.target))
        return graph.forward

    torch._dynamo.reset()
    head = LinearCrossEntropy()
    head.compile(backend=compiler_with(joint_graph_passes, backward))
    x_KD, weight_VD = torch.randn(50, 16, requires_grad=True), nn.Parameter(torch.randn(70, 16))
    target_K = torch.arange(50)
    for given in (x_KD, target_K):
        torch._dynamo.mark_dynamic(given, 0)
    with torch.autocast("cpu", compute, enabled=compute != torch.float32):
        loss = head(x_KD, weight_VD, torch.zeros(70), target_K)
    (loss.nll_K.sum() + loss.log_sum_K.square().sum()).backward()
    return found


def repeated_sums(make: Callable[[], Work]) -> list[str]:
    """Return the sums in half precision that backward passes of a model's blocks compute again from what is kept."""
    found: list[str] = []

    def backward(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        kept = set()  # and what follows from it alone
        for node in graph.graph.nodes:
            is_kept = node.op == "placeholder" and "tangents" not in node.name
            if is_kept or (node.all_input_nodes and kept.issuperset(node.all_input_nodes)):
                kept.add(node)
                value = node.meta.get("val")
                if node.target == torch.ops.aten.add.Tensor and value.dtype == torch.bfloat16:
                    found.append(str(node))
        return graph.forward

    def compile_function(function: Any, *, options: dict[str, Any]) -> Any:
        change = options["joint_custom_post_pass"]
        return original(function, backend=compiler_with(lambda joint: change(joint.graph), backward))

    torch._dynamo.reset()
    original, torch.compile = torch.compile, compile_function
    try:
        work = make()
        model = parallelize(work.model, ParallelConfig(compile="on"), World(), torch.bfloat16).train()
        precision = Precision(CPU, torch.bfloat16, False, None, has_narrow_residual=True)
        accumulate(work.objective, model, [to_device(work.batches[0], CPU)], precision=precision)
    finally:
        torch.compile = original
    return found


def contrast() -> dict[str, bool]:
    """Compare the compiled contrastive loss with the plain one, by settings: True if equal to the last bit, also in
    gradients."""
    products_CM, groups_M = torch.randn(5, 40), torch.arange(40) // 2
    mixed = {"partner_B": torch.arange(40).flip(0), "share": torch.tensor(0.3)}
    duplicates = ("positives", (groups_M, groups_M.flip(0)))
    scores: dict[str, Any] = {
        "plain": SoftmaxScore(Matches(0, 40)),
        "mixup and smoothing": SoftmaxScore(Matches(8, 24, **mixed), 0.1),
        "duplicates": SoftmaxScore(Matches(0, 40, *duplicates, **mixed), 0.1),
        "sigmoid": SigmoidScore(Matches(0, 40, *duplicates)),
    }
    found = {}
    for name, score in scores.items():
        own_CM = products_CM[:, : score.matches.num_columns]
        bias = torch.tensor(-1.0) if name == "sigmoid" else None
        given = (torch.tensor(7.0), bias, torch.arange(10, 15))
        plain, slope_CM = ScoreProducts()(score, own_CM.clone(), *given)
        compiled = ScoreProducts()
        compiled.compile(backend="eager")
        others, other_CM = compiled(score, own_CM.clone(), *given)
        found[name] = torch.equal(slope_CM, other_CM) and all(map(torch.equal, plain, others))
    return found


def given_up() -> list[str]:
    """Return the report of a run about a module that needs more graphs than are allowed."""
    torch._dynamo.reset()
    module = nn.Tanh()
    module.forward = lambda x: x.tanh()  # torch leaves the `forward` of its own layers uncompiled
    module.compile(backend="eager", dynamic=False)
    settings = {"fail_on_recompile_limit_hit": False, "recompile_limit": 2}
    with UncompiledFunctions() as given_up, torch._dynamo.config.patch(settings):
        for size in range(2, 7):
            module(torch.zeros(size))
    return given_up.take()


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    torch._dynamo.config.run_gc_after_compile = False
    torch._dynamo.config.fake_tensor_cache_enabled = False  # with changing sizes, it takes longer to fill than it saves
    torch._dynamo.guards.profile_guard_manager = lambda *_: 0.0  # empties the processor's caches to measure a latency
    wanted = sys.argv[1:] or [*CASES, "head", "sums", "contrast", "given up"]
    found: dict[str, Any] = {name: measure(case) for name, case in CASES.items() if name in wanted}
    if "head" in wanted:
        found["head"] = {name: backward_of_head(getattr(torch, name)) for name in ("bfloat16", "float32")}
    if "sums" in wanted:
        found["sums"] = {name: repeated_sums(CASES[name].make) for name in ("bert packed", "t5 decoder")}
    if "contrast" in wanted:
        with torch.no_grad():
            found["contrast"] = contrast()
    if "given up" in wanted:
        found["given up"] = given_up()
    print(json.dumps(found), flush=True)
    os._exit(0)  # to free a million objects takes a second
