"""Files of a submission, and what their check finds."""

import zipfile

import pytest

from pretrainkit.errors import DataError
from pretrainkit.recipes.glue.leaderboard import (
    NUM_ROWS,
    answers_as_tsv,
    file_of,
    majority_wnli,
    problems_of,
    write_submission,
)
from pretrainkit.recipes.glue.tasks import TASKS

SIZES = dict.fromkeys(NUM_ROWS, 3) | {"WNLI.tsv": 146}


def submission(num=3):
    files = {"WNLI.tsv": majority_wnli()}
    for name in NUM_ROWS:
        task, _ = file_of(name)
        if name != "WNLI.tsv":
            answer = {"value": -0.25} if task.kind == "numbers" else {"label": task.classes[-1]}
            files[name] = answers_as_tsv(task, ({"index": i, **answer} for i in range(num)))
    return files


def test_fact_40_header_labels_and_six_decimals():
    lines = [{"index": 0, "value": 5.1}, {"index": 1, "value": 1 / 3}]
    assert answers_as_tsv(TASKS["stsb"], lines) == "index\tprediction\n0\t5.100000\n1\t0.333333\n"
    said = {name: submission()[name].splitlines()[1] for name in NUM_ROWS}
    assert said == {
        **{f"{name}.tsv": "0\t1" for name in ("CoLA", "MRPC", "QQP", "SST-2")},
        **{f"{name}.tsv": "0\tcontradiction" for name in ("MNLI-m", "MNLI-mm", "AX")},
        **{f"{name}.tsv": "0\tnot_entailment" for name in ("QNLI", "RTE")},
        "STS-B.tsv": "0\t-0.250000",
        "WNLI.tsv": "0\t0",
    }


def test_a_complete_submission_has_no_problems(tmp_path):
    assert problems_of(write_submission(submission(), tmp_path / "s.zip"), SIZES) == []


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("RTE.tsv", None, "RTE.tsv is missing"),
        ("more.tsv", "", "more.tsv does not belong in a submission"),
        ("RTE.tsv", "id\tprediction\n0\tentailment\n1\tentailment\n2\tentailment\n", "the first line is"),
        ("RTE.tsv", "index\tprediction\n0\tentailment\n", "1 answers, but the test set has 3 rows"),
        ("RTE.tsv", "index\tprediction\n0\tentailment\n2\tentailment\n1\tentailment\n", "do not count"),
        ("RTE.tsv", "index\tprediction\n0\t1\n1\tentailment\n2\tentailment\n", "1 answers are not among"),
        ("RTE.tsv", "index\tprediction\n0\tentailment\n1\n2\tentailment\n", "row 1 has 1 fields"),
        ("STS-B.tsv", "index\tprediction\n0\t1.000000\n1\t2\n2\t3.000000\n", "1 answers are not numbers"),
    ],
)
def test_the_check_names_problems(name, text, problem, tmp_path):
    files = submission() | {name: text}
    path = write_submission({key: value for key, value in files.items() if value is not None}, tmp_path / "s.zip")
    found = problems_of(path, SIZES)
    assert len(found) == 1
    assert problem in found[0]


def test_official_numbers_of_rows_are_required(tmp_path):
    path = write_submission(submission(), tmp_path / "s.zip")
    assert len(problems_of(path)) == len(NUM_ROWS) - 1


def test_a_file_that_is_not_a_zip_is_refused(tmp_path):
    (tmp_path / "s.zip").write_text("no")
    with pytest.raises(DataError, match="cannot be read as a zip"):
        problems_of(tmp_path / "s.zip")
    assert not zipfile.is_zipfile(tmp_path / "s.zip")
