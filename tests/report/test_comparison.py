"""Several runs on one page, the table of runs, and the difference of configs."""

import json
import multiprocessing
import urllib.error
import urllib.request
from threading import Thread

import pytest

from pretrainkit.errors import DataError, InputError
from pretrainkit.recipes.registry import find_recipe
from pretrainkit.report.charts import scripts
from pretrainkit.report.comparison import MAX_RUNS, compared_runs, render_comparison, write_comparison
from pretrainkit.report.run_folder import read_run
from pretrainkit.report.run_table import find_runs, run_table
from pretrainkit.report.serve import live_page, open_server
from pretrainkit.training.checkpoints import files
from report.test_page import EVIL, Page, evil_run, make_run
from support.command_line import pretrainkit, refused, succeed
from support.remedies import followed


def change(folder, name, old, new):
    text = (folder / name).read_text()
    assert old in text
    (folder / name).write_text(text.replace(old, new))


@pytest.fixture
def runs(tmp_path):
    """Two runs that differ in a setting, a result, a fingerprint and an answer."""
    (tmp_path / "runs").mkdir()
    first, second = make_run(tmp_path / "runs" / "first"), make_run(tmp_path / "runs" / "second")
    change(second, "config.yaml", "peak_lr: 0.001", "peak_lr: 0.003")
    change(second, "summary.json", "4.1", "3.6")
    change(second, "provenance.json", "9f31c2", "77aa00")
    change(second, "samples.json", "a b c x e", "a b c d e")
    with open(second / "eval.jsonl", "a") as file:
        file.write(json.dumps({"step": 600, "masked_lm_loss": 3.6, "masked_lm_accuracy": 0.1}) + "\n")
    return [first, second]


def test_accuracies_that_are_per_cent_are_shown_as_they_are(runs):
    for run, value in zip(runs, (0.5, 0.75), strict=True):
        provenance = json.loads((run / "provenance.json").read_text())
        (run / "provenance.json").write_text(json.dumps({**provenance, "percentages": ["*accuracy"]}))
        with open(run / "eval.jsonl", "a") as file:
            file.write(json.dumps({"step": 600, "masked_lm_loss": 3.6, "accuracy": value}) + "\n")
    text = " ".join(Page(render_comparison(compared_runs(runs))).text.split())
    assert "accuracy 0.5 % 0.75 % +0.25 %" in text


def test_a_comparison_shows_results_settings_fingerprints_and_answers_that_differ(runs):
    page = Page(render_comparison(compared_runs(runs)))
    assert tuple(page.scripts[1:]) == scripts()
    text = " ".join(page.text.split())
    for shown in (
        "2 runs compared",
        "values before smoothing",
        "masked LM loss 4.1 3.6 −0.5",
        "best 20 % at step 300",
        "Settings that differ; 5 others are equal.",
        "optimizer.peak_lr 0.001 0.003",
        "9f31c2",
        "77aa00",
        "predicted",
        "masked a [MASK] c [MASK] e",
    ):
        assert shown in text, shown
    assert text.count("a [MASK] c") == 1  # what is equal is shown once
    assert '<b class="good">3.6</b>' in render_comparison(compared_runs(runs))
    lines = [[line["kind"] for line in chart["series"]] for chart in page.curves["charts"]]
    assert lines.count(["points"] * 2) >= 2
    assert lines.count(["faint", "line"] * 2) >= 4


def test_equal_runs_are_reported_as_equal(tmp_path):
    runs = [make_run(tmp_path / "a"), make_run(tmp_path / "b")]
    text = Page(render_comparison(compared_runs(runs))).text
    assert "All runs have the same config." in text
    assert "The same data, code and machine." in text


def test_nothing_in_compared_runs_can_become_markup(tmp_path):
    runs = [evil_run(tmp_path / f"<script>{i}<") for i in range(2)]
    change(runs[0], "config.yaml", "preset", "other")
    page = Page(render_comparison(compared_runs(runs)))
    assert "img" not in {name for name, _ in page.elements}
    assert "<" not in page.scripts[0]
    assert EVIL in page.text


def test_ten_runs_of_many_steps_fit_into_two_megabytes(tmp_path):
    folders = [make_run(tmp_path / f"{i}", num_rows=5_000) for i in range(10)]
    assert write_comparison(folders, tmp_path / "page.html").stat().st_size < 2_000_000


def test_runs_are_named_by_their_differences(tmp_path):
    folders = [make_run(tmp_path / name) for name in ("a", "b")]
    nested = tmp_path / "deep"
    (nested / "c").mkdir(parents=True)
    folders.append(make_run(nested / "c" / "a"))
    assert [run.name for run in compared_runs(folders)] == ["a", "b", "deep/c/a"]
    with pytest.raises(InputError, match="is given twice"):
        compared_runs([folders[0], folders[0]])
    with pytest.raises(InputError, match=f"at most {MAX_RUNS} runs, and 40") as error:
        compared_runs(folders[:1] * 40)
    followed(error.value, "report/comparison.py: a page compares at most")
    assert succeed("runs", tmp_path).splitlines()[-1] == "3 runs"


def test_the_command_compares_runs_and_folders_of_runs(runs, tmp_path):
    folder = runs[0].parent
    assert succeed("report", *runs) == f"{folder / 'comparison.html'}\n"
    assert succeed("report", folder, "--out", tmp_path / "all.html") == f"{tmp_path / 'all.html'}\n"
    assert (tmp_path / "all.html").read_bytes() == (folder / "comparison.html").read_bytes()
    message = refused("report", folder, "--curve", tmp_path / "c.svg")
    assert not (tmp_path / "c.svg").exists()
    command = followed(message.removeprefix("error: "), "cli/report.py: --curve draws one run").partition(
        "pretrainkit "
    )
    assert succeed(*command[2].split()).split() == [str(runs[0] / "report.html"), str(tmp_path / "c.svg")]


def hold(folder, is_held, may_end):
    file = files.lock(folder)
    is_held.set()
    may_end.wait()
    file.close()


def test_the_table_shows_which_runs_are_running_finished_stopped_or_interrupted(tmp_path):
    folder = tmp_path / "runs"
    folder.mkdir()
    for name, last in (("finished", None), ("stopped", "stopped"), ("killed", "started"), ("running", "started")):
        run = make_run(folder / name)
        if last is not None:
            (run / "summary.json").unlink()
            (run / "events.jsonl").write_text(json.dumps({"step": 5, "event": last, "text": ""}) + "\n")
    context = multiprocessing.get_context("spawn")
    is_held, may_end = context.Event(), context.Event()
    process = context.Process(target=hold, args=(folder / "running" / "checkpoints", is_held, may_end))
    process.start()
    is_held.wait(30)
    states = {row.name: row.state for row in run_table(folder)}
    may_end.set()
    process.join()
    assert states == {"finished": "finished", "killed": "interrupted", "running": "running", "stopped": "stopped"}
    assert {row.name: row.state for row in run_table(folder)}["running"] == "interrupted"


def test_runs_are_filtered_and_sorted_by_columns_metrics_and_settings(runs, tmp_path):
    folder = runs[0].parent
    third = make_run(folder / "third")
    (third / "metrics.jsonl").write_text("")

    def names(**options):
        return [row.name for row in run_table(folder, **options)]

    assert names() == ["first", "second", "third"]
    assert names(sort="masked_lm_loss") == ["second", "first", "third"]
    assert names(sort="optimizer.peak_lr", reverse=True) == ["second", "first", "third"]
    assert names(where=["optimizer.peak_lr>=0.002"]) == ["second"]
    assert names(where=["masked_lm_loss<4", "name=*econd"]) == ["second"]
    assert names(where=["state=unreadable"]) == ["third"]
    assert names(where=["step=600", "preset=bert/*"]) == ["first", "second"]
    for where, message in (
        (["nothing"], "is not a condition"),
        (["step<many"], "is not a number"),
        (["no_such=1"], "metrics: masked_lm_accuracy, masked_lm_loss"),
    ):
        with pytest.raises(InputError, match=message) as error:
            run_table(folder, where=where)
        if where == ["nothing"]:
            followed(error.value, "report/run_table.py: --where")
            assert names(where=["state=finished"]) == ["first", "second"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="has no run in it") as error:
        find_runs(tmp_path / "empty")
    followed(error.value, "report/run_table.py: … has no run in it")
    assert find_runs(runs[0]) == [runs[0]]


def test_a_folder_is_compared_without_runs_that_have_not_logged_a_step(runs):
    folder = runs[0].parent
    for number, names in enumerate((["config.yaml", "provenance.json"], ["config.yaml", "metrics.jsonl"])):
        (folder / f"failed{number}").mkdir()
        for name in names:
            (folder / f"failed{number}" / name).write_text("recipe: bert\n" if name == "config.yaml" else "")
    answer = pretrainkit("report", folder)
    left_out = f"{folder / 'failed0'}, {folder / 'failed1'}"
    note = f"note: left out, because no step is logged yet: {left_out}\n"
    assert answer == (0, f"{folder / 'comparison.html'}\n", note)
    assert Page((folder / "comparison.html").read_text()).text.count("2 runs compared") >= 1
    assert "is not a run folder" in refused("report", runs[0], folder / "failed0")


def test_the_runs_command_prints_a_table_and_json(runs):
    folder = runs[0].parent
    lines = succeed("runs", folder, "--sort", "masked_lm_loss", "--metric", "masked_lm_loss").splitlines()
    assert lines[0].split() == ["run", "preset", "state", "step", "metric", "time", "size", "started"]
    assert lines[1].split()[:6] == ["second", "bert/tiny", "finished", "600", "masked_lm_loss", "3.6"]
    for heading, name in (("run", "name"), ("size", "bytes")):
        assert succeed("runs", folder, "--sort", heading) == succeed("runs", folder, "--sort", name)
    assert lines[-1] == "2 runs"
    rows = json.loads(succeed("runs", folder, "--json"))
    assert [(row["name"], row["metrics"]["masked_lm_loss"]) for row in rows] == [("first", 4.1), ("second", 3.6)]
    assert "has the metric 'novel'" in refused("runs", folder, "--metric", "novel")


@pytest.mark.parametrize(
    ("recipe", "name", "direction"),
    [
        ("bert", "masked_lm_loss", "falls"),
        ("t5", "loss_per_nonpadding_target_token", "falls"),
        ("clip", "flickr8k_I2T-R@1", "rises"),
        ("clip", "RSUM", "rises"),
        ("clip", "temperature", None),
        ("bert", "ema_masked_lm_accuracy", "rises"),
        ("bert", "probe_cola/matthews_corrcoef", "rises"),
        ("image_tokenizer", "psnr", "rises"),
        ("image_tokenizer", "codebook_perplexity", None),
    ],
)
def test_recipes_declare_the_directions_of_their_metrics(tmp_path, recipe, name, direction):
    folder = make_run(tmp_path / "run")
    provenance = json.loads((folder / "provenance.json").read_text())
    (folder / "provenance.json").write_text(json.dumps({**provenance, "directions": find_recipe(recipe).directions}))
    assert read_run(folder).direction(name) == direction


def test_runs_are_compared_with_those_of_their_recipe_and_ties_are_not_marked(tmp_path):
    """Two of the four runs are of another recipe, and their results are equal."""
    folders = [make_run(tmp_path / name) for name in ("a", "b", "c", "d")]
    for folder, loss in zip(folders, ("4.1", "9.5", "9.5", "3.6"), strict=True):
        change(folder, "summary.json", "4.1", loss)
    for folder in folders[1:3]:
        change(folder, "config.yaml", "recipe: bert", "recipe: other")
    page = render_comparison(compared_runs(folders))
    assert "masked LM loss 4.1 9.5 9.5 +0 3.6 −0.5" in " ".join(Page(page).text.split())
    assert page.count('<b class="good">3.6</b>') == 1
    assert '<b class="good">9.5</b>' not in page


def test_configs_of_presets_files_and_runs_are_compared(tmp_path, runs):
    shown = succeed("config", "diff", runs[0], runs[1]).splitlines()
    assert [line.split() for line in shown[1:]] == [["optimizer.peak_lr", "0.001", "0.003"]]
    (tmp_path / "mine.yaml").write_text("extends: bert/mini\ndata:\n  batch_size: 32\n")
    answer = json.loads(succeed("config", "diff", "bert/mini", tmp_path / "mine.yaml", "--json"))
    assert answer == {"data.batch_size": [64, 32]}
    assert succeed("config", "diff", "bert/mini", "bert/mini") == "the configs are equal\n"
    assert (
        json.loads(succeed("config", "diff", "bert/tiny", "t5/tiny", "--json"))["model.num_encoder_layers"][0] is None
    )


def get(address):
    return urllib.request.urlopen(address, timeout=20)


def test_a_live_page_follows_a_run_and_answers_nobody_without_the_token(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    server, address = open_server(lambda: live_page([folder], 1), 0)
    assert address.startswith("http://127.0.0.1:")
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        assert "Nothing to show yet" in Page(get(address).read().decode()).text
        folder.rmdir()
        make_run(folder)
        answer = get(address)
        assert answer.headers["Cache-Control"] == "no-store"
        page = Page(answer.read().decode())
        assert "all 600 steps done" in page.text
        assert "connect-src 'self'" in next(attrs["content"] for _, attrs in page.elements if "http-equiv" in attrs)
        assert dict(page.elements)["body"] == {"data-refresh": "1"}
        for wrong in (address.rsplit("/", 2)[0] + "/", address + "x", address[:-2]):
            with pytest.raises(urllib.error.HTTPError, match="404"):
                get(wrong)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_port_in_use_and_options_that_write_files_are_refused(tmp_path, runs):
    server, address = open_server(lambda: "", 0)
    port = address.split(":")[2].split("/")[0]
    with server:
        with pytest.raises(InputError, match=f"cannot listen on port {port}") as error:
            open_server(lambda: "", int(port))
        followed(error.value, "report/serve.py: cannot listen on port")
        other, _ = open_server(lambda: "", 0)
        other.server_close()
    assert "--serve writes no file" in refused("report", runs[0], "--serve", "--out", tmp_path / "x.html")
    assert "is not a folder" in refused("report", tmp_path / "none", "--serve")
