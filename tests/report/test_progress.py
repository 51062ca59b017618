"""Samples over time: what stays is shown once, what changes for every step that is chosen."""

import json

from test_page import Page, make_run

from pretrainkit.report.page import render
from pretrainkit.report.run_folder import read_run


def page_of(folder, by_step):
    make_run(folder)
    (folder / "samples").mkdir()
    for step, samples in by_step.items():
        (folder / "samples" / f"step-{step:08d}.json").write_text(json.dumps(samples))
    return Page(render(read_run(folder)))


def test_constant_parts_are_shown_once_and_answers_by_step(tmp_path):
    page = page_of(
        tmp_path / "demo",
        {step: [{"truth": "constant truth", "answer": f"after {step}"}] for step in (1000, 200, 30)},
    )
    assert page.text.count("constant truth") == 1
    places = [page.text.index(f"after {step}") for step in (30, 200, 1000)]
    assert places == sorted(places)
    assert "Samples while training" in page.text


def test_some_of_many_steps_are_shown_with_the_first_and_the_last(tmp_path):
    page = page_of(tmp_path / "demo", {step: [{"answer": f"after [{step}]"}] for step in range(1, 101)})
    shown = [step for step in range(1, 101) if f"after [{step}]" in page.text]
    assert len(shown) == 8
    assert (shown[0], shown[-1]) == (1, 100)


def test_one_evaluation_is_not_progress_and_broken_files_are_noted(tmp_path):
    page = page_of(tmp_path / "demo", {5: [{"answer": "lonely answer"}]})
    assert "lonely answer" not in page.text
    (tmp_path / "demo" / "samples" / "step-00000007.json").write_text("{")
    (tmp_path / "demo" / "samples" / "step-x.json").write_text("[]")
    assert "step-00000007.json is not valid JSON" in Page(render(read_run(tmp_path / "demo"))).text
