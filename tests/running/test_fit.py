"""`pretrainkit plan --fit`: the least intrusive settings that fit, printed so that they can be used as they are."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pretrainkit as pk
from pretrainkit.api import make_plan
from pretrainkit.config.yaml import parse_yaml
from pretrainkit.data.source import BatchSource
from pretrainkit.dist import devices
from pretrainkit.dist.devices import Device
from pretrainkit.errors import InputError
from pretrainkit.running.fitting import DEVICES, MEMORY_SHARE, Fit
from pretrainkit.running.loading import Loading
from pretrainkit.running.plan import Plan
from pretrainkit.tokenizers.shard_writer import write_shards
from pretrainkit.tokenizers.special import SpecialIds
from support.command_line import pretrainkit, refused, succeed
from support.remedies import followed

pytestmark = pytest.mark.slow

SOURCE = ("bert/tiny", "model.num_layers=6", "data.max_seq_length=512", "model.max_positions=512")
"""Many activations for its weights."""
CHECKPOINTED = "parallel.activation_checkpointing=true"


def planned(*words: str, num_gpus: int = 8, **options: Any) -> Plan:
    return make_plan(pk.load_config(SOURCE[0], [*SOURCE[1:], *words]), num_gpus=num_gpus, dry_run=False, **options)


def fitted(num_bytes: float, *kept: str, num_gpus: int = 8, **options: Any) -> Plan:
    """A plan with settings that fit into this many bytes, all of which may be used."""
    names = [word.partition("=")[0] for word in kept]
    available = (num_bytes + 1) / MEMORY_SHARE
    return planned(*kept, num_gpus=num_gpus, device_bytes=available, fit=True, kept=names, **options)


def chosen(plan: Plan) -> dict[str, Any]:
    assert isinstance(plan.fit, Fit)
    return plan.fit.settings


def test_less_memory_changes_more_of_the_run() -> None:
    whole = planned()
    one, again = planned("data.microbatch_size=1"), planned("data.microbatch_size=1", CHECKPOINTED)
    two = planned("data.microbatch_size=2")
    assert chosen(fitted(whole.memory["ddp"].total)) == {}
    assert chosen(fitted(whole.memory["ddp"].total - 2)) == {"data.microbatch_size": 4}
    assert chosen(fitted(two.memory["ddp"].total)) == {"data.microbatch_size": 2}
    assert chosen(fitted(one.memory["ddp"].total))["data.microbatch_size"] == 1
    assert chosen(fitted(one.memory["ddp"].total - 1000)).keys() == {"data.microbatch_size", "parallel.strategy"}
    sharded = fitted(one.memory["ddp"].total - 1000, gpus_per_node=4)
    assert chosen(sharded)["parallel.strategy"] == "hsdp"
    least = fitted(again.memory["fsdp2"].total)
    assert chosen(least) == {
        "data.microbatch_size": 1,
        "parallel.strategy": "fsdp2",
        "parallel.activation_checkpointing": True,
    }
    assert [reason.partition(":")[0] for reason in least.fit.reasons] == [
        "ddp",
        "fsdp2",
        "ddp and activation checkpointing",
        "fsdp2 and activation checkpointing",
    ]
    assert least.fit.reasons[-1].endswith("a step takes up to a third longer than planned")
    assert least.memory["fsdp2"].total == pytest.approx(again.memory["fsdp2"].total, abs=1)
    with pytest.raises(InputError, match="nothing fits"):
        fitted(again.memory["fsdp2"].total - 1000)


def test_settings_of_the_command_line_are_kept() -> None:
    one, whole = planned("data.microbatch_size=1"), planned()
    plan = fitted(whole.memory["ddp"].total, "data.microbatch_size=2", "parallel.strategy=fsdp2", CHECKPOINTED)
    assert chosen(plan) == {}
    assert plan.examples_per_microbatch == 2
    again = fitted(one.memory["ddp"].total - 1000, "parallel.strategy=ddp")
    assert chosen(again)["parallel.activation_checkpointing"]
    assert "parallel.strategy" not in chosen(again)


def test_a_preset_is_fitted_again() -> None:
    config = pk.load_config("fourm/l-7")
    assert config.parallel.strategy == "fsdp2"
    plan = make_plan(config, num_gpus=1, dry_run=False, fit=True)
    assert plan.fit.settings["parallel.strategy"] == "ddp"
    assert plan.fits("ddp")


@pytest.mark.parametrize("fit", ["off", "auto"])
def test_the_printed_settings_can_be_used_unchanged(fit: str, tmp_path: Path) -> None:
    words = ["plan", *SOURCE, f"parallel.fit={fit}", "data.batch_size=65536", "--hardware", "l4", "--gpus", "16"]
    out = succeed(*words, "--fit", "--gpus-per-node", "4", "--no-dry-run")
    command = shlex.split(
        re.search(r"on the command line:\n  pretrainkit (train .+)", out)[1].replace("FOLDER", "here")
    )
    end = command.index("--launch")
    assert command[end:] == ["--launch", "slurm", "--nodes", "4", "--gpus-per-node", "4"]
    config = pk.load_config(command[1], command[2:end])
    assert not config.problems(16)
    tree = parse_yaml(re.search(r"YAML file:\n((?:  .+\n)+)", out)[1], "printed")
    (tmp_path / "mine.yaml").write_text(json.dumps({"extends": SOURCE[0], **tree}))
    same = pk.load_config(str(tmp_path / "mine.yaml"), [word for word in command[2:end] if "microbatch" not in word])
    assert same == config
    without = pk.load_config(command[1], [word for word in command[2:end] if "data.train" not in word])
    assert make_plan(without, num_gpus=16, device="l4", dry_run=False).fits("ddp")
    found = json.loads(succeed(*words, "--fit", "--json", "--gpus-per-node", "4", "--no-dry-run"))
    assert found["fit"]["settings"] == {"data.microbatch_size": config.data.microbatch_size}
    assert shlex.split(found["command"].replace("FOLDER", "here"))[1:] == command


def test_if_nothing_fits_the_missing_memory_is_printed_and_the_advice_works() -> None:
    layers = ["model.num_encoder_layers=8", "model.num_decoder_layers=8"]
    words = ["plan", "t5/1.1-xl", *layers, "--fit", "--no-dry-run", "--hardware", "rtx4090"]
    kept = ["data.microbatch_size=256"]
    message = refused(*words, *kept)
    needed, missing = (float(size) for size in re.search(r"need (.+) GiB, so (.+) GiB are missing", message).groups())
    assert needed - missing == pytest.approx(MEMORY_SHARE * DEVICES["rtx4090"][1] / 2**30, abs=0.11)
    larger, more = (re.findall(r"--(?:hardware|gpus) [\w-]+", message)[number].split() for number in (0, 1))
    assert succeed(*words[:-2], *larger, *kept)
    assert succeed(*words, *more, *kept)
    message = refused(*words, *kept, "parallel.strategy=ddp")
    assert "leave out data.microbatch_size and parallel.strategy, so that --fit chooses" in message
    assert succeed(*words)
    huge = ["model.hidden_size=65536", "model.intermediate_size=262144", "data.batch_size=1"]
    message = refused("plan", "bert/tiny", *huge, "--fit", "--no-dry-run")
    assert "use a smaller model or shorter examples" in message


def test_settings_that_fit_cannot_decide_are_refused_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["plan", "bert/tiny", "--no-dry-run"]
    message = refused(*words, "--fit", "data.batching=packed", "data.microbatch_tokens=2000")
    followed(message, "running/plan.py: --fit and data.microbatch_tokens")
    assert succeed(*words, "--fit", "data.batching=packed")
    assert succeed(*words, "data.batching=packed", "data.microbatch_tokens=2000")
    message = refused(*words, "--fit", "parallel.strategy=fsdp2")
    advice = followed(message, "running/plan.py: parallel.strategy=… needs more than one device")
    assert succeed(*words, "--fit")
    assert succeed(*words, "--fit", "parallel.strategy=fsdp2", *re.search(r"--gpus \d", advice)[0].split())
    assert "a batch of 64 examples cannot be split over 3 ranks" in refused(*words, "--fit", "--gpus", "3")
    assert succeed(*words, "--fit", "--hardware", "cpu")
    monkeypatch.setattr(devices, "described", lambda device: Device("cpu", "unknown", None))
    advice = followed(refused(*words, "--fit", "--hardware", "cpu"), "running/plan.py: the memory of this machine")
    assert succeed(*words, *re.search(r"--fit .+", advice)[0].split())
    assert "choose one of: cpu, b200" in refused(*words, "--hardware", "h201")


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    documents = [[rng.integers(5, 200, 12) for _ in range(9)] for _ in range(40)]
    write_shards(
        tmp_path / "tokens", [documents], vocab_size=200, special=SpecialIds(unk=2, cls=3, sep=1, mask=4, pad=0)
    )
    return tmp_path / "tokens"


def test_data_loading_is_measured_and_compared(tokens: Path) -> None:
    words = ["plan", "bert/tiny", f"data.train={tokens}", "data.batch_size=8", "--no-dry-run"]
    out = succeed(*words, "--gpus", "4", "--gpus-per-node", "2", "--mfu", "1e-9")
    assert re.search(r"^data loading keeps up: one thread .+ worker prepares .+ The 2 of a machine need", out, re.M)
    out = succeed(*words, "--mfu", "1")
    assert re.search(r"^DATA LOADING DOES NOT KEEP UP: one thread .+ Each NVIDIA H200 needs ", out, re.M)
    assert re.search(r"^  as configured, loading takes [\d.]+ (ms|s), not [\d.]+ ms$", out, re.M)
    assert "the time of a step on cpu is unknown" in succeed(*words, "--hardware", "cpu")
    assert "data loading: not measured" in succeed("plan", "bert/tiny", "--no-dry-run")
    found = json.loads(succeed(*words, "--mfu", "1", "--json"))["loading"]
    assert found["keeps_up"] is False
    assert found["needed_by_machine"] == found["needed_by_rank"] > found["examples_per_second"] > 0


class _Slow(BatchSource):
    """Only its advice is read."""

    sizes, fingerprint, lengths, build = (1,), "", None, None
    faster_loading = "prepare it before"


def test_more_workers_are_advised_as_far_as_a_machine_has_cores() -> None:
    measured = Loading(examples_per_second=100, fill=1, num_workers=2)
    clip = pk.load_config("clip/tiny")
    slow = measured.compared(clip, _Slow(), 750, 8)
    assert not slow.keeps_up
    assert slow.needed_by_machine == 6000
    assert slow.remedies == ("data.workers=processes data.num_workers=8", "prepare it before")
    changed = pk.load_config("clip/tiny", slow.remedies[0].split())
    assert Loading(100, 1, changed.data.loader_workers[1]).compared(changed, _Slow(), 750, 8).keeps_up
    assert measured.compared(clip, _Slow(), 10_000, 8).remedies == ("prepare it before",)
    assert measured.compared(pk.load_config("bert/tiny"), _Slow(), 750, 8).remedies == ("prepare it before",)
    assert measured.compared(clip, _Slow(), 200, 8).keeps_up


def test_help_names_every_kind_of_hardware() -> None:
    text = re.sub(r"[\s│]+", " ", pretrainkit("plan", "--help").out)
    assert all(re.search(rf"\b{name}\b", text) for name in DEVICES)


def test_a_plan_states_the_time_of_a_step_and_of_the_run() -> None:
    out = succeed("plan", "bert/base", "--gpus", "8", "--no-dry-run")
    assert "1,000,000 steps of 22.6 ms at an MFU of 40%: 6.28 hours\n" in out
    out = succeed("plan", "bert/base", "num_steps=null", "data.num_epochs=1", "--gpus", "8", "--no-dry-run")
    assert "an unknown number of steps of 22.6 ms at an MFU of 40%; to estimate the time, give " in out
