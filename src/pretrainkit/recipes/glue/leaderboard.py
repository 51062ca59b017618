"""The files of a submission to GLUE's leaderboard, and a check of them. Imports no torch.

A submission is a zip file of TSV files. Each has the header `index<TAB>prediction` and a row for each example of a test
set, in order. Source: https://gluebenchmark.com/faq.
"""

import re
import zipfile
from collections.abc import Container, Iterable, Mapping
from pathlib import Path
from typing import Any

from pretrainkit.errors import DataError, InputError
from pretrainkit.files.manifest import atomic_file
from pretrainkit.recipes.capabilities import Answers
from pretrainkit.recipes.glue.tasks import TASKS, TextTask

HEADER = "index\tprediction"
NUM_ROWS: Mapping[str, int] = {
    "CoLA.tsv": 1_063,
    "SST-2.tsv": 1_821,
    "MRPC.tsv": 1_725,
    "STS-B.tsv": 1_379,
    "QQP.tsv": 390_965,
    "MNLI-m.tsv": 9_796,
    "MNLI-mm.tsv": 9_847,
    "QNLI.tsv": 5_463,
    "RTE.tsv": 3_000,
    "WNLI.tsv": 146,
    "AX.tsv": 1_104,
}
"""Number of rows in the official test sets. A submission has all of these files."""
_NUMBER = re.compile(r"-?\d+\.\d{6}")
_SHOWN = 3


def file_of(name: str) -> tuple[TextTask, str]:
    """Return (task, its split) of a file in a submission."""
    files = {file: (task, split) for task in TASKS.values() for split, file in task.files.items()}
    if name not in files:
        raise InputError(f"{name} is not a file of a submission\n  its files are: {', '.join(NUM_ROWS)}")
    return files[name]


def answers_as_tsv(task: TextTask, lines: Iterable[Mapping[str, Any]]) -> str:
    """Return the contents of a file: numbers with six decimals, or classes by the leaderboard's names."""
    rows = [HEADER]
    names = dict(zip(task.classes or (), task.file_labels or task.classes or (), strict=True))
    for line in lines:
        answer = f"{line['value']:.6f}" if task.kind == "numbers" else names[line["label"]]
        rows.append(f"{line['index']}\t{answer}")
    return "\n".join(rows) + "\n"


def majority_wnli() -> str:
    """Answer WNLI with its most common class, which fine-tuned models rarely beat because its pairs are adversarial."""
    rows = ({"index": index, "label": "not_entailment"} for index in range(NUM_ROWS["WNLI.tsv"]))
    return answers_as_tsv(TASKS["wnli"], rows)


def write_submission(files: Mapping[str, str], out: Path) -> Path:
    """Write texts by file name to a zip file, atomically. Return its path."""
    with atomic_file(out) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in sorted(files.items()):
            archive.writestr(zipfile.ZipInfo(name), text)
    return out


def submit(out: Path, trained: Container[str], answers: Answers, num_rows: Mapping[str, int]) -> tuple[Path, list[str]]:
    """Write the zip file of a submission into `out`; see `capabilities.Benchmark`.

    A file is missing if there is no data or no run for it. It is wrong if, for example, its test set is incomplete.
    """
    files, missing = {"WNLI.tsv": majority_wnli()}, []
    for name in NUM_ROWS:
        task, split = file_of(name)
        source = "mnli" if task.name == "ax" else task.name
        if source not in trained:
            if name != "WNLI.tsv":
                missing.append(f"{name}: there is no model for {source}")
            continue
        try:
            files[name] = answers_as_tsv(task, answers(source, task.name, split, name))
        except DataError as error:
            missing.append(f"{name}: {str(error).splitlines()[0]}")
    whole, incomplete = out / "submission.zip", out / "incomplete-submission.zip"
    whole.unlink(missing_ok=True)
    path = write_submission(files, incomplete)
    refused = missing + problems_of(path, {name: num for name, num in num_rows.items() if name in files})
    return (path if refused else path.replace(whole)), refused


def problems_of(path: Path, num_rows: Mapping[str, int] = NUM_ROWS) -> list[str]:
    """Return what the leaderboard would refuse in a zip file, given the rows of each required file; empty if complete.
    Raises DataError if it is not a zip file."""
    try:
        with zipfile.ZipFile(path) as archive:
            texts = {name: archive.read(name) for name in archive.namelist()}
    except (OSError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} cannot be read as a zip file: {error}\n  write it again") from error
    problems = [f"{name} is missing" for name in num_rows if name not in texts]
    problems += [f"{name} does not belong in a submission" for name in texts if name not in num_rows]
    for name, content in texts.items():
        if name in num_rows:
            problems += [f"{name}: {problem}" for problem in _problems_of_file(name, content, num_rows[name])]
    return problems


def _problems_of_file(name: str, content: bytes, num_rows: int) -> list[str]:
    try:
        header, *rows = content.decode("utf-8").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        return [f"not UTF-8: {error}"]
    problems = [] if header == HEADER else [f"the first line is {header!r}, not {HEADER!r}"]
    if len(rows) != num_rows:
        problems.append(f"{len(rows)} answers, but the test set has {num_rows} rows")
    task, _ = file_of(name)
    fields = [row.split("\t") for row in rows]
    if broken := [number for number, row in enumerate(fields) if len(row) != 2]:
        return [*problems, f"row {broken[0]} has {len(fields[broken[0]])} fields instead of 2"]
    if [row[0] for row in fields] != [str(number) for number in range(len(fields))]:
        problems.append("the indices do not count from 0 in steps of 1")
    allowed = set(task.file_labels or task.classes or ())
    is_right = _NUMBER.fullmatch if task.kind == "numbers" else allowed.__contains__
    wrong = [answer for _, answer in fields if not is_right(answer)]
    if wrong:
        valid = f"among {sorted(allowed)}" if allowed else "numbers"
        problems.append(f"{len(wrong)} answers are not {valid}, such as {wrong[:_SHOWN]}")
    return problems
