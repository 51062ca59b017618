"""The report: one HTML page of a run, complete in itself. It runs no script and loads nothing."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pretrainkit.files.manifest import atomic_file
from pretrainkit.report.axis import Floats
from pretrainkit.report.curve import loss_curves, other_curves
from pretrainkit.report.markup import Content, Markup, tag
from pretrainkit.report.numbers import duration, label, metric, number, percent
from pretrainkit.report.run_folder import Run, as_number, read_run
from pretrainkit.report.style import PAGE_STYLE
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
_MAX_CARDS = 12


def write_report(run_folder: Path, out: Path | None = None) -> Path:
    """Write the report of a run, by default to `report.html` in its folder. Returns the file.

    Raises:
        DataError: Not a run folder, no metrics, or `out` cannot be written. Nothing is half-written.
    """
    out = run_folder / "report.html" if out is None else out
    page = render(read_run(run_folder))
    with atomic_file(out) as file:
        file.write(page.encode())
    return out


def render(run: Run) -> str:
    name = run.folder.resolve().name
    title = " · ".join(part for part in (name, run.preset) if part)
    sections = (
        _header(run, name),
        _cards(run),
        _curves(run),
        samples_section(run),
        progress_section(run),
        events_section(run),
        config_section(run),
        data_section(run),
        environment_section(run),
        notes_section(run),
    )
    return html_page(title, sections)


def html_page(title: str, sections: Sequence[Content]) -> str:
    """Return a whole page of these sections."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="generator", content="pretrainkit"),
        tag("title", title),
        tag("style", Markup(PAGE_STYLE)),
    )
    body = tag("body", tag("main", *sections))
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
        # An ISO time without the fractions of a second; anything else as it is.
        day, _, time = str(started).partition("T")
        words.append(f"started {day} {time.split('.')[0]}".rstrip())
    packages = run.provenance.get("packages")
    known = packages.get("pretrainkit") if isinstance(packages, dict) else None
    if version := run.provenance.get("version") or known:
        words.append(f"pretrainkit {version}")
    return tag("header", tag("h1", name), tag("p", " · ".join(filter(None, words)), class_="quiet"))


def _cards(run: Run) -> Markup:
    """Headline numbers: held-out metrics, what else `summary.json` says, then what the logs add."""
    summary = {k: v for k, raw in run.summary.items() if (v := as_number(raw)) is not None}
    held_out = run.held_out
    unigram = summary.get("unigram_loss")
    cards: dict[str, Markup] = {}
    for key, value in held_out.items():
        if not key.startswith("ema_"):
            average = held_out.get(f"ema_{key}")
            beside, tone = _beside(key, value, unigram)
            beside = beside or (f"{metric(key, average)} with averaged weights" if average is not None else "")
            cards[key] = card(metric(key, value), f"{label(key)}, held-out", beside, tone)
    for key, value in summary.items():
        is_drawn = key in ("unigram_loss", "uniform_loss") and any(k.endswith("lm_loss") for k in cards)
        is_said = key == "steps" or key.removeprefix("valid_") in held_out or key in run.metrics.keys
        if not is_drawn and not is_said:
            cards[key] = card(metric(key, value), label(key), *_beside(key, value, unigram))
    last = _finite(run, "loss")[-max(1, len(run.metrics.curve("loss")[1]) // 20) :]
    if len(last):
        final = number(float(last.mean()))
        cards["loss, training"] = card(final, "training loss", "mean of the last 5\u00a0% of the run")
    for key in ("tokens_per_second", "examples_per_second"):
        if (rate := _median(run, key)) is not None:
            cards[key] = card(metric(key, rate), f"{label(key)}, median", _waits(run))
            break
    # Where the log counts the time up; a time per step, which falls now and then, is not that.
    logged = _finite(run, "seconds")
    is_counted = len(logged) > 1 and bool((np.diff(logged) > 0).all())
    seconds = run.trained_seconds or (float(logged[-1]) if is_counted else None)
    if seconds and "seconds" not in cards:
        cards["seconds"] = card(duration(seconds), "training time")
    return tag("div", *list(cards.values())[:_MAX_CARDS], class_="cards")


def _waits(run: Run) -> str:
    """How much of the time went into waiting for data, and of the device's peak into the work."""
    wait, mfu = _median(run, "data_wait_share"), _median(run, "mfu")
    wait = _median(run, "data_wait") if wait is None else wait
    words = [f"{percent(wait)} waiting for data" if wait is not None else "", f"MFU {percent(mfu)}" if mfu else ""]
    return ", ".join(filter(None, words))


def card(value: str, name: str, beside: str = "", tone: str | None = None) -> Markup:
    aside = tag("div", beside, class_=f"aside {tone}" if tone else "aside") if beside else None
    return tag("div", tag("div", value, class_="value"), tag("div", name, class_="name"), aside, class_="card")


def _beside(key: str, value: float, unigram: float | None) -> tuple[str, str | None]:
    """What a number is to be compared with, and whether that is good."""
    if not key.endswith("lm_loss") or unigram is None or not math.isfinite(value):
        return "", None
    side, tone = ("below", "good") if value < unigram else ("above", "bad")
    return f"{number(abs(unigram - value))} {side} the unigram plateau, {number(unigram)}", tone


def _finite(run: Run, key: str) -> Floats:
    values = run.metrics.curve(key)[1]
    return values[np.isfinite(values)]


def _median(run: Run, key: str) -> float | None:
    values = _finite(run, key)
    return float(np.median(values)) if len(values) else None


def _curves(run: Run) -> Markup:
    losses, others = loss_curves(run), other_curves(run)
    parts = []
    if losses:
        wide = tag("div", Markup(losses[0].draw(width=1040, height=380)), class_="wide")
        narrow = tag("div", Markup(losses[0].draw(width=440, height=300)), class_="narrow")
        parts.append(tag("div", wide, narrow, class_="panel"))
    small = [tag("div", Markup(curve.draw(width=500, height=250)), class_="panel") for curve in [*losses[1:], *others]]
    if small:
        parts.append(tag("div", *small, class_="charts"))
    return section("Curves", *parts) if parts else Markup("")
