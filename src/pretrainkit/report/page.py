"""The report of a run: one self-contained HTML page, which loads no other files and runs only its charts' scripts."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pretrainkit.files.manifest import write_text
from pretrainkit.report.bars import BAR_STYLE
from pretrainkit.report.charts import COLORS, chart_panels, script_policy, scripts, style
from pretrainkit.report.curves import MAX_CARDS, loss_charts, other_charts, training_seconds
from pretrainkit.report.markup import Content, Markup, tag
from pretrainkit.report.numbers import duration, label, metric, number, percent
from pretrainkit.report.run_folder import Floats, Run, as_number, read_run
from pretrainkit.report.tables import (
    config_section,
    data_section,
    environment_section,
    events_section,
    notes_section,
    progress_section,
    samples_section,
    section,
)

_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
PAGE_STYLE = (
    COLORS
    + BAR_STYLE
    + """
:root { color-scheme: light dark; --page: #f4f6f9; }
@media (prefers-color-scheme: dark) { :root { --page: #0e1219; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; overflow-wrap: anywhere; }
main { max-width: 1120px; margin: 0 auto; padding: 28px 20px 60px; }
h1 { font-size: 26px; line-height: 1.25; margin: 0 0 2px; letter-spacing: -.01em; }
h2 { font-size: 18px; margin: 36px 0 12px; } h3 { font-size: 14px; margin: 2px 0 6px; }
p { margin: 0 0 10px; } .quiet { color: var(--quiet); } .small { font-size: 13px; }
code, .code { font: 12.5px/1.55 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
.panel { background: var(--surface); border: 1px solid var(--line); border-radius: 10px; padding: 14px 16px; }
.panel + .panel { margin-top: 14px; }
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(230px, 1fr)); gap: 12px; margin: 20px 0; }
.card { background: var(--surface); border: 1px solid var(--line); border-radius: 10px; padding: 12px 14px; }
.card .value { font-size: 23px; font-weight: 650; line-height: 1.25; font-variant-numeric: tabular-nums; }
.card .name { color: var(--quiet); font-size: 13px; } .card .aside { font-size: 12.5px; color: var(--quiet); }
.good { color: var(--good); } .bad { color: var(--bad); }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(400px, 100%), 1fr)); gap: 14px;
  margin-top: 14px; }
.charts .panel { margin: 0; padding: 10px 12px; min-width: 0; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 13.5px; overflow-wrap: break-word; }
th { text-align: left; white-space: nowrap; font-weight: 600; color: var(--quiet); }
table table th { white-space: normal; overflow-wrap: normal; }
th, td { padding: 5px 14px 5px 0; vertical-align: top; border-bottom: 1px solid var(--line); }
tr:last-child > td, tbody > tr:last-child > th { border-bottom: 0; }
td code { overflow-wrap: anywhere; } td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
td.path { white-space: nowrap; width: 1%; } .samples td { min-width: 13em; padding-bottom: 9px; padding-top: 9px; }
.wide thead { display: none; } .wide tr { display: flex; flex-wrap: wrap; border-bottom: 1px solid var(--line); }
.wide td { border: 0; flex: 1 1 13em; max-width: 26em; } .wide td:empty { display: none; }
.wide td::before { content: attr(data-name); color: var(--quiet); display: block; font-size: 12px; }
.samples { overflow-wrap: anywhere; } .compared td:not(.path) { min-width: 9em; overflow-wrap: anywhere; }
mark { background: var(--accent); color: inherit; border-radius: 3px; padding: 0 3px; white-space: nowrap; }
mark.hit { background: none; border-radius: 0; box-shadow: inset 0 -2px var(--good); }
mark.miss { background: none; border-radius: 0; box-shadow: inset 0 -2px var(--bad); }
.shown { display: flex; flex-wrap: wrap; gap: 8px; } figure { margin: 0; width: 100%; }
figure.picture { width: auto; max-width: 140px; } figcaption { font-size: 12.5px; }
figure img { display: block; height: 88px; border: 2px solid var(--line); border-radius: 5px; }
figure.alone { max-width: 100%; } figure.alone img { height: auto; max-width: 100%; }
figure.hit img { border-color: var(--good); } figure.miss img { border-color: var(--bad); }
tr.changed td { background: var(--accent); } tr.changed td:first-child { box-shadow: -6px 0 var(--accent); }
.tagged { border: 1px solid var(--line); border-radius: 9px; padding: 0 8px; font-size: 12px; color:
  var(--quiet); white-space: nowrap; }
summary { cursor: pointer; font-weight: 600; } details > :not(summary) { margin-top: 10px; }
ul { margin: 0; padding-left: 20px; }
@media (max-width: 640px) {
  main { padding: 18px 12px 40px; } h1 { font-size: 22px; } .plot.large { height: 280px; }
  .cards { grid-template-columns: repeat(2, 1fr); gap: 8px; } .card .value { font-size: 20px; }
  td.path { white-space: normal; width: auto; }
  .samples thead { display: none; } .samples tr, .samples td { display: block; border: 0; padding: 2px 0; }
  .samples th { border: 0; } .samples tr { padding: 10px 0; border-bottom: 1px solid var(--line); }
  .samples td::before { content: attr(data-name) " "; color: var(--quiet); font-size: 12px; }
}
@media print {
  :root { --page: #fff; --surface: #fff; --ink: #000; --quiet: #444; --line: #ccc; --axis: #888;
    --bad: #c62f3b; --good: #16794c; --accent: #fff3c9; color-scheme: light; }
  body { font-size: 10.5pt; }
  main { max-width: none; padding: 0; } .panel, .card, tr { break-inside: avoid; }
  h2 { break-after: avoid; } .charts { grid-template-columns: 1fr 1fr; }
  .panel.long { break-inside: auto; } details::details-content { content-visibility: visible; block-size: auto; }
  * { print-color-adjust: exact; }
}
"""
)
"""CSS rules of the page, for light and dark, wide and narrow screens, and for print."""


def write_report(run_folder: Path, out: Path | None = None) -> Path:
    """Write the report of a run, by default to `report.html` in its folder. Return the path of the file.

    Raises:
        DataError: There is no run, it has no metrics, or `out` cannot be written. No partial file is left.
    """
    out = run_folder / "report.html" if out is None else out
    write_text(out, render(read_run(run_folder)))
    return out


class Refresh(NamedTuple):
    """Settings of a page that regularly asks its server for a new version."""

    seconds: int
    """Time between two requests."""
    time: str
    """Time at which this version was created, as text."""


def render(run: Run, refresh: Refresh | None = None) -> str:
    """Return the page of a run; with `refresh`, a page that a server keeps up to date."""
    title = " · ".join(part for part in (run.name, run.preset) if part)
    sections = (
        _header(run, run.name),
        _cards(run),
        curves_section([run]),
        samples_section(run),
        progress_section(run),
        events_section(run),
        config_section(run),
        data_section(run),
        environment_section(run),
        notes_section(run),
    )
    return html_page(title, sections, has_charts=True, refresh=refresh)


def html_page(
    title: str, sections: Sequence[Content], *, has_charts: bool = False, refresh: Refresh | None = None
) -> str:
    """Return a complete HTML page with these sections. `has_charts` adds the scripts that draw `chart_panels`."""
    policy = _POLICY
    if has_charts:
        policy += f"; script-src {script_policy()}"
    if refresh is not None:
        policy += "; connect-src 'self'"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="generator", content="pretrainkit"),
        tag("title", title),
        tag("style", Markup(PAGE_STYLE + (style() if has_charts else ""))),
    )
    live = refresh and tag("p", f"live, as of {refresh.time}", class_="quiet small", id="live", data_time=refresh.time)
    code = [tag("script", Markup(script)) for script in scripts()] if has_charts else []
    body = tag("body", tag("main", live, *sections), *code, data_refresh=refresh and refresh.seconds)
    return "<!doctype html>\n" + tag("html", head, "\n", body, lang="en") + "\n"


def _header(run: Run, name: str) -> Markup:
    last, wanted = run.metrics.rows[-1]["step"], as_number(run.config.get("num_steps"))
    steps = number(int(last))
    if wanted is None:
        state = f"{steps} steps"
    else:
        all_steps = number(int(wanted))
        state = f"all {all_steps} steps done" if last >= wanted else f"{steps} of {all_steps} steps logged"
    words = [run.preset or str(run.config.get("recipe") or ""), state]
    if started := run.provenance.get("started"):
        # Remove the fractions of a second from an ISO time; keep other text unchanged.
        day, _, time = str(started).partition("T")
        words.append(f"started {day} {time.split('.')[0]}".rstrip())
    packages = run.provenance.get("packages")
    known = packages.get("pretrainkit") if isinstance(packages, dict) else None
    if version := run.provenance.get("version") or known:
        words.append(f"pretrainkit {version}")
    return tag("header", tag("h1", name), tag("p", " · ".join(filter(None, words)), class_="quiet"))


def _cards(run: Run) -> Markup:
    """Return cards with the main numbers: held-out metrics, other numbers of `summary.json`, then those of the logs."""
    summary = {k: v for k, raw in run.summary.items() if (v := as_number(raw)) is not None}
    held_out = run.held_out
    unigram = summary.get("unigram_loss")
    cards: dict[str, Markup] = {}
    for key, value in held_out.items():
        if not key.startswith("ema_"):
            average = held_out.get(f"ema_{key}")
            beside, tone = _beside(key, value, unigram)
            beside = beside or (
                f"{metric(key, average, run.percentages)} with averaged weights" if average is not None else ""
            )
            cards[key] = card(metric(key, value, run.percentages), f"{label(key)}, held-out", beside, tone)
    for key, value in summary.items():
        is_drawn = key in ("unigram_loss", "uniform_loss") and any(k.endswith("lm_loss") for k in cards)
        is_repeated = key == "steps" or key.removeprefix("valid_") in held_out or key in run.metrics.keys
        if not is_drawn and not is_repeated:
            cards[key] = card(metric(key, value, run.percentages), label(key), *_beside(key, value, unigram))
    last = _finite(run, "loss")[-max(1, len(run.metrics.curve("loss")[1]) // 20) :]
    if len(last):
        final = number(float(last.mean()))
        cards["loss, training"] = card(final, "training loss", "mean of the last 5\u00a0% of the run")
    for key in ("tokens_per_second", "examples_per_second"):
        if (rate := _median(run, key)) is not None:
            cards[key] = card(metric(key, rate), f"{label(key)}, median", _waits(run))
            break
    seconds = training_seconds(run)
    if seconds and "seconds" not in cards:
        cards["seconds"] = card(duration(seconds), "training time")
    return tag("div", *list(cards.values())[:MAX_CARDS], class_="cards")


def _waits(run: Run) -> str:
    """Return text with the share of the time spent waiting for data, and the model FLOPs utilization."""
    wait, mfu = _median(run, "data_wait_share"), _median(run, "mfu")
    wait = _median(run, "data_wait") if wait is None else wait
    words = [f"{percent(wait)} waiting for data" if wait is not None else "", f"MFU {percent(mfu)}" if mfu else ""]
    return ", ".join(filter(None, words))


def card(value: str, name: str, beside: str = "", tone: str | None = None) -> Markup:
    aside = tag("div", beside, class_=f"aside {tone}" if tone else "aside") if beside else None
    return tag("div", tag("div", value, class_="value"), tag("div", name, class_="name"), aside, class_="card")


def _beside(key: str, value: float, unigram: float | None) -> tuple[str, str | None]:
    """Return text that compares a loss with guessing by frequency, and its tone; '' and None for other metrics."""
    if not key.endswith("lm_loss") or unigram is None or not math.isfinite(value):
        return "", None
    side, tone = ("below", "good") if value < unigram else ("above", "bad")
    return f"{number(abs(unigram - value))} {side} guessing by frequency, {number(unigram)}", tone


def _finite(run: Run, key: str) -> Floats:
    values = run.metrics.curve(key)[1]
    return values[np.isfinite(values)]


def _median(run: Run, key: str) -> float | None:
    values = _finite(run, key)
    return float(np.median(values)) if len(values) else None


def curves_section(runs: Sequence[Run]) -> Markup | None:
    """Show all curves of one or several runs. The first loss is drawn large."""
    losses, others = loss_charts(runs), other_charts(runs)
    panels = chart_panels(runs, losses[:1], [*losses[1:], *others])
    return section("Curves", *panels) if panels else None
