"""A whole sweep on toy tasks: it resumes where it was stopped, and writes tables and a submission."""

import json
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from pretrainkit.cli.main import main
from pretrainkit.errors import InputError, RunError
from pretrainkit.recipes.glue.leaderboard import NUM_ROWS, problems_of
from pretrainkit.sweep.plan import Plan
from pretrainkit.sweep.runs import Sweep, Worker, exclusive_folder

sys.path.append(str(Path(__file__).parents[1] / "recipes" / "glue"))
from support.glue_toys import QUICK, write_encoder, write_glue

TASKS = ("cola", "mrpc", "qqp", "sst2", "stsb", "mnli", "qnli", "rte")
ROWS = dict.fromkeys(NUM_ROWS, 16) | {"AX.tsv": 8, "WNLI.tsv": 146}


class Here(Worker):
    """Runs command lines in this process, at most `limit` of them."""

    def __init__(self, limit=10**9):
        super().__init__()
        self.limit, self.done = limit, []

    def run(self, words, log):
        if len(self.done) == self.limit:
            raise KeyboardInterrupt
        self.done.append(next(word for word in words[words.index("--out") + 1 :]))
        code = 0
        argv = mock.patch.object(sys, "argv", ["pretrainkit", *words])
        with open(log, "w") as file, redirect_stdout(file), redirect_stderr(file), argv:
            try:
                main()
            except SystemExit as end:
                code = int(end.code or 0)
        return code


@pytest.fixture(scope="module")
def toys(tmp_path_factory):
    folder = tmp_path_factory.mktemp("toys")
    return write_encoder(folder / "bert"), write_glue(folder / "glue")


def plan_of(toys, **more):
    settings = tuple(word for word in QUICK if "peak_lr" not in word)
    settings += ("num_steps=1", "data.num_epochs=null", "evaluate.every_epochs=null")
    given = {"tasks": TASKS, "lrs": (1e-3,), "num_seeds": 1} | more
    return Plan(origin=str(toys[0]), folders=(f"glue={toys[1]}",), settings=settings, device="cpu", **given)


def test_a_killed_sweep_resumes_and_ends_in_a_submission(toys, tmp_path):
    plan, first, second = plan_of(toys, has_intermediate=True), Here(limit=3), Here()
    with pytest.raises(KeyboardInterrupt):
        Sweep(plan, tmp_path / "out", worker=first).run()
    sweep = Sweep(plan, tmp_path / "out", worker=second, num_rows=ROWS)
    choices = sweep.run()
    assert len(first.done) == 3
    assert len(second.done) == len(TASKS) - 3
    assert not set(first.done) & set(second.done)
    assert [one.task for one in choices] == list(TASKS)
    path, missing = sweep.submit(choices, "cpu")
    assert missing == []
    assert path.name == "submission.zip"
    assert problems_of(path, ROWS) == []
    found = json.loads((tmp_path / "out" / "results.json").read_text())
    assert set(found["tasks"]) == set(TASKS)
    third = Here()
    assert Sweep(plan, tmp_path / "out", worker=third).run() == choices
    assert third.done == []


def test_missing_answers_of_a_submission_are_named(toys, tmp_path):
    sweep = Sweep(plan_of(toys, tasks=("rte",)), tmp_path / "out", worker=Here(), num_rows=ROWS)
    path, missing = sweep.submit(sweep.run(), "cpu")
    assert path.name == "incomplete-submission.zip"
    assert len(missing) == len(NUM_ROWS) - 2  # RTE, and WNLI by its majority
    path, refused = replace(sweep, num_rows=NUM_ROWS).submit(sweep.run(), "cpu")
    assert path.name == "incomplete-submission.zip"
    assert set(refused) - set(missing) == {"RTE.tsv: 16 answers, but the test set has 3000 rows"}


def test_weights_of_runs_that_were_not_chosen_are_deleted(toys, tmp_path):
    plan = plan_of(toys, tasks=("rte",), num_seeds=2)
    (choice,) = Sweep(plan, tmp_path / "out", worker=Here()).run()
    kept = [cell for cell in plan.cells("rte") if (tmp_path / "out" / cell.name / "checkpoints").is_dir()]
    assert kept == [choice.cell]


def test_a_run_that_was_discarded_is_trained_again_when_it_becomes_the_best(toys, tmp_path):
    plan, out = plan_of(toys, tasks=("rte",), num_seeds=2), tmp_path / "out"
    (first,) = Sweep(plan, out, worker=Here()).run()
    (other,) = set(plan.cells("rte")) - {first.cell}
    path = out / other.name / "summary.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"valid_score": 99.0}))  # as if seeds had been added
    worker = Here()
    sweep = Sweep(plan, out, worker=worker, num_rows=ROWS)
    (second,) = sweep.run()
    assert second.cell == other
    assert worker.done == [str(out / other.name)]
    assert "RTE.tsv" not in " ".join(sweep.submit([second], "cpu")[1])


def test_runs_from_an_mnli_that_is_no_longer_chosen_are_trained_again(toys, tmp_path):
    plan, out = plan_of(toys, tasks=("mnli", "rte", "sst2"), has_intermediate=True), tmp_path / "out"
    Sweep(plan, out, worker=Here()).run()
    more, worker, said = replace(plan, lrs=(1e-3, 2e-3)), Here(), []
    path = out / "lr0.002" / "mnli" / "seed-0"
    Sweep(replace(plan, lrs=(2e-3,), tasks=("mnli",)), out, worker=Here(), keeps_all=True).run()
    summary = json.loads((path / "summary.json").read_text())
    (path / "summary.json").write_text(json.dumps(summary | {"valid_score": 99.0}))
    Sweep(more, out, worker=worker, say=said.append).run()
    trained = [str(Path(one).relative_to(out)) for one in worker.done]
    assert trained == [
        "lr0.002/sst2/seed-0",
        "lr0.001/rte/seed-0",
        "lr0.002/rte/seed-0",
    ]
    assert "started from lr0.001/mnli/seed-0, not lr0.002/mnli/seed-0" in "\n".join(said)


def test_runs_that_outlive_their_sweep_keep_others_out_of_its_folder(toys, tmp_path):
    plan, out, worker = plan_of(toys, tasks=("rte",)), tmp_path / "out", Here()
    out.mkdir()
    with exclusive_folder(out) as lock:
        orphan = subprocess.Popen(["sleep", "60"], pass_fds=[lock])
    try:
        with pytest.raises(InputError, match="still running"):
            Sweep(plan, out, worker=worker).run()
    finally:
        orphan.kill()
        orphan.wait()
    assert not worker.done
    Sweep(plan, out, worker=worker).run()
    assert len(worker.done) == 1


def test_processes_of_runs_hold_the_lock_of_their_sweep(tmp_path):
    worker = Worker()
    with (
        exclusive_folder(tmp_path) as worker.lock,
        mock.patch.object(subprocess, "Popen", wraps=subprocess.Popen) as started,
    ):
        worker.run(["--version"], tmp_path / "log")
    assert started.call_args.kwargs["pass_fds"] == (worker.lock,)


class Warned(Worker):
    """Writes what a run leaves, with a log of warnings, notes and events."""

    def run(self, words, log):
        out = Path(words[words.index("--out") + 1])
        (out / "checkpoints" / "step-1").mkdir(parents=True)
        (out / "summary.json").write_text('{"valid_score": 1.0}')
        rare = "rare\n" if out.name == "seed-1" else ""
        log.write_text(f'note: adjusted\n{rare}texts are cut\n  set more\n{{"event": "started"}}\ntexts are cut\n')
        return 0


def test_warnings_of_runs_are_shown_at_the_end_with_their_number_and_log(tmp_path):
    said, out = [], tmp_path / "out"
    plan = Plan(origin=str(tmp_path), tasks=("rte", "cola"), lrs=(1e-3,), num_seeds=2)
    Sweep(plan, out, worker=Warned(), say=said.append).run()
    assert said[-2:] == [
        f"warning of 4 runs, see {out}/lr0.001/rte/seed-0.log: texts are cut",
        f"warning of 2 runs, see {out}/lr0.001/rte/seed-1.log: rare",
    ]


def test_another_sweep_in_the_same_folder_is_refused(toys, tmp_path):
    Sweep(plan_of(toys, tasks=("rte",)), tmp_path / "out", worker=Here()).run()
    plan = plan_of(toys, tasks=("rte",))
    other = Plan(origin=plan.origin, settings=(*plan.settings, "data.max_seq_length=16"), folders=plan.folders)
    with pytest.raises(InputError, match=r"settings: .* there, .*max_seq_length=16\"\] now"):
        Sweep(other, tmp_path / "out", worker=Here()).run()


def test_a_missing_encoder_is_reported_before_any_run(toys, tmp_path):
    worker = Here()
    with pytest.raises(InputError, match="there is no folder"):
        Sweep(Plan(origin=str(tmp_path / "nowhere")), tmp_path / "out", worker=worker).run()
    assert not worker.done


def test_a_failed_run_is_named_with_its_message(toys, tmp_path):
    plan = Plan(origin=str(toys[0]), tasks=("rte",), num_seeds=1, lrs=(1e-3,), folders=(f"glue={tmp_path}",))
    with pytest.raises(RunError, match="no data of glue/rte"):
        Sweep(plan, tmp_path / "out", worker=Here()).run()


def test_sweeps_also_work_on_own_files(toys, tmp_path):
    rows = [{"words": ["the", word], "tags": ["O", "X"]} for word in ("fine", "kind")] * 4
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    data = [f"data.{split}={tmp_path}/rows.jsonl" for split in ("train", "valid")]
    settings = (*data, *QUICK, "data.num_epochs=null", "num_steps=1", "data.batch_size=4")
    plan = Plan(origin=str(toys[0]), tasks=("tags",), lrs=(1e-3,), num_seeds=2, settings=settings)
    (choice,) = Sweep(plan, tmp_path / "out", worker=Here()).run()
    assert (choice.task, choice.num_seeds) == ("tags", 2)
    assert "accuracy" in (tmp_path / "out" / "results.md").read_text()
