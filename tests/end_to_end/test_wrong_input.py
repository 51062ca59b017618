"""Mistakes that the project promises to catch: one message, the right exit code, nothing half-written."""

import contextlib
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import pretrainkit as pk
from pretrainkit.errors import RunError
from pretrainkit.training.watch import Watcher
from support.command_line import files_below, metric_lines, pretrainkit, refused, succeed
from support.remedies import followed


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[Path]:
    """A folder that must still be empty at the end."""
    folder = tmp_path / "empty"
    folder.mkdir()
    yield folder
    assert files_below(folder) == []


# ---- corpus and tokenizer ----


def test_an_empty_corpus(tmp_path: Path, empty: Path, made: Path) -> None:
    (tmp_path / "empty.txt").write_text("")
    assert "no document" in refused("corpus", "shards", tmp_path / "empty.txt", "--out", empty / "corpus")
    message = refused("corpus", "count-words", tmp_path / "empty.txt", "--out", empty / "words.tsv")
    assert "no word" in message
    tokenizer = made / "data" / "tokenizer"
    words = ("tokenizer", "encode", tmp_path / "empty.txt", "--tokenizer", tokenizer, "--out", empty / "tokens")
    assert "no document" in refused(*words)


def test_a_broken_json_line_is_named_by_its_number(tmp_path: Path, empty: Path) -> None:
    path = tmp_path / "broken.jsonl"
    path.write_text('{"text": "one"}\n{"text": \n{"text": "three"}\n')
    message = refused("corpus", "shards", path, "--out", empty / "corpus")
    assert f"{path}, line 2" in message
    assert "--max-bad" in message


def test_invalid_utf8_is_named_by_file_line_and_byte(tmp_path: Path, empty: Path) -> None:
    path = tmp_path / "latin.txt"
    path.write_bytes(b"Good text here.\nna\xefve\n")
    message = refused("corpus", "shards", path, "--out", empty / "corpus")
    assert f"{path}, line 2" in message
    assert "byte 2" in message
    assert "0xef" in message


def test_a_truncated_zst_is_never_taken_for_whole(tmp_path: Path, empty: Path) -> None:
    import zstandard

    lines = b"".join(json.dumps({"text": f"Document {number}."}).encode() + b"\n" for number in range(3000))
    path = tmp_path / "cut.jsonl.zst"
    content = zstandard.compress(lines)
    path.write_bytes(content[: len(content) // 2])
    assert f"{path} is truncated" in refused("corpus", "shards", path, "--max-bad", 9999, "--out", empty / "corpus")


def test_a_vocabulary_larger_than_the_text_allows(made: Path, empty: Path) -> None:
    words = made / "data" / "words.tsv"
    message = refused("tokenizer", "train", words, "--vocab-size", 90_000, "--out", empty / "tokenizer")
    assert "90000" in message
    most = int(message.split("at most ")[1].split()[0])
    assert f"--vocab-size {most} or less" in message


def test_a_folder_that_cannot_be_written(made: Path, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    text, data = made / "my_text" / "part-0.txt", made / "data"
    refused("corpus", "shards", text, "--out", file)
    refused("tokenizer", "train", data / "words.tsv", "--vocab-size", 400, "--out", file / "below")
    refused("tokenizer", "encode", data / "corpus", "--tokenizer", data / "tokenizer", "--out", file / "below")
    assert file.read_text() == "mine"
    assert files_below(tmp_path) == ["file"]


# ---- training ----


def test_unknown_recipes_presets_and_keys_name_the_nearest(settings: list[str], empty: Path) -> None:
    out = empty / "run"
    assert "did you mean bert/tiny?" in refused("train", "bert/tinny", "--out", out)
    assert "did you mean 'bert'?" in refused("train", "bret/tiny", "--out", out)
    message = refused("train", *settings, "optimizer.learnig_rate=1", "data.batchsize=3", "--out", out)
    assert "closest: data.batch_size" in message  # both at once
    assert "optimizer has no field 'learnig_rate'" in message
    assert "data.batch_size=many" in refused("train", *settings, "data.batch_size=many", "--out", out)


def test_no_data(empty: Path, made: Path) -> None:
    refused("train", "bert/tiny", "--out", empty / "run")
    refused("train", "bert/tiny", f"data.train={empty}/absent", "--out", empty / "run")
    corpus = refused("train", "bert/tiny", f"data.train={made}/data/corpus/train", "--out", empty / "run")
    assert "pretrainkit tokenizer encode" in corpus
    assert "data/tokens/train" in refused("train", "bert/tiny", f"data.train={made}/data/tokens", "--out", empty / "r")


def test_a_corpus_smaller_than_one_batch(settings: list[str], empty: Path) -> None:
    message = refused("train", *settings, "data.batch_size=100000", "--out", empty / "run")
    most = int(message.split("data.batch_size of at most ")[1])
    config = pk.load_config(settings[0], [*settings[1:], f"data.batch_size={most}"])
    assert len(next(pk.batches(config))["lengths"]) == most  # the advice is right


def test_held_out_documents_in_the_training_data(settings: list[str], tokens: Path, empty: Path) -> None:
    message = refused("train", *settings, f"data.valid={tokens}/train", "--out", empty / "run")
    assert "are also in" in message
    option = message.split("pretrainkit corpus shards ")[1].split()[0]
    assert f"{option} " in pretrainkit("corpus", "shards", "--help").out  # the advice is an option there is


@pytest.fixture(scope="module")
def other_tokens(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same corpus by another tokenizer of the same size: ids fit, but mean something else."""
    folder, data = tmp_path_factory.mktemp("other"), made / "data"
    words = (folder / "words.tsv").as_posix()
    succeed("corpus", "count-words", made / "my_text" / "part-0.txt", "--out", words, "--workers", 1)
    succeed("tokenizer", "train", words, "--vocab-size", 700, "--out", folder / "tokenizer")
    tokenizer = ("--tokenizer", folder / "tokenizer", "--splitter", "newline")
    succeed("tokenizer", "encode", data / "corpus", *tokenizer, "--out", folder / "tokens")
    return folder / "tokens"


def test_a_tokenizer_that_does_not_match_the_shards(
    settings: list[str], finished: Path, tokens: Path, other_tokens: Path, empty: Path
) -> None:
    valid = f"data.valid={other_tokens}/valid"
    assert "different tokenizers" in refused("train", *settings, valid, "--out", empty / "run")
    message = refused("evaluate", finished, f"data.valid={other_tokens}/valid")
    assert "another tokenizer" in message
    both = (f"data.train={other_tokens}/train", valid)
    message = refused("train", *settings, *both, f"init_from={finished}", "--out", empty / "run")
    assert f"{other_tokens}/train was made with another tokenizer" in message
    small = refused("train", *settings, "model.vocab_size=300", "--out", empty / "run")
    assert "model.vocab_size=700 or more" in small


def test_an_export_evaluates_only_shards_of_its_tokenizer(finished: Path, other_tokens: Path, tmp_path: Path) -> None:
    succeed("export", finished, "--out", tmp_path / "export")
    assert "another tokenizer" in refused("evaluate", tmp_path / "export", f"data.valid={other_tokens}/valid")


def test_a_checkpoint_of_another_model(settings: list[str], finished: Path, empty: Path, tmp_path: Path) -> None:
    changes = ("model.num_layers=2", "model.hidden_size=64", "model.num_heads=4", "objective.sentence_order=false")
    for change in changes:
        message = refused("train", *settings, change, f"init_from={finished}", "--out", empty / "run")
        assert "belongs to another model" in message
        assert len(message.splitlines()) < 8
    assert "no such folder" in refused("train", *settings, "init_from=/nowhere", "--out", empty / "run")


@pytest.mark.parametrize(
    ("change", "advice"),
    [
        ("data.microbatch_size=3", "data.batch_size=6 or 9"),
        ("data.num_epochs=0.01", "set num_steps="),
        ("schedule.num_warmup_steps=100", "shorten the warm-up"),
        ("parallel.strategy=fsdp2", "--nproc 2"),
        ("parallel.strategy=hsdp", "--nproc 2"),
        ("parallel.shard_ranks=2", "only with parallel.strategy=hsdp"),
        ("model.num_heads=3", "multiple"),
        ("precision.compute=float16", "precision.compute=auto"),
        ("data.microbatch_tokens=10", "data.microbatch_tokens"),
        ("data.max_seq_length=1024 model.max_positions=512", "model.max_positions"),
        ("schedule.num_decay_steps=3", "schedule.name=wsd"),
    ],
)
def test_settings_that_cannot_work_together(settings: list[str], empty: Path, change: str, advice: str) -> None:
    assert advice in refused("train", *settings, *change.split(), "--out", empty / "run")


def test_an_unsupported_precision_leaves_no_folder(
    settings: list[str], tmp_path: Path, empty: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    half = ("train", *settings, "precision.compute=float16", "--out", empty / "run")
    assert "precision.compute=auto" in refused(*half, "data.valid=")
    capfd.readouterr()
    answer = pretrainkit(*half, "--launch", "local", "--nproc", "2")
    assert answer.code == 2, answer.err
    # This process does not capture the output of ranks.
    assert (answer.err + capfd.readouterr().err).count("error: precision.compute=float16") == 1


def test_a_batch_that_the_ranks_cannot_share_is_refused_before_they_start(settings: list[str], empty: Path) -> None:
    launch = ("--launch", "local", "--nproc", 3)
    assert "data.batch_size=6 or 9" in refused("train", *settings, *launch, "--out", empty / "run")
    assert "data.batch_size=1022 or 1029" in refused("config", "check", "bert/base", "--nproc", 7)
    assert "--launch local" in refused("train", *settings, "--nproc", 2, "--out", empty / "run")
    assert "none, local" in refused("train", *settings, "--launch", "moon", "--out", empty / "run")
    assert pretrainkit("train", *settings, "--launch", "local", "--nproc", 0, "--out", empty / "run").code == 2


def test_a_run_folder_that_cannot_be_written(settings: list[str], tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "precious").write_text("mine")
    for out in (file, file / "below"):
        assert "--out FOLDER" in refused("train", *settings, "--out", out)
    assert "something other than a run" in refused("train", *settings, "--out", tmp_path / "full")
    launch = ("--launch", "local", "--nproc", 2)
    assert "choose another run folder" in refused("train", *settings, *launch, "--out", file)
    assert file.read_text() == "mine"
    assert files_below(tmp_path) == ["file", "full", "full/precious"]


def test_finetuning_of_a_preset_that_is_not_a_task_is_refused_with_the_command_to_train_it(
    settings: list[str], finished: Path, tmp_path: Path
) -> None:
    message = refused("finetune", settings[0], "--from", finished)
    advice = followed(message, "cli/finetune.py: … is not a task of …")
    words = advice.partition("pretrainkit ")[2].split()
    succeed(*words, *settings[1:], "num_steps=1", "schedule.num_warmup_steps=1", "--out", tmp_path / "run")


# ---- a full disk ----


@contextlib.contextmanager
def files_of_at_most(num_bytes: int) -> Iterator[None]:
    """Within, writing more to one file fails: as a full disk does, with another reason."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("format", ["huggingface", "safetensors"])
def test_an_export_that_the_disk_has_no_room_for_leaves_nothing(finished: Path, empty: Path, format: str) -> None:
    with files_of_at_most(50_000):
        message = refused("export", finished, "--format", format, "--out", empty / "export", code=1)
    assert f"error: cannot write {empty}/export: " in message
    assert "free some disk space" in followed(message, "files/outputs.py: cannot write …: …")


def test_a_checkpoint_that_the_disk_has_no_room_for_leaves_those_before(
    settings: list[str], finished: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"

    class Full(Watcher):
        def stepped(self, step: int, num_steps: int) -> None:
            if step == 6:
                resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    config = pk.load_config(settings[0], [*settings[1:], "ema_decay=0.9", "checkpoint.asynchronous=false"])
    try:
        with pytest.raises(RunError, match=r"cannot save checkpoint .*step-00000008[\s\S]*pretrainkit resume") as error:
            pk.train(config, run, watcher=Full())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert error.value.exit_code == 1
    followed(error.value, "training/checkpoints/checkpoint.py: cannot save checkpoint")
    left = sorted(path.name for path in (run / "checkpoints").iterdir() if path.name != ".lock")
    assert left == ["step-00000001", "step-00000004"]
    succeed("resume", run)  # with room again
    assert metric_lines(run) == metric_lines(finished)


def test_a_save_that_fails_in_the_background_ends_the_run_at_once(settings: list[str], tmp_path: Path) -> None:
    steps = []

    class Full(Watcher):
        def stepped(self, step: int, num_steps: int) -> None:
            steps.append(step)
            time.sleep(0.02)
            if step == 1:
                resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    config = pk.load_config(
        settings[0], [*settings[1:], "num_steps=200", "checkpoint.every_steps=200", "log.every_steps=50"]
    )
    try:
        with pytest.raises(RunError, match=r"cannot save checkpoint .*step-00000001"):
            pk.train(config, tmp_path / "run", watcher=Full())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert len(steps) < 200


def test_metrics_that_cannot_be_written_are_one_message(settings: list[str], tmp_path: Path) -> None:
    run = tmp_path / "run"

    class Full(Watcher):
        def stepped(self, step: int, num_steps: int) -> None:
            if step == 3:  # the checkpoint after the first update is written
                resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, hard))

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    config = pk.load_config(settings[0], [*settings[1:], "checkpoint.every_steps=100", "checkpoint.asynchronous=false"])
    try:
        with pytest.raises(RunError, match=rf"cannot write {run}/(metrics|events).jsonl: File too large") as error:
            pk.train(config, run, watcher=Full())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert f"resume {run}" in followed(error.value, "training/folder.py: cannot write …: …")
    succeed("resume", run)


def test_a_tokenizer_that_cannot_be_copied_into_the_run(settings: list[str], tmp_path: Path) -> None:
    with files_of_at_most(20_000):
        assert "free some disk space" in refused("train", *settings, "--out", tmp_path / "run", code=1)
    assert not list(tmp_path.rglob("tokenizer*"))
    succeed("train", *settings, "num_steps=1", "schedule.num_warmup_steps=1", "--out", tmp_path / "run")


def test_a_run_that_ended_before_it_was_recorded_is_started_again(settings: list[str], tmp_path: Path) -> None:
    """On a disk without room for a byte, as after kill -9 at that moment, `checkpoints` with its lock is all there is,
    which is not "something else than a run"."""
    short = (*settings, "num_steps=1", "schedule.num_warmup_steps=1", "--out", tmp_path / "run")
    with files_of_at_most(0):
        refused("train", *short, code=1)
    assert files_below(tmp_path) == ["run", "run/checkpoints", "run/checkpoints/.lock"]
    succeed("train", *short)


def test_a_disk_too_small_for_any_checkpoint_is_reported_before_the_first_step(
    settings: list[str], empty: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Usage:
        free = 1000

    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage)
    assert "free some space" in refused("train", *settings, "--out", empty / "run")


# ---- a loss that is not a number ----

DIVERGING = ("optimizer.peak_lr=1e20", "optimizer.max_grad_norm=0", "schedule.name=constant")


def test_a_run_that_diverges_stops_and_names_its_records(settings: list[str], tmp_path: Path) -> None:
    run = tmp_path / "run"
    message = refused("train", *settings, *DIVERGING, "--out", run, code=1)
    assert "max_skipped_steps=0" in message
    (skipped,) = run.glob("skipped-step-*.json")
    assert str(skipped) in message
    content = json.loads(skipped.read_text())
    assert len(content["records"]) == 8
    assert all(source == 0 and epoch == 0 and index >= 0 for source, epoch, index in content["records"])
    lines = metric_lines(run)
    assert lines[-1]["step"] == content["step"]
    assert lines[-1]["loss"] is None  # not a number that looks like success
    assert all(line["loss"] is not None for line in lines[:-1])


def test_the_records_named_are_those_of_the_step(settings: list[str], tmp_path: Path) -> None:
    from pretrainkit.api import build_loader
    from pretrainkit.recipes.registry import find_recipe

    run = tmp_path / "run"
    refused("train", *settings, *DIVERGING, "--out", run, code=1)
    content = json.loads(next(run.glob("skipped-step-*.json")).read_text())
    config = pk.load_config(settings[0], settings[1:])
    recipe = find_recipe("bert")
    bound = recipe.bind(config)
    loader = build_loader(bound, recipe.open_data(bound, "train"), rank=0, world_size=1)
    records = loader.global_records(content["step"] - 1)
    assert [index for _, _, index in content["records"]] == records.index.tolist()


def test_with_max_skipped_steps_a_poisoned_step_is_skipped_and_the_run_continues(
    settings: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pretrainkit.recipes.bert.objective import BertObjective

    whole = BertObjective.losses
    calls = iter(range(1000))

    def poisoned(self: Any, model: Any, batch: Mapping[str, torch.Tensor]) -> Any:
        terms = whole(self, model, batch)
        if next(calls) == 4:
            terms = {name: term._replace(total=term.total * float("nan")) for name, term in terms.items()}
        return terms

    monkeypatch.setattr(BertObjective, "losses", poisoned)
    run = tmp_path / "run"
    config = pk.load_config(settings[0], [*settings[1:], "max_skipped_steps=1", "checkpoint.keep_last=9"])
    pk.train(config, run)
    lines = metric_lines(run)
    assert [line["step"] for line in lines if line["loss"] is None] == [5]
    assert lines[-1]["step"] == 12
    assert all(tensor.isfinite().all() for tensor in pk.load_model(run).state_dict().values())
    assert [path.name for path in run.glob("skipped-*")] == ["skipped-step-5.json"]

    calls = iter(range(1000))
    refused_run = config.model_copy(update={"max_skipped_steps": 0})
    with pytest.raises(RunError, match="step 5") as error:
        pk.train(refused_run, tmp_path / "refused")
    assert error.value.exit_code == 1
    assert "larger max_skipped_steps" in followed(error.value, "training/trainer.py: the gradient was not finite")
    pk.resume(tmp_path / "refused", ["max_skipped_steps=1"])


# ---- using what was trained ----


def test_folders_that_hold_no_model(made: Path, empty: Path, finished: Path) -> None:
    assert "there is no folder" in refused("evaluate", empty / "absent")
    assert "not a run folder" in refused("evaluate", made / "data")
    assert "not a run folder" in refused("export", made, "--out", empty / "export")
    assert "not a run folder" in refused("generate", finished / "checkpoints", "Bada <mask>.")
    assert "not a run folder" in refused("report", made, "--out", empty / "report.html")
    assert "config.json" in refused("import", finished, "--out", empty / "import")


def test_a_hugging_face_folder_of_another_model_or_a_broken_one(finished: Path, empty: Path, tmp_path: Path) -> None:
    succeed("export", finished, "--out", tmp_path / "export")
    config = tmp_path / "export" / "config.json"
    good = config.read_text()
    words = ("import", tmp_path / "export", "--recipe", "bart", "--out", empty / "import")
    assert "did you mean 'bert'?" in refused(*words)
    for text, named in (('{"model_type": "gpt2"}', "gpt2"), ('{"model_type":', "config.json")):
        config.write_text(text)
        assert named in refused("import", tmp_path / "export", "--out", empty / "import")
    config.write_text(good)
    weights = tmp_path / "export" / "model.safetensors"
    os.truncate(weights, weights.stat().st_size // 2)
    assert "model.safetensors" in refused("import", tmp_path / "export", "--out", empty / "import")
    weights.unlink()
    refused("import", tmp_path / "export", "--out", empty / "import")


def test_prompts_that_cannot_be_answered(finished: Path) -> None:
    assert "<mask>" in refused("generate", finished, "nothing hidden here")
    assert "trained on at most 32" in refused("generate", finished, "<mask> " + "bada " * 50)
    assert pretrainkit("generate", finished, "<mask>", "--top", 0).code == 2
    assert pretrainkit("evaluate", finished, "--num-examples", 0).code == 2


def test_an_import_of_a_model_with_few_positions_is_evaluated_within_them(
    settings: list[str], tokens: Path, tmp_path: Path
) -> None:
    succeed("train", *settings, "model.max_positions=40", "num_steps=2", "--out", tmp_path / "run")
    succeed("export", tmp_path / "run", "--out", tmp_path / "export")
    (tmp_path / "export" / "pretrainkit.json").unlink()  # as a model of others
    succeed("import", tmp_path / "export", "--out", tmp_path / "import")
    assert "loss" in succeed("evaluate", tmp_path / "import", f"data.valid={tokens}/valid", "--num-examples", 8)
    assert pk.load_config(tmp_path / "import" / "config.yaml").data.max_seq_length == 40


# ---- damaged run folders and shards ----


def damaged_manifest(shards: Path) -> None:
    (shards / "manifest.json").write_text("{")


def missing_hashes(shards: Path) -> None:
    next(shards.glob("hashes-*.bin")).unlink()


def truncated_tokens(shards: Path) -> None:
    path = next(shards.glob("tokens-*.bin"))
    os.truncate(path, path.stat().st_size - 2)


@pytest.mark.parametrize("damage", [damaged_manifest, missing_hashes, truncated_tokens])
def test_damaged_shards(settings: list[str], tokens: Path, tmp_path: Path, empty: Path, damage: Any) -> None:
    shards = tmp_path / "shards"
    shutil.copytree(tokens / "train", shards)
    damage(shards)
    message = refused("train", *settings, f"data.train={shards}", "--out", empty / "run")
    assert str(shards) in message
    assert "pretrainkit tokenizer encode" in message


@pytest.mark.parametrize(
    ("name", "content"), [("config.yaml", "recipe: [\n"), ("config.yaml", "seed: 1\n"), ("provenance.json", "{")]
)
def test_a_damaged_run_folder_is_not_resumed(finished: Path, tmp_path: Path, name: str, content: str) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    (run / name).write_text(content)
    answer = pretrainkit("resume", run, "num_steps=14")
    assert answer.code == 2
    assert name in answer.err
    assert "Traceback" not in answer.err
    assert (run / name).read_text() == content


@pytest.mark.parametrize(
    ("before", "after"), [("hidden_size: 32", "hidden_size: 64"), ("num_heads: 2", "num_heads: 4")]
)
def test_a_run_whose_config_was_edited_to_another_model(
    finished: Path, tmp_path: Path, empty: Path, before: str, after: str
) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    config = run / "config.yaml"
    assert before in config.read_text()
    config.write_text(config.read_text().replace(before, after))
    assert "belongs to another model" in refused("evaluate", run)
    assert "belongs to another model" in refused("export", run, "--out", empty / "export")
    assert "belongs to another model" in refused("resume", run, "num_steps=14")


def test_two_trainings_in_one_folder_are_refused(settings: list[str], tmp_path: Path) -> None:
    """A lock that the operating system drops when its holder dies; here its holder is another process."""
    run = tmp_path / "run"
    succeed("train", *settings, "--out", run)
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD_THE_LOCK, str(run / "checkpoints" / ".lock")], stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        before = (run / "config.yaml").read_text()
        assert "another process" in refused("resume", run, "num_steps=14")
        assert (run / "config.yaml").read_text() == before
    finally:
        holder.kill()
        holder.wait()
    succeed("resume", run, "num_steps=14")


HOLD_THE_LOCK = """
import fcntl, sys, time
file = open(sys.argv[1], "a+")
fcntl.lockf(file, fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(60)
"""
