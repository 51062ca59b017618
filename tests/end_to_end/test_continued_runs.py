"""Continued pretraining: a new run continues from the state of another run, or from a part of its weights."""

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
import torch

import pretrainkit as pk
from support.command_line import pretrainkit, refused, succeed


def lines(run: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def steps(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "checkpoints").glob("step-*"))


def continued_from(settings: list[str], finished: Path) -> list[str]:
    return [*settings, "ema_decay=0.9", f"init_from={finished}", "init.restore=all"]


def test_fact_40_extra_steps_continue_the_count_and_the_learning_rate(
    settings: list[str], finished: Path, tmp_path: Path
) -> None:
    rate = ("schedule.name=factors", "schedule.factors=constant * rsqrt_decay", "schedule.num_warmup_steps=4")
    run = tmp_path / "run"
    succeed("train", *continued_from(settings, finished), *rate, "num_extra_steps=5", "--out", run)
    assert [line["step"] for line in lines(run)] == [13, 14, 15, 16, 17]
    base = pk.load_config((run / "config.yaml").read_text() and run / "config.yaml").optimizer.peak_lr
    for line in lines(run):
        assert line["lr"] == pytest.approx(base / (line["step"] - 1) ** 0.5)
    assert steps(run)[-1] == "step-00000017"
    assert "17  complete: nothing is left to do" in pretrainkit("resume", run).err
    again = tmp_path / "again"
    succeed(
        "train", *continued_from(settings, finished), *rate, "schedule.step_offset=12", "num_steps=14", "--out", again
    )
    assert [line["lr"] for line in lines(again)] == pytest.approx([base / 2, base / 2])


def test_with_the_same_data_it_is_the_run_that_never_ended(settings: list[str], finished: Path, tmp_path: Path) -> None:
    longer = tmp_path / "longer"
    shutil.copytree(finished, longer)
    succeed("resume", longer, "num_steps=15")
    other = tmp_path / "other"
    words = [word for word in continued_from(settings, finished) if not word.startswith("num_steps")]
    succeed("train", *words, "num_steps=15", "init.data=continue", "--out", other)
    expected, found = (pk.load_model(run).state_dict() for run in (longer, other))
    for name, value in expected.items():
        assert torch.equal(found[name], value), name
    assert lines(other)[-1]["loss"] == lines(longer)[-1]["loss"]


def test_data_begins_at_its_start_and_a_stopped_run_resumes_exactly(
    settings: list[str], finished: Path, tmp_path: Path
) -> None:
    words = [*continued_from(settings, finished), "data.batch_size=4", "checkpoint.every_steps=2"]
    whole = tmp_path / "whole"
    succeed("train", *words, "num_extra_steps=4", "checkpoint.keep_last=9", "--out", whole)
    config = pk.load_config(whole / "config.yaml")
    assert (config.first_step, config.num_steps, config.num_extra_steps) == (12, 16, None)
    first = next(pk.batches(config))
    fresh = next(pk.batches(pk.load_config(settings[0], [*settings[1:], "data.batch_size=4"])))
    assert all((first[name] == fresh[name]).all() for name in fresh)

    stopped = tmp_path / "stopped"
    shutil.copytree(whole, stopped)
    for name in ("step-00000016",):
        shutil.rmtree(stopped / "checkpoints" / name)
    succeed("resume", stopped)
    expected, found = (pk.load_model(run).state_dict() for run in (whole, stopped))
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_a_checkpoint_is_chosen_by_its_step_and_cannot_continue_on_other_data(
    settings: list[str], finished: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    succeed("train", *continued_from(settings, finished), "init.step=8", "num_extra_steps=1", "--out", run)
    assert steps(run)[-1] == "step-00000009"
    words = [*continued_from(settings, finished), "num_extra_steps=1", "--out", tmp_path / "none"]
    assert "no valid checkpoint of step 7" in refused("train", *words, "init.step=7")
    assert "would not continue the same data" in refused("train", *words, "init.data=continue", "data.batch_size=4")
    assert "is reached before the run begins" in refused("train", *words[:-3], "--out", tmp_path / "none")
    assert "first_step=3, but init.restore=all continues at step 12" in refused("train", *words, "first_step=3")
    assert not (tmp_path / "none").exists()


def test_weights_alone_with_a_step_to_count_from(settings: list[str], finished: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = [f"init_from={finished}", "first_step=100", "num_extra_steps=2"]
    succeed("train", *settings, *words, "--out", run)
    assert [line["step"] for line in lines(run)] == [101, 102]


def test_a_deeper_model_with_a_larger_vocabulary_starts_from_a_part(
    settings: list[str], finished: Path, tmp_path: Path
) -> None:
    run, trained = tmp_path / "run", pk.load_model(finished).state_dict()
    config = pk.load_config(finished / "config.yaml")
    size = 1 + trained["embeddings.word.weight"].shape[0]
    layer = config.model.num_layers
    words = [
        f"init_from={finished}",
        f"model.vocab_size={size}",
        f"model.num_layers={layer + 1}",
        "init.missing=random",
    ]
    message = refused("train", *settings, *words, "--out", run)
    assert "embeddings.word.weight" in message
    assert "init.grow" in message
    grow = r"init.grow=['embeddings\.word\.weight', 'masked_lm\.decoder_bias']"
    # The learning rate of update 0 is 0: after one step the weights are still those it started with.
    succeed("train", *settings, *words, grow, "num_extra_steps=2", "checkpoint.every_steps=1", "--out", run)
    started = pk.load_model(run / "checkpoints" / "step-00000001").state_dict()
    for name, value in trained.items():
        assert torch.equal(started[name][tuple(slice(size) for size in value.shape)], value), name
    assert any(name.startswith(f"layers.{layer}.") for name in started)


def test_settings_that_nothing_would_read_are_refused(settings: list[str], finished: Path, tmp_path: Path) -> None:
    out = ("--out", tmp_path / "run")
    assert "init.missing has an effect only together" in refused("train", *settings, "init.missing=random", *out)
    words = [*continued_from(settings, finished), "num_extra_steps=1", "init.unexpected=ignore"]
    assert "continues with a complete state" in refused("train", *words, *out)
    assert "is not a valid regular expression" in refused(
        "train", *settings, f"init_from={finished}", "init.grow=['(']", *out
    )


OTHER_OPTIMIZER = ("optimizer.name=adafactor", "optimizer.beta2=0.999", "optimizer.epsilon=1e-6", "optimizer.beta1=0.9")


def test_the_state_of_another_optimizer_is_refused_and_its_weights_are_a_start(
    settings: list[str], finished: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    message = refused("resume", run, "num_steps=14", *OTHER_OPTIMIZER)
    assert "optimizer.name=adamw there, adafactor here" in message
    words = shlex.split(re.search("pretrainkit (train [^\n]*)", message)[1].replace("FOLDER", str(tmp_path / "new")))
    succeed(*words)
    assert pk.load_config(tmp_path / "new" / "config.yaml").optimizer.name == "adafactor"
    assert steps(run) == steps(finished)

    words = [*settings, *OTHER_OPTIMIZER, f"init_from={finished}", "num_extra_steps=2", "--out", tmp_path / "weights"]
    message = refused("train", *words, "init.restore=all")
    assert "optimizer.name=adamw there, adafactor here" in message
    succeed("train", *words, re.search(r"init\.restore=\w+", message.partition("\n")[2])[0])


def test_an_optimizer_without_state_resumes(settings: list[str], tmp_path: Path) -> None:
    run, plain = (
        tmp_path / "run",
        "optimizer.name=sgd optimizer.momentum=0 optimizer.beta2=0.999 optimizer.epsilon=1e-6",
    )
    short = [word for word in settings if not word.startswith("num_steps")]
    succeed("train", *short, *plain.split(), "num_steps=2", "--out", run)
    succeed("resume", run, "num_steps=3")
    assert steps(run)[-1] == "step-00000003"
    message = refused("resume", run, "num_steps=4", "optimizer.momentum=0.9")
    assert "has no optimizer state" in message
