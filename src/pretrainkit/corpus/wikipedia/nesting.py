"""Replacement of nested templates, links and tables in wikitext, in one pass with a stack.

It takes time linear in the size of the page. Content that is nested deeper than `MAX_DEPTH` is dropped, and an opening
bracket without a closing one is treated as text.
"""

import re
from collections.abc import Callable
from operator import itemgetter

MAX_DEPTH = 40
"""Maximum nesting depth, as in MediaWiki."""

_SIMPLE_LINK = re.compile(r"\[\[(?:[^\[\]{}|:\n]*\|)?([^\[\]{}|:\n]+)\]\]")
"""A link without a colon in its target and without other markup: nine of ten links."""
_label_of = itemgetter(1)
_TOKEN = re.compile(r"(\{\{+|\}\}+|\[\[|\]\](?!\](?!\]))|\n[ \t:]*\{\||\n[ \t]*\|\}(?!\}))")
_LINK, _TEMPLATE, _TABLE = "[[", "{{", "{|"

Reader = Callable[[str], str]
Frame = tuple[str, list[str]]
"""Kind of an open bracket, and the text before it."""


class Nesting:
    """Replaces templates, links and tables by their text."""

    def __init__(self, template: Reader, link: Reader, table: Reader) -> None:
        """Each reader converts the content between brackets to text. Nested brackets are already replaced."""
        self._readers = {_TEMPLATE: template, _LINK: link, _TABLE: table}

    def flatten(self, text: str) -> str:
        r"""Return `text` without brackets of the three kinds. `text` must begin with \n."""
        text = _SIMPLE_LINK.sub(_label_of, text)
        pieces = _TOKEN.split(text)
        out = [pieces[0]]
        stack: list[Frame] = []
        num_open = {_LINK: 0, _TEMPLATE: 0, _TABLE: 0}
        for index in range(1, len(pieces), 2):
            token = pieces[index]
            if token == "[[":
                stack.append((_LINK, out))
                num_open[_LINK] += 1
                out = []
            elif token == "]]":
                if stack and stack[-1][0] == _LINK:
                    out = self._close(stack, out, num_open)
                else:
                    out.append("]]")
            elif token[0] == "{":
                for _ in range(len(token) // 2):
                    stack.append((_TEMPLATE, out))
                    num_open[_TEMPLATE] += 1
                    out = []
            elif token[0] == "}":
                for _ in range(len(token) // 2):
                    if num_open[_TEMPLATE]:
                        out = _abandon(stack, out, num_open, _TEMPLATE)
                        out = self._close(stack, out, num_open)
            elif token[-1] == "|":
                stack.append((_TABLE, out))
                num_open[_TABLE] += 1
                out = []
            elif num_open[_TABLE]:
                out = _abandon(stack, out, num_open, _TABLE)
                out = self._close(stack, out, num_open)
            plain = pieces[index + 1]
            if plain[:1] == " " and token[-1] in "}]" and out and out[-1][-1:] == "\n":
                plain = plain.lstrip(" ")  # the line began with a template, a picture or the end of a table
            if plain:
                out.append(plain)
        return "".join(_abandon(stack, out, num_open, None))

    def _close(self, stack: list[Frame], out: list[str], num_open: dict[str, int]) -> list[str]:
        kind, outer = stack.pop()
        num_open[kind] -= 1
        # Content that is nested too deeply is dropped.
        if len(stack) < MAX_DEPTH:
            content = out[0] if len(out) == 1 else "".join(out)
            replacement = self._readers[kind](content)
            if replacement:
                outer.append(replacement)
        return outer


def _abandon(stack: list[Frame], out: list[str], num_open: dict[str, int], kind: str | None) -> list[str]:
    """Treat unclosed openings as text, down to the innermost of `kind` (None: all openings).

    The text after them is kept, except the arguments on the first line of a template."""
    first = len(stack)
    while first and stack[first - 1][0] != kind:
        first -= 1
    if first == len(stack):
        return out
    contents = [outer for _, outer in stack[first + 1 :]] + [out]
    merged = stack[first][1]
    for (opened, _), content in zip(stack[first:], contents):
        num_open[opened] -= 1
        if opened == _TABLE:
            merged.append("\n{|")
        elif opened == _TEMPLATE and content:
            line, feed, rest = content[0].partition("\n")
            if "|" in line:
                content[0] = feed + rest
        merged += content
    del stack[first:]
    return merged
