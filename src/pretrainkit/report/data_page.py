"""HTML page of a run's data before training: figures, lengths, languages, and examples as the model reads them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pretrainkit.files.manifest import write_text
from pretrainkit.report.bars import histogram, share_bars
from pretrainkit.report.markup import Markup, row, tag
from pretrainkit.report.numbers import label, number
from pretrainkit.report.page import card, html_page
from pretrainkit.report.run_folder import read_sample
from pretrainkit.report.tables import sample_cells, section

_MAX_PROBLEMS = 200
_MAX_CHARACTERS = 1_500_000
"""Largest total size of the examples, so that the page stays below 2 MB."""
_LINES = "white-space: pre-line"


def write_data_page(check: Mapping[str, Any], out: Path, *, title: str, recipe: str) -> Path:
    """Write the page for the fields of a `DataCheck` of a config of `recipe`. Raises DataError if `out` cannot be
    written; no partial file is left."""
    write_text(out, render_data(check, title, recipe))
    return out


def render_data(check: Mapping[str, Any], title: str, recipe: str) -> str:
    header = tag("header", tag("h1", title), tag("p", f"{recipe} · check of the training data", class_="quiet"))
    sections = (_problems(check["problems"]), _figures(check["figures"]), _charts(check))
    return html_page(title, [header, _cards(check["figures"]), *sections, _notes(check["notes"]), _examples(check)])


def _cards(figures: Mapping[str, Any]) -> Markup | None:
    cards = [card(number(value), name) for name, value in figures.items() if isinstance(value, int)]
    return tag("div", *cards, class_="cards") if cards else None


def _problems(problems: list[str]) -> Markup | None:
    if not problems:
        return None
    items = [tag("li", problem, style=_LINES) for problem in problems[:_MAX_PROBLEMS]]
    more = f"{number(len(problems))} problems" + (
        f", of which {_MAX_PROBLEMS} are shown" * (len(problems) > len(items))
    )
    return section("Problems", tag("div", tag("p", more, class_="bad"), tag("ul", *items), class_="panel long"))


def _figures(figures: Mapping[str, Any]) -> Markup | None:
    texts = {name: value for name, value in figures.items() if not isinstance(value, int)}
    rows = [row(name, tag("span", value, style=_LINES), classes=("path quiet",)) for name, value in texts.items()]
    return section("Figures", tag("div", tag("table", *rows), class_="panel scroll long")) if rows else None


def _charts(check: Mapping[str, Any]) -> Markup | None:
    panels = []
    if bins := check["lengths"]:
        title = "Lengths of examples"
        panels.append(histogram(bins["edges"], bins["counts"], title=title, x_label="tokens", unit="examples"))
    if languages := check["languages"]:
        panels.append(share_bars(languages["counts"], title=f"{languages['of'].capitalize()}s of examples"))
    if not panels:
        return None
    return section("Distributions", tag("div", *(tag("div", p, class_="panel") for p in panels), class_="charts"))


def _notes(notes: list[str]) -> Markup | None:
    return (
        section("Notes", tag("div", tag("ul", *(tag("li", note) for note in notes)), class_="panel")) if notes else None
    )


def _examples(check: Mapping[str, Any]) -> Markup | None:
    panels: list[Markup] = []
    notes: list[str] = []
    num_characters = 0
    for example in check["examples"]:
        sample = read_sample(example, notes)
        cells = sample_cells(sample, list(sample))
        rows = [
            tag("tr", tag("th", label(name), style="padding-top: 9px; width: 1%"), tag("td", cell, style=_LINES))
            for name, cell in zip(sample, cells, strict=True)
        ]
        panel = tag("div", tag("table", tag("tbody", *rows), class_="samples"), class_="panel scroll")
        num_characters += len(panel)
        if num_characters > _MAX_CHARACTERS:
            notes.append(f"{len(check['examples']) - len(panels)} more examples are left out, because they are large")
            break
        panels.append(panel)
    if not panels:
        return None
    return section("Examples as the model reads them", *panels, *(tag("p", n, class_="quiet small") for n in notes))
