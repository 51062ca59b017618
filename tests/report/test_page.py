import json
import math
import os
import stat
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from pretrainkit.cli.main import app_of
from pretrainkit.errors import DataError, RunError
from pretrainkit.report.charts import script_policy, scripts
from pretrainkit.report.curves import loss_charts, other_charts
from pretrainkit.report.page import render, write_report
from pretrainkit.report.picture import write_curve
from pretrainkit.report.run_folder import read_run

VOID = {"meta", "br", "img", "input"}
EVIL = "<script>alert('x')</script><img src=x onerror=alert(1)>\" onload=\"alert(2)"


class Page(HTMLParser):
    """Parses strictly: every element closed in order. Collects elements and visible text."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.scripts: list[str] = []
        self.feed(source)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts.append(data)
        elif self.open and self.open[-1] != "style":
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(self.texts)

    @property
    def curves(self) -> dict:
        """Return the curves of the charts."""
        return json.loads(self.scripts[0], parse_constant=pytest.fail)


def make_run(folder: Path, num_rows: int = 60) -> Path:
    folder.mkdir()
    with open(folder / "metrics.jsonl", "w") as file:
        for i in range(1, num_rows + 1):
            row = {
                "step": 10 * i,
                "loss": 9 - 4 * i / num_rows,
                "masked_lm_loss": 8 - 4 * i / num_rows,
                "next_sentence_loss": 0.7,
                "lr": 1e-3 * i / num_rows,
                "grad_norm": 1.0,
                "tokens_per_second": 36000.0,
                "data_wait": 0.01,
                "novel_thing": 3.0,
            }
            file.write(json.dumps(row) + "\n")
    (folder / "eval.jsonl").write_text(
        json.dumps({"step": 300, "masked_lm_loss": 5.5, "masked_lm_accuracy": 0.2}) + "\n"
    )
    (folder / "events.jsonl").write_text(
        '{"step": 300, "event": "stopped", "text": "SIGINT"}\n{"step": 300, "event": "resumed"}\n'
        '{"step": 300, "event": "checkpoint"}\n'
    )
    (folder / "summary.json").write_text(
        json.dumps({"masked_lm_loss": 4.1, "unigram_loss": 6.25, "parameters": 110106428, "remark": "text"})
    )
    (folder / "samples.json").write_text(
        json.dumps([{"masked": "a [MASK] c [MASK] e", "predicted": "a b c x e", "truth": "a b c d e"}])
    )
    (folder / "config.yaml").write_text(
        "# bert/tiny, resolved\nrecipe: bert\nnum_steps: 600\noptimizer:\n  peak_lr: 0.001\n  name: adamw\n"
        "data:\n  batch_size: 64\n  train:\n  - path: shards/train\n    weight: null\n"
    )
    sources = {"recipe": "preset bert/tiny", "num_steps": "preset bert/tiny", "optimizer.peak_lr": "command line"}
    data = {"train": [{"path": "shards/train", "fingerprint": "9f31c2", "documents": 1834}]}
    (folder / "provenance.json").write_text(
        json.dumps(
            {"sources": {**sources, "optimizer.name": "default"}, "version": "0.1.0", "git": "e12314d", "data": data}
        )
    )
    return folder


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path / "demo")


def test_a_resume_is_shown_with_its_differences_from_the_start(run):
    path = run / "provenance.json"
    machine = {"packages": {"torch": "2.13.0"}, "cores": 2, "command": "train"}
    resume = {"step": 300, "changes": {}, **machine, "command": "resume"}
    path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), **machine, "resumed": [resume]}))
    source = write_report(run).read_text(encoding="utf-8")
    environment = source[source.index("<h2>Environment</h2>") :]
    assert environment.count("2.13.0") == 1
    assert environment.count("<th>") == 2  # the step and the command of the resume
    assert environment.index(">300<") < environment.index(">resume</code>")


def test_the_report_is_well_formed_complete_and_loads_nothing(run):
    out = write_report(run)
    assert out == run / "report.html"
    source = out.read_text(encoding="utf-8")
    page = Page(source)
    names = {name for name, _ in page.elements}
    assert not names & {"link", "iframe", "object", "embed", "img", "base", "form"}
    assert tuple(page.scripts[1:]) == scripts()  # after the data of the curves
    (policy,) = [attrs["content"] for name, attrs in page.elements if "http-equiv" in attrs]
    assert policy.endswith(f"; script-src {script_policy()}")
    assert policy.startswith("default-src 'none'; ")
    attributes = {key for _, attrs in page.elements for key in attrs}
    assert not attributes & {"src", "href", "srcset", "action"}
    assert "url(" not in source
    assert "@import" not in source
    for script in page.scripts[1:]:
        source = source.replace(script, "")
    assert source.count("http") == source.count("http-equiv")
    for shown in (
        "demo",
        "bert/tiny",
        "all 600 steps done",
        "2.15 below guessing by frequency, 6.25",
        "110M",
        "36k/s",
        "tokens per second, median",
        "Novel thing",
        "masked LM accuracy, held-out",
        "Learning rate",
        "Set differently from bert/tiny",
        "command line",
        "9f31c2",
        "1,834",
        "examples seen 38,400",
        "e12314d",
        "1 checkpoint saved",
    ):
        assert shown in page.text, shown
    first = page.curves["charts"][0]
    assert first["levels"] == [{"y": 6.25, "text": "guessing by frequency 6.25"}]
    assert [(mark["x"], mark["text"]) for mark in first["marks"]] == [(300, "stopped"), (300, "resumed")]
    assert [(line["name"], line["kind"], len(line["x"])) for line in first["series"]] == [
        ("training", "faint", 60),
        ("training, smoothed", "line", 60),
        ("held-out", "points", 1),
    ]


def test_only_values_not_from_the_preset_are_called_different(run):
    page = Page(render(read_run(run)))
    changed = [i for i, (name, attrs) in enumerate(page.elements) if attrs.get("class") == "changed"]
    assert len(changed) == 1
    assert page.text.count("optimizer.peak_lr") == 2
    assert page.text.count("optimizer.name") == 1


def test_masks_are_highlighted_and_predictions_marked_right_or_wrong(run):
    source = render(read_run(run))
    assert '<td data-name="masked">a <mark>[MASK]</mark> c <mark>[MASK]</mark> e</td>' in source
    assert '<td data-name="predicted">a <mark class="hit">b</mark> c <mark class="miss">x</mark> e</td>' in source
    assert '<td data-name="truth">a <mark>b</mark> c <mark>d</mark> e</td>' in source


def evil_run(folder: Path) -> Path:
    make_run(folder)
    line = {"step": 1, "loss": 2.0, EVIL: 1.0}
    (folder / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    (folder / "eval.jsonl").write_text(json.dumps(line) + "\n")
    (folder / "samples.json").write_text(
        json.dumps([{EVIL: EVIL, "masked": f"[MASK] {EVIL}", "x\ud800": "\x00\ud800"}])
    )
    (folder / "events.jsonl").write_text(
        json.dumps({"step": 1, "event": EVIL, "text": EVIL})
        + "\n"
        + json.dumps({"step": 1, "event": "stopped", "text": EVIL})
    )
    (folder / "summary.json").write_text(json.dumps({EVIL: 1.0, "references": {"loss": {EVIL: 2.5}}}))
    (folder / "config.yaml").write_text(f"# {EVIL}/preset\n{json.dumps({EVIL: EVIL, 'recipe': EVIL})}\n")
    provenance = {EVIL: EVIL, "version": EVIL, "started": EVIL, "sources": {EVIL: EVIL}, "data": {EVIL: [{EVIL: EVIL}]}}
    (folder / "provenance.json").write_text(json.dumps(provenance))
    return folder


def test_nothing_in_a_run_folder_can_become_markup(tmp_path):
    folder = evil_run(tmp_path / "<script>alert(3)<")
    page = Page(write_report(folder).read_text(encoding="utf-8"))
    assert "img" not in {name for name, _ in page.elements}
    assert tuple(page.scripts[1:]) == scripts()
    assert "<" not in page.scripts[0]
    assert not [key for _, attrs in page.elements for key in attrs if key.startswith("on")]
    assert page.text.count("<script>alert") > 10
    ElementTree.fromstring(write_curve(folder, tmp_path / "curve.svg").read_text(encoding="utf-8"))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda sub: st.lists(sub, max_size=3) | st.dictionaries(st.text(max_size=8), sub, max_size=3),
    max_leaves=8,
)
known = st.sampled_from(["step", "loss", "masked_lm_loss", "lr", "grad_norm", "event", "text", "seconds", "data_wait"])
rows = st.lists(st.dictionaries(known | st.text(max_size=5), json_values, max_size=6), max_size=6)
numeric_rows = st.lists(
    st.fixed_dictionaries(
        {"step": st.integers(0, 50)}, optional={"loss": st.floats(), "grad_norm": st.floats(), "mfu": st.floats()}
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    logged=numeric_rows,
    more=rows,
    events=rows,
    whole=st.tuples(json_values, json_values, json_values, json_values),
    tail=st.binary(max_size=20),
)
def test_any_content_of_the_files_gives_a_well_formed_page(tmp_path, logged, more, events, whole, tail):
    tmp_path.mkdir(exist_ok=True)
    for name, lines in (("metrics.jsonl", logged + more), ("eval.jsonl", more), ("events.jsonl", events)):
        (tmp_path / name).write_bytes("".join(json.dumps(line) + "\n" for line in lines).encode() + tail)
    for name, value in zip(("provenance.json", "summary.json", "samples.json", "config.yaml"), whole, strict=True):
        (tmp_path / name).write_text(json.dumps(value))
    for script in Page(render(read_run(tmp_path))).scripts[:-2]:
        json.loads(script, parse_constant=pytest.fail)


def test_a_torn_last_line_is_left_out_and_reported(run):
    with open(run / "metrics.jsonl", "a") as file:
        file.write('{"step": 610, "lo')
    read = read_run(run)
    assert read.metrics.rows[-1]["step"] == 600
    assert read.notes == ["the last line of metrics.jsonl is incomplete and was left out"]
    assert "incomplete" in Page(render(read)).text


def test_broken_lines_inside_are_named(run):
    lines = (run / "metrics.jsonl").read_text().splitlines()
    lines[4] = '{"step": 50, "loss": {"step": 60}'
    lines[7] = '{"loss": 3.0}'
    (run / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    read = read_run(run)
    assert len(read.metrics.rows) == 58
    assert "metrics.jsonl: left out unreadable lines: 5" in read.notes
    assert "metrics.jsonl: left out line 8, which has no step" in read.notes


def test_steps_done_again_after_a_resume_replace_the_first_ones_and_are_marked(run):
    (run / "events.jsonl").unlink()
    rows = [
        {"step": step, "loss": value}
        for step, value in [(10, 5), (20, 4), (30, 99), (40, 99), (30, 3), (40, 2), (50, 1)]
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    read = read_run(run)
    assert [(row["step"], row["loss"]) for row in read.metrics.rows] == [(10, 5), (20, 4), (30, 3), (40, 2), (50, 1)]
    assert [(event.step, event.event) for event in read.events] == [(20, "resumed")]


def test_metrics_alone_are_enough(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": NaN}\n{"step": 2, "loss": 1e999}\n{"step": 3}\n')
    page = Page(render(read_run(tmp_path)))
    assert "3 steps" in page.text
    assert "Samples" not in page.text


def test_the_first_curve_is_the_one_with_a_reference_line(run):
    assert [curve.key for curve in loss_charts([read_run(run)])] == ["masked_lm_loss", "loss", "next_sentence_loss"]
    (run / "summary.json").unlink()
    assert loss_charts([read_run(run)])[0].key == "loss"


def test_losses_of_parts_of_a_mixture_are_named_curves_and_their_counts_are_not(run):
    with open(run / "metrics.jsonl", "a") as file:
        for step in (601, 602):
            row = {"step": step, "loss": 3.0, "loss/some:task": 2.0, "target_tokens/some:task": 7 * step}
            file.write(json.dumps(row) + "\n")
    read = read_run(run)
    (own,) = [curve for curve in loss_charts([read]) if curve.key == "loss/some:task"]
    assert (own.title, own.from_zero) == ("loss/some:task", False)
    assert not any("some:task" in curve.key for curve in other_charts([read]))


def test_numbers_of_a_real_summary_and_times_of_events_make_the_headlines(run):
    (run / "summary.json").write_text(
        json.dumps({"valid_masked_lm_loss": 5.25, "unigram_loss": 6.25, "uniform_loss": 9.0, "parameters": 4_000_000})
    )
    summary = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(json.dumps({**summary, "steps": 600, "masked_lm_loss": 77.5, "grad_norm": 88.5}))
    with open(run / "eval.jsonl", "a") as file:
        file.write('{"step": 600, "masked_lm_loss": 5.2, "masked_lm_accuracy": 0.25, "ema_masked_lm_loss": 5.1}\n')
    times = [("started", 1000), ("checkpoint", 1060), ("resumed", 5000), ("finished", 5030)]
    (run / "events.jsonl").write_text(
        "".join(json.dumps({"step": i, "event": event, "time": time}) + "\n" for i, (event, time) in enumerate(times))
    )
    text = (page := Page(render(read_run(run)))).text
    assert "all words equal 9" in page.scripts[0]
    for shown in (
        "1 below guessing by frequency, 6.25",
        "held-out, averaged weights",
        "1 min 30 s",
        "25\u00a0%",
    ):
        assert shown in text, shown
    assert "EMA masked" not in text
    assert "77.5" not in text
    assert "88.5" not in text


def test_null_is_a_gap(run):
    (run / "metrics.jsonl").write_text(
        '{"step": 1, "loss": 2.0}\n{"step": 2, "loss": null}\n{"step": 3, "loss": 1.0}\n'
    )
    _, ys = read_run(run).metrics.curve("loss")
    assert [math.isnan(y) for y in ys] == [False, True, False]


def test_a_curve_file_is_a_picture_with_names_and_is_the_same_again(run, tmp_path):
    out = write_curve(run, tmp_path / "loss.svg")
    shown = "".join(ElementTree.parse(out).getroot().itertext())
    for text in ("Masked LM loss", "guessing by frequency", "stopped", "resumed", "held-out", "step"):
        assert text in shown, text
    assert write_curve(run, tmp_path / "again.svg").read_bytes() == out.read_bytes()


def test_a_long_run_stays_small(tmp_path):
    folder = make_run(tmp_path / "long", num_rows=100_000)
    assert write_report(folder).stat().st_size < 700_000


@pytest.mark.parametrize(
    ("prepare", "expected"),
    [
        (lambda folder: None, "does not exist"),
        (lambda folder: folder.write_text("x"), "is a file, not a run folder"),
        (lambda folder: folder.mkdir(), "it has no metrics.jsonl\n  it holds: nothing"),
        (lambda folder: (folder.mkdir(), (folder / "metrics.jsonl").write_text("")), "has no logged step"),
        (lambda folder: (folder.mkdir(), (folder / "metrics.jsonl").write_text('{"lo')), "has no logged step"),
    ],
)
def test_a_folder_that_is_not_a_run_is_refused_with_a_reason(tmp_path, prepare, expected):
    folder = tmp_path / "run"
    prepare(folder)
    with pytest.raises(DataError) as caught:
        write_report(folder, tmp_path / "out.html")
    assert expected in str(caught.value)
    assert caught.value.exit_code == 2
    assert not (tmp_path / "out.html").exists()


def test_a_failed_write_leaves_the_old_report_and_no_scraps(run, monkeypatch):
    (run / "report.html").write_text("old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match="no space left to write"):
        write_report(run)
    assert (run / "report.html").read_text() == "old"
    assert not [path for path in run.iterdir() if path.name.startswith(".")]


def test_a_missing_folder_is_created_and_an_unwritable_file_is_refused(run, tmp_path):
    assert write_report(run, tmp_path / "new" / "out.html").is_file()
    with pytest.raises(DataError, match="cannot write"):
        write_report(run, tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot write"):
        write_report(run, tmp_path / "file" / "out.html")


def test_the_report_has_the_permissions_of_an_ordinary_file(run):
    (run / "other").write_text("")
    assert stat.S_IMODE(write_report(run).stat().st_mode) == stat.S_IMODE((run / "other").stat().st_mode)


def test_command_line(run, tmp_path):
    result = CliRunner().invoke(
        app_of("report"), [str(run), "--out", str(tmp_path / "r.html"), "--curve", str(tmp_path / "c.svg")]
    )
    assert result.exit_code == 0
    assert result.output.split() == [str(tmp_path / "r.html"), str(tmp_path / "c.svg")]
    assert (tmp_path / "r.html").stat().st_size > 10_000
    assert isinstance(CliRunner().invoke(app_of("report"), [str(tmp_path / "no")]).exception, DataError)


def test_the_same_run_gives_the_same_page(run):
    assert render(read_run(run)) == render(read_run(run))
    assert not math.isnan(read_run(run).metrics.rows[0]["loss"])
