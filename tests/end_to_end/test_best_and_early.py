"""Whole runs whose held-out metric follows a script: which checkpoints stay, and when the run ends."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

import pretrainkit as pk
from pretrainkit.errors import ConfigError, InputError
from pretrainkit.recipes.capabilities import Evaluates
from pretrainkit.training.checkpoints.files import PINNED, step_folders
from pretrainkit.training.watch import Evaluation
from support import sixth_recipe

SCORES = {0: 0.0, 2: 0.3, 4: 0.9, 6: 0.5, 8: 0.6, 10: 0.2, 12: 0.1, 14: 0.1, 16: 0.95}
CONFIG = "test_best_and_early:SCRIPTED/small"


class Scripted(sixth_recipe.Toy, Evaluates):
    """Evaluates to a number that the step decides."""

    def build_evaluator(self, config: Any, world: Any, precision: Any) -> Any:
        return lambda model: {"constant": 1.0}

    def more_evaluations(self, config: Any, world: Any, precision: Any, folder: Path | None) -> list[Evaluation]:
        def run(model: Any, tag: str) -> dict[str, float]:
            return {"score": SCORES.get(int(tag), 0.4)}

        return [Evaluation(run, config.evaluate.every_steps)]


SCRIPTED = Scripted("test_best_and_early:SCRIPTED", "By a script.", sixth_recipe.Sorting, sixth_recipe.NUM_FEATURES)


def config_of(*settings: str) -> Any:
    fixed = ["data.valid=numbers", "num_steps=16", "checkpoint.every_steps=5", "checkpoint.asynchronous=false"]
    return pk.load_config(CONFIG, [*fixed, "evaluate.every_steps=2", "checkpoint.keep_last=1", *settings])


def steps_of(run: Path) -> list[int]:
    return list(step_folders(run / "checkpoints"))


def lines_of(run: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / name).read_text().splitlines()]


def test_the_best_checkpoints_stay_beside_the_latest_one(tmp_path: Path) -> None:
    best = ("checkpoint.keep_best.metric=score", "checkpoint.keep_best.mode=max", "checkpoint.keep_best.keep=2")
    pk.train(config_of("num_steps=14", *best), tmp_path / "run")
    assert steps_of(tmp_path / "run") == [4, 8, 14]


def test_without_it_only_the_latest_stays_and_a_pinned_one(tmp_path: Path) -> None:
    run = tmp_path / "run"
    pk.train(config_of("num_steps=5"), run)
    (run / "checkpoints" / "step-00000005" / PINNED).touch()
    pk.resume(run, ["num_steps=16"])
    assert steps_of(run) == [5, 16]


def test_a_resumed_run_remembers_the_best(tmp_path: Path) -> None:
    run = tmp_path / "run"
    best = ("checkpoint.keep_best.metric=score", "checkpoint.keep_best.mode=max")
    pk.train(config_of("num_steps=7", *best), run)
    assert steps_of(run) == [4, 7]
    pk.resume(run, ["num_steps=14"])
    assert steps_of(run) == [4, 14]
    pk.resume(run, ["num_steps=16"])
    assert steps_of(run) == [16]


def test_the_last_evaluation_decides_about_the_last_checkpoint(tmp_path: Path) -> None:
    best = ("checkpoint.keep_best.metric=score", "checkpoint.keep_best.mode=max")
    pk.train(config_of("num_steps=8", "evaluate.every_steps=null", *best), tmp_path / "run")
    assert json.loads((tmp_path / "run/checkpoints/step-00000008/meta.json").read_text())["meta"]["best_steps"] == [
        [8, 0.6]
    ]


def test_a_run_ends_when_its_metric_gets_no_better_and_reports_why(tmp_path: Path) -> None:
    run = tmp_path / "run"
    stop = ("evaluate.early_stopping.metric=score", "evaluate.early_stopping.mode=max")
    metrics = pk.train(config_of(*stop), run)
    assert metrics["valid_score"] == SCORES[10]
    assert steps_of(run) == [10]
    assert [line["step"] for line in lines_of(run, "eval.jsonl")] == [2, 4, 6, 8, 10]
    told = lines_of(run, "events.jsonl")[-1]
    assert told["event"] == "finished"
    assert told["text"] == "at step 10 of 16: score has not improved for 3 evaluations (best: 0.9 at step 4)"
    assert pk.resume(run)["valid_score"] == SCORES[10]  # nothing is left to do
    assert steps_of(run) == [10]
    (run / "summary.json").unlink()  # as if it had been killed before its end
    pk.resume(run)
    assert lines_of(run, "events.jsonl")[-1]["text"] == told["text"]
    assert [line["step"] for line in lines_of(run, "eval.jsonl")] == [2, 4, 6, 8, 10]
    with pytest.raises(InputError, match="it ended early: score has not improved") as error:
        pk.resume(run, ["optimizer.peak_lr=1e-5"])
    *_, advice = shlex.split(str(error.value))
    pk.resume(run, [advice])
    assert steps_of(run) == [16]


def test_more_patience_lets_an_ended_run_continue(tmp_path: Path) -> None:
    run = tmp_path / "run"
    pk.train(config_of("evaluate.early_stopping.metric=score", "evaluate.early_stopping.mode=max"), run)
    pk.resume(run, ["evaluate.early_stopping.patience=9"])
    assert steps_of(run) == [16]


def test_it_is_evaluated_before_training_if_configured(tmp_path: Path) -> None:
    pk.train(config_of("num_steps=2", "evaluate.before_training=true"), tmp_path / "run")
    assert [(line["step"], line["score"]) for line in lines_of(tmp_path / "run", "eval.jsonl")] == [(0, 0.0), (2, 0.3)]


def test_a_metric_that_nobody_measures_ends_the_run_at_the_first_evaluation(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with pytest.raises(ConfigError, match=r"scores is not a held-out metric(.|\n)*its metrics: constant, score$"):
        pk.train(config_of("checkpoint.keep_best.metric=scores"), run)
    assert steps_of(run) == [2]


def test_decisions_on_metrics_that_are_never_computed_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"metric=score needs evaluations(.|\n)*set evaluate.every_steps"):
        pk.train(config_of("evaluate.every_steps=null", "evaluate.early_stopping.metric=score"), tmp_path / "run")
    with pytest.raises(ConfigError, match="nothing to evaluate on"):
        pk.train(
            config_of("evaluate.every_steps=null", "data.valid=null", "checkpoint.keep_best.metric=score"), tmp_path
        )
