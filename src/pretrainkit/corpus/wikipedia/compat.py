"""Reimplementation of WikiExtractor 2.75, including the text that it loses, to reproduce published corpora.

It follows WikiExtractor step by step and was compared with it on test cases and on real pages. One difference:
words that depend on the clock (`{{CURRENTYEAR}}`) and modules (`{{#invoke:...}}`) expand to "". Like WikiExtractor, it
parses links and quotes before it unescapes the XML, so `<nowiki>` has no effect, and unclosed markup hides the rest of
the page.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from html.entities import name2codepoint
from itertools import zip_longest
from urllib.parse import quote

from pretrainkit.corpus.wikipedia.arithmetic import python_value
from pretrainkit.corpus.wikipedia.options import Extraction

_MAX_DEPTH = 50
"""Maximum nesting depth of templates. WikiExtractor's limit is Python's stack."""
_KEPT_PREFIXES = frozenset({"w", "wiktionary", "wikt"})
_SWITCHES = re.compile(
    r"__(?:NOTOC|FORCETOC|TOC|NEWSECTIONLINK|NONEWSECTIONLINK|NOGALLERY|HIDDENCAT|NOCONTENTCONVERT|NOCC|NOTITLECONVERT|"
    r"NOTC|START|END|INDEX|NOINDEX|STATICREDIRECT|DISAMBIG)__"
)
_EXTERNAL = re.compile(
    r"\[(?:(?:ftps?|git|gopher|https?|ircs?|mms|nntp|redis|sftp|ssh|svn|telnet|worldwind)://|"
    r"(?:bitcoin|geo|magnet|mailto|news|sips?|sms|tel|urn|xmpp):|//)[^][<>\"\x00-\x20\x7f\s]++\s*+"
    r"((?:[^][\x00-\x08\x0a-\x1f]|\[\[[^][\x00-\x08\x0a-\x1f]++\]\])*+)\]",
    re.IGNORECASE,
)
_IMAGE = re.compile(
    r"https?://[^][<>\"\x00-\x20\x7f\s]+/[A-Za-z0-9_.,~%\-+&;#*?!=()@\x80-\xff]+\.(?:gif|png|jpe?g)$", re.IGNORECASE
)
_ENTITY = re.compile(r"&#?(\w+);")
_CODE = re.compile(r"&lt;syntaxhighlight (?:(?!&gt;).)*&gt;(.*?)&lt;/syntaxhighlight&gt;", re.DOTALL)
_TAGS_ONLY = (
    "abbr b big blockquote center cite em font h1 h2 h3 h4 hiero i kbd p plaintext s span strike strong tt u var a"
).split()
_MARKUP = re.compile(
    r"<!--|<\s*+(?:br|hr|nobr|ref|references|nowiki)\b[^>]{0,1000}/\s*>|"
    rf"<(?:{'|'.join(_TAGS_ONLY)})\b[^>]*+>|</\s*+(?:{'|'.join(_TAGS_ONLY)})>",
    re.IGNORECASE,
)
_DISCARDED = {
    name: (
        re.compile(rf"<\s*+{name}\b[^>/]{{0,1000}}+>", re.IGNORECASE),
        re.compile(rf"<\s*+/\s*+{name}>", re.IGNORECASE),
    )
    for name in (
        "gallery timeline noinclude pre table tr td th caption div form input select option textarea ul li ol dl dt dd "
        "menu dir ref references img imagemap source small sub sup indicator"
    ).split()
}
_OPENED = re.compile(r"<\s*(\w+)")
_PLACEHOLDERS = {
    name: (
        re.compile(rf"<\s*+{name}(?:\s*| [^>]+)>.*?<\s*/\s*{name}\s*>", re.IGNORECASE | re.DOTALL),
        re.compile(rf"<\s*+/\s*+{name}\s*+>", re.IGNORECASE),
        placeholder,
    )
    for name, placeholder in (("math", "formula"), ("code", "codice"))
}
_BRACES = (re.compile(r"\{\{"), re.compile(r"\}\}"))
_TABLES = (re.compile(r"\{\|"), re.compile(r"\|\}"))
_RUNS_OF_BRACES = re.compile(r"\{{2,}|\}{2,}")
_RUNS_OF_BRACKETS = re.compile(r"\{{2,}|\}{2,}|\[{2,}|\]{2,}")
_ERROR = '<span class="error">'
_NOT_WORDS = re.compile(r"\n\W+?\n")
_STYLES = re.compile(r"!\s?style=\"[a-z]+:\d+%;(?:[a-z]+:#?(?:[0-9a-z]+)?)?\"")
Span = tuple[int, int]


def wikiextractor_text(
    wikitext: str, title: str, kept: Extraction | None = None, *, quotes_are_escaped: bool = False
) -> str:
    """Return the text of a page without its title, lines separated by line feeds; "" for a page without text.

    Args:
        wikitext: Wikitext, unescaped from XML.
        kept: WikiExtractor's options that include section titles, lists and tables; None excludes all of them.
        quotes_are_escaped: True if the dump has `&quot;` for `"`, as MediaWiki writes. WikiExtractor parses the
            text before it unescapes these.
    """
    kept = kept or Extraction()
    text, title = (text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;") for text in (wikitext, title))
    if quotes_are_escaped:
        text, title = text.replace('"', "&quot;"), title.replace('"', "&quot;")
    text = _Expander(title).expand(text)
    if not kept.tables:
        text = _without_nested(_without_nested(text, *_BRACES), *_TABLES)
    text = _quotes(text)
    text = _replaced(text, _pairs(text), _label)
    text = _EXTERNAL.sub(lambda match: "" if _IMAGE.match(match[1]) else match[1], text)
    text = _clean(_unescape_but_code(_SWITCHES.sub("", text)))
    if kept.tables:
        text = _STYLES.sub("", text).replace("|-", "").replace("|", "")
    return "\n".join(_compact(text.split("\n"), kept))


def _balanced(text: str, is_template: bool) -> Iterator[Span]:
    """Yield the spans of outermost brackets, up to the first bracket that is never closed.

    If `is_template`, only braces count; otherwise also double square brackets."""
    runs = _RUNS_OF_BRACES if is_template else _RUNS_OF_BRACKETS
    start = 0
    stack: list[int] = []  # widths of the open brackets; negative for square brackets
    for match in runs.finditer(text):
        sign, left = text[match.start()], match.end() - match.start()
        if sign in "{[":
            start = start if stack else match.start()
            stack.append(left if sign == "{" else -left)
            continue
        is_square = sign == "]"
        if not stack or (is_square and stack[-1] >= 0):
            continue
        while stack and (not is_square or stack[-1] < 0):
            width = -stack.pop() if is_square else stack.pop()
            if left < width:
                stack.append(left - width if is_square else width - left)
                break
            left -= width
            if left <= 1:
                break
        if not stack:
            yield start, match.end() - left
        elif not is_square and is_template and stack in ([0], [1]):
            stack = []  # one excess brace: neither a template nor a parameter


def _arguments(text: str) -> list[str]:
    """Split at pipes, except at those within brackets."""
    parts, position = [""], 0
    for start, end in [*_balanced(text, is_template=False), (len(text), len(text))]:
        first, *others = text[position:start].split("|")
        parts[-1] += first
        parts += others
        parts[-1] += text[start:end]
        position = end
    return parts


class _Expander:
    """Expands parser functions and magic words of one page; templates expand to ""."""

    def __init__(self, title: str) -> None:
        before, colon, after = title.partition(":")
        page = after if colon else title
        base, slash, sub = page.rpartition("/")
        self._words = {
            "!": "|",
            "PAGENAME": page,
            "FULLPAGENAME": title,
            "BASEPAGENAME": base if slash else page,
            "SUBPAGENAME": sub if slash else "",
            "ROOTPAGENAME": page.partition("/")[0],
            "NAMESPACE": before if colon else "",
            "NAMESPACENUMBER": "0",
        }
        self._depth = 0

    def expand(self, text: str) -> str:
        if "{{" not in text:
            return text
        if self._depth >= _MAX_DEPTH:
            return ""
        self._depth += 1
        text = _replaced(text, _balanced(text, is_template=True), self._template)
        self._depth -= 1
        return text

    def _template(self, body: str) -> str:
        head, *parts = _arguments(body)
        head = re.sub(r"^(?:subst:|safesubst:)", "", self.expand(head.strip()), flags=re.IGNORECASE)
        if head in self._words:
            return self._words[head]
        name, colon, first = head.partition(":")
        function = FUNCTIONS.get(name.lower()) if colon else None
        if function is None:
            return ""
        try:
            return function(self.expand, first.strip(), *parts)
        except (TypeError, ValueError):  # wrong number of arguments, or not a number
            return ""


Expand = Callable[[str], str]


def _if_equal(expand: Expand, left: str, right: str, then: str, otherwise: str = "", *_: str) -> str:
    """Compare `left` with `right` without expanding `right`. An empty `right` expands to ""."""
    right = right.strip()
    return expand((then if left == right else otherwise).strip()) if right else ""


def _if_error(expand: Expand, test: str, then: str = "", otherwise: str | None = None, *_: str) -> str:
    if test.startswith(_ERROR):
        return expand(then.strip())
    return test if otherwise is None else expand(otherwise.strip())


def _switch(expand: Expand, value: str, *cases: str) -> str:
    """Return the result of the first equal case (cases without `=` fall through) or of `#default`.

    Unlike in MediaWiki, a last case without `=` is not a default."""
    default, falls_through = "", False
    for case in cases:
        name, equals, result = case.partition("=")
        name = expand(name.strip())
        if not equals:
            falls_through = falls_through or name == value
            continue
        result = expand(result.strip())
        if falls_through or value in (part.strip() for part in name.split("|")):
            return result
        if name == "#default":
            default = result
    return default


def _expression(expand: Expand, text: str) -> str:
    text = re.sub("(?<![!<>])=", "==", expand(text)).replace("mod", "%")
    value = python_value(text)
    return f"{_ERROR}{text}</span>" if value is None else value


FUNCTIONS: dict[str, Callable[..., str]] = {
    "#if": lambda expand, test, then, otherwise="", *_: expand((then if test else otherwise).strip()),
    "#ifeq": _if_equal,
    "#iferror": _if_error,
    "#ifexist": lambda expand, title, then, otherwise: expand(otherwise),
    "#switch": _switch,
    "#expr": _expression,
    "lc": lambda expand, text, *_: text.lower(),
    "uc": lambda expand, text, *_: text.upper(),
    "lcfirst": lambda expand, text, *_: text[:1].lower() + text[1:],
    "ucfirst": lambda expand, text, *_: text[:1].upper() + text[1:],
    "urlencode": lambda expand, text, *_: quote(text),
    "int": lambda expand, text, *_: str(int(text)),
}
"""Lowercase name to parser function; all others expand to ""."""


def _without_nested(text: str, opening: re.Pattern[str], closing: re.Pattern[str]) -> str:
    """Remove the text between brackets or tags; if closings are missing, from the first opening to the last closing.

    An opening is nested if it comes before the most recent closing, or directly after it."""
    opened = opening.search(text)
    closed = closing.search(text, opened.end()) if opened else None
    if opened is None or closed is None:
        return text
    spans: list[Span] = []
    start, depth = opened, 0
    while closed is not None:
        following = opening.search(text, opened.end())
        if following is None:
            while depth and (more := closing.search(text, closed.end())):
                closed, depth = more, depth - 1
            spans.append((start.start(), closed.end()))
            break
        opened = following
        while closed is not None and closed.end() < opened.start():
            end = closed.end()
            if not depth:
                spans.append((start.start(), end))
                start, closed = opened, closing.search(text, opened.end())
                break
            depth -= 1
            closed = closing.search(text, end)
            if closed is None:
                spans = [(spans[0][0] if spans else start.start(), end)]
        depth += opened is not start
    return _replaced(text, spans, lambda inside: "")


def _replaced(text: str, spans: Iterable[Span], read: Callable[[str], str]) -> str:
    """Replace each span by `read(inside)`, where `inside` is the span without its double brackets."""
    parts: list[str] = []
    position = 0
    for start, end in spans:
        parts += (text[position:start], read(text[start + 2 : end - 2]))
        position = end
    return "".join([*parts, text[position:]])


def _quotes(text: str) -> str:
    if "''" not in text and '""' not in text:
        return text
    text = re.sub(r"'''''(.*?)'''''", r"\1", text)
    text = re.sub(r"'''(.*?)'''", r"\1", text)
    text = re.sub(r"''\"([^\"]*)\"''", r'"\1"', text)
    text = re.sub(r"''(.*?)''", r'"\1"', text)
    text = re.sub(r'""([^"]*)""', r'"\1"', text)
    return text.replace("'''", "").replace("''", '"')


def _pairs(text: str) -> Iterator[Span]:
    """Yield the spans of outermost double square brackets, up to the first that is never closed."""
    depth, begin = 0, 0
    for match in re.finditer(r"\[\[|\]\]", text):
        if match[0] == "[[":
            begin = begin if depth else match.start()
            depth += 1
        elif depth:
            depth -= 1
            if not depth:
                yield begin, match.end()


def _label(link: str) -> str:
    """Return the label of an outermost link, including brackets of nested links; "" if the target has a colon."""
    bar = link.find("|")
    target = label = link
    if bar >= 0:
        target = link[:bar].rstrip()
        position = bar + 1
        for start, end in _pairs(link):
            bar = max(bar, link.rfind("|", position, start))
            position = end
        label = link[bar + 1 :].strip()
    prefix, colon, _ = target.removeprefix(":").partition(":")
    return label if not colon or not prefix or prefix in _KEPT_PREFIXES else ""


def _unescape(text: str) -> str:
    """Decode HTML 4 entities that end in a semicolon."""
    return _ENTITY.sub(_character, text) if "&" in text else text


def _character(match: re.Match[str]) -> str:
    code = match[1]
    try:
        if match[0][1] != "#":
            return chr(name2codepoint[code])
        return chr(int(code[1:], 16) if code[0] == "x" else int(code))
    except (KeyError, ValueError, OverflowError):
        return match[0]


def _unescape_but_code(text: str) -> str:
    parts: list[str] = []
    position = 0
    # Search only up to the last closing tag; a search without a possible end would take quadratic time.
    last = text.rfind("&lt;/syntaxhighlight&gt;")
    for match in _CODE.finditer(text, 0, last + 24 if last >= 0 else 0):
        parts += (_unescape(text[position : match.start()]), match[1])
        position = match.end()
    return "".join([*parts, _unescape(text[position:])])


def _clean(text: str) -> str:
    """Remove HTML, replace formulas and collapse spaces."""
    if "<" in text:
        text = _replaced(text, _marked_up(text), lambda inside: "")
        names = {name.lower() for name in _OPENED.findall(text)}
        for name, patterns in _DISCARDED.items():
            if name in names:
                text = _without_nested(text, *patterns)
    text = _unescape(text)
    if "<" in text:
        for name in _PLACEHOLDERS:
            text = _numbered(text, *_PLACEHOLDERS[name])
    text = text.replace("<<", "«").replace(">>", "»").replace("\t", " ")
    text = re.sub("  +", " ", text)
    text = re.sub(r"\.{4,}", "...", text)
    text = _NOT_WORDS.sub("\n", text)
    return text.replace(",,", ",").replace(",.", ".")


def _marked_up(text: str) -> Iterator[Span]:
    """Yield the spans of comments, of self-closing tags, and of tags that are removed without their content."""
    position, has_end = 0, True
    # Nothing can match after the last >; a search there would take quadratic time.
    for match in _MARKUP.finditer(text, 0, text.rfind(">") + 1):
        start, end = match.span()
        if start < position:
            continue
        if match[0] == "<!--":
            end = text.find("-->", end) + 3 if has_end else 2
            has_end = end > 2
            if not has_end:
                continue
        position = end
        yield start, end


def _numbered(text: str, element: re.Pattern[str], closing: re.Pattern[str], placeholder: str) -> str:
    """Replace elements by `placeholder_N`, N being the 1-based index of the first equal element."""
    last = max((match.end() for match in closing.finditer(text)), default=0)
    numbers: dict[str, int] = {}
    for number, match in enumerate(element.finditer(text, 0, last), 1):
        numbers.setdefault(match[0], number)
    return element.sub(lambda match: f"{placeholder}_{numbers[match[0]]}", text) if numbers else text


def _heading(line: str) -> tuple[int, str] | None:
    """Return level and title of a heading line: it begins with `==` and contains further equals signs."""
    if not line.startswith("=="):
        return None
    rest = line.lstrip("=")
    num = len(line) - len(rest)
    level = max(min(num, max(map(len, re.findall("=+", rest)), default=0)), num // 2)
    if level < 2:
        return None
    start = level + len(line[level:]) - len(line[level:].lstrip())
    return level, line[start : line.index("=" * level, start)].strip()


class _ListState:
    """Signs and counts of the levels of a list, parsed as WikiExtractor does."""

    def __init__(self) -> None:
        self.signs: list[str] = []
        self.counts: list[int] = []

    def read(self, line: str) -> tuple[str, str]:
        """Return (marks before the item, item); the item may be empty."""
        depth = 0
        for known, sign in zip_longest(list(self.signs), line, fillvalue=""):
            if not sign or sign not in "*#;:":
                if not known:
                    break
                self.signs, self.counts = self.signs[:-1], self.counts[:-1]
                continue
            if known != sign and (not known or (known not in ";:" and sign not in ";:")):
                if known:
                    self.signs, self.counts = self.signs[:-1], self.counts[:-1]
                self.signs.append(sign)
                self.counts.append(0)
            depth += 1
        item = line[depth:].strip()
        if not item:
            return "", ""
        if depth <= len(self.counts):
            self.counts[depth - 1] += 1
        is_numbered = line[depth - 1] == "#"
        marks = f"BULLET::::{self.counts[depth - 1]}. " if is_numbered else "BULLET::::- "
        return marks.ljust(len(self.signs)), item


def _compact(lines: list[str], kept: Extraction) -> Iterator[str]:
    """Yield running text, without headings, lists, indented lines and remains of tables. Those in `kept` get a mark."""
    titles: dict[int, str] = {}
    state = _ListState()
    is_empty_section = False
    last = ""

    def open_titles() -> Iterator[str]:
        if kept.sections:
            yield from (f"Section::::{title}" for _, title in sorted(titles.items()))
        titles.clear()

    for line in lines:
        output: list[str] = []
        if not line:
            if state.signs:
                state, is_empty_section = _ListState(), False
                output = [""]
            elif last:
                output = [""]
        elif heading := _heading(line):
            level, title = heading
            titles = {known: other for known, other in titles.items() if known < level}
            titles[level] = title if not title or title[-1] in "!?" else f"{title}."
            state, is_empty_section = _ListState(), True
        elif line.startswith("++"):
            if title := line[2:-2]:
                output = [title if title[-1] in "!?" else f"{title}."]
        elif line[0] == ":":
            pass
        elif line[0] in "*#;":
            marks, item = state.read(line)
            if item and kept.lists:
                output = [*open_titles(), marks + item]
        elif state.signs:
            state = _ListState()
            output = [line]
        elif line[0] in "{|" or line[-1] == "}" or (line[0] == "(" and line[-1] == ")") or not line.strip(".-"):
            pass
        elif titles:
            output = [*open_titles(), line]
            is_empty_section = False
        elif not is_empty_section and line[0] != " ":
            output = [line]
        yield from output
        last = output[-1] if output else last
