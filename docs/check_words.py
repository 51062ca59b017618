"""Check the English of the project: `python docs/check_words.py [PATH ...]`, a part of `make lint`.

The rules come from `docs/glossary.md`, section "Plain words": its first column lists words that no docstring, comment,
message, name of a test or page uses, and names that no variable, function or class has. Beyond that, no docstring
starts with one of `RIDDLES`, and prose in Markdown has at most `MAX_COLUMNS` characters in a line. Strings and names of
variables in tests do not count. Prints a line for each place; exit code 1 if there is one.
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
GLOSSARY = ROOT / "docs" / "glossary.md"
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "CODE_OF_CONDUCT.md")
TOOLS = ("setup.py", "pyproject.toml", "Makefile", "Dockerfile", ".github", ".ci/run", ".ci/try-installed")
TESTS = "tests"
CHECKED = ("src", "docs", "benchmarks", TESTS, *PAGES, *TOOLS)
FORMATS = {".py", ".md", ".c", ".h", ".toml", ".yaml", ".yml"}
"""Suffixes of the files that are checked in a folder."""
RIDDLES = re.compile(r"(Of|What|Whether|How|That|Where|Who|Whose|Which|As|So|To)\b")
"""First words of docstrings that are fragments: "Of the batch.", "What was read.", "Whether it is known."."""
MAX_COLUMNS = 120
VALUES = re.compile(r"`[^`\n]*`|^[\"'][\w.-]+[\"']$")
"""Code between backquotes, and a string that is a single word: values of settings, which are no prose."""

DIMENSIONS = re.compile(r"_[A-Z0-9]+$")
"""Suffix of the name of a tensor or array."""

Place = tuple[int, str]
"""Number of a line, and what is wrong there."""


def plain_words() -> tuple[re.Pattern[str], frozenset[str]]:
    """Return what matches an avoided word, and the avoided names of variables (in the glossary: between backquotes)."""
    table = GLOSSARY.read_text("utf-8").split("## Plain words")[1]
    first = [row.split("|")[1] for row in table.splitlines() if row.startswith("| ") and "| write |" not in row]
    names = frozenset(name for cell in first for name in re.findall(r"`(\w+)`", cell))
    words = [word.strip() for cell in first if "`" not in cell for word in re.sub(r"\(.*?\)", "", cell).split(",")]
    return re.compile(rf"\b(?:{'|'.join(map(re.escape, words))})\b", re.IGNORECASE), names


def check_python(text: str, avoided: re.Pattern[str], names: frozenset[str], is_test: bool) -> Iterator[Place]:
    """Yield what is wrong in docstrings, comments, strings and names of a Python file."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        is_prose = token.type == tokenize.COMMENT or token.string.lstrip("rf").startswith('"""')
        if is_prose or (not is_test and (token.type == tokenize.STRING or "FSTRING" in tokenize.tok_name[token.type])):
            for number, line in enumerate(token.string.splitlines(), token.start[0]):
                yield from ((number, f"avoided word: {word}") for word in avoided.findall(VALUES.sub("", line)))
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(docstring))) if first := RIDDLES.match(docstring.lstrip()):
                yield node.lineno, f"docstring starts with {first[0]!r}"
            case (
                ast.Name(id=name, ctx=ast.Store())
                | ast.arg(arg=name)
                | ast.FunctionDef(name=name)
                | ast.ClassDef(name=name)
            ) if not is_test and DIMENSIONS.sub("", name.strip("_")).lower() in names:
                yield node.lineno, f"unclear name: {name}"
            case ast.FunctionDef(name=name) if name.startswith("test_") and (
                word := avoided.search(name.replace("_", " "))
            ):
                yield node.lineno, f"avoided word in a name: {word[0]}"


def check_lines(text: str, avoided: re.Pattern[str], is_page: bool) -> Iterator[Place]:
    """Yield avoided words in lines outside of code; in a page also long lines, except those of tables and links."""
    is_code = False
    for number, line in enumerate(text.splitlines(), 1):
        is_code ^= line.lstrip().startswith("```")
        if not is_code:
            yield from ((number, f"avoided word: {word}") for word in avoided.findall(VALUES.sub("", line)))
            if is_page and len(line) > MAX_COLUMNS and not line.startswith(("|", "[", "![", "<")):
                yield number, f"{len(line)} characters in a line; wrap at 100"


def main(arguments: list[str]) -> int:
    """Check the given files and folders, or all of `CHECKED`."""
    avoided, names = plain_words()
    num_wrong = 0
    for path in (Path(name).resolve() for name in arguments or (str(ROOT / name) for name in CHECKED)):
        files = sorted(file for file in path.rglob("*") if file.suffix in FORMATS) if path.is_dir() else [path]
        for file in (file for file in files if file != GLOSSARY and "golden" not in file.parts):
            text = file.read_text("utf-8")
            wrong = (
                check_python(text, avoided, names, file.is_relative_to(ROOT / TESTS))
                if file.suffix == ".py"
                else check_lines(text, avoided, file.suffix == ".md")
            )
            for number, reason in sorted(wrong):
                shown = file.relative_to(ROOT) if file.is_relative_to(ROOT) else file
                print(f"{shown}:{number}: {reason}")
                num_wrong += 1
    return min(num_wrong, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
