"""Saving and restoring in one process: exact, atomic, verified, kept and pruned, and clear when something is wrong."""

import json
import logging
import multiprocessing
import os
import resource
import shutil
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from pretrainkit.dist.env import World
from pretrainkit.dist.weights import full_state_dict, load_full_state_dict
from pretrainkit.errors import CheckpointError, RunError
from pretrainkit.training.checkpoints import files
from pretrainkit.training.checkpoints import tensors as checkpoint_tensors
from pretrainkit.training.checkpoints.checkpoint import CheckpointStore, load, read_weights
from pretrainkit.training.checkpoints.tensors import named_state, read_into, stored_tensors, write_into
from pretrainkit.training.optimizers.build import build_optimizer
from pretrainkit.training.optimizers.config import OptimizerConfig
from pretrainkit.training.run import CheckpointConfig
from support import SUPPORT
from support.warm_python import run_warm

ALONE = World()


class Tied(nn.Module):
    """Embedding tied to the head, a buffer, and a parameter of one element."""

    table: torch.Tensor

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, width)
        self.block = nn.Linear(width, width)
        self.gain = nn.Parameter(torch.ones(1))
        self.head = nn.Linear(width, 11)
        self.head.weight = self.embed.weight
        self.register_buffer("table", torch.randn(3))
        self.register_buffer("derived", torch.randn(2), persistent=False)

    def blocks(self) -> list[nn.Module]:
        return [self.block]

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.block(self.embed(ids)) * self.gain)
        return logits


def trained(seed: int, num_steps: int = 3, width: int = 8) -> tuple[Tied, torch.optim.AdamW]:
    torch.manual_seed(seed)
    model = Tied(width)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    for step in range(num_steps):
        train_step(model, optimizer, step)
    return model, optimizer


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    ids = torch.arange(step, step + 5) % 11
    nn.functional.cross_entropy(model(ids), ids.flip(0)).backward()
    optimizer.step()
    optimizer.zero_grad()


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in named_state(model, optimizer).items()}


def assert_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    for name in one:
        assert torch.equal(one[name], other[name]), name


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "run" / "checkpoints"


def store_in(folder: Path, **settings: object) -> CheckpointStore:
    return CheckpointStore(folder, CheckpointConfig.model_validate(settings), ALONE)


@pytest.mark.parametrize("asynchronous", [True, False])
def test_a_restored_run_continues_as_if_never_stopped(folder: Path, asynchronous: bool) -> None:
    model, optimizer = trained(seed=0)
    ema = {"ema.gain": torch.full((1,), 0.25)}
    with closing(store_in(folder, asynchronous=asynchronous)) as store:
        store.save(3, model, optimizer, extra=ema, meta={"data": "epoch 0, position 15", "scale": 0.1})
        expected = state_of(model, optimizer)
        train_step(model, optimizer, 3)  # while the save may still be under way: the copy must not change

    other, other_optimizer = trained(seed=1, num_steps=1)
    restored_ema = {"ema.gain": torch.zeros(1)}
    newest = files.newest_valid(folder)
    assert newest == folder / "step-00000003"
    found = load(newest, ALONE, other, other_optimizer, extra=restored_ema)
    meta = {"data": "epoch 0, position 15", "scale": 0.1, "num_tensors": len(stored_tensors(newest))}
    assert (found.step, found.world_size, found.meta) == (3, 1, meta)
    assert_same(state_of(other, other_optimizer), expected)
    assert restored_ema["ema.gain"] == 0.25
    assert not any(value.requires_grad for state in other_optimizer.state.values() for value in state.values())
    train_step(other, other_optimizer, 3)
    assert_same(state_of(other, other_optimizer), state_of(model, optimizer))


def test_a_large_state_is_cut_into_several_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_tensors, "_FILE_BYTES", 300)
    model, optimizer = trained(seed=0)
    with closing(store_in(folder)) as store:
        store.save(3, model, optimizer)
    assert len(list((folder / "step-00000003").glob("rank-00000-of-00001-part-*.safetensors"))) > 3
    other, other_optimizer = trained(seed=1)
    load(folder / "step-00000003", ALONE, other, other_optimizer)
    assert_same(state_of(other, other_optimizer), state_of(model, optimizer))


def test_an_optimizer_that_never_stepped_is_restored(folder: Path) -> None:
    model, optimizer = trained(seed=0)
    with closing(store_in(folder)) as store:
        store.save(3, model, optimizer, blocking=True)
    fresh = Tied()
    fresh_optimizer = torch.optim.AdamW(fresh.parameters(), lr=1e-2)  # not fused: keeps its counters elsewhere
    load(folder / "step-00000003", ALONE, fresh, fresh_optimizer)
    assert_same(state_of(fresh, fresh_optimizer), state_of(model, optimizer))


def test_only_an_optimizer_without_momentum_resumes_from_no_state(folder: Path) -> None:
    def sgd(model: nn.Module, momentum: float) -> torch.optim.Optimizer:
        return build_optimizer(model, OptimizerConfig(name="sgd", peak_lr=0.1, momentum=momentum))

    model, other = Tied(), Tied()
    optimizer = sgd(model, 0.0)
    train_step(model, optimizer, 0)
    with closing(store_in(folder)) as store:
        store.save(1, model, optimizer)
    with pytest.raises(CheckpointError, match="has no optimizer state"):
        load(folder / "step-00000001", ALONE, other, sgd(other, 0.9))
    load(folder / "step-00000001", ALONE, other, sgd(other, 0.0))
    assert_same(state_of(other, sgd(other, 0.0)), state_of(model, optimizer))


def test_unused_content_of_a_checkpoint_is_named(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    model, optimizer = trained(seed=0)
    with closing(store_in(folder)) as store:
        store.save(1, model, optimizer, extra={"ema.gain": torch.zeros(1)})
    with caplog.at_level(logging.WARNING):
        load(folder / "step-00000001", ALONE, model)
    assert "contains 1 tensors that this run does not use, such as ema.gain" in caplog.text


def test_state_that_is_intact_but_cannot_be_right_is_refused(folder: Path) -> None:
    model, optimizer = trained(seed=0)
    state = optimizer.state[model.gain]
    with closing(store_in(folder, keep_last=9)) as store:
        state["exp_avg"].fill_(float("nan"))
        store.save(3, model, optimizer, blocking=True)
        state["exp_avg"] = torch.zeros(3)
        store.save(4, model, optimizer, blocking=True)
    other, other_optimizer = trained(seed=1)
    with pytest.raises(CheckpointError, match=r"optimizer\.gain\.exp_avg contains values that are not numbers"):
        load(folder / "step-00000003", ALONE, other, other_optimizer)
    before = state_of(other, other_optimizer)
    with pytest.raises(CheckpointError, match=r"optimizer\.gain\.exp_avg is \(3,\), but its parameter \(1,\)"):
        load(folder / "step-00000004", ALONE, other, other_optimizer)
    assert_same(state_of(other, other_optimizer), before)


def test_a_missing_tensor_of_an_intact_file_is_reported(folder: Path) -> None:
    model, optimizer = trained(seed=0)
    with closing(store_in(folder)) as store:
        store.save(1, model, optimizer, blocking=True)
    path = folder / "step-00000001"
    (file,) = path.glob("*.safetensors")
    tensors = load_file(file)
    del tensors["optimizer.gain.exp_avg"]
    save_file(tensors, file)
    found = files.read_checkpoint(path)
    path.rename(files.incomplete_path(folder, 1))
    record = files.file_record(files.incomplete_path(folder, 1) / file.name)
    files.publish(folder, 1, 1, {file.name: record}, found.meta)
    assert files.problem(path) is None
    with pytest.raises(CheckpointError, match=f"contains {len(tensors)} of the {len(tensors) + 1} tensors"):
        load(path, ALONE, *trained(seed=1))


def test_weights_alone_and_tied_names(folder: Path) -> None:
    model, optimizer = trained(seed=0)
    with closing(store_in(folder)) as store:
        store.save(1, model, optimizer, blocking=True)
    weights = read_weights(folder / "step-00000001")
    assert set(weights) == {"embed.weight", "block.weight", "block.bias", "gain", "head.bias", "table"}
    other = Tied()
    load_full_state_dict(other, weights)
    assert_same(full_state_dict(other), full_state_dict(model))
    weights["head.weight"] = weights.pop("embed.weight")  # the other name of the tied tensor does as well
    load_full_state_dict(Tied(), weights)
    with pytest.raises(CheckpointError, match=r"missing tensors: gain \[1\]"):
        load_full_state_dict(other, {name: w for name, w in weights.items() if name != "gain"})


def test_retention_keeps_the_last_and_the_milestones(folder: Path) -> None:
    model, optimizer = trained(seed=0, num_steps=1)
    with closing(store_in(folder, keep_last=2, keep_every_steps=40)) as store:
        for step in range(10, 101, 10):
            store.save(step, model, optimizer)
    assert list(files.step_folders(folder)) == [40, 80, 90, 100]
    assert sorted(p.name for p in folder.iterdir() if not p.name.startswith("step-")) == [".lock"]


def test_pinned_and_named_checkpoints_stay_and_do_not_count(folder: Path) -> None:
    model, _ = trained(seed=0, num_steps=0)
    with closing(store_in(folder, keep_last=2)) as store:
        for step in (10, 20, 30, 40, 50, 60):
            store.save(step, model, keep_steps=(20,), blocking=True)
            if step == 10:
                (folder / "step-00000010" / files.PINNED).touch()
    assert list(files.step_folders(folder)) == [10, 20, 50, 60]
    assert files.problem(folder / "step-00000010") is None


def test_torn_checkpoints_neither_count_nor_survive_and_later_ones_are_set_aside(folder: Path) -> None:
    model, _ = trained(seed=0, num_steps=0)
    with closing(store_in(folder, keep_last=2)) as store:
        for step in (10, 20, 30):
            store.save(step, model)
        store.wait()
        (folder / "step-00000030" / "meta.json").unlink()
        (folder / "step-00000090").mkdir()
        store.save(40, model, blocking=True)
    assert list(files.step_folders(folder)) == [20, 40]
    assert (folder / "set-aside-step-00000090").is_dir()


def tear(path: Path, how: str) -> None:
    weights = next(path.glob("*.safetensors"))
    if how == "truncated file":
        os.truncate(weights, weights.stat().st_size // 2)
    elif how == "flipped bit":
        content = bytearray(weights.read_bytes())
        content[-1] ^= 1
        weights.write_bytes(content)
    elif how == "missing file":
        weights.unlink()
    elif how == "no meta.json":
        (path / "meta.json").unlink()
    elif how == "torn meta.json":
        os.truncate(path / "meta.json", 100)
    elif how == "edited meta.json":
        meta = json.loads((path / "meta.json").read_text())
        (path / "meta.json").write_text(json.dumps(meta | {"step": 7}))


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("truncated file", "bytes instead of"),
        ("flipped bit", "SHA-256"),
        ("missing file", "is missing"),
        ("no meta.json", "has no meta.json"),
        ("torn meta.json", "cannot be read"),
        ("edited meta.json", "checksum"),
    ],
)
def test_a_torn_checkpoint_is_named_and_skipped(
    folder: Path, how: str, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    model, optimizer = trained(seed=0)
    with closing(store_in(folder)) as store:
        store.save(1, model, optimizer)
        store.save(2, model, optimizer)
    tear(folder / "step-00000002", how)
    with caplog.at_level(logging.WARNING):
        assert files.newest_valid(folder) == folder / "step-00000001"
    assert "step-00000002" in caplog.text
    assert said in caplog.text
    before = state_of(model, optimizer)
    with pytest.raises(CheckpointError, match="step-00000002"):
        load(folder / "step-00000002", ALONE, model, optimizer)
    with pytest.raises(CheckpointError, match="step-00000002"):
        read_weights(folder / "step-00000002")
    assert_same(before, state_of(model, optimizer))


def test_a_checkpoint_of_another_model_is_refused_and_nothing_changes(folder: Path) -> None:
    model, optimizer = trained(seed=0)
    with closing(store_in(folder)) as store:
        store.save(1, model, optimizer)
        store.save(2, model)
    wide, wide_optimizer = trained(seed=1, width=16)
    before = state_of(wide, wide_optimizer)
    with pytest.raises(CheckpointError, match=r"another model\n.*model.block.bias: \[8\], model: \[16\]"):
        load(folder / "step-00000001", ALONE, wide, wide_optimizer)
    assert_same(before, state_of(wide, wide_optimizer))

    with pytest.raises(CheckpointError, match=r"missing tensors: model\.0\.bias") as refused:
        load(folder / "step-00000001", ALONE, nn.Sequential(nn.Linear(2, 2)))
    assert "unknown tensors: model.block.bias [8], " in str(refused.value)
    assert "and 2 more" in str(refused.value)
    with pytest.raises(CheckpointError, match="init_from="):
        load(folder / "step-00000002", ALONE, model, optimizer)
    with pytest.raises(CheckpointError, match=r"does not contain ema\.gain"):
        load(folder / "step-00000001", ALONE, model, optimizer, extra={"ema.gain": torch.zeros(1)})
    with pytest.raises(CheckpointError, match=r"as torch\.float32, but this run uses torch\.bfloat16"):
        load(folder / "step-00000001", ALONE, Tied().bfloat16())


@contextmanager
def small_files_only() -> Iterator[None]:
    """Limit files to 4 KiB, like a full disk. No fixture: pytest itself writes before it undoes those."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize("blocking", [True, False])
def test_a_full_disk_leaves_the_previous_checkpoint_and_no_rubbish(folder: Path, blocking: bool) -> None:
    small, large = Tied(), trained(seed=0, width=64)[0]
    store = store_in(folder)
    with small_files_only():
        store.save(1, small, blocking=True)
        with pytest.raises(RunError, match="step-00000001 is intact") as failed:  # noqa: PT012, either call may raise
            store.save(2, large, blocking=blocking)
            store.close()
        store.close()
    assert "step-00000002" in str(failed.value)
    assert "File too large" in str(failed.value)
    assert sorted(path.name for path in folder.iterdir()) == [".lock", "step-00000001"]
    assert files.newest_valid(folder) == folder / "step-00000001"


def test_a_background_failure_surfaces_at_the_next_save(folder: Path) -> None:
    with small_files_only(), closing(store_in(folder)) as store:
        store.save(2, trained(seed=0, width=64)[0])
        with pytest.raises(RunError, match="step-00000002"):
            store.save(3, Tied())
        store.save(3, Tied())
    assert list(files.step_folders(folder)) == [3]


def test_a_disk_without_room_for_one_checkpoint_is_refused_before_training(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_bytes = 4 * sum(tensor.numel() for tensor in read_sizes(Tied()))
    with closing(store_in(folder)) as store:
        monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=3 * num_bytes))
        store.check_space(Tied())
        with pytest.raises(CheckpointError, match="on another disk"):
            store.check_space(Tied(), num_copies=4)


def read_sizes(model: nn.Module) -> list[torch.Tensor]:
    return [*model.parameters(), *(b for name, b in model.named_buffers() if name == "table")]


def test_invalid_json_is_refused_at_once(folder: Path) -> None:
    with closing(store_in(folder)) as store, pytest.raises(TypeError, match="not JSON serializable"):
        store.save(1, Tied(), meta={"tensor": torch.zeros(1)})
    with closing(store_in(folder)) as store:
        store.save(1, Tied(), meta={"lanes": {10: "a", 9: "b"}})  # json makes the keys strings
    assert files.problem(folder / "step-00000001") is None
    assert files.read_checkpoint(folder / "step-00000001").meta["lanes"] == {"10": "a", "9": "b"}


def test_a_folder_that_cannot_be_written_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="choose another run folder"):
        store_in(tmp_path / "file" / "checkpoints")


def test_only_the_save_under_way_and_the_copy_block(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()
    publish = files.publish

    def slow_publish(*args: object) -> Path:
        go_on.wait()
        return publish(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(files, "publish", slow_publish)
    model, optimizer = trained(seed=0)
    with closing(store_in(folder)) as store:
        store.save(1, model, optimizer)
        assert list(files.step_folders(folder)) == []
        go_on.set()
        store.save(2, model, optimizer)
        assert 1 in files.step_folders(folder)
        store.save(2, model, optimizer)  # already saved
    assert list(files.step_folders(folder)) == [1, 2]


def test_leftovers_of_a_dead_run_are_removed_and_a_step_can_be_saved_again(folder: Path) -> None:
    model, _ = trained(seed=0)
    for name in (".incomplete-step-00000005", ".deleted-step-00000001"):
        (folder / name).mkdir(parents=True)
        (folder / name / "rank-00000-of-00001-part-000.safetensors").write_bytes(b"half")
    with closing(store_in(folder)) as store:
        assert sorted(path.name for path in folder.iterdir()) == [".lock"]
        store.save(5, model)
    with closing(store_in(folder)) as store:
        with torch.no_grad():
            model.gain.fill_(3.0)
        store.save(5, model)
    assert read_weights(folder / "step-00000005")["gain"] == 3.0
    assert sorted(path.name for path in folder.iterdir()) == [".lock", "step-00000005"]


def test_killed_at_any_moment_the_newest_checkpoint_is_whole(tmp_path: Path) -> None:
    done = run_warm(SUPPORT / "kill_while_saving.py", tmp_path / "checkpoints")
    assert done.returncode == 0, done.stderr
    assert "steps in 20 lives" in done.stdout
    assert "skipping checkpoint" not in done.stderr  # no file was damaged


def test_looking_at_a_run_does_not_free_its_lock(tmp_path):
    file = files.lock(tmp_path)
    assert files.is_locked(tmp_path)
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        assert pool.apply(files.is_locked, (tmp_path,))  # still held, as another process sees it
    file.close()
    assert not files.is_locked(tmp_path)
    assert not files.is_locked(tmp_path / "none")


def test_state_that_is_not_a_tensor_is_a_mistake_of_ours() -> None:
    model, optimizer = trained(seed=0)
    optimizer.state[model.gain]["count"] = 3
    with pytest.raises(TypeError, match="'count' of gain is a int"):
        named_state(model, optimizer)
    with pytest.raises(ValueError, match=r"model\.gain"):
        named_state(model, extra={"model.gain": torch.zeros(1)})


def test_a_tensor_of_another_shape_is_not_stretched(tmp_path: Path) -> None:
    write_into(tmp_path, {"one": torch.ones(1)}, World(), None)
    with pytest.raises(CheckpointError, match=r"one is \(1,\), not \(5,\)"):
        read_into(tmp_path, {"one": torch.zeros(5)}, World())
