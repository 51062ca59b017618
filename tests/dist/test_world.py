"""Finding one's place without a launcher and with a broken one; what is not imported."""

import copy
import logging
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from pretrainkit.dist import parallelize as parallelize_module
from pretrainkit.dist.env import World, init_world
from pretrainkit.dist.parallelize import averages_gradients, gradient_sync, parallelize, unwrap
from pretrainkit.errors import DataError, InputError
from pretrainkit.running.doctor import compiling
from pretrainkit.training.run import ParallelConfig
from support.remedies import followed

PLACE = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}


def set_place(monkeypatch: pytest.MonkeyPatch, **changes: str | None) -> None:
    for name, value in (PLACE | changes).items():
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)


def test_without_a_launcher_there_is_one_process_and_no_process_group(monkeypatch: pytest.MonkeyPatch) -> None:
    set_place(monkeypatch, **dict.fromkeys(PLACE))
    world = init_world("cpu")
    assert world == World(rank=0, world_size=1, local_rank=0, device=torch.device("cpu"), backend=None)
    assert world.is_main
    assert not torch.distributed.is_initialized()
    values = torch.tensor([1.0])
    assert world.all_reduce_(values) is values
    assert world.max(1.5, -2.0) == [1.5, -2.0]
    assert world.broadcast_object({"a": 1}) == {"a": 1}
    assert world.gather_objects("x") == ["x"]
    world.close()

    def work() -> None:
        raise DataError("as it is")

    with pytest.raises(DataError, match="as it is"):
        world.on_main(work)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"MASTER_ADDR": None, "LOCAL_RANK": None}, "not LOCAL_RANK, MASTER_ADDR"),
        ({"RANK": "2"}, "RANK=2 is not in 0..1"),
        ({"WORLD_SIZE": "two"}, "must be integers"),
    ],
)
def test_a_broken_environment_is_refused(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, str | None], said: str
) -> None:
    set_place(monkeypatch, **changes)
    with pytest.raises(InputError, match=said) as error:
        init_world("cpu")
    if "LOCAL_RANK" in changes:
        assert "unset RANK and WORLD_SIZE" in followed(error.value, "dist/env.py: RANK and WORLD_SIZE are set but not")
        set_place(monkeypatch, RANK=None, WORLD_SIZE=None)
        assert init_world("cpu") == World()


def test_one_process_of_a_launcher_needs_no_process_group(monkeypatch: pytest.MonkeyPatch) -> None:
    set_place(monkeypatch, WORLD_SIZE="1")
    assert init_world("cpu") == World()
    assert not torch.distributed.is_initialized()


def test_a_device_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    set_place(monkeypatch, **dict.fromkeys(PLACE))
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    with pytest.raises(InputError, match="'cuda' was requested, but this machine has no accelerator"):
        init_world("cuda")
    assert init_world().device == torch.device("cpu")


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(2))

    def blocks(self) -> list[nn.Module]:
        return list(self.layers)


def test_one_process_leaves_the_model_plain() -> None:
    model = Blocks()
    names = list(model.state_dict())
    parallel = parallelize(model, ParallelConfig(activation_checkpointing=True), World(), torch.float32)
    assert parallel is model
    assert unwrap(parallel) is model
    assert list(model.state_dict()) == names
    assert not averages_gradients(parallel)
    with gradient_sync(parallel, enabled=False):
        pass


def test_blocks_are_compiled_in_place_if_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[nn.Module] = []
    monkeypatch.setattr(nn.Module, "compile", lambda self, **_: compiled.append(self))
    monkeypatch.setattr(parallelize_module.shutil, "which", lambda name: f"/usr/bin/{name}")
    model = Blocks()
    parallelize(model, ParallelConfig(), World(), torch.float32)  # auto: not on a CPU
    parallelize(model, ParallelConfig(compile="off"), World(), torch.float32)
    assert compiled == []
    parallelize(model, ParallelConfig(compile="on"), World(), torch.float32)
    assert compiled == model.blocks()


def test_a_gpu_compiles_long_runs_and_names_missing_tools(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.setattr(parallelize_module.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(parallelize_module.sysconfig, "get_path", lambda name: str(tmp_path))
    monkeypatch.setattr(parallelize_module, "find_spec", lambda name: name)
    gpu = World(device=torch.device("cuda"))
    (tmp_path / "Python.h").touch()
    cases = [("auto", 999, False), ("auto", 1000, True), ("on", 1, True), ("off", 5000, False)]
    for way, num_updates, expected in cases:
        assert parallelize_module._should_compile(ParallelConfig.model_validate({"compile": way}), gpu, num_updates) is expected
    assert not caplog.records
    (tmp_path / "Python.h").unlink()
    assert not parallelize_module._should_compile(ParallelConfig(), gpu, 1000)
    assert "Python.h" in caplog.text
    assert "install python3-dev" in caplog.text


def test_the_doctor_checks_the_requirements_of_compiling_for_a_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tools: dict[str, str] = {}
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(parallelize_module.shutil, "which", tools.get)
    monkeypatch.setattr(parallelize_module, "find_spec", tools.get)
    monkeypatch.setattr(parallelize_module.sysconfig, "get_path", lambda name: str(tmp_path))
    fixes = []
    for name in ("gcc", "triton", "python3-dev", ""):
        found = compiling("cuda")
        fixes.append(found.fix)
        assert found.state == ("limited" if name else "good")
        tools[name] = name
        if name == "python3-dev":
            assert "Python.h" in found.text
            (tmp_path / "Python.h").touch()
    assert fixes == ["apt install gcc g++", "pip install triton", "apt install python3-dev", ""]


def test_recomputed_blocks_are_compiled_and_their_copies_are_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._dynamo.utils import counters

    compile_block = nn.Module.compile
    monkeypatch.setattr(nn.Module, "compile", lambda self, **_: compile_block(self, backend="eager"))
    config = ParallelConfig(compile="on", activation_checkpointing=True)
    model = parallelize(Blocks(), config, World(), torch.float32)
    counters.clear()
    x_BD = torch.randn(4, 3)
    first, plain = model.get_submodule("layers.0"), nn.Linear(3, 3)
    plain.load_state_dict(first.state_dict())
    first(x_BD).square().sum().backward()
    plain(x_BD).square().sum().backward()
    assert counters["frames"]["ok"] == 1, "the block was not compiled"
    assert not counters["graph_break"]
    torch.testing.assert_close(first.weight.grad, plain.weight.grad)

    copied = copy.deepcopy(first)
    nn.init.zeros_(copied.weight)
    nn.init.zeros_(copied.bias)
    assert not copied(x_BD).any()


def test_without_a_compiler_there_is_one_warning_and_no_compilation(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(parallelize_module.shutil, "which", lambda name: None)
    monkeypatch.setattr(nn.Module, "compile", lambda self, **_: pytest.fail("compiled"))
    with caplog.at_level(logging.WARNING):
        parallelize(Blocks(), ParallelConfig(compile="on"), World(), torch.float32)
    assert len(caplog.records) == 1
    assert "searched g++, clang++, c++" in caplog.text
    assert "parallel.compile=off" in caplog.text


def test_one_process_imports_no_sharding_no_compiler_and_no_checkpoint_writer() -> None:
    code = """
import sys
import pretrainkit.launch.local
assert "torch" not in sys.modules
import torch
from pretrainkit.dist.env import init_world
from pretrainkit.dist.parallelize import gradient_sync, parallelize
from pretrainkit.training.checkpoints.checkpoint import CheckpointStore
from pretrainkit.training.checkpoints.tensors import named_state
from pretrainkit.training.run import ParallelConfig
model = torch.nn.Sequential(torch.nn.Linear(2, 2))
model.blocks = lambda: list(model)
model = parallelize(model, ParallelConfig(), init_world("cpu"), torch.float32)
with gradient_sync(model, True):
    model(torch.ones(1, 2)).sum().backward()
named_state(model)
heavy = ["torch._dynamo", "torch.distributed.checkpoint", "torch.distributed.fsdp", "torch.distributed.tensor"]
print([name for name in heavy if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n", done.stdout + done.stderr
