"""Sections of the page below the curves: samples, events, config, data and environment."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from pretrainkit.config.loader import flatten, origin_of
from pretrainkit.report.markup import Content, Markup, join, row, tag
from pretrainkit.report.numbers import DASH, label, number
from pretrainkit.report.run_folder import Run, Sample, as_number
from pretrainkit.report.shown import marked, shown_cell

_MASK = re.compile(r"\[MASK\]|<mask>|<extra_id_\d+>|\u2588+", re.IGNORECASE)
_MAX_SAMPLES = 40
_MAX_COLUMNS = 5
"""Number of columns that fit beside each other on a page; more are wrapped."""
_MAX_EXAMPLES = 3
"""Number of examples whose samples are shown over time."""
_MAX_STEPS = 8
_MAX_EVENTS = 200
_MAX_ITEMS = 50
_UNCHANGED = ("preset ", "default")


def samples_section(run: Run) -> Markup | None:
    """Show input, prediction and truth side by side, with highlighted masked tokens and with pictures."""
    if not run.samples:
        return None
    columns = list(dict.fromkeys(key for sample in run.samples for key in sample))
    heads = [label(column) for column in columns]
    shown = run.samples[:_MAX_SAMPLES]
    cells = [zip(heads, sample_cells(sample, columns)) for sample in shown]
    rows = [tag("tr", *(tag("td", cell, data_name=head) for head, cell in pairs)) for pairs in cells]
    more = len(run.samples) - len(shown)
    rest = tag("p", f"{more} more in samples.json", class_="quiet small") if more else None
    style = "samples" if len(columns) <= _MAX_COLUMNS else "samples wide"
    return section("Samples", tag("div", table(heads, rows, style), rest, class_="panel scroll long"))


def progress_section(run: Run) -> Markup | None:
    """Show samples of the same held-out examples after each evaluation, in a table per example.

    A table has the columns that do not change, then the changing columns, step by step. If there are many steps, some
    are chosen at equal distances, including the first and the last.
    """
    steps = list(run.earlier_samples)
    if len(steps) > _MAX_STEPS:
        steps = [steps[place] for place in np.linspace(0, len(steps) - 1, _MAX_STEPS).round().astype(int)]
    samples = [run.earlier_samples[step] for step in steps]
    num = min((len(examples) for examples in samples), default=0)
    if len(steps) < 2 or not num:
        return None
    tables = [_over_time(steps, [examples[place] for examples in samples]) for place in range(min(num, _MAX_EXAMPLES))]
    return section("Samples while training", *(tag("div", content, class_="panel scroll") for content in tables))


def _over_time(steps: list[int], over_time: list[Sample]) -> Markup:
    columns = list(dict.fromkeys(key for sample in over_time for key in sample))
    changing = [key for key in columns if any(sample.get(key) != over_time[0].get(key) for sample in over_time)]
    changing = changing or columns[-1:]
    fixed = [key for key in columns if key not in changing]
    return samples_table(fixed, changing, "step", list(zip(map(number, steps), over_time, strict=True)))


def samples_table(
    fixed: Sequence[str], changing: Sequence[str], kind: str, samples: Sequence[tuple[Content, Sample]]
) -> Markup:
    """Return a table of samples with their names: the `fixed` columns once, then the `changing` ones of each sample."""
    first = sample_cells(samples[0][1], fixed)
    span = str(len(changing) or 1)
    rows = [tag("tr", tag("th", label(k)), tag("td", cell, colspan=span)) for k, cell in zip(fixed, first, strict=True)]
    if changing:
        rows.append(tag("tr", tag("th", kind), *(tag("th", label(key)) for key in changing)))
        for name, sample in samples:
            rows.append(tag("tr", tag("th", name), *(tag("td", cell) for cell in sample_cells(sample, changing))))
    return tag("table", tag("tbody", *rows), class_="samples progress")


def sample_cells(sample: Sample, columns: Sequence[str]) -> list[Markup]:
    """Highlight masks, and in columns with the same text around the masks also the words in place of the masks."""
    texts = {key: value for key, value in sample.items() if isinstance(value, str)}
    source = next((value for value in texts.values() if _MASK.search(value)), None)
    truth = texts.get("truth")
    filled = {key: _fillings(source, value) if source else None for key, value in texts.items()}
    true_words = filled.get("truth")
    cells = []
    for column in columns:
        value = sample.get(column, "")
        if not isinstance(value, str):
            cells.append(shown_cell(value))
            continue
        spans = filled.get(column) or [match.span() for match in _MASK.finditer(value)]
        kinds: list[bool | None] = [None] * len(spans)
        is_answer = column != "truth" and filled.get(column)
        if is_answer and truth is not None and true_words and len(true_words) == len(spans):
            pairs = zip(spans, true_words)
            kinds = [value[a:b].strip() == truth[c:d].strip() for (a, b), (c, d) in pairs]
        marks = [(begin, end, is_right) for (begin, end), is_right in zip(spans, kinds, strict=True)]
        cells.append(marked(value, marks))
    return cells


def _fillings(masked: str, value: str) -> list[tuple[int, int]] | None:
    """Return the spans of `value` that replace the masks of `masked`, or None if the other text differs."""
    pieces = _MASK.split(masked)
    if _MASK.search(value) or len(pieces) < 2 or not value.startswith(pieces[0]):
        return None
    spans, at = [], len(pieces[0])
    for i, piece in enumerate(pieces[1:], start=1):
        is_last = i == len(pieces) - 1
        end = (len(value) - len(piece) if value.endswith(piece) else -1) if is_last else value.find(piece, at)
        if end < at or (not piece and not is_last):
            return None
        spans.append((at, end))
        at = end + len(piece)
    return spans


def events_section(run: Run) -> Markup | None:
    """List the events in their order. Checkpoints are only counted."""
    listed = [event for event in run.events if event.event != "checkpoint"]
    counts = Counter(event.event for event in run.events)
    if not listed and not counts:
        return None
    rows = [
        row(number(_whole(event.step)), event.event, event.text, classes=("number path", "path"))
        for event in listed[:_MAX_EVENTS]
    ]
    words = []
    if counts["checkpoint"]:
        words.append(f"{counts['checkpoint']} checkpoint{'s' * (counts['checkpoint'] > 1)} saved")
    if len(listed) > _MAX_EVENTS:
        words.append(f"{len(listed) - _MAX_EVENTS} more events in events.jsonl")
    line = tag("p", " · ".join(words), class_="quiet small") if words else None
    shown = table(("step", "event", ""), rows) if rows else None
    return section("Events", tag("div", shown, line, class_="panel scroll long"))


def config_section(run: Run) -> Markup | None:
    """List the settings that differ from the preset first, then every value with its origin."""
    if not run.config:
        return None
    leaves = flatten(run.config)
    sources = run.provenance.get("sources")
    origins = {path: str(origin_of(path, sources if isinstance(sources, dict) else {}, "")) for path in leaves}
    changed = [path for path in leaves if origins[path] and not origins[path].startswith(_UNCHANGED)]
    earlier = _earlier_values(run.provenance)
    base = run.preset or next((o.removeprefix("preset ") for o in origins.values() if o.startswith("preset ")), "")
    parts: list[Markup] = []

    def settings(paths: Iterable[str], highlight: Sequence[str] = ()) -> Markup:
        rows = []
        for path in paths:
            before = tag("div", earlier[path], class_="quiet small") if path in earlier else None
            value = join([tag("code", yaml_like(leaves[path])), before])
            origin = tag("span", origins[path] or DASH, class_="tagged")
            is_changed = "changed" if path in highlight else None
            rows.append(row(tag("code", path), value, origin, classes=("path", None, "path"), class_=is_changed))
        return table(("setting", "value", "from"), rows)

    if changed:
        title = f"Set differently from {base}" if base else "Set by hand"
        parts.append(tag("div", tag("h3", title), settings(changed), class_="panel scroll long"))
    elif base:
        parts.append(tag("p", f"Every value is from the preset {base} or a default.", class_="quiet"))
    everything = settings(leaves, highlight=changed)
    whole = tag("details", tag("summary", f"All {len(leaves)} values"), tag("div", everything, class_="scroll"))
    parts.append(tag("div", whole, class_="panel long"))
    return section("Config", *parts)


def _earlier_values(provenance: Mapping[str, Any]) -> dict[str, str]:
    """Map each setting that was changed at a resume to its earlier values, oldest first."""
    earlier: dict[str, list[str]] = {}
    for resumed in provenance.get("resumed") or []:
        for path, (old, _) in (resumed.get("changes") or {}).items():
            earlier.setdefault(path, []).append(f"{yaml_like(old)} until step {resumed.get('step')}")
    return {path: ", ".join(values) for path, values in earlier.items()}


def data_section(run: Run) -> Markup | None:
    """Show the sources of the examples, the number of examples seen, and the fingerprints of the data."""
    data = run.provenance.get("data")
    settings = run.config.get("data")
    facts: dict[str, Any] = {}
    if isinstance(settings, Mapping):
        names = {"train": "trained on", "valid": "held out"}
        facts = {name: _sources(settings[key]) for key, name in names.items() if settings.get(key)}
        batch_size = as_number(settings.get("batch_size"))
        if batch_size is not None:
            facts["examples seen"] = _whole(run.metrics.rows[-1]["step"] * batch_size)
    return _facts("Data", facts | {"fingerprints": data})


def _facts(title: str, facts: Mapping[str, Any]) -> Markup | None:
    """Return a section of named values, without empty ones, or None if there are none."""
    known = {key: value for key, value in facts.items() if value not in (None, "", {}, [])}
    return section(title, tag("div", _value(known), class_="panel scroll long")) if known else None


def _sources(value: Any) -> Any:
    """Return the sources of a mixture without null fields. A source that has only a path becomes the path."""
    if not isinstance(value, (list, tuple)):
        return value
    items = [{k: v for k, v in item.items() if v is not None} if isinstance(item, Mapping) else item for item in value]
    return [item["path"] if isinstance(item, Mapping) and set(item) == {"path"} else item for item in items]


def environment_section(run: Run) -> Markup | None:
    """Show code, machine and command: everything in the provenance except config and data. Resumes show what differs
    from the start."""
    facts = {
        key: value
        for key, value in run.provenance.items()
        if key not in ("sources", "data", "directions", "percentages")
    }
    resumes = facts.get("resumed")
    if isinstance(resumes, list) and all(isinstance(resume, Mapping) for resume in resumes):
        facts["resumed"] = [
            {key: value for key, value in resume.items() if value != facts.get(key) and value not in (None, "", {}, [])}
            for resume in resumes
        ]
    return _facts("Environment", facts)


def notes_section(run: Run) -> Markup | None:
    if not run.notes:
        return None
    return section("Notes", tag("div", tag("ul", *(tag("li", note) for note in run.notes)), class_="panel"))


def section(title: str, *parts: Content) -> Markup:
    return tag("section", tag("h2", title), *parts)


def table(heads: Iterable[str], rows: Iterable[Markup], class_: str | None = None) -> Markup:
    head = tag("tr", *(tag("th", name) for name in heads))
    return tag("table", tag("thead", head), tag("tbody", *rows), class_=class_)


def _value(value: Any, depth: int = 0) -> Markup:
    """Show a JSON value: a mapping as a table, a list of mappings as one table, numbers formatted, texts in full."""
    if depth > 6:
        return tag("code", yaml_like(value))
    if isinstance(value, Mapping):
        pairs = ((_name(key), _value(sub, depth + 1)) for key, sub in value.items())
        return tag("table", *(row(*pair, classes=("path quiet",)) for pair in pairs))
    if isinstance(value, (list, tuple)):
        if not value:
            return tag("span", "none", class_="quiet")
        shown = list(value[:_MAX_ITEMS])
        num_left = len(value) - len(shown)
        rest = tag("div", f"and {num_left:,} more", class_="quiet small") if num_left else None
        if not all(isinstance(item, Mapping) for item in shown):
            return join([*(tag("div", _value(item, depth + 1)) for item in shown), rest])
        columns = list(dict.fromkeys(key for item in shown for key in item))
        rows = [row(*(_value(item.get(column), depth + 1) for column in columns)) for item in shown]
        return join([table(map(_name, columns), rows), rest])
    return join([number(value)]) if as_number(value) is not None else tag("code", yaml_like(value))


def _name(key: object) -> str:
    """Convert a key to words. Paths and other names are not changed."""
    name = str(key)
    return label(name) if re.fullmatch(r"[a-z][a-z0-9_]*", name) else name


def yaml_like(value: Any) -> str:
    """Format a value as in YAML, on one line."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {yaml_like(sub)}" for key, sub in value.items() if sub is not None) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(yaml_like, value)) + "]"
    return str(value)


def _whole(value: float) -> float:
    return int(value) if math.isfinite(value) and value == int(value) else value
