"""Conversion of wikitext to plain text: paragraphs as a reader sees them, one per line.

Every step takes time linear in the size of the page: no regular expression backtracks over more than a line, a stack
resolves nesting, and a missing closing tag is searched for once.
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
"""Number of characters from which an indented line is treated as a paragraph instead of a listing."""


class Cleaner:
    """Converts pages of one Wikipedia edition to plain text."""

    def __init__(self, site: Site, options: Extraction) -> None:
        self._options = options
        self._hidden = site.hidden_prefixes | INTERLANGUAGE
        self._templates = Templates(site)
        self._nesting = Nesting(self._templates.expand, self._link, self._table)

    def clean(self, wikitext: str, title: str) -> str:
        """Return the text of a page, its lines separated by line feeds; "" if the page has no text."""
        self._templates.title = title
        text = "\n" + wikitext
        if "<" in text:
            text = strip_elements(text, _formula)
        text = self._nesting.flatten(text)
        # Mark indented lines now: later steps remove markup, after which other lines may begin with a space, too.
        text = _plain(text.replace("\n ", f"\n{PREFORMATTED}"))
        return "\n".join(text_lines(text, self._options))

    def _link(self, content: str) -> str:
        """Return the visible text of `[[...]]`: the label or the target; "" for images, categories and languages."""
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
    """Shorten `Mercury (planet)` to `Mercury`."""
    start = title.rfind("(")
    return title[:start].rstrip(" ") if start >= 0 and title.find(")", start) == len(title) - 1 else title


def _plain(text: str) -> str:
    """Convert quotes, URLs, switches and character references to text, and close gaps that templates left."""
    if "''" in text:
        if "''''" in text:
            text = _QUOTES.sub(lambda match: "'" * max(0, len(match[0]) - 5) + "'" * (len(match[0]) == 4), text)
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


def _character(match: re.Match[str]) -> str:
    """Decode a character reference. `html.unescape` would also decode names that only begin like an entity."""
    name = match[1]
    return html.unescape(match[0]) if name[0] == "#" else html5.get(f"{name};", match[0])


def _without_bold(text: str) -> str:
    """Remove ''', except the apostrophe in lines such as `''L'''amour''`, where both marks have an odd count."""
    if not _APOSTROPHE.search(text):
        return text.replace("'''", "")
    lines = text.split("\n")
    for number, line in enumerate(lines):
        if line.count("'''") % 2 and line.replace("'''", "").count("''") % 2:
            line = _APOSTROPHE.sub("'", line, count=1)
        lines[number] = line.replace("'''", "")
    return "\n".join(lines)


def table_rows(content: str) -> list[list[str]]:
    """Parse the text between `{|` and `|}` into rows of cells without attributes. It contains no nested tables."""
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
    # Attributes without a bar after them: a template that was replaced by "" held the bar and the text.
    cell, position = cell.strip(), 0
    while match := _ATTRIBUTES.match(cell, position):
        position = match.end()
    return cell[position:].replace("|", " ").strip()


def text_lines(text: str, options: Extraction) -> list[str]:
    """Return paragraphs and definitions, one per line, and section titles and list items if `options` include them.

    A title is only included if text follows in its section."""
    out: list[str] = []
    pending: dict[int, str] = {}
    is_continued = False  # True while the next line of running text belongs to the same paragraph
    term = ""  # the term that the previous line defines, if its definition may follow
    for line in text.split("\n"):
        previous_term, term = term, ""
        if not line:
            is_continued = False
            continue
        first = line[0]
        is_running = first not in _SIGNS
        if not is_running:
            if first == "=" and (match := _HEADING.fullmatch(line)):
                level = len(match[1])
                pending = {known: title for known, title in pending.items() if known < level}
                pending[level] = match[2].strip()
                is_continued = False
                continue
            if first == ";":
                line, term = _definition(line)
                line = line or (term if options.lists else "")
            elif first == ":" and previous_term and not options.lists:
                line = f"{previous_term}: {line.lstrip(':').strip()}"
            else:
                line = _marked(line, first, options)
        line = line.strip()
        if not any(map(str.isalnum, line)):  # also the remainder of a line whose words were all templates
            is_continued = False
            continue
        if is_continued and is_running:
            out[-1] += " " + line
            continue
        is_continued = is_running
        if pending:
            if options.sections:
                out += filter(None, pending.values())  # a title may have been a template alone
            pending = {}
        out.append(line)
    return out


def _definition(line: str) -> tuple[str, str]:
    """Return (term with definition, "") or ("", term without definition)."""
    body = line.lstrip("*#:;").strip()
    match = _TERM.fullmatch(body)
    return (f"{match[1]}: {match[2]}", "") if match and match[2] else ("", body)


def _marked(line: str, first: str, options: Extraction) -> str:
    """Return the text of a line that begins with wikitext markup, or "" if the line has no running text."""
    if first == BAR:
        return line[1:]
    if first in "*#:;":
        body = line.lstrip("*#:;").strip()
        marks = line[: len(line) - len(line.lstrip("*#:;"))]
        if marks[-1] == ":" and "*" not in marks and "#" not in marks:
            # An indented paragraph; short indented lines are formulas or links to other pages.
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
        # Names that HTML and TeX share.
        name: html5[f"{name};"]
        for name in (
            "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi rho varsigma "
            "sigma tau upsilon phi chi psi omega digamma vartheta varkappa varpi varrho Alpha Beta Gamma Delta "
            "Epsilon Zeta Eta Theta Iota Kappa Lambda Mu Nu Xi Omicron Pi Rho Sigma Tau Upsilon Phi Chi Psi Omega "
            "times div pm mp bullet oplus otimes dagger leq le geq ge ne lt gt ll gg approx equiv sim simeq cong "
            "propto rightarrow leftarrow leftrightarrow mapsto Rightarrow Leftarrow Leftrightarrow in notin "
            "subset subseteq supset supseteq cup cap emptyset setminus forall wedge vee sum prod int oint nabla "
            "hbar ell Re Im aleph prime perp parallel mid angle langle rangle"
        ).split()
    }
    | {
        f"var{name}": html5[f"{name};"]
        for name in "Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega".split()
    }
    | {
        "varphi": "φ", "varepsilon": "ε", "Digamma": "Ϝ", "cdot": "·", "circ": "∘", "ast": "∗", "neq": "≠",
        "infty": "∞", "to": "→", "gets": "←", "exists": "∃", "neg": "¬", "lnot": "¬", "land": "∧", "lor": "∨",
        "partial": "∂", "ldots": "…", "dots": "…", "dotsc": "…", "cdots": "⋯", "dotsb": "⋯", "quad": " ", "qquad": " ",
    }
    | dict.fromkeys("left right displaystyle textstyle".split(), "")
    | {
        name: name
        for name in "sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh ln log exp lim max min".split()
    }
)  # fmt: skip
"""TeX command to the text that it displays: letters, signs, spaces and function names."""


def _formula(tex: str) -> str:
    """Write TeX on one line, with Unicode characters for the commands in `TEX_SIGNS`."""
    text = _COMMAND.sub(lambda match: TEX_SIGNS.get(match[1], match[0]), _DEGREES.sub("°", tex))
    return " ".join(text.replace("~", " ").replace("\\,", " ").replace("\\;", " ").replace("\\!", "").split())
