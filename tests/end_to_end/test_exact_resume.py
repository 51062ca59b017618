"""A run that was stopped, killed or torn and then resumed = a run that never was, bit for bit."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import pretrainkit as pk
from pretrainkit.errors import Interrupted
from pretrainkit.training.checkpoints.checkpoint import read_weights
from pretrainkit.training.checkpoints.files import newest_valid
from pretrainkit.training.watch import Watcher
from support import SUPPORT
from support.command_line import NO_DROPOUT, files_below, losses, metric_lines, pretrainkit, refused, succeed
from support.remedies import followed
from support.two_processes import run_ranks, run_two
from support.warm_python import Ended, run_warm

EMA = "ema_decay=0.9"
ONE_COMMAND = SUPPORT / "one_command.py"


def last_checkpoint(run: Path) -> Path:
    return max((run / "checkpoints").glob("step-*"))


def assert_same_ending(run: Path, reference: Path) -> None:
    """Equal losses, norms and learning rates at every step; all tensors of the last checkpoint bit-equal."""
    assert metric_lines(run) == metric_lines(reference)
    tensors, expected = (read_weights(last_checkpoint(path), prefix="") for path in (run, reference))
    assert last_checkpoint(run).name == last_checkpoint(reference).name
    assert tensors.keys() == expected.keys()
    assert {name.split(".")[0] for name in tensors} == {"model", "optimizer", "ema"}
    for name, value in expected.items():
        assert torch.equal(tensors[name], value), name


def copy_until(run: Path, step: int, target: Path) -> Path:
    """A copy of a finished run as if it had been killed right after its checkpoint of `step`."""
    shutil.copytree(run, target)
    for path in (target / "checkpoints").glob("step-*"):
        if int(path.name.removeprefix("step-")) > step:
            shutil.rmtree(path)
    return target


def stop_training(name: str, step: int, *words: object) -> Ended:
    return run_warm(SUPPORT / "stopped_training.py", name, step, *words)


class StopAfter(Watcher):
    """Sends this process a signal after a step."""

    def __init__(self, step: int, number: signal.Signals) -> None:
        self.step, self.number = step, number

    def stepped(self, step: int, num_steps: int) -> None:
        if step == self.step:
            os.kill(os.getpid(), self.number)


def test_ctrl_c_saves_exits_with_130_and_resumes_exactly(settings: list[str], finished: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    ended = stop_training("SIGINT", 6, "train", *settings, EMA, "--out", run)
    assert ended.returncode == 130, ended.stderr
    assert f"pretrainkit resume {run}" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert last_checkpoint(run).name == "step-00000006"
    assert "from step 6" in pretrainkit("resume", run).err
    assert_same_ending(run, finished)
    events = [json.loads(line)["event"] for line in (run / "events.jsonl").read_text().splitlines()]
    assert [event for event in events if event != "checkpoint"] == ["started", "stopped", "resumed", "finished"]


def test_kill_9_between_checkpoints_resumes_exactly(settings: list[str], finished: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    ended = stop_training("SIGKILL", 7, "train", *settings, EMA, "checkpoint.asynchronous=false", "--out", run)
    assert ended.returncode == -signal.SIGKILL
    assert last_checkpoint(run).name == "step-00000004"
    assert metric_lines(run) == metric_lines(finished)[:7]
    succeed("resume", run)
    assert_same_ending(run, finished)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_signals_of_schedulers_save_too(
    settings: list[str], finished: Path, tmp_path: Path, number: signal.Signals
) -> None:
    config = pk.load_config(settings[0], [*settings[1:], EMA])
    with pytest.raises(Interrupted, match=rf"{number.name} at step 3 of 12[\s\S]*pretrainkit resume"):
        pk.train(config, tmp_path / "run", watcher=StopAfter(3, number))
    pk.resume(tmp_path / "run")
    assert_same_ending(tmp_path / "run", finished)


def test_a_process_alone_stops_at_once_where_the_host_runs_ahead_of_its_device(
    settings: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pretrainkit.training.trainer.reads_at_once", lambda device: False)
    config = pk.load_config(settings[0], settings[1:])
    with pytest.raises(Interrupted, match="SIGTERM at step 3 of 12"):
        pk.train(config, tmp_path / "run", watcher=StopAfter(3, signal.SIGTERM))


def test_a_run_stopped_at_every_step_is_the_run_that_never_stopped(
    settings: list[str], finished: Path, tmp_path: Path
) -> None:
    config = pk.load_config(settings[0], [*settings[1:], EMA])
    with pytest.raises(Interrupted) as error:
        pk.train(config, tmp_path / "run", watcher=StopAfter(1, signal.SIGTERM))
    assert f"resume {tmp_path}/run" in followed(error.value, "training/trainer.py: stopped by")
    for step in range(2, 12, 3):
        with pytest.raises(Interrupted):
            pk.resume(tmp_path / "run", watcher=StopAfter(step, signal.SIGTERM))
    pk.resume(tmp_path / "run")
    assert_same_ending(tmp_path / "run", finished)


def torn_by_truncation(checkpoint: Path) -> None:
    weights = next(checkpoint.glob("*.safetensors"))
    os.truncate(weights, weights.stat().st_size - 1)


def torn_by_a_flipped_bit(checkpoint: Path) -> None:
    weights = next(checkpoint.glob("*.safetensors"))
    content = bytearray(weights.read_bytes())
    content[-100] ^= 1
    weights.write_bytes(content)


def torn_by_a_missing_file(checkpoint: Path) -> None:
    next(checkpoint.glob("*.safetensors")).unlink()


def torn_by_an_edited_manifest(checkpoint: Path) -> None:
    meta = checkpoint / "meta.json"
    meta.write_text(meta.read_text().replace('"step": 8', '"step": 9'))


@pytest.mark.parametrize(
    "tear", [torn_by_truncation, torn_by_a_flipped_bit, torn_by_a_missing_file, torn_by_an_edited_manifest]
)
def test_the_checkpoint_before_a_torn_one_is_used_with_a_warning(
    finished: Path, tmp_path: Path, tear: Any, caplog: pytest.LogCaptureFixture
) -> None:
    run = copy_until(finished, 8, tmp_path / "run")
    tear(run / "checkpoints" / "step-00000008")
    answer = pretrainkit("resume", run)
    assert answer.code == 0, answer.err
    assert "from step 4" in answer.err
    assert any("step-00000008" in record.getMessage() for record in caplog.records if record.levelname == "WARNING")
    assert_same_ending(run, finished)


@pytest.mark.parametrize("name", ["meta.json", "*.safetensors"])
@pytest.mark.parametrize("place", [0.0, 0.001, 0.02, 0.3, 0.6, 0.999])
def test_a_changed_byte_anywhere_in_a_checkpoint_is_detected(
    finished: Path, tmp_path: Path, name: str, place: float, caplog: pytest.LogCaptureFixture
) -> None:
    """Length, header and tensors of the weights; settings, checksums and the last line of meta.json."""
    checkpoints = tmp_path / "checkpoints"
    shutil.copytree(finished / "checkpoints", checkpoints)
    damaged = next((checkpoints / "step-00000012").glob(name))
    content = bytearray(damaged.read_bytes())
    content[int(place * len(content))] ^= 0x10
    damaged.write_bytes(content)
    assert newest_valid(checkpoints) == checkpoints / "step-00000008"
    assert "step-00000012" in caplog.text


def test_a_clock_that_jumps_changes_nothing(
    settings: list[str], finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(0)
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + rng.uniform(-1e8, 1e8))
    config = pk.load_config(settings[0], [*settings[1:], EMA])
    with pytest.raises(Interrupted):
        pk.train(config, tmp_path / "run", watcher=StopAfter(6, signal.SIGTERM))
    pk.resume(tmp_path / "run")
    assert_same_ending(tmp_path / "run", finished)


def test_the_warning_of_a_torn_checkpoint_is_printed(finished: Path, tmp_path: Path) -> None:
    """Python prints warnings of the logging module that nothing handles; pytest handles them, hence a new process."""
    run = copy_until(finished, 8, tmp_path / "run")
    torn_by_truncation(run / "checkpoints" / "step-00000008")
    ended = run_warm(ONE_COMMAND, "evaluate", run)
    assert ended.returncode == 0, ended.stderr
    assert "step-00000008" in ended.stderr
    assert "bytes instead of" in ended.stderr


def test_when_all_checkpoints_are_torn_the_run_is_refused_and_left_alone(finished: Path, tmp_path: Path) -> None:
    run = copy_until(finished, 8, tmp_path / "run")
    for checkpoint in (run / "checkpoints").glob("step-*"):
        torn_by_truncation(checkpoint)
    before = contents(run)
    assert "no valid checkpoint" in refused("resume", run)
    assert contents(run) == before
    assert "no valid checkpoint" in refused("evaluate", run)


def contents(run: Path) -> Mapping[str, bytes]:
    """All files of a run but the lock of its checkpoints."""
    return {
        name: (run / name).read_bytes() for name in files_below(run) if (run / name).is_file() and ".lock" not in name
    }


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("seed=1", "seed: the checkpoint has 0, the config now has 1"),
        ("data.batch_size=4", "data.batch_size: the checkpoint has 8, the config now has 4"),
        ("data.train={valid} data.valid=", "the data itself: the checkpoint has "),
        ("data.max_seq_length=24", "the data itself: the checkpoint has "),
        ("data.order=sequential", "data.order: the checkpoint has shuffle, the config now has sequential"),
        ("objective.masking_rate=0.1", "the data itself: the checkpoint has "),
        ("model.hidden_size=64", "model.hidden_size: 32 in the checkpoint, 64 in the model"),
        ("model.num_layers=2", "model.num_layers: 1 in the checkpoint, 2 in the model"),
        # The shapes of all tensors are the same for any number of heads:
        ("model.num_heads=4", "model.num_heads: 2 in the checkpoint, 4 in the model"),
        ("model.activation=relu", "model.activation: gelu_tanh in the checkpoint, relu in the model"),
        ("optimizer.name=lamb ema_decay=0.99 objective.sentence_order=false", "the state of another optimizer"),
        ("ema_decay=0.99 objective.sentence_order=false", "checkpoint"),
    ],
)
def test_a_change_of_the_past_is_refused_and_nothing_is_touched(
    finished: Path, tokens: Path, tmp_path: Path, change: str, named: str
) -> None:
    run = copy_until(finished, 8, tmp_path / "run")
    before = contents(run)
    words = change.format(valid=tokens / "valid").split()
    assert named in refused("resume", run, *words)
    assert contents(run) == before
    succeed("resume", run)
    assert_same_ending(run, finished)


def test_dropout_may_change_on_the_way(finished: Path, tmp_path: Path) -> None:
    run = copy_until(finished, 8, tmp_path / "run")
    succeed("resume", run, "model.hidden_dropout=0.3")
    assert losses(run)[:8] == losses(finished)[:8]
    assert losses(run)[8:] != losses(finished)[8:]


def test_a_run_on_relative_paths_resumes_from_any_folder(
    settings: list[str], tokens: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tokens.parent)
    relative = ["data.train=tokens/train", "data.valid=tokens/valid"]
    config = pk.load_config(settings[0], [*settings[3:], *relative, EMA])
    with pytest.raises(Interrupted):
        pk.train(config, tmp_path / "run", watcher=StopAfter(5, signal.SIGTERM))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    succeed("resume", "../run")
    assert_same_ending(tmp_path / "run", finished)
    assert "loss" in succeed("evaluate", "../run")


def test_a_run_resumes_when_its_data_was_moved(tokens: Path, finished: Path, tmp_path: Path) -> None:
    run = copy_until(finished, 8, tmp_path / "run")
    config = run / "config.yaml"
    config.write_text(config.read_text().replace(str(tokens), str(tmp_path / "gone")))
    assert f"there is no folder {tmp_path / 'gone'}/train" in refused("resume", run)
    shutil.copytree(tokens, tmp_path / "moved")
    succeed("resume", run, f"data.train={tmp_path}/moved/train", f"data.valid={tmp_path}/moved/valid")
    assert_same_ending(run, finished)


def test_resume_with_more_steps_continues(settings: list[str], tmp_path: Path) -> None:
    constant = [*settings, "schedule.name=constant"]
    succeed("train", *constant, "--out", tmp_path / "short")
    succeed("resume", tmp_path / "short", "num_steps=16")
    succeed("train", *constant, "num_steps=16", "--out", tmp_path / "long")
    assert metric_lines(tmp_path / "short") == metric_lines(tmp_path / "long")
    assert "num_steps: 16" in (tmp_path / "short" / "config.yaml").read_text()
    weights, expected = (pk.load_model(tmp_path / name).state_dict() for name in ("short", "long"))
    assert all(torch.equal(weights[name], value) for name, value in expected.items())


def test_a_folder_without_checkpoint_or_without_run_is_refused(finished: Path, tmp_path: Path) -> None:
    run = copy_until(finished, 0, tmp_path / "run")
    assert "no checkpoint, so it cannot be resumed" in refused("resume", run)
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "is not a run folder" in refused("resume", empty)
    assert "is not a run folder" in refused("resume", tmp_path / "absent")
    assert "is not a run folder" in refused("resume", tmp_path / "absent", "--launch", "local", "--nproc", 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "run"]
    assert not list(empty.iterdir())


def test_train_never_writes_over_a_run(settings: list[str], finished: Path, tmp_path: Path) -> None:
    run = copy_until(finished, 8, tmp_path / "run")
    before = contents(run)
    assert f"pretrainkit resume {run}" in refused("train", *settings, "--out", run)
    assert contents(run) == before
    resumed = ("--resume", "--out", run)  # as a scheduler restarts it
    assert "belongs to another model" in refused("train", *settings, EMA, "model.num_layers=2", *resumed)
    assert contents(run) == before
    succeed("train", *settings, EMA, *resumed)
    assert_same_ending(run, finished)


def test_train_with_resume_starts_where_there_is_nothing_yet(
    settings: list[str], finished: Path, tmp_path: Path
) -> None:
    """A scheduler gives the same command again, also after a kill before the first checkpoint."""
    run = tmp_path / "run"
    # After the first update and before it is saved, which is done in the background.
    ended = stop_training("SIGKILL", 1, "train", *settings, EMA, "--resume", "--out", run)
    assert ended.returncode == -signal.SIGKILL
    assert not list((run / "checkpoints").glob("step-*"))
    succeed("train", *settings, EMA, "checkpoint.keep_last=9", "--resume", "--out", run)
    assert_same_ending(run, finished)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_microbatches_of_any_size_give_equal_losses(
    settings: list[str], finished_without_dropout: Path, tmp_path: Path, size: int
) -> None:
    """Sums in another order: equal up to rounding, which 12 updates enlarge."""
    succeed("train", *settings, *NO_DROPOUT, f"data.microbatch_size={size}", "--out", tmp_path / "run")
    assert losses(tmp_path / "run") == pytest.approx(losses(finished_without_dropout), rel=1e-4)


def test_microbatches_of_tokens_give_equal_losses(
    settings: list[str], finished_without_dropout: Path, tmp_path: Path
) -> None:
    succeed("train", *settings, *NO_DROPOUT, "data.microbatch_tokens=96", "--out", tmp_path / "run")
    assert losses(tmp_path / "run") == pytest.approx(losses(finished_without_dropout), rel=1e-4)


def test_rows_and_packed_give_equal_losses(settings: list[str], finished_without_dropout: Path, tmp_path: Path) -> None:
    succeed("train", *settings, *NO_DROPOUT, "data.batching=rows", "--out", tmp_path / "run")
    assert losses(tmp_path / "run") == pytest.approx(losses(finished_without_dropout), rel=1e-4)


@pytest.mark.parametrize(
    "words",
    [
        ["optimizer.name=lamb", "schedule.name=wsd", "schedule.num_decay_steps=4"],
        ["optimizer.name=adafactor", "optimizer.adafactor.min_dim_size_to_factor=16", "optimizer.beta2=0.999"],
        ["precision.compute=bfloat16", "schedule.name=cosine", "parallel.activation_checkpointing=true"],
        ["data.order=lanes", "data.chunking=sabertooth", "data.batching=rows", "data.microbatch_size=2"],
        ["data.order=sequential", "objective.mask_unit=span", "data.prefetch=0"],
        ["objective.mask_unit=whole_word", "data.microbatch_tokens=64", "evaluate.every_steps=3"],
    ],
    ids=" ".join,
)
def test_every_way_to_train_resumes_exactly(settings: list[str], tmp_path: Path, words: list[str]) -> None:
    succeed("train", *settings, EMA, *words, "checkpoint.keep_last=9", "--out", tmp_path / "whole")
    run = copy_until(tmp_path / "whole", 4, tmp_path / "resumed")
    succeed("resume", run)
    assert_same_ending(run, tmp_path / "whole")


def test_two_ranks_learn_as_one_and_one_resumes_where_two_stopped(
    settings: list[str], finished_without_dropout: Path, tmp_path: Path
) -> None:
    expected = losses(finished_without_dropout)
    both = tmp_path / "two-ranks"
    # So little room that one rank often needs more microbatches than the other, whose last ones hold no example.
    words = (*NO_DROPOUT, "data.microbatch_tokens=33", "checkpoint.keep_last=9")
    run_two(ONE_COMMAND, "train", *settings, *words, "--out", str(both))
    assert losses(both) == pytest.approx(expected, rel=1e-5)
    alone = copy_until(both, 8, tmp_path / "alone")
    succeed("resume", alone)
    assert losses(alone) == pytest.approx(expected, rel=1e-5)
    assert losses(alone)[:8] == losses(both)[:8]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("num_ranks", "layout"),
    [(2, ["parallel.strategy=fsdp2"]), (4, ["parallel.strategy=hsdp", "parallel.shard_ranks=2"])],
)
def test_ranks_with_a_sharded_model_resume_where_one_stopped(
    settings: list[str], finished_without_dropout: Path, tmp_path: Path, num_ranks: int, layout: list[str]
) -> None:
    run = copy_until(finished_without_dropout, 4, tmp_path / "run")
    (run / "samples.json").unlink()
    # Three batches of held-out examples, the last one smaller: of two ranks both go through a second one, of four one
    # has none of its own.
    changes = (*layout, "evaluate.num_examples=31", "evaluate.batch_size=11")
    if num_ranks == 2:
        words = ["resume", str(run), *changes, "--launch", "local", "--nproc", "2"]
        ended = subprocess.run(
            [sys.executable, "-m", "pretrainkit", *words], capture_output=True, text=True, timeout=500
        )
        assert ended.returncode == 0, ended.stderr
    else:  # the launcher starts each rank again, whatever its number
        run_ranks(num_ranks, ONE_COMMAND, "resume", str(run), *changes)
    assert (run / "samples.json").is_file()
    held_out = json.loads((run / "eval.jsonl").read_text().splitlines()[-1])
    assert held_out == pytest.approx({"step": 12, **pk.evaluate(run)}, rel=1e-6)
    assert losses(run) == pytest.approx(losses(finished_without_dropout), rel=1e-5)
    weights, expected = (pk.load_model(path).state_dict() for path in (run, finished_without_dropout))
    for name, value in expected.items():
        torch.testing.assert_close(weights[name], value, rtol=1e-3, atol=1e-4, msg=name)


@pytest.mark.slow
def test_a_sharded_run_starts_from_the_weights_of_rank_0(finished_without_dropout: Path, tmp_path: Path) -> None:
    config = str(finished_without_dropout / "config.yaml")
    changes = [f"init_from={finished_without_dropout}", "num_steps=3"]
    alone, sharded = tmp_path / "alone", tmp_path / "sharded"
    pk.train(pk.load_config(config, changes), alone)
    places = run_ranks(2, SUPPORT / "sharded_start.py", config, str(sharded), *changes, "parallel.strategy=fsdp2")
    assert [place.split() for place in places] == [["cpu"], ["meta"]]
    assert losses(sharded) == pytest.approx(losses(alone), rel=1e-5)
