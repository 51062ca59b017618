"""Wikitext to text: paragraphs as a reader sees them, one per line.

Every step is linear in the size of the page: no expression backtracks over more than a line, nesting is read with a
stack, and a closing tag that is missing is searched for once.
"""

import html
import re
from html.entities import html5
from operator import itemgetter

from pretrainkit.corpus.wikipedia.elements import BAR, PREFORMATTED, strip_elements, unguard
from pretrainkit.corpus.wikipedia.nesting import Nesting
from pretrainkit.corpus.wikipedia.options import Extraction
from pretrainkit.corpus.wikipedia.site import INTERLANGUAGE, INTERWIKI, Site
from pretrainkit.corpus.wikipedia.templates import Templates
from pretrainkit.corpus.wikipedia.word_lists import words

_QUOTES = re.compile(r"'{4,}")
_APOSTROPHE = re.compile(r"'''(?=\w)(?<=\w''')")
_LABELLED = re.compile(
    r"\[(?:https?:|ftps?:|news:|mailto:|irc:|//)[^\s\[\]<>\"]*+[ \t]*+([^\[\]\n]*+)\]", re.IGNORECASE
)
_SWITCH = re.compile(r"__[A-Z]{3,}+(?:_[A-Z]++)*+__")
_EMPTY_BRACKETS = re.compile(r"\([ ,;:/–-]*\)")
_OPENED = re.compile(r"\([ ,;:]+")
_CLOSED = re.compile(r"[ ,;:]+\)")
_SPACES = re.compile(r"  +")
_ENTITY = re.compile(r"&(#\d+|#[xX][0-9a-fA-F]+|\w+);")
_GAP = re.compile(r"[,;](?= ?[,;.]) ?(?:[,;] ?)*([,;]|\.(?! \.))(?=[\s)]|$)", re.MULTILINE)
_BEFORE_SIGN = re.compile(r" ([,.;])(?=[\s)]|$)", re.MULTILINE)
_ENTITIES = (
    ("&nbsp;", " "), ("&ndash;", "–"), ("&mdash;", "—"), ("&thinsp;", " "), ("&minus;", "−"), ("&times;", "×"),
)  # fmt: skip

_ATTRIBUTES = re.compile(
    r"(?:(?:col|row)span|style|class|v?align|bgcolor|width|height|scope|id|border|data-[a-z-]++|nowrap|abbr|title)"
    r" *+= *+(?:\"[^\"]*+\"|'[^']*+'|[^\s\"'|]++)\s*+",
    re.IGNORECASE,
)

_HEADING = re.compile(r"(={1,6})(.+?)\1\s*")
_SIGNS = frozenset({*"*#:;={|!}", BAR, PREFORMATTED})
_ENDS_OF_SENTENCES = (".", "!", "?", ":", ";", "…", "。", "।", ")", '"', "”")
_TERM = re.compile(r"(.*?\w.*?)(?:\s+:\s*|:\s+)(.*)")
_MIN_PREFORMATTED = 60
"""Characters from which a line that begins with a space is taken for a paragraph, not for a listing."""


class Cleaner:
    """Reads the pages of one edition."""

    def __init__(self, site: Site, options: Extraction) -> None:
        self._options = options
        self._hidden = site.hidden_prefixes | INTERLANGUAGE
        self._templates = Templates(site)
        self._nesting = Nesting(self._templates.expand, self._link, self._table)

    def clean(self, wikitext: str, title: str) -> str:
        """The text of a page, lines joined by line feeds; "" where nothing of it is text."""
        self._templates.title = title
        text = "\n" + wikitext
        if "<" in text:
            text = strip_elements(text, _formula)
        text = self._nesting.flatten(text)
        # From here on other lines may come to begin with a space, too, by what is taken out of them.
        text = _plain(text.replace("\n ", f"\n{PREFORMATTED}"))
        return "\n".join(text_lines(text, self._options))

    def _link(self, content: str) -> str:
        """What `[[...]]` shows: its label, or its target; nothing of pictures, categories and other languages."""
        target, *labels = content.split("|")
        prefix, colon, rest = target.partition(":")
        if colon:
            prefix = " ".join(prefix.replace("_", " ").split()).casefold()
            if prefix in self._hidden:
                return ""
            if not prefix:
                target = rest
            elif prefix in INTERWIKI:
                target = rest.rpartition(":")[2]
        if not labels:
            return target.strip()
        label = labels[-1]
        return label if label.strip() else _without_parenthesis(target)

    def _table(self, content: str) -> str:
        if not self._options.tables:
            return "\n\n"
        rows = [" | ".join(row) for row in table_rows(content)]
        return "".join(f"\n{BAR}{_plain(row)}" for row in rows) + "\n"


def _without_parenthesis(title: str) -> str:
    """`Mercury (planet)` to `Mercury`."""
    start = title.rfind("(")
    return title[:start].rstrip(" ") if start >= 0 and title.find(")", start) == len(title) - 1 else title


def _plain(text: str) -> str:
    """Quotes, addresses, switches and references of characters to text; gaps that templates left are closed."""
    if "''" in text:
        if "''''" in text:
            text = _QUOTES.sub(lambda found: "'" * max(0, len(found[0]) - 5) + "'" * (len(found[0]) == 4), text)
        if "'''" in text:
            text = _without_bold(text)
        text = text.replace("''", "")
    if "[" in text:
        text = _LABELLED.sub(itemgetter(1), text)
    if "__" in text:
        text = _SWITCH.sub("", text)
    if "&" in text:
        for entity, sign in _ENTITIES:
            text = text.replace(entity, sign)
        if "&" in text:
            text = _ENTITY.sub(_character, text)
    text = unguard(text)
    text = text.replace("\xa0", " ").replace("\t", " ")
    if "(" in text:
        text = _OPENED.sub("(", text)
        if " )" in text or ",)" in text or ";)" in text or ":)" in text:
            text = _CLOSED.sub(")", text)
        text = _EMPTY_BRACKETS.sub("", text)
    if "  " in text:
        text = _SPACES.sub(" ", text)
    has_gap = " ," in text or " ." in text or " ;" in text
    if has_gap or ",," in text or ",;" in text or ";," in text:
        text = _GAP.sub(itemgetter(1), text)
    return _BEFORE_SIGN.sub(itemgetter(1), text) if has_gap else text


def _character(found: re.Match[str]) -> str:
    """What a reference stands for. Without a semicolon it is none, so `html.unescape` must not look for its like."""
    name = found[1]
    return html.unescape(found[0]) if name[0] == "#" else html5.get(f"{name};", found[0])


def _without_bold(text: str) -> str:
    """Takes out ''' but for the apostrophe in lines such as `''L'''amour''`, where both kinds of marks are odd."""
    if not _APOSTROPHE.search(text):
        return text.replace("'''", "")
    lines = text.split("\n")
    for number, line in enumerate(lines):
        if line.count("'''") % 2 and line.replace("'''", "").count("''") % 2:
            line = _APOSTROPHE.sub("'", line, count=1)
        lines[number] = line.replace("'''", "")
    return "\n".join(lines)


def table_rows(content: str) -> list[list[str]]:
    """Rows of cells of what stands between `{|` and `|}`, nested tables already gone. Attributes are left out."""
    rows: list[list[str]] = [[]]
    for line in content.split("\n")[1:]:
        line = line.strip()
        if line.startswith("|-"):
            rows.append([])
        elif line.startswith("|+"):
            rows[-1].append(_content(line[2:]))
            rows.append([])
        elif line[:1] in ("|", "!"):
            body = line[1:].replace("!!", "||") if line[0] == "!" else line[1:]
            rows[-1] += [_content(cell) for cell in body.split("||")]
        elif line and rows[-1]:
            rows[-1][-1] = f"{rows[-1][-1]} {line}".strip()
    return [cells for row in rows if any(cells := [cell for cell in row if cell])]


def _content(cell: str) -> str:
    attributes, bar, text = cell.partition("|")
    if bar and "=" in attributes:
        return text.strip()
    # Attributes without a bar behind them: the template that held it and the text gave nothing.
    cell, position = cell.strip(), 0
    while found := _ATTRIBUTES.match(cell, position):
        position = found.end()
    return cell[position:].replace("|", " ").strip()


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
        is_running = first not in _SIGNS
        if not is_running:
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
        line = line.strip()
        if not any(map(str.isalnum, line)):  # also what is left of a line whose words were all templates
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
            is_sentence = len(body) >= _MIN_PREFORMATTED and body.endswith(_ENDS_OF_SENTENCES)
            return body if options.lists or is_sentence else ""
        return "- " + body if options.lists and body else ""
    if first == PREFORMATTED:
        line = line[1:].strip()
        return line if len(line) >= _MIN_PREFORMATTED else ""
    return "" if first in "{|}" or (first == "!" and "|" in line) else line


_COMMAND = re.compile(r"\\([a-zA-Z]+)")
_DEGREES = re.compile(r"\^(?:\\circ(?![a-zA-Z])|\{\\circ\})")
TEX_SIGNS = (
    {
        # What HTML calls by the same name.
        name: html5[f"{name};"]
        for name in words(
            "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi rho varsigma "
            "sigma tau upsilon phi chi psi omega digamma vartheta varkappa varpi varrho Alpha Beta Gamma Delta "
            "Epsilon Zeta Eta Theta Iota Kappa Lambda Mu Nu Xi Omicron Pi Rho Sigma Tau Upsilon Phi Chi Psi Omega "
            "times div pm mp bullet oplus otimes dagger leq le geq ge ne lt gt ll gg approx equiv sim simeq cong "
            "propto rightarrow leftarrow leftrightarrow mapsto Rightarrow Leftarrow Leftrightarrow in notin "
            "subset subseteq supset supseteq cup cap emptyset setminus forall wedge vee sum prod int oint nabla "
            "hbar ell Re Im aleph prime perp parallel mid angle langle rangle"
        )
    }
    | {
        f"var{name}": html5[f"{name};"]
        for name in words("Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega")
    }
    | {
        "varphi": "φ", "varepsilon": "ε", "Digamma": "Ϝ", "cdot": "·", "circ": "∘", "ast": "∗", "neq": "≠",
        "infty": "∞", "to": "→", "gets": "←", "exists": "∃", "neg": "¬", "lnot": "¬", "land": "∧", "lor": "∨",
        "partial": "∂", "ldots": "…", "dots": "…", "dotsc": "…", "cdots": "⋯", "dotsb": "⋯", "quad": " ", "qquad": " ",
    }
    | dict.fromkeys(words("left right displaystyle textstyle"), "")
    | {
        name: name
        for name in words("sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh ln log exp lim max min")
    }
)  # fmt: skip
"""Names of TeX to what they show: letters, signs, spaces and names of functions."""


def _formula(tex: str) -> str:
    """TeX on one line, with letters and signs for the commands that are no more than that."""
    text = _COMMAND.sub(lambda found: TEX_SIGNS.get(found[1], found[0]), _DEGREES.sub("°", tex))
    return " ".join(text.replace("~", " ").replace("\\,", " ").replace("\\;", " ").replace("\\!", "").split())
