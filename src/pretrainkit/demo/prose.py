"""English prose of every Python installation: the language reference and the docstrings of the standard library.

The language reference is `pydoc_data.topics`. Docstrings are read from source files without importing them. Paragraphs
that are examples, signatures or tables are left out.
"""

import ast
import json
import re
import sysconfig
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path

from pretrainkit.errors import DataError

SKIPPED_FOLDERS = {
    *("test", "tests", "idle_test", "site-packages", "dist-packages", "lib2to3", "__pycache__", "pydoc_data"),
}
DOCUMENT_CHARACTERS = 5_000
MIN_BYTES = 200_000
"""Minimum size of the text of a demo in bytes."""
MIN_WORDS = 4
"""Minimum number of words of a paragraph. Shorter paragraphs are headings and signatures."""
MIN_LETTER_SHARE = 0.75
"""Minimum share of letters and blanks in a paragraph. Code and tables have less."""


def standard_library_documents() -> Iterator[tuple[str, str]]:
    """Yield (name, text) of every topic of the language reference and every module with docstrings."""
    from pydoc_data.topics import topics

    for name, text in sorted(topics.items()):
        if prose := "\n".join(paragraphs(text)):
            yield f"reference/{name}", prose
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py")):
        if SKIPPED_FOLDERS & set(path.relative_to(root).parts):
            continue
        texts = [p for docstring in _docstrings(path) for p in paragraphs(docstring)]
        if texts:
            yield f"library/{path.relative_to(root).with_suffix('').as_posix()}", "\n".join(texts)


def plain_text_documents(path: Path) -> Iterator[tuple[str, str]]:
    """Divide a text file into documents of about DOCUMENT_CHARACTERS, and yield (name, text) of each. Documents consist
    of whole paragraphs, each on one line; paragraphs are separated by blank lines. In this way, some documents of a
    single book can be held out. Raises DataError if the file cannot be read or is not UTF-8."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read {path} as UTF-8 text: {error}\n  convert it, or leave it out") from None
    lines, size, number = [], 0, 0
    for block in re.split(r"\n\s*\n", text):
        if line := " ".join(block.split()):
            lines.append(line)
            size += len(line)
        if size >= DOCUMENT_CHARACTERS:
            yield f"{path.name}/{number}", "\n".join(lines)
            lines, size, number = [], 0, number + 1
    if lines:
        yield f"{path.name}/{number}", "\n".join(lines)


def paragraphs(text: str) -> Iterator[str]:
    """Yield the paragraphs of a documentation text that are prose, each on one line, without markup."""
    for block in re.split(r"\n\s*\n", text):
        lines = block.strip("\n").split("\n")
        if any(re.match(r"\s*(>>>|\.\.\.|[|+=*#~^-]{2,}|\$ )", line) for line in lines):
            continue
        line = re.sub(r"``?|\*\*?(?=\S)|(?<=\S)\*\*?", "", " ".join(part.strip() for part in lines))
        line = re.sub(r":\w+:|\s+", " ", line).strip()
        words = re.findall(r"[A-Za-z][a-z]+", line)
        letters = sum(c.isalpha() or c.isspace() for c in line)
        if len(words) >= MIN_WORDS and letters >= MIN_LETTER_SHARE * len(line):
            yield line


def _docstrings(path: Path) -> Iterator[str]:
    """Yield the docstrings of a module. Yield nothing for a file that this version of Python cannot parse."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings about invalid escapes in strings
            tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            yield ast.get_docstring(node) or ""


def write_documents(path: Path, documents: Iterable[tuple[str, str]], description: str) -> None:
    """Write (source, text) pairs as JSON lines, and print their size. Raises DataError for less than MIN_BYTES."""
    num_documents = num_bytes = 0
    with open(path, "w", encoding="utf-8") as file:
        for name, text in documents:
            file.write(json.dumps({"text": text, "meta": {"source": name}}, ensure_ascii=False) + "\n")
            num_documents += 1
            num_bytes += len(text.encode())
    if num_bytes < MIN_BYTES:
        raise DataError(
            f"{description}: there are only {num_bytes:,} bytes of text, but the demo needs {MIN_BYTES:,}\n"
            "  give more text: pretrainkit demo --text FILE..."
        )
    print(f"  {path}: {num_documents} documents, {num_bytes / 1e6:.1f} MB: {description}")
