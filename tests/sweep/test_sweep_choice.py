"""Plans, and the chosen learning rate and run of a task."""

import statistics
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretrainkit.errors import ConfigError
from pretrainkit.sweep.plan import Cell, Plan
from pretrainkit.sweep.results import as_html, as_json, as_markdown, choose, mean_score

SCORES = st.dictionaries(
    st.tuples(st.sampled_from([1e-5, 2e-5, 3e-5]), st.integers(0, 3)), st.floats(0, 100), min_size=1
)


@given(SCORES)
def test_the_highest_median_is_chosen_and_of_its_runs_the_best(scores):
    found = {Cell(task="rte", lr=lr, seed=seed): {"score": score} for (lr, seed), score in scores.items()}
    choice = choose("rte", found)
    by_lr = {lr: [s for (other, _), s in scores.items() if other == lr] for lr, _ in scores}
    assert statistics.median(by_lr[choice.lr]) == max(map(statistics.median, by_lr.values()))
    assert scores[choice.cell.lr, choice.cell.seed] == max(by_lr[choice.lr])
    assert choice.mean["score"] == pytest.approx(statistics.fmean(by_lr[choice.lr]))


def test_tables_show_mean_deviation_and_median():
    found = {
        Cell(task="rte", lr=2e-5, seed=seed): {"score": s, "accuracy": s, "loss": 1.0}
        for seed, s in enumerate((50.0, 60.0, 64.0))
    }
    choice = choose("rte", found)
    assert "| rte | 2e-05 | 3 | accuracy 58.00 ± 7.21 (60.00) | 58.00 |" in as_markdown([choice])
    assert "<td>accuracy 58.00 ± 7.21 (60.00)</td>" in as_html([choice])
    assert as_json([choice])["tasks"]["rte"]["median_score_by_lr"] == {"2e-05": 60.0}
    assert mean_score([choice]) == pytest.approx(58)


def test_every_learning_rate_has_every_seed():
    plan = Plan(origin="run", tasks=("rte",), lrs=(1e-5, 2e-5), num_seeds=3)
    assert [(cell.lr, cell.seed) for cell in plan.cells("rte")] == [(lr, s) for lr in plan.lrs for s in range(3)]
    assert len({cell.name for cell in plan.cells("rte")}) == 6


def test_small_tasks_wait_for_mnli_where_they_start_from_it():
    plan = Plan(origin="run", tasks=("rte", "mnli", "cola"), has_intermediate=True)
    assert plan.stages == [("mnli", "cola"), ("rte",)]
    assert "--from other" in " ".join(plan.arguments(next(plan.cells("rte")), Path("out"), "other"))


@pytest.mark.parametrize(
    "settings",
    [{"tasks": ("ax",)}, {"tasks": ()}, {"lrs": (1e-5, 1e-5)}, {"tasks": ("rte",), "has_intermediate": True}],
)
def test_plans_that_cannot_be_carried_out_are_refused(settings):
    with pytest.raises(ConfigError):
        Plan(origin="run", **settings)


@pytest.mark.parametrize("lrs", [(1e-4, 1e-4), (1e-4, 1.0000001e-4)])
def test_learning_rates_that_would_share_a_folder_are_refused(lrs):
    with pytest.raises(ConfigError, match="listed twice"):
        Plan(origin="run", lrs=lrs)
