"""A log of evaluations remembers what was done with the same settings."""

import pytest

from pretrainkit.errors import DataError
from pretrainkit.training.folder import EvaluationLog


def test_added_evaluations_are_known_to_the_next_log_with_the_same_settings(tmp_path):
    path = tmp_path / "deep" / "log.jsonl"
    EvaluationLog(path, "a").add(20, {"loss": 1.5})
    EvaluationLog(path, "b").add(10, {"loss": 9.0})
    log = EvaluationLog(path, "a")
    log.add(10, {"loss": 2.5, "t/accuracy": 50.0})
    assert EvaluationLog(path, "a").metrics_by_step == {10: {"loss": 2.5, "t/accuracy": 50.0}, 20: {"loss": 1.5}}
    assert EvaluationLog(path, "b").metrics_by_step == {10: {"loss": 9.0}}
    assert EvaluationLog(path, "c").metrics_by_step == {}


def test_a_torn_last_line_is_cut_off_and_anything_else_is_refused(tmp_path):
    path = tmp_path / "log.jsonl"
    EvaluationLog(path, "a").add(1, {"loss": 1.0})
    with open(path, "a") as file:
        file.write('{"step": 2, "sett')
    log = EvaluationLog(path, "a")
    log.add(3, {"loss": 3.0})
    assert list(EvaluationLog(path, "a").metrics_by_step) == [1, 3]
    path.write_text('{"input": "x"}\n')
    with pytest.raises(DataError, match=r"see line 1\n  choose another file: --out FILE"):
        EvaluationLog(path, "a")
