"""From lines of wikitext, free of brackets and tags, to lines of text."""

import re

from pretrainkit.corpus.wikipedia.elements import BAR, PREFORMATTED
from pretrainkit.corpus.wikipedia.options import Extraction

_HEADING = re.compile(r"(={1,6})(.+?)\1\s*")
_SIGNS = frozenset({*"*#:;={|!}", BAR, PREFORMATTED})
_ENDS_OF_SENTENCES = (".", "!", "?", ":", ";", "…", "。", "।", ")", '"', "”")
_TERM = re.compile(r"(.*?\w.*?)(?:\s+:\s*|:\s+)(.*)")
_MIN_PREFORMATTED = 60
"""Characters from which a line that begins with a space is taken for a paragraph, not for a listing."""


def text_lines(text: str, options: Extraction) -> list[str]:
    """Paragraphs and definitions, one per line. Section titles and list items only where they are asked for, a title
    only where text follows in its section."""
    out: list[str] = []
    pending: dict[int, str] = {}
    goes_on = False  # the last line was running text, and nothing stands between
    term = ""  # of the last line, whose definition may follow
    for line in text.split("\n"):
        known_term, term = term, ""
        if not line:
            goes_on = False
            continue
        first = line[0]
        is_running = False
        if first in _SIGNS:
            if first == "=" and (found := _HEADING.fullmatch(line)):
                level = len(found[1])
                pending = {known: title for known, title in pending.items() if known < level}
                pending[level] = found[2].strip()
                goes_on = False
                continue
            if first == ";":
                line, term = _definition(line)
                line = line or (term if options.lists else "")
            elif first == ":" and known_term and not options.lists:
                line = f"{known_term}: {line.lstrip(':').strip()}"
            else:
                line = _marked(line, first, options)
        else:
            is_running = True
        line = line.strip()
        if not line or not _is_text(line):
            goes_on = False
            continue
        if goes_on and is_running:
            out[-1] += " " + line
            continue
        goes_on = is_running
        if pending:
            if options.sections:
                out += pending.values()
            pending = {}
        out.append(line)
    return out


def _definition(line: str) -> tuple[str, str]:
    """(A term with its definition, "") or ("", a term alone)."""
    body = line.lstrip("*#:;").strip()
    found = _TERM.fullmatch(body)
    return (f"{found[1]}: {found[2]}", "") if found and found[2] else ("", body)


def _marked(line: str, first: str, options: Extraction) -> str:
    """A line that begins with a sign of wikitext; "" where it is no text."""
    if first == BAR:
        return line[1:]
    if first in "*#:;":
        body = line.lstrip("*#:;").strip()
        marks = line[: len(line) - len(line.lstrip("*#:;"))]
        if marks[-1] == ":" and "*" not in marks and "#" not in marks:
            # An indented paragraph; what is short there is a formula or points elsewhere.
            return body if options.lists or _is_sentence(body) else ""
        if not options.lists or not body:
            return ""
        return "- " + body
    if first == PREFORMATTED:
        line = line[1:].strip()
        return line if len(line) >= _MIN_PREFORMATTED else ""
    if first in "{|}":
        return ""
    return "" if first == "!" and "|" in line else line


def _is_sentence(text: str) -> bool:
    return len(text) >= _MIN_PREFORMATTED and text.endswith(_ENDS_OF_SENTENCES)


def _is_text(line: str) -> bool:
    """False for what is left of a line whose words were all templates."""
    return any(map(str.isalnum, line))
