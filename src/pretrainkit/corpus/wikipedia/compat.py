"""The text that WikiExtractor 2.75 gives without options, with what it loses, for corpora that must be like others'.

Written from a description of what it does, step by step in its order, not from its code. What differs: words that
depend on the clock give nothing, and modules (`#invoke`) do too. As there, the text stays escaped for XML until links
and quotes are read, so `<nowiki>` is not known.
"""

import html
import re
from collections.abc import Callable, Iterator
from urllib.parse import quote

from pretrainkit.corpus.wikipedia.arithmetic import evaluate
from pretrainkit.corpus.wikipedia.word_lists import words

_MAX_DEPTH = 30
_KEPT_PREFIXES = frozenset({"w", "wiktionary", "wikt"})
_SWITCHES = re.compile(
    r"__(?:NOTOC|FORCETOC|TOC|NEWSECTIONLINK|NONEWSECTIONLINK|NOGALLERY|HIDDENCAT|NOCONTENTCONVERT|NOCC|NOTITLECONVERT|"
    r"NOTC|START|END|INDEX|NOINDEX|STATICREDIRECT|DISAMBIG|NOEDITSECTION)__"
)
_EXTERNAL = re.compile(
    r"\[((?:(?:https?|ftps?|ircs?|gopher|telnet|nntp|worldwind|mailto|news|svn|git|mms|bitcoin|magnet|urn|geo|sip|sips|sms|"
    r"tel|ssh|sftp|xmpp):|//)[^\s\[\]&<>\"]++(?:&amp;[^\s\[\]&<>\"]*+)*+)\s*+([^\[\]\n]*+)\]",
    re.IGNORECASE,
)
_IMAGE = re.compile(r"https?://\S+\.(?:gif|png|jpe?g)", re.IGNORECASE)
_ALONE = re.compile(r"<(?:br|hr|nobr|ref|references|nowiki)\b[^<>]*/\s*>", re.IGNORECASE)
_TAGS_ONLY = words(
    "abbr b big blockquote center cite em font h1 h2 h3 h4 hiero i kbd p plaintext s span strike strong tt u var a"
)
_IGNORED = re.compile(rf"</?(?:{'|'.join(_TAGS_ONLY)})\b[^<>]*>", re.IGNORECASE)
_DISCARDED = words(
    "gallery timeline noinclude pre table tr td th caption div form input select option textarea ul li ol dl dt dd "
    "menu dir ref references img imagemap source small sub sup indicator"
)
_IN_PARENTHESES = re.compile(r"\([^()]*\)|[.-]+")
_NOT_WORDS = re.compile(r"\n\W+?\n")


def wikiextractor_text(wikitext: str, title: str) -> str:
    """Lines of a page joined by line feeds, without its title; "" for a page without a body."""
    text = wikitext.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")
    text = _nested(text, "{{", "}}", lambda content: _expand(content, title))
    text = _nested(text, "{|", "|}", lambda content: "")
    text = _quotes(text)
    text = _nested(text, "[[", "]]", lambda content: "\0" + content + "\1")
    text = _links(text)
    text = _EXTERNAL.sub(lambda found: "" if _IMAGE.match(found[2]) else found[2], text)
    text = _clean(html.unescape(_SWITCHES.sub("", text)))
    return "\n".join(_compact(text.split("\n")))


def _nested(text: str, opening: str, closing: str, reader: Callable[[str], str]) -> str:
    """Replaces balanced brackets, innermost first; one that is not closed stays as text."""
    pieces = re.split(f"({re.escape(opening)}|{re.escape(closing)})", text)
    stack: list[list[str]] = [[pieces[0]]]
    for index in range(1, len(pieces), 2):
        if pieces[index] == opening:
            stack.append([])
        elif len(stack) > 1:
            content = "".join(stack.pop())
            stack[-1].append(reader(content) if len(stack) <= _MAX_DEPTH else "")
        else:
            stack[-1].append(closing)
        stack[-1].append(pieces[index + 1])
    return "".join(stack[0]) + "".join(opening + "".join(parts) for parts in stack[1:])


def _expand(content: str, title: str) -> str:
    """Parser functions and magic words; templates are not known and give nothing."""
    head, *parts = (part.strip() for part in content.split("|"))
    name, colon, first = head.partition(":")
    arguments = [first.strip(), *parts]

    def given(place: int) -> str:
        return arguments[place] if place < len(arguments) else ""

    if not colon:
        return _magic_word(head, title)
    match name.strip().lower():
        case "#if":
            return given(1 if given(0) else 2)
        case "#ifeq":
            return given(2 if given(0) == given(1) else 3)
        case "#ifexist":
            return given(2)
        case "#iferror":
            is_error = "error" in given(0) and "<" in html.unescape(given(0))
            return given(1) if is_error else given(2) if len(arguments) > 2 else given(0)
        case "#switch":
            return _switch(given(0), parts)
        case "#expr":
            return evaluate(html.unescape(given(0)))
        case "lc":
            return given(0).lower()
        case "uc":
            return given(0).upper()
        case "lcfirst":
            return given(0)[:1].lower() + given(0)[1:]
        case "ucfirst":
            return given(0)[:1].upper() + given(0)[1:]
        case "urlencode":
            return quote(given(0))
        case "int":
            return given(0)
    return ""


def _magic_word(name: str, title: str) -> str:
    before, colon, after = title.partition(":")
    page = after if colon else title
    known = {
        "!": "|",
        "PAGENAME": page,
        "FULLPAGENAME": title,
        "BASEPAGENAME": page.rpartition("/")[0] or page,
        "SUBPAGENAME": page.rpartition("/")[2],
        "ROOTPAGENAME": page.partition("/")[0],
        "NAMESPACE": before if colon else "",
        "NAMESPACENUMBER": "0",
    }
    return known.get(name, "")


def _switch(value: str, cases: list[str]) -> str:
    """The first case that is equal or falls through to the next, `#default`, or a last case without `=`."""
    default, falls_through = "", False
    for number, case in enumerate(cases):
        name, equals, result = (part.strip() for part in case.partition("="))
        falls_through = falls_through or name == value
        if not equals:
            if number == len(cases) - 1 and not falls_through:
                return name
            continue
        if falls_through:
            return result
        if name == "#default":
            default = result
    return default


def _quotes(text: str) -> str:
    text = re.sub(r"'''''(.*?)'''''", r"\1", text)
    text = re.sub(r"'''(.*?)'''", r"\1", text)
    text = re.sub(r"''\"([^\"\n]*?)\"''", r'"\1"', text)
    text = re.sub(r"''(.*?)''", r'"\1"', text)
    text = re.sub(r'""([^"\n]*?)""', r'"\1"', text)
    return text.replace("'''", "").replace("''", '"')


_LINK = re.compile("\0([^\0\1]*)\1")


def _links(text: str) -> str:
    """Labels of links, innermost first; links whose target holds a colon go with their labels."""
    depth = 0
    while "\0" in text and depth < _MAX_DEPTH:
        text = _LINK.sub(_label, text)
        depth += 1
    return text.replace("\0", "[[").replace("\1", "]]")


def _label(found: re.Match[str]) -> str:
    target, *labels = found[1].split("|")
    colon = target.find(":")
    if (colon > 0 and target[:colon].strip() not in _KEPT_PREFIXES) or target.startswith(":Category:"):
        return ""
    return labels[-1].strip() if labels else target.strip()


def _clean(text: str) -> str:
    """HTML, formulas and spaces."""
    text = _without(text, re.compile("<!--|-->"), "<!--")
    text = _IGNORED.sub("", _ALONE.sub("", text))
    for name in _DISCARDED:
        if f"<{name}" in text.lower():
            text = _without(text, re.compile(rf"<{name}\b[^<>]*(?<!/)>|</{name}\s*>", re.IGNORECASE), "<" + name)
    text = html.unescape(text)
    for name, placeholder in (("math", "formula"), ("code", "codice")):
        text = _numbered(text, name, placeholder)
    text = text.replace("<<", "«").replace(">>", "»").replace("\t", " ")
    text = re.sub("  +", " ", text)
    text = re.sub(r"\.{4,}", "...", text)
    text = _NOT_WORDS.sub("\n", text)
    return text.replace(",,", ",").replace(",.", ".")


def _without(text: str, tag: re.Pattern[str], opening: str) -> str:
    """Takes out elements with their content; what is never closed stays."""
    opened: list[int] = []
    spans: list[tuple[int, int]] = []
    for found in tag.finditer(text):
        if found[0].lower().startswith(opening):
            opened.append(found.start())
        elif opened:
            start = opened.pop()
            while spans and spans[-1][0] > start:
                spans.pop()
            spans.append((start, found.end()))
    parts, position = [], 0
    for start, end in spans:
        parts.append(text[position:start])
        position = end
    return "".join([*parts, text[position:]])


def _numbered(text: str, name: str, placeholder: str) -> str:
    pieces = re.split(rf"<{name}\b[^<>]*>", text, flags=re.IGNORECASE)
    out, number = [pieces[0]], 0
    for piece in pieces[1:]:
        _, closing, rest = piece.partition(f"</{name}>")
        number += bool(closing)
        out.append(f"{placeholder}_{number}{rest}" if closing else piece)
    return "".join(out)


def _compact(lines: list[str]) -> Iterator[str]:
    """Running text only: no titles, lists, indents, rests of tables."""
    is_first_of_section = False
    last = ""
    for line in lines:
        if not line:
            if last:
                yield line
                last = line
            continue
        if line.startswith("==") and "==" in line[2:]:
            is_first_of_section = True
            continue
        if line[0] in "*#;:{|" or line[-1] == "}" or _IN_PARENTHESES.fullmatch(line):
            continue
        if line[0] == " " and not is_first_of_section:
            continue
        is_first_of_section = False
        yield line
        last = line
