"""Everything in the pages works: commands, settings, snippets, links.

Commands are parsed by the command line's own parsers without being run; words such as `...` and RUN stand for what the
reader puts in. `test_pages_run.py` runs them.
"""

import ast
import importlib
import re
import shlex
import tomllib
from pathlib import Path

import pytest
from typer.main import get_command

import pretrainkit
from pretrainkit.api import build_model, load_config
from pretrainkit.cli import main
from pretrainkit.cli.examples import EXAMPLES
from pretrainkit.config.yaml import parse_yaml
from pretrainkit.recipes.fourm.generation.plan import GenerationPlan
from support.page_runner import Block, blocks_of

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "pretrainkit"
PAGES = sorted(page for folder in (".", "docs/**", "benchmarks") for page in ROOT.glob(f"{folder}/*.md"))
PAGES += sorted(SOURCE.rglob("*.md"))
_ROOT_COMMAND = get_command(main.app)
_ELLIPSIS = {"...", "…"}


BLOCKS = [block for page in PAGES for block in blocks_of(page)]


def shell_commands(text: str) -> list[list[str]]:
    """The commands of a shell snippet as words, without pipes, redirections and environment settings."""
    found = []
    for line in text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line.removeprefix("$ "), posix=True, punctuation_chars="|&;<>")
        lexer.whitespace_split = True
        command: list[str] = []
        for word in [*lexer, ";"]:
            if word and set(word) <= set("|&;<>"):
                if command:
                    found.append(command)
                command = ["redirected to"] if set(word) & set("<>") else []
            elif command or not re.fullmatch(r"\w+=.*", word):
                command.append(word)
    return [command for command in found if command[0] != "redirected to"]


def inline_commands(page: Path) -> list[list[str]]:
    """Commands that a sentence mentions between backticks; they may leave out arguments."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    found = [command for match in re.findall(r"`(pretrainkit [^`]+)`", text) for command in shell_commands(match)]
    return [command for command in found if "VERB" not in command]


def parse(words: list[str], *, may_be_partial: bool = False) -> tuple[list[str], dict]:
    """The names and the arguments of the verb that `pretrainkit WORDS` would run. Raises what the parser raises."""
    command, context, names = _ROOT_COMMAND, None, []
    words = [word for word in words if word not in _ELLIPSIS]
    while True:
        try:
            context = command.make_context(names[-1] if names else "pretrainkit", words, parent=context)
        except Exception as error:
            if may_be_partial and type(error).__name__ in ("MissingParameter", "NoArgsIsHelpError", "Exit"):
                return names, {}
            raise
        if not hasattr(command, "resolve_command"):
            return names, context.params
        name, command, words = command.resolve_command(context, [*context._protected_args, *context.args])
        names.append(name)
        if may_be_partial and not words:
            return names, {}


def check_settings(names: list[str], arguments: dict, folder: Path) -> None:
    """The config words of a command make a config; those of `resume` are laid over some preset."""
    settings = arguments.get("settings") or []
    given = arguments.get("source") if "source" in arguments else ("bert/tiny" if names == ["resume"] else None)
    if given is None or re.match(r"[A-Z]+\b|bigram/", given) or any("VALUE" in word for word in settings):
        return  # a placeholder, or the recipe of extending.md, which has a test of its own
    if re.fullmatch(r"(runs/.*|imported)/config\.yaml", given):
        given = "bert/tiny"  # the config of a run that the page trains, or of a model that it imports
    elif given == "start/config.yaml":
        given = "clip/vit-b-16"
    if given.endswith((".yaml", ".yml")):
        given = str(folder / given)
    config = load_config(given, settings)
    ranks = (arguments.get("nproc") or arguments.get("gpus_per_node") or 1) * arguments.get("nodes", 1)
    assert config.problems(ranks) == []


@pytest.fixture
def shown_files(tmp_path, monkeypatch):
    """A folder with the YAML and Python files that pages show by name, as the current folder."""
    for block in BLOCKS:
        if block.language in ("yaml", "python") and block.name:
            (tmp_path / block.name).write_text(block.text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("command", EXAMPLES)
def test_the_example_in_the_help_of_a_command_parses(command, shown_files):
    names, arguments = parse(shlex.split(EXAMPLES[command])[1:])
    assert " ".join(names) == command
    check_settings(names, arguments, shown_files)


def shell_blocks() -> list[Block]:
    return [block for block in BLOCKS if block.language in ("bash", "sh")]


@pytest.mark.parametrize("block", shell_blocks(), ids=str)
def test_commands_of_shell_snippets_parse(block, shown_files):
    commands = shell_commands(block.text)
    assert commands
    for command in commands:
        match command:
            case ["pretrainkit", *words]:
                names, arguments = parse(words)
                check_settings(names, arguments, shown_files)
            case ["make", target, *_]:
                assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE), target
            case ["python", "-m", module, *_]:
                importlib.util.find_spec(module)
            case ["python", script, *_]:
                assert (ROOT / script).is_file(), script
            case [program, *_]:
                known = ("bash", "pip", "apt-get", "tensorboard", "wandb", "cat", "kill", "touch", "git", "cd", "zstd")
                assert program in (*known, "docker", "pre-commit", "head", "ls", "optimum-cli"), command


def test_commands_of_the_check_of_an_installation_parse(tmp_path):
    script = (ROOT / ".ci" / "try-installed").read_text(encoding="utf-8")
    commands = [line for line in script.splitlines() if line.startswith("pretrainkit ") and "--help" not in line]
    assert len(commands) > 10
    for command in commands:
        ((_, *words),) = shell_commands(command)
        if words != ["--version"]:
            check_settings(*parse(words), tmp_path)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_in_sentences_parse(page, shown_files):
    for _, *words in inline_commands(page):
        names, arguments = parse(words, may_be_partial=True)
        check_settings(names, arguments, shown_files)


def test_the_parser_above_refuses_what_the_command_line_refuses():
    for words in (["nosuch"], ["train", "bert/tiny", "--nope"], ["corpus", "shard"], ["tokenizer", "encode", "x"]):
        with pytest.raises(Exception, match=r"(?i)no such|no option|Tokenizer folder"):
            parse(words)
    with pytest.raises(Exception, match="no field"):
        check_settings(*parse(["train", "bert/tiny", "data.batchsize=3"]), ROOT)
    assert parse(["train", "bert/tiny", "seed=1", "--nproc", "2"])[1]["settings"] == ["seed=1"]


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.language == "yaml"], ids=str)
def test_yaml_snippets_resolve(block, shown_files):
    tree = parse_yaml(block.text, str(block))
    if "targets" in tree:
        assert GenerationPlan.model_validate(tree).targets
        return
    assert load_config({"extends": "bert/tiny", **tree}).problems() == []


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.language == "python"], ids=str)
def test_python_snippets_compile_and_name_what_exists(block):
    tree = ast.parse(block.text, str(block))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("pretrainkit"):
            module = importlib.import_module(node.module)
            for alias in node.names:
                assert hasattr(module, alias.name), f"{node.module}.{alias.name}"
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "pretrainkit":
            assert hasattr(pretrainkit, node.attr), node.attr


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.language == "toml"], ids=str)
def test_toml_snippets_parse(block):
    assert tomllib.loads(block.text)


def test_every_snippet_names_its_language():
    known = {"bash", "sh", "python", "yaml", "toml", "json", "text"}
    assert [str(block) for block in BLOCKS if block.language not in known] == []


def anchors_of(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_and_images_exist(page):
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    missing = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"\w+:", target):
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        if not found.exists() or (anchor and anchor not in anchors_of(found)):
            missing.append(target)
    assert missing == []


def test_test_files_that_pages_name_exist():
    named = re.compile(r"`(?:tests/)?([a-z_/]*test_[a-z0-9_]+\.py)`")
    names = {(page.name, name) for page in PAGES for name in named.findall(page.read_text(encoding="utf-8"))}
    assert names
    assert not {(page, name) for page, name in names if not any((ROOT / "tests").glob(f"**/{name}"))}


def messages() -> list[tuple[str, str]]:
    """(place, text) of every string of the package: messages and docstrings, with X for what is filled in."""
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        inside_joined: set[int] = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                inside_joined |= {id(part) for part in node.values}
                parts = [part.value if isinstance(part, ast.Constant) else "X" for part in node.values]
                found.append((f"{path.relative_to(ROOT)}:{node.lineno}", "".join(map(str, parts))))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside_joined:
                found.append((f"{path.relative_to(ROOT)}:{node.lineno}", node.value))
    return found


def test_commands_that_messages_advise_exist():
    """The verb, its subcommand and its options are checked."""
    num_checked = 0
    for place, text in messages():
        for match in re.finditer(r"(`|: |with )?pretrainkit ([a-z][^\n`;,()]*)", text):
            words = re.sub(r"['\"].*", "", match[2]).split()
            if words[0] not in main.VERBS:
                assert match[1] != "`", (place, match[0])
                continue
            command = _ROOT_COMMAND.get_command(None, words[0])
            if hasattr(command, "commands") and len(words) > 1 and words[1].islower():
                assert words[1] in command.commands, (place, match[0])
                command = command.commands[words[1]]
            options = {name for param in command.params for name in param.opts} | {"--help"}
            for word in words:
                if word.startswith("--"):
                    assert word.partition("=")[0] in options, (place, match[0])
                    num_checked += 1
    assert num_checked > 10


NO_PATHS = {
    *("base", "recipe", "config.recipe", "recipe.file_formats[0]", "proposal.preset", "curve", "num_bad", "more"),
    *("num_sentinels", "max(100, self.num)", "2 * before.total_steps", "task.name", "self.name", "feature"),
    *("_launched(gpus, gpus_per_node)", "data.max_patches", "f' --under {parent}' if parent else ''"),
}
"""Expressions in printed commands that need no quotes: names of ours, and numbers."""


def printed_commands(node: ast.AST) -> list[ast.expr]:
    """Return the expressions that an f-string fills into commands of pretrainkit."""
    text, found = "", []
    for part in node.values if isinstance(node, ast.JoinedStr) else ():
        if isinstance(part, ast.FormattedValue) and re.search(r"pretrainkit [a-z][^\n;`]*$", text):
            found.append(part.value)
        text += str(part.value) if isinstance(part, ast.Constant) else "X"
    return found


def test_paths_in_printed_commands_are_quoted():
    """A command runs as printed also if a path has spaces."""
    bare, num_quoted = set(), 0
    for path in sorted(SOURCE.rglob("*.py")):
        text = path.read_text("utf-8")
        if not re.search(r"pretrainkit [a-z].*\{|pretrainkit [a-z][^\"]*\"\n", text):
            continue
        for function in (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)):
            inside = list(ast.walk(function))
            for value in (value for node in inside for value in printed_commands(node)):
                name, words = ast.unparse(value), [ast.unparse(value)]
                for node in inside:
                    if isinstance(node, ast.Assign) and name in map(ast.unparse, node.targets):
                        words.append(ast.unparse(node.value))
                is_quoted = any(re.search(r"quote\(|join\(", word) for word in words)
                num_quoted += is_quoted
                bare |= set() if is_quoted or name in NO_PATHS else {f"{path.relative_to(ROOT)}:{value.lineno}: {name}"}
    assert bare == set()
    assert num_quoted > 20


def bert_page() -> str:
    return (SOURCE / "recipes" / "bert" / "README.md").read_text(encoding="utf-8")


def test_parameter_counts_of_the_bert_page():
    rows = re.findall(r"^\| `bert/([\w-]+)` .*\| ([\d,]+) \|$", bert_page(), re.MULTILINE)
    from pretrainkit.recipes.bert.presets import PRESETS

    assert [name for name, _ in rows] == list(PRESETS)
    for name, count in rows:
        config = PRESETS[name]()
        if config.model.vocab_size is None:
            config = load_config(f"bert/{name}", ["model.vocab_size=8192"])
        model = build_model(config, device="meta")
        assert sum(p.numel() for p in model.parameters()) == int(count.replace(",", "")), name


def test_the_bert_page_explains_every_compatible_setting():
    page = bert_page()
    for name in ("sabertooth", "lanes", "whole_vocabulary_compat", "squared_norm_legacy", "by_ndim_compat", "--compat"):
        assert name in page
