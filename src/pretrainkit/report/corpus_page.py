"""HTML page of a corpus: counts, lengths, languages and duplicates of documents, and a random sample."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pretrainkit.files.manifest import write_text
from pretrainkit.report.bars import histogram, share_bars
from pretrainkit.report.markup import Markup, join, row, tag
from pretrainkit.report.numbers import DASH, number, percent, short
from pretrainkit.report.page import card, html_page
from pretrainkit.report.tables import section, table

_MAX_SHOWN = 12
_MAX_CHARACTERS = 600


def write_corpus_page(stats: Mapping[str, Any], out: Path, *, title: str) -> Path:
    """Write the page for a result of `corpus_stats` with "sample". The result may also have "num_near_duplicates", and
    under "languages" the counted kind ("language" or "script") with its counts in the sample. Raises DataError if `out`
    cannot be written; no partial file is left."""
    write_text(out, render_corpus(stats, title))
    return out


def render_corpus(stats: Mapping[str, Any], title: str) -> str:
    files = f"{number(stats['num_files'])} file{'' if stats['num_files'] == 1 else 's'}"
    about = tag("p", f"corpus · {files}, {_bytes(stats['num_source_bytes'])} as stored", class_="quiet")
    header = tag("header", tag("h1", title), about)
    return html_page(title, [header, _cards(stats), _lengths(stats), _kinds(stats), _samples(stats), _skipped(stats)])


def _cards(stats: Mapping[str, Any]) -> Markup:
    total = stats["num_documents"]
    copies, near = stats["num_duplicates"], stats.get("num_near_duplicates")
    words, num_empty = stats["words_per_document"], stats["num_empty_documents"]
    empty = f"{number(num_empty)} of them without a word" if num_empty else "none is empty"
    copied = percent(copies / total) if total else DASH
    cards = [
        (short(total) if total >= 1e5 else number(total), "documents", empty),
        (short(stats["num_words"]), "words", "separated by white space"),
        (_bytes(stats["num_text_bytes"]), "text", f"{short(stats['num_characters'])} characters"),
        (number(words.get("p50")), "words in the median document", f"{number(words.get('mean'))} on average"),
        (copied, "copies", f"{number(copies)} documents repeat the text of an earlier one"),
    ]
    if near is not None:
        share = percent(near / total) if total else DASH
        cards.append((share, "near duplicates", f"{number(near)} documents besides copies, by MinHash"))
    return tag("div", *(card(*texts) for texts in cards), class_="cards")


def _lengths(stats: Mapping[str, Any]) -> Markup:
    panels, rows = [], []
    for key, unit, name in (("words", "words", "words"), ("text_bytes", "bytes", "bytes of text")):
        bins, title = stats[f"{key}_histogram"], f"{unit.capitalize()} per document"
        bars = histogram(bins["edges"], bins["counts"], title=title, x_label=unit)
        panels.append(tag("div", bars, class_="panel"))
        values = stats[f"{key}_per_document"].values()
        cells = [number(round(value) if value >= 10 else value) for value in values]
        rows.append(row(name, *cells, classes=(None, *["number"] * len(cells))))
    names = {"mean": "mean", "p0": "least", "p100": "most"}
    heads = [tag("th", names.get(key, f"{key[1:]}\u00a0%"), class_="number") for key in stats["words_per_document"]]
    lengths = tag("table", tag("thead", tag("tr", tag("th", "share of the documents"), *heads)), tag("tbody", *rows))
    below = tag("div", lengths, class_="panel scroll", style="margin-top:14px")
    return section("Lengths", tag("div", *panels, class_="charts"), below)


def _kinds(stats: Mapping[str, Any]) -> Markup:
    panels = []
    if languages := stats.get("languages"):
        drawn = number(sum(languages["counts"].values()))
        title = f"{languages['of'].capitalize()}s of {drawn} documents drawn at random"
        panels.append(tag("div", share_bars(languages["counts"], title=title), class_="panel"))
    sets = share_bars(stats["datasets"], title="Documents by data set", most=6)
    copies, near = stats["num_duplicates"], stats.get("num_near_duplicates", 0)
    counts = {"first or only": stats["num_documents"] - copies - near, "copies of an earlier document": copies}
    counts |= {"similar to an earlier document": near} if "num_near_duplicates" in stats else {}
    again = share_bars(counts, title="Repeated documents")
    panels.append(tag("div", sets, again, class_="panel"))
    return section("Kinds of documents", tag("div", *panels, class_="charts"))


def _bytes(num: int) -> str:
    shown = short(num)
    return f"{shown[:-1]}\u00a0{shown[-1]}B" if shown[-1].isalpha() else f"{shown}\u00a0B"


def _samples(stats: Mapping[str, Any]) -> Markup | None:
    rows = []
    for text, place in stats.get("sample", [])[:_MAX_SHOWN]:
        cut = text if len(text) <= _MAX_CHARACTERS else text[:_MAX_CHARACTERS].rsplit(" ", 1)[0] + " …"
        lines = [line for line in cut.split("\n") if line.strip()]
        shown = join([tag("p", line) for line in lines]) if lines else tag("p", "(empty)", class_="quiet")
        origin = tag("td", place, class_="quiet small", data_name="from")
        rows.append(tag("tr", origin, tag("td", shown, dir="auto", data_name="text")))
    if not rows:
        return None
    drawn = tag("table", tag("tbody", *rows), class_="samples")
    return section("Documents drawn at random", tag("div", drawn, class_="panel scroll long"))


def _skipped(stats: Mapping[str, Any]) -> Markup | None:
    if not stats["skipped"]:
        return None
    classes, skipped = ("path", "number path", "quiet small"), stats["skipped"].items()
    rows = [
        row(reason.replace("_", " "), number(entry["count"]), "; ".join(entry["examples"]), classes=classes)
        for reason, entry in sorted(skipped, key=lambda item: -item[1]["count"])
    ]
    return section("Skipped", tag("div", table(("reason", "number", "examples"), rows), class_="panel scroll long"))
