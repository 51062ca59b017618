"""Tasks judged by their own metrics while T5 trains on them, and after."""

import json
from pathlib import Path

import pytest
import torch

import pretrainkit
import pretrainkit.api
from pretrainkit.dist.env import World
from pretrainkit.errors import ConfigError
from pretrainkit.recipes.t5.evaluation import task_evaluations
from pretrainkit.recipes.t5.task_source import TaskBatches
from pretrainkit.tasks.task import REGISTRY
from pretrainkit.training.precision import resolve_precision

pytestmark = pytest.mark.slow

TASKS = """
from functools import partial
from pretrainkit.tasks.preprocessors import append_eos_after_trim, format_strings, tokenize
from pretrainkit.tasks.task import Feature, Mixture, Task, add_mixture, add_task
from pretrainkit.tasks.sources import FunctionSource
from pretrainkit.tasks.vocabulary import ByteVocabulary
from pretrainkit.eval.metrics import accuracy, exact_match

BYTES = ByteVocabulary()
FEATURES = {"inputs": Feature(BYTES), "targets": Feature(BYTES)}
STEPS = (format_strings(inputs="{word}", targets="{label}"), tokenize(), append_eos_after_trim)


def rows(split, number=24):
    words = ("ant", "bee", "cat", "dog")
    return [{"word": words[i % 4], "label": "yes" if i % 4 < 2 else "no"} for i in range(number)]


def class_of(text, example, is_target):
    return {"no": 0, "yes": 1}.get(text, -1)


def mean_score(targets, scores):
    return {"mean_score": sum(scores) / len(scores)}


def add(name, splits, **settings):
    add_task(Task(f"judged_{name}", FunctionSource(rows, splits), FEATURES, STEPS, **settings))


add("small", ("train", "validation"), postprocess=class_of, metrics=[accuracy, mean_score])
add("copy", ("train", "validation"), metrics=[exact_match])
add("plain", ("train", "validation"))
add("no_validation", ("train",), metrics=[exact_match])
add_mixture(Mixture("judged_all", [(f"judged_{n}", r) for n, r in
                                  (("small", 3), ("copy", 0), ("plain", 1), ("no_validation", 1))]))
"""
SIZES = [
    *("model.vocab_size=null", "model.hidden_size=16", "model.head_size=8", "model.intermediate_size=32"),
    *("data.input_length=8", "data.target_length=8", "data.batch_size=12"),
]


@pytest.fixture(scope="module")
def module(tmp_path_factory):
    path = tmp_path_factory.mktemp("tasks") / "judged_tasks.py"
    path.write_text(TASKS)
    before = {*REGISTRY.names()}
    yield path
    for name in {*REGISTRY.names()} - before:
        REGISTRY.remove(name)


def config_of(module: Path, task: str, *settings: str):
    return pretrainkit.load_config("t5/tiny", [f"data.task={task}", f"data.modules=[{module}]", *SIZES, *settings])


def lines_of(path: Path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def run(module, tmp_path_factory):
    """Evaluated at 0, 40, 80 and 120, saved at 1, 100 and 120."""
    out = tmp_path_factory.mktemp("runs") / "run"
    adam = ("optimizer.name=adamw", "optimizer.peak_lr=1e-2", "objective.normalize_by=real_target_tokens")
    settings = (*adam, "schedule.name=constant", "schedule.factors=[]", "schedule.min_lr=1e-8")
    settings += ("schedule.num_warmup_steps=0", "num_steps=120", "evaluate.every_steps=40", "checkpoint.keep_last=9")
    config = config_of(module, "judged_small", *settings, "evaluate.before_training=true")
    pretrainkit.train(config, out, device="cpu")
    return out


def test_the_metrics_of_a_task_are_those_of_every_evaluation_and_it_is_learned(run):
    lines = lines_of(run / "eval.jsonl")
    assert [line["step"] for line in lines] == [0, 40, 80, 120]
    assert lines[0]["judged_small/accuracy"] < 50
    assert lines[-1]["judged_small/accuracy"] == 100.0
    assert lines[-1]["judged_small/mean_score"] > lines[0]["judged_small/mean_score"]
    assert lines[-1]["nll_per_target_token"] < lines[0]["nll_per_target_token"]
    summary = json.loads((run / "summary.json").read_text())
    assert summary["valid_judged_small/accuracy"] == 100.0
    assert summary["majority_judged_small/accuracy"] == 50.0
    assert "majority_judged_small/mean_score" not in summary  # a constant answer has no score


def test_answers_of_the_model_are_in_the_run_folder(run):
    names = sorted(path.name for path in (run / "evaluations").iterdir())
    assert names == [f"judged_small-{step:06d}.jsonl" for step in (0, 40, 80, 120)]
    lines = lines_of(run / "evaluations" / names[-1])
    assert len(lines) == 24
    assert lines[1] | {"score": 0.0} == {
        "input": "bee",
        "target": "yes",
        "prediction": "yes",
        "judged_target": 1,
        "judged_prediction": 1,
        "score": 0.0,
    }


def test_evaluating_the_run_later_gives_the_same_numbers_whatever_the_batches(run):
    at_the_end = lines_of(run / "eval.jsonl")[-1]
    del at_the_end["step"]
    assert pretrainkit.evaluate(run) == pytest.approx(at_the_end, abs=1e-6)
    found = pretrainkit.evaluate(run, None, ["evaluate.infer.batch_size=5", "evaluate.batch_size=7"])
    assert found == pytest.approx(at_the_end, abs=1e-4)
    found = pretrainkit.evaluate(run, None, ["evaluate.infer.decoding.method=beam"])
    assert found["judged_small/accuracy"] == 100.0


def test_the_number_of_examples_limits_tasks_too(run, tmp_path):
    found = pretrainkit.evaluate(run, num_examples=3)
    assert found["judged_small/accuracy"] == 100.0
    without = pretrainkit.evaluate(run, None, ["evaluate.infer=null"])
    assert not [name for name in without if "/" in name]


def test_a_mixture_judges_all_tasks_that_can_be_judged_also_those_of_rate_0(module, tmp_path):
    settings = ("num_steps=2", "evaluate.every_steps=null", "evaluate.infer.every_steps=1", "log.every_steps=1")
    settings += ("data.held_out_share=null",)
    pretrainkit.train(config_of(module, "judged_all", *settings), tmp_path / "run")
    first, last = lines_of(tmp_path / "run" / "eval.jsonl")
    judged = {"judged_small/accuracy", "judged_small/mean_score", "judged_copy/exact_match", "mean_over_tasks"}
    # Answers at times of their own; the losses only after the last update.
    assert {name for name in first if name != "step"} == judged
    losses = {f"nll_per_target_token/judged_{name}" for name in ("small", "copy", "plain")}
    assert judged | losses < set(last)
    assert not [name for name in last if "no_validation" in name]


def test_a_run_on_tasks_is_evaluated_from_another_folder(module, tmp_path, monkeypatch):
    monkeypatch.chdir(module.parent)
    settings = ("num_steps=1", "evaluate.infer.num_examples=2", "evaluate.num_examples=2")
    config = config_of(Path("judged_tasks.py"), "judged_small", *settings)
    assert pretrainkit.load_config("t5/tiny", ["data.modules=judged_tasks.py"]).data.modules == config.data.modules
    pretrainkit.train(config, tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    assert "judged_small/accuracy" in pretrainkit.evaluate(tmp_path / "run")


def test_rows_without_a_label_are_reported_before_they_are_judged(tmp_path, caplog):
    folder = tmp_path / "CoLA"
    folder.mkdir()
    (folder / "train.tsv").write_text("x\t1\t\tIt is.\n")
    (folder / "test.tsv").write_text("index\tsentence\n0\tIt was.\n1\tIt will.\n")
    data = ("data.task=glue_cola_v002", f"data.task_folders.glue={tmp_path}", "data.tokenizer=bytes")
    config = pretrainkit.load_config("t5/tiny", [*data, "evaluate.infer.split=test"])
    assert task_evaluations(config, World(), resolve_precision(config.precision, torch.device("cpu")), None)
    assert "glue_cola_v002: 2 of 2 rows of test have no label (their target is <unk>)" in caplog.text


def test_a_split_for_inference_that_tasks_lack_is_reported(module, tmp_path, caplog):
    config = config_of(module, "judged_all", "num_steps=1", "evaluate.infer.split=test")
    with pytest.raises(ConfigError, match=r"no task of 'judged_all' has that split\n  use one of: train, validation"):
        pretrainkit.train(config, tmp_path / "run")
    assert not list((tmp_path / "run").glob("checkpoints/*"))
    infer = ("evaluate.infer.split=validation", "evaluate.infer.num_examples=2", "evaluate.num_examples=2")
    infer += ("data.held_out_share=null",)
    pretrainkit.train(config_of(module, "judged_all", "num_steps=1", *infer), tmp_path / "other")
    assert caplog.text.count("judged_no_validation has no split validation (evaluate.infer.split)") == 1


def test_a_task_without_metrics_trains_as_before(module, tmp_path):
    pretrainkit.train(config_of(module, "judged_plain", "num_steps=1"), tmp_path / "run")
    assert not [name for name in lines_of(tmp_path / "run" / "eval.jsonl")[0] if "judged" in name]
    assert not (tmp_path / "run" / "evaluations").exists()


def test_a_metric_of_a_task_ends_a_run_and_chooses_its_checkpoint(module, tmp_path):
    watched = "metric=judged_copy/exact_match"
    settings = [f"evaluate.early_stopping.{watched}", "evaluate.early_stopping.mode=max"]
    settings += ["evaluate.early_stopping.patience=2", f"checkpoint.keep_best.{watched}"]
    settings += ["evaluate.every_steps=null", "evaluate.infer.every_steps=1", "num_steps=50", "checkpoint.keep_last=1"]
    pretrainkit.train(config_of(module, "judged_copy", *settings, "checkpoint.keep_best.mode=max"), tmp_path / "run")
    assert sorted(path.name for path in (tmp_path / "run" / "checkpoints").glob("step-*")) == [
        "step-00000001",
        "step-00000003",
    ]


def test_all_checkpoints_of_a_run_are_evaluated_and_none_of_them_twice(run, tmp_path, monkeypatch):
    out = tmp_path / "all.jsonl"
    settings = ["evaluate.infer.num_examples=8"]
    found = pretrainkit.evaluate_checkpoints(run, None, settings, out=out)
    assert list(found) == [1, 100, 120]
    assert found[120] == pytest.approx(pretrainkit.evaluate(run, None, settings), abs=1e-6)
    out.write_text("".join(line + "\n" for line in out.read_text().splitlines()[:2]))  # as if it had been killed
    opened = []
    whole = pretrainkit.api.open_model
    monkeypatch.setattr(
        pretrainkit.api, "open_model", lambda path, **o: opened.append(Path(path).name) or whole(path, **o)
    )
    told = []
    again = pretrainkit.evaluate_checkpoints(run, None, settings, out=out, progress=lambda *one: told.append(one))
    assert again == found
    assert told == list(found.items())
    assert opened == ["step-00000001", "step-00000120"]  # the first one is opened for the config
    assert len(lines_of(out)) == 3
    assert [line["step"] for line in lines_of(out)] == [1, 100, 120]


def test_losses_use_the_configured_number_of_examples_of_each_task_and_no_dropout(module, tmp_path, monkeypatch):
    """T5X's train_eval: the mixture, and each task that has the split."""
    settings = ["num_steps=1", "evaluate.num_examples=10", "evaluate.num_examples_per_task=7", "evaluate.batch_size=4"]
    settings += ["evaluate.infer=null", "model.dropout=0.5", "precision.compute=float32", "data.held_out_share=null"]
    pretrainkit.train(config_of(module, "judged_all", *settings), tmp_path / "run")
    seen = []
    examples = TaskBatches.examples
    monkeypatch.setattr(TaskBatches, "examples", lambda self, rows: seen.append(rows) or examples(self, rows))
    found = pretrainkit.evaluate(tmp_path / "run")
    assert [len(rows) for rows in seen] == [4, 4, 2] + 3 * [4, 3]
    assert [set(rows.source.tolist()) for rows in seen[3:]] == [{0}, {0}, {1}, {1}, {2}, {2}]
    assert pretrainkit.evaluate(tmp_path / "run") == found


def test_a_trained_run_has_samples_and_answers_prompts_and_tasks_without_a_tokenizer_beside_it(run, tmp_path):
    labels = {"ant": "yes", "bee": "yes", "cat": "no", "dog": "no"}
    samples = json.loads((run / "samples.json").read_text())
    assert {one["input"]: one["truth"] for one in samples}.items() <= labels.items()
    assert [one["predicted"] for one in samples] == [one["truth"] for one in samples]
    found = pretrainkit.generate(run, list(labels), beams=2)
    assert [answer["text"] for answer in found] == list(labels.values())
    opened = pretrainkit.open_model(run)
    assert opened.score([("ant", "yes")])[0] > opened.score([("ant", "no")])[0]
    out = pretrainkit.infer(run, tmp_path / "out.jsonl", task="judged_small", split="validation")
    rows = lines_of(out)
    assert len(rows) == 24
    assert all(labels[row["inputs"]["inputs_pretokenized"]] == row["prediction"] for row in rows)


def test_settings_of_answers_are_refused_where_there_are_no_tasks():
    settings = ["data.train=shards", "evaluate.infer.num_examples=3"]
    assert "evaluate.infer has an effect only" in pretrainkit.load_config("t5/tiny", settings).problems()[0]
    assert not pretrainkit.load_config("t5/tiny", ["data.train=shards", "evaluate.infer=null"]).problems()
