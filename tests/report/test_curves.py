import json
import math
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from pretrainkit.report.curves import clock, loss_charts, other_charts, smooth, thin
from pretrainkit.report.page import render
from pretrainkit.report.run_folder import read_run

values = st.floats(-1e6, 1e6) | st.sampled_from([math.nan, math.inf])


@given(ys=st.lists(values, max_size=300), num_buckets=st.integers(1, 20))
def test_thinning_keeps_ends_extremes_order_and_gaps(ys, num_buckets):
    xs, ys = np.arange(len(ys), dtype=np.float64), np.array(ys, np.float64)
    kept_xs, kept_ys = thin(xs, ys, num_buckets)
    assert (np.diff(kept_xs) > 0).all()
    is_real = np.isfinite(ys)
    num_gaps = int((~is_real & np.append(True, is_real[:-1])).sum()) if len(ys) else 0
    assert len(kept_xs) <= 4 * (num_buckets + num_gaps) + num_gaps
    kept = np.isfinite(kept_ys)
    assert np.array_equal(kept_ys[kept], ys[kept_xs[kept].astype(int)])
    if is_real.any():
        assert kept_ys[kept].min() == ys[is_real].min()
        assert kept_ys[kept].max() == ys[is_real].max()
        assert kept_ys[kept][0] == ys[is_real][0]
        assert kept_ys[kept][-1] == ys[is_real][-1]
    drawn_together = set(zip(kept_xs[:-1][kept[:-1] & kept[1:]], kept_xs[1:][kept[:-1] & kept[1:]], strict=True))
    assert all(is_real[int(a) : int(b) + 1].all() for a, b in drawn_together)


def test_thinning_keeps_a_single_spike_of_a_million_points():
    ys = np.zeros(1_000_000)
    ys[123_456] = 7.0
    xs, kept = thin(np.arange(len(ys), dtype=np.float64), ys, 200)
    assert len(xs) <= 800
    assert kept.max() == 7.0


@given(ys=arrays(np.float64, st.integers(1, 200), elements=st.floats(-1e3, 1e3)), num_points=st.integers(1, 50))
def test_smoothing_stays_near_the_values_and_keeps_gaps(ys, num_points):
    ys[::7] = math.nan
    smoothed = smooth(np.arange(len(ys), dtype=np.float64), ys, num_points)
    assert np.array_equal(np.isnan(smoothed), np.isnan(ys))
    if len(ys) > 1:
        assert np.nanmax(np.abs(smoothed)) <= 3 * np.nanmax(np.abs(ys)) + 1e-6


@given(slope=st.floats(-10, 10), offset=st.floats(-100, 100), num_points=st.integers(2, 60))
def test_smoothing_a_straight_line_changes_nothing(slope, offset, num_points):
    xs = np.arange(10.0, 2010.0, 10.0)
    assert np.allclose(smooth(xs, offset + slope * xs, num_points), offset + slope * xs, atol=1e-6)


def write_run(folder, rows, events=(), evaluations=()):
    folder.mkdir()
    for name, lines in (("metrics", rows), ("events", events), ("eval", evaluations)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return read_run(folder)


def test_tokens_flops_and_hours_are_sums_over_the_intervals_of_the_log(tmp_path):
    rows = [
        {"step": 10, "loss": 3.0, "seconds_per_step": 0.5, "tokens_per_second": 100.0, "flops_per_second": 1e9},
        {"step": 20, "loss": 2.0, "seconds_per_step": 1.0, "tokens_per_second": 50.0, "flops_per_second": 2e9},
        {"step": 25, "loss": 2.0, "seconds_per_step": 2.0, "tokens_per_second": 10.0, "flops_per_second": None},
    ]
    units = clock(write_run(tmp_path / "run", rows))
    assert units["step"].tolist() == [0, 10, 20, 25]
    assert units["tokens"].tolist() == [0, 500, 1000, 1100]
    assert units["FLOPs"].tolist() == [0, 5e9, 25e9, 25e9]
    assert np.allclose(units["hours"] * 3600, [0, 5, 15, 25])
    rows[1].pop("tokens_per_second")
    assert set(clock(write_run(tmp_path / "torn", rows))) == {"step", "FLOPs", "hours"}


def test_several_runs_share_a_chart_for_held_out_and_one_for_training_values(tmp_path):
    runs = [
        write_run(
            tmp_path / name,
            [{"step": step, "loss": level, "lr": 0.1, "grad_norm": 1.0} for step in range(1, 30)],
            [{"step": 5, "event": "spike", "text": "t"}, {"step": 7, "event": "checkpoint", "text": "t"}],
            [{"step": step, "loss": level, "accuracy": 0.5} for step in (10, 20)],
        )
        for name, level in (("a", 3.0), ("b", 2.0))
    ]
    losses, others = loss_charts(runs), other_charts(runs)
    assert [(chart.key, chart.title) for chart in losses] == [
        ("loss held-out", "Loss, held-out"),
        ("loss training", "Loss, training"),
    ]
    assert [chart.title for chart in others] == ["Accuracy, held-out", "Learning rate", "Gradient norm"]
    for chart in (*losses, *others):
        assert [(line.name, line.run, line.color) for line in chart.series if line.kind != "faint"] == [
            ("a", 0, 0),
            ("b", 1, 1),
        ]
    assert [line.kind for line in losses[0].series] == ["points", "points"]
    assert np.allclose(losses[1].series[3].ys, 2.0)
    assert [(mark.run, mark.text, mark.is_bad) for mark in losses[0].marks] == [(0, "spike", True), (1, "spike", True)]


def test_a_single_evaluation_and_counts_that_stay_0_have_no_chart(tmp_path):
    runs = [
        write_run(
            tmp_path / name,
            [{"step": step, "loss": 2.0, "bad_images": 0, "lr": 0.1} for step in (1, 2)],
            [],
            [{"step": 2, "loss": 2.0, "accuracy": 0.5}],
        )
        for name in ("a", "b")
    ]
    assert [chart.title for chart in (*loss_charts(runs), *other_charts(runs))] == ["Loss, training", "Learning rate"]
    assert [chart.title for chart in other_charts(runs[:1])] == ["Learning rate"]
    scores = {f"score {number}": 1.0 for number in range(13)}
    many = write_run(tmp_path / "many", [{"step": 1, "loss": 2.0}], [], [{"step": 1, **scores}])
    assert [chart.title for chart in other_charts([many])] == ["Score 12"]  # the cards show the others


def test_a_run_says_which_of_its_metrics_are_in_per_cent(tmp_path):
    """Runs that did not record it are recognized by values above 1."""
    log = [{"step": step, "loss": 2.0} for step in (1, 2)]
    evaluations = [{"step": step, "accuracy": 0.5} for step in (1, 2)]
    share, percentage, older = (write_run(tmp_path / name, log, [], evaluations) for name in ("a", "b", "c"))
    percentage = replace(percentage, provenance={"percentages": ["*accuracy"]})
    older.evaluations.rows[0]["accuracy"] = 1.5
    for run, shown in ((share, "50\u00a0%"), (percentage, "0.5\u00a0%"), (older, "0.5\u00a0%")):
        assert [chart.is_share for chart in other_charts([run])] == [run is share]
        assert shown in render(run)
    assert [chart.is_share for chart in other_charts([share, percentage])] == [False]


def test_a_run_that_lacks_a_metric_has_no_line_in_its_chart(tmp_path):
    first = write_run(tmp_path / "first", [{"step": 1, "loss": 3.0}])
    second = write_run(tmp_path / "second", [{"step": 1, "loss": 3.0, "itc_loss": 1.0}])
    (chart,) = [chart for chart in loss_charts([first, second]) if chart.key == "itc_loss training"]
    assert [(line.name, line.run) for line in chart.series] == [("second", 1)]
