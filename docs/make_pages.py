"""Gather the sources of the documentation site: `python docs/make_pages.py FOLDER`.

Pages of the repository are copied, with their links to each other; the reference of the Python API, the command line
and the settings is generated from the code. `docs/index.md` is the home page and its lists are the navigation.
Everything public that has no documentation is an error. Each tutorial is also written as a Jupyter notebook.
"""

import ast
import dataclasses
import functools
import importlib
import inspect
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from typer.main import get_command

from pretrainkit.cli import main
from pretrainkit.config.base import Config
from pretrainkit.config.docs import field_types, scalar
from pretrainkit.config.explain import config_classes_in, tag_of
from pretrainkit.recipes.registry import entries, find_recipe
from pretrainkit.training.run import RunConfig

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"(?<=\]\()(?!\w+:)([^)\s#]+)")
ITEM = re.compile(r"^- \[(.+?)\]\((.+?)\)", re.MULTILINE)
ANY = TypeAdapter(Any)
FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"^```(bash|python|yaml)\n(?:# (\S+\.(?:py|yaml))\n)?(.*)^```$", re.MULTILINE | re.DOTALL)
"""A block to run or to write to a file, which its first line names; other blocks are text."""
SHELL_WORD = re.compile(r"""(?:[^\s"'\\]|"[^"]*"|'[^']*'|\\.)+""")
MAX_COMMAND = 80
"""Characters that a line of a command has room for on a wide screen."""
ENVIRONMENT = """\
import os
import sys

os.environ["PATH"] = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]  # where pretrainkit is
"""


def pages() -> dict[Path, str]:
    """Return the pages of the repository that the site has, with their addresses there."""
    docs, recipes = ROOT / "docs", ROOT / "src/pretrainkit/recipes"
    addresses = {page: str(page.relative_to(docs)) for page in sorted(docs.rglob("*.md"))}
    addresses |= {page: f"recipes/{page.parent.name}.md" for page in sorted(recipes.glob("*/README.md"))}
    addresses |= {page: page.name.lower() for page in sorted(ROOT.glob("*.md")) if page.name != "README.md"}
    return addresses | {ROOT / "benchmarks/RESULTS.md": "benchmarks.md"}


def copied(page: Path, addresses: dict[Path, str], out: Path) -> str:
    """Return the text of a page with links that work on the site, and copy its pictures to `out`."""

    def moved(match: re.Match[str]) -> str:
        target = (page.parent / match[1]).resolve()
        address = addresses.get(target)
        if address is None:
            if target.suffix not in (".png", ".svg"):
                raise SystemExit(f"{page}: the link to {match[1]} leads out of the site\n  name the file in `code`")
            if not target.is_file():
                raise SystemExit(f"{page}: there is no picture {match[1]}\n  correct the link")
            address = f"images/{target.name}"
            (out / "images").mkdir(parents=True, exist_ok=True)
            shutil.copy(target, out / address)
        return os.path.relpath(address, Path(addresses[page]).parent)

    parts = FENCE.split(page.read_text("utf-8"))
    parts[::2] = [LINK.sub(moved, part) for part in parts[::2]]
    shell = [index for index, part in enumerate(parts) if part.startswith("```bash\n")]
    for index in shell:
        parts[index] = "\n".join(map(folded, parts[index].split("\n")))
    if page.parent.name == "tutorials":
        parts[0] = parts[0].replace("\n", f"\n\nThis page is also [a notebook]({page.stem}.ipynb).\n", 1)
    return "".join(parts)


def folded(line: str) -> str:
    """Return a long command in several lines that bash reads as one, with its comment above it."""
    command, _, comment = line.partition("  # ")
    words = SHELL_WORD.findall(command)
    if len(line) <= MAX_COMMAND or line.endswith("\\") or " ".join(words) != command.rstrip():
        return line
    lines = [f"# {comment.strip()}"] if comment else []
    lines.append(words[0])
    for previous, word, following in zip(words, words[1:], [*words[2:], ""], strict=False):
        is_value = previous.startswith("--") and not word.startswith("-")
        has_value = word.startswith("--") and not following.startswith("-")
        width = len(lines[-1]) + len(word) + (len(following) + 1 if has_value else 0) + len("  \\")
        if width > MAX_COMMAND and not is_value:
            lines[-1] += " \\"
            lines.append(f"    {word}")
        else:
            lines[-1] += f" {word}"
    return "\n".join(lines)


def notebook(page: Path) -> dict[str, Any]:
    """Return a tutorial as a Jupyter notebook (nbformat 4.5): its commands, snippets and files as cells."""
    cells = []
    for part in FENCE.split(page.read_text("utf-8")):
        code = CODE.fullmatch(part)
        language, file, text = code.groups() if code else ("", None, part)
        if language == "" or (language == "yaml" and file is None):
            cells.append(("markdown", part))
        else:
            lead = f"%%writefile {file}\n" if file else "%%bash\n" if language == "bash" else ""
            cells.append(("code", lead + text))
    cells.insert(1, ("code", ENVIRONMENT))
    more = {"markdown": {}, "code": {"execution_count": None, "outputs": []}}
    return {
        "cells": [
            {"id": f"cell-{number}", "cell_type": kind, "metadata": {}, "source": text.strip("\n"), **more[kind]}
            for number, (kind, text) in enumerate(cells)
            if text.strip()
        ],
        "metadata": {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def title_of(text: str) -> str:
    return text.partition("\n")[0].removeprefix("# ")


def toctree(addresses: list[str]) -> str:
    return "\n".join(["", "```{toctree}", ":hidden:", "", *addresses, "```", ""])


def navigation(home: str, generated: list[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield the home page and a page for each of its lists with several links, from the text of `docs/index.md`."""
    intro, *sections = re.split(r"^## ", home, flags=re.MULTILINE)
    top, shown = [], [intro]
    for section in sections:
        if section.startswith("Reference"):
            section = section.rstrip() + "".join(f"\n- [{title}]({page})" for page, title in generated) + "\n\n"
        title, _, _ = section.partition("\n")
        links = [f"{name} <{link}>" for name, link in ITEM.findall(section)]
        if len(links) > 1:
            address = re.sub(r"\W+", "-", title.lower()) + "-overview.md"
            yield address, f"# {section}{toctree(links)}"
            top.append(f"{title} <{address}>")
        else:
            top += [re.sub(r".*<", f"{title} <", link) for link in links]
        shown.append(f"## {section}")
    yield "index.md", "".join(shown) + toctree(top)


def public_modules() -> list[str]:
    """Return the modules that snippets of the pages import, and those with the interfaces of a recipe."""
    modules = {"pretrainkit.recipes.capabilities", "pretrainkit.recipes.exchange"}
    for page in pages():
        for snippet in re.findall(r"^```python\n(.*?)^```$", page.read_text("utf-8"), re.MULTILINE | re.DOTALL):
            for node in ast.walk(ast.parse(snippet)):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pretrainkit."):
                    modules.add(str(node.module))
                elif isinstance(node, ast.ImportFrom) and node.module == "pretrainkit":
                    modules |= {f"pretrainkit.{alias.name}" for alias in node.names}
    return sorted(modules)


def public_names(module: Any) -> dict[str, Any]:
    """Return the public classes and functions of a module: those in `__all__`, or those without an underscore."""
    names = getattr(module, "__all__", None) or [
        name for name, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__
    ]
    values = {name: getattr(module, name) for name in names if not name.startswith("_")}
    return {name: value for name, value in values.items() if inspect.isclass(value) or inspect.isroutine(value)}


def undocumented(value: Any, path: str) -> Iterator[str]:
    """Yield `path` if a function or class has no docstring, and the dotted names of methods that have none."""
    if not value.__doc__ or (  # a class does not inherit `__doc__`, but `inspect.getdoc` would look in its bases
        dataclasses.is_dataclass(value) and value.__doc__.startswith(value.__name__ + "(")
    ):
        yield path
    for name, member in vars(value).items() if inspect.isclass(value) else ():
        function = inspect.unwrap(getattr(member, "fget", None) or getattr(member, "__func__", None) or member)
        is_cached = isinstance(member, functools.cached_property)  # a routine of the module since Python 3.13
        own = inspect.isroutine(function) and function.__module__ == value.__module__ and not is_cached
        hidden = name.startswith("_") or getattr(function, "__name__", "").startswith("_")
        if own and not hidden and not inspect.getdoc(getattr(value, name)):
            yield f"{path}.{name}"


def api_pages() -> Iterator[tuple[str, str]]:
    """Yield the pages of the Python API: one for `pretrainkit`, one for each other public module."""
    missing, links = [], []
    for name in ["pretrainkit", *public_modules()]:
        module = importlib.import_module(name)
        members = public_names(module)
        missing += [hole for member, value in members.items() for hole in undocumented(value, f"{name}.{member}")]
        lines = [f"# {name}", "", "```{eval-rst}", *("" if name == "pretrainkit" else f".. automodule:: {name}",), ""]
        for member, value in members.items():
            kind = "class" if inspect.isclass(value) else "function"
            lines += [f".. auto{kind}:: {name}.{member}", *(["   :members:"] if kind == "class" else []), ""]
        links.append(name)
        yield f"reference/api/{name}.md", "\n".join([*lines, "```", ""])
    if missing:
        raise SystemExit("public names without a docstring:\n  " + "\n  ".join(missing))
    listed = "".join(f"- [{name}]({name}.md)\n" for name in links)
    short = [f"{name.removeprefix('pretrainkit.')} <{name}.md>" for name in links]  # the sidebar is narrow
    yield "reference/api/index.md", f"# Python API\n\n{listed}{toctree(short)}"


def command_text(command: Any, name: str) -> Iterator[str]:
    """Yield the description, usage, arguments and options of a command, in the panels of its help."""
    context = command.context_class(command, info_name=name)
    lead = inspect.cleandoc((command.callback and command.callback.__doc__) or command.help or "")
    if not lead:
        raise SystemExit(f"{name} has no help")
    lead = "\n\n".join(map(escaped, lead.split("\n\n")))
    yield f"{lead}\n\n```text\n{command.get_usage(context).removeprefix('Usage: ')}\n```\n"
    panels: dict[str | None, list[str]] = {None: []}
    for param in command.get_params(context):
        record = None if getattr(param, "hidden", False) else param.get_help_record(context)
        if record and param.name != "help":
            if not param.help:  # the record has a limit even without help
                raise SystemExit(f"{name}: {record[0]} has no help")
            limits = re.sub(r"\s*\[(.+)\]$", r" (\1)", record[1])
            shown = re.sub(r" <.*>$", "", record[0]) if param.param_type_name == "argument" else record[0]
            shown = shown.replace(" range>", ">")  # `limits` has the range
            panels.setdefault(param.rich_help_panel, []).append(f"`{shown}`\n: {escaped(limits)}\n")
    for panel, texts in panels.items():
        yield from texts if panel is None else (f"**{panel}**\n", *texts)
    if example := (command.epilog or "").removeprefix("Example: "):
        yield f"**Example**\n\n```bash\n{example}\n```\n"


def escaped(text: str) -> str:
    """Return plain text as Markdown that shows it unchanged, except for code between backticks."""
    parts = re.split(r"(`[^`]+`)", " ".join(text.split()))
    parts[::2] = [re.sub(r"[*_<>\[\]{}$|\\]", r"\\\g<0>", part) for part in parts[::2]]
    return "".join(parts)


def cli_pages() -> Iterator[tuple[str, str]]:
    group: Any = get_command(main.app)
    listed = []
    for verb, line in main.VERBS.items():
        command, name = group.get_command(None, verb), f"pretrainkit {verb}"
        lines = [f"# {name}\n", *command_text(command, name)]
        for sub in getattr(command, "commands", {}).values():
            lines += [f"## {name} {sub.name}\n", *command_text(sub, f"{name} {sub.name}")]
        listed.append(f"- [`{name}`]({verb}.md): {line}\n")
        yield f"reference/cli/{verb}.md", "\n".join(lines)
    links = toctree([f"{verb}.md" for verb in main.VERBS])
    yield "reference/cli/index.md", f"# Command line\n\n{''.join(listed)}{links}"


def fields_text(config_class: type[Config], path: str, level: int, shared: type[Config] = Config) -> Iterator[str]:
    """Yield the fields of a config class that `shared` does not have, then the fields of their own config classes."""
    types, parts = field_types(config_class), []
    for name, info in config_class.model_fields.items():
        full = f"{path}.{name}" if path else name
        if name in shared.model_fields and shared.model_fields[name].annotation is info.annotation:
            continue
        if len(info.description or "") < 10:
            raise SystemExit(f"{config_class.__name__}.{name} is not documented")
        classes = config_classes_in(info.annotation, in_lists=True)
        default = (
            {} if info.is_required() else ANY.dump_python(info.get_default(call_default_factory=True), mode="json")
        )
        shown = "" if isinstance(default, dict) else f", default `{scalar(default)}`"
        yield f"`{full}`\n: {escaped(info.description or '')}\n  *{escaped(types[name])}*{shown}\n"
        tag = tag_of(classes)
        for part in classes:
            value = (
                next((f" with {tag[0]}={value}" for value, member in tag[1].items() if member is part), "")
                if tag
                else ""
            )
            parts.append((full, value, part))
    for full, value, part in parts:
        if part.model_fields:
            yield f"{'#' * level} {full}{value}\n\n{escaped(inspect.getdoc(part) or '')}\n"
            yield from fields_text(part, full, min(level + 1, 5))


def settings_pages() -> Iterator[tuple[str, str]]:
    """Yield the pages of settings: one with the fields that all recipes share, one for each recipe."""
    lead = "# Settings of every run\n\nEach recipe has its own `model`, `objective` and `data` besides.\n"
    yield "reference/settings/run.md", "\n".join([lead, *fields_text(RunConfig, "", 2)])
    names = sorted(entries())
    for name in names:
        recipe: Any = find_recipe(name)
        presets = [
            f"`{name}/{preset}`\n: {escaped(inspect.getdoc(make) or '')}\n" for preset, make in recipe.presets.items()
        ]
        lead = f"# Settings of {name}\n\n{escaped(recipe.summary)} It also has the [settings of every run](run.md).\n"
        fields = fields_text(recipe.config_class, "", 3, RunConfig)
        yield f"reference/settings/{name}.md", "\n".join([lead, "## Presets\n", *presets, "## Fields\n", *fields])
    listed = "".join(f"- [Settings of {name}]({name}.md)\n" for name in names)
    links = toctree([f"{name}.md" for name in ["run", *names]])
    yield "reference/settings/index.md", f"# Settings\n\n- [Settings of every run](run.md)\n{listed}{links}"


GENERATED = [
    ("reference/api/index.md", "Python API"),
    ("reference/cli/index.md", "Command line"),
    ("reference/settings/index.md", "Settings"),
]


def make(out: Path) -> None:
    shutil.rmtree(out, ignore_errors=True)
    addresses = pages()
    texts = {address: copied(page, addresses, out) for page, address in addresses.items()}
    about = "".join(f"\n- [{title_of(texts[a])}]({a})" for page, a in addresses.items() if page.parent == ROOT)
    home = f"{texts['index.md'].rstrip()}\n\n## Project\n{about}\n" if about else texts["index.md"]
    texts |= dict(navigation(home, GENERATED))
    for generate in (api_pages, cli_pages, settings_pages):
        texts |= dict(generate())
    tutorials = [page for page in addresses if page.parent.name == "tutorials"]
    texts |= {f"tutorials/{page.stem}.ipynb": json.dumps(notebook(page), indent=1) for page in tutorials}
    for address, text in texts.items():
        (out / address).parent.mkdir(parents=True, exist_ok=True)
        (out / address).write_text(text, "utf-8")


if __name__ == "__main__":
    make(Path(sys.argv[1]))
