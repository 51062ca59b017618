"""Advice in messages of the package: the places of such messages in the source, and the advice of a printed one.

A message is a string of several lines; the first states the problem, those below the advice. It has a remedy if the
advice names a command, an option, a setting or a package."""

import ast
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from support import SUPPORT

SOURCE = Path(__file__).parents[2] / "src" / "pretrainkit"
GAP = "\0"
"""Placeholder for a value that is filled in."""
COMMAND = re.compile(r"pretrainkit ([a-z]+(?: [^`\n;,()]*)?)")
OPTION = re.compile(r"(?<![\w/.-])--[a-z][a-z-]*")
SETTING = re.compile(r"(?<![\w./{-])([a-z_]+(?:\.[a-z_0-9]+)*)=(\{[^\n]*?\}|\[[^\n]*?\]|[^\s=;,)`]+)")
PACKAGE = re.compile(r"pip install '?([\w\[\]-]+)'?")
KINDS = (COMMAND, OPTION, SETTING, PACKAGE)


class Case(NamedTuple):
    given: str
    """A command that is refused; {out} is a new name."""
    remedy: str | tuple[str, ...]
    """Pattern of what is taken up of the advice: `pretrainkit ...`, a setting, an option, or "leave out --OPTION".
    Several are followed one after another; the code is that of the last."""
    own: Mapping[str, str] = {}
    """Replacements for words of the advice, or values behind an option."""
    code: int = 2
    ends: int = 0
    """Exit code of the command of the remedy; 1 is that of a check that lists what is bad."""


class Site(NamedTuple):
    """A message in the source."""

    file: str
    template: str
    """The message, with `GAP` for what is filled in."""
    line: int

    @property
    def key(self) -> str:
        """The part that is kept when lines move: the file and the message, its gaps as `…`."""
        return f"{self.file}: {' / '.join(part.strip() for part in self.template.replace(GAP, '…').splitlines())}"

    @property
    def alternatives(self) -> frozenset[str]:
        """The commands, options and settings that it names, but for what is filled in."""
        found = alternatives(advice(self.template.replace(GAP, "gap")))
        return frozenset(name for name, *_ in found if "gap" not in name)

    def fits(self, message: str) -> bool:
        """Return True if a printed message is this one."""
        at = 0
        for part in self.template.strip().split(GAP):
            at = message.find(part, at)
            if at < 0:
                return False
            at += len(part)
        return True


def advice(message: str) -> str:
    """Return the advice of a message."""
    return message.partition("\n")[2]


def alternatives(text: str) -> list[tuple[str, int, int]]:
    """Commands, options and settings that an advice names: the name, start and end of each. Parts of a command are not
    listed separately."""
    found = [(_verb(match[0]), *match.span()) for match in COMMAND.finditer(text)]
    for kind, group in ((OPTION, 0), (SETTING, 1)):
        own = [(match[group], *match.span()) for match in kind.finditer(text)]
        found += [one for one in own if not any(one[1] < end and begin < one[2] for _, begin, end in found)]
    return found


def _verb(command: str) -> str:
    return re.match(r"pretrainkit (?:(?:config|corpus|data|launch|tasks|tokenizer) (?=[a-z]))?[a-z-]+", command)[0]


def taken(text: str, begin: int, end: int) -> set[str]:
    """The alternatives of an advice between two places."""
    return {name for name, first, last in alternatives(text) if first < end and begin < last}


def has_remedy(message: str) -> bool:
    return any(kind.search(advice(message)) for kind in KINDS)


@cache
def sites() -> tuple[Site, ...]:
    """Every message of the package that names a remedy."""
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        seen: set[int] = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Expr):  # documentation of the line before it
                seen |= {id(node.value)}
            if id(node) in seen or not isinstance(node, ast.JoinedStr | ast.Constant | ast.BinOp):
                continue
            seen |= {id(below) for below in ast.walk(node)}
            template = _template(node)
            if template and "\n  " in template and has_remedy(template) and "{ " not in template:  # no style sheet
                found.append(Site(str(path.relative_to(SOURCE)), template, node.lineno))
    return tuple(found)


def _template(node: ast.AST) -> str:
    match node:
        case ast.Constant(value=str(text)):
            return re.sub(r"%(\.\d+)?[sdfg]", GAP, text).replace("%%", "%")  # of logging
        case ast.JoinedStr(values=parts):
            return "".join(_template(part) for part in parts)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return (_template(left) or GAP) + (_template(right) or GAP)
        case ast.FormattedValue():
            return GAP
    return ""


def followed(message: object, site: str) -> str:
    """Return the advice of a message, for a test elsewhere that follows it.

    Args:
        message: As printed, or the error.
        site: How the key of the message's site begins.
    """
    found = site_of(str(message))
    assert found, message
    assert found.key.startswith(site), found.key
    return advice(str(message))


_FOLLOWED = re.compile(r"\bfollowed\(\s*[^\n]*,\s*\"([^\"]+)\",?\s*\)")
"""A call of `followed` on one line, or on several as the formatter breaks it."""


@cache
def followed_elsewhere() -> frozenset[str]:
    """Keys of the sites whose remedies tests follow by `followed`."""
    texts = [path.read_text(encoding="utf-8") for path in SUPPORT.parent.rglob("test_*.py")]
    named = [name for text in texts for name in re.findall(_FOLLOWED, text)]
    found = {name: [site.key for site in sites() if site.key.startswith(name)] for name in named}
    assert all(found.values()), [name for name, keys in found.items() if not keys]
    return frozenset(key for keys in found.values() for key in keys)


def site_of(message: str) -> Site | None:
    """The site that printed a message: of those that fit the most specific one."""
    fitting = [site for site in sites() if site.fits(message)]
    return max(fitting, key=lambda site: len(site.template.replace(GAP, "")), default=None)
