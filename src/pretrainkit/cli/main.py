"""The command line: `pretrainkit VERB ...`. Each verb has its own file, imported only when the verb is used."""

import difflib
import faulthandler
import importlib
import inspect
import io
import logging
import os
import re
import sys
import traceback
from collections.abc import Iterable
from contextlib import suppress
from typing import Annotated, Any

import typer
from typer import Option
from typer.core import TyperGroup
from typer.main import get_command

from pretrainkit import __version__
from pretrainkit.cli.examples import EXAMPLES
from pretrainkit.cli.stages import VERBOSITY
from pretrainkit.errors import InputError, PretrainKitError

VERBS = {
    "demo": "Train, evaluate and export a tiny model in minutes, from data on this machine.",
    "new": "Start a project from a folder of raw data: decide on everything, write the commands, run them.",
    "recipes": "List the recipes and their presets.",
    "config": "Show, check and document configs.",
    "corpus": "Turn raw files into clean, shuffled, checksummed shards; count words; print statistics.",
    "tokenizer": "Train tokenizers and encode a corpus to token shards.",
    "render": "Render text to rows of pixels in parquet files, for models that read pixels.",
    "renderer": "Make renderers of text, and show how they draw it.",
    "data": "Check the data of a config; check and pack sets of image-text pairs; upload data.",
    "tasks": "List tasks and mixtures, show their examples, create caches.",
    "train": "Train a preset or a config file.",
    "finetune": "Fine-tune a text encoder on a task of GLUE or on a table of your own.",
    "sweep": "Fine-tune with several learning rates and seeds, and choose the best run for each task.",
    "predict": "Predict labels with a fine-tuned model, as JSON lines (an alias of infer).",
    "resume": "Resume a run exactly where it stopped.",
    "launch": "Show, cancel and resume runs that were started with --launch; manage cloud machines.",
    "evaluate": "Evaluate a run or checkpoint on held-out data.",
    "probe": "Measure the features of a frozen image encoder: linear probes and nearest neighbours.",
    "generate": "Answer prompts: fill in masked words, complete texts, search images, generate modalities.",
    "infer": "Predict for all examples of a task, or all rows of a file, as JSON lines.",
    "export": "Export a run for transformers or another library, and push it to the hub.",
    "import": "Import weights, tokenizer and config of another library.",
    "plan": "Estimate memory per GPU, FLOPs, time and cost of a run, and check its layout.",
    "doctor": "Check this installation: what works, what is missing, and how to install it.",
    "runs": "List runs with their state, metrics and size; sort and filter them.",
    "report": "Write the report of a run, or compare several: one self-contained HTML page.",
}
"""Maps each verb to its line of help. Its file is `cli/VERB.py` (`import_.py` for import)."""
_WITH_APPS = frozenset(("config", "corpus", "data", "demo", "launch", "renderer", "sweep", "tasks", "tokenizer"))
"""Verbs whose file defines a Typer app, because they have subcommands or parse their arguments in a special way."""

_Panel = tuple[str, tuple[str, ...], tuple[str, ...]]
_PANELS: tuple[_Panel, ...] = (
    ("Reading", ("text_key", "image_key", "caption_key", "max_bad"), ()),
    ("Reading", ("format",), ("text_key", "caption_key", "max_bad")),
    ("Processes", ("workers", "threads", "memory", "engine", "ray"), ()),
    ("Processes", ("slurm",), ("engine",)),
    ("Launching", ("launch", "nodes", "max_restarts", "hang_minutes", "elastic", "meet", "cloud", "sweep"), ()),
    ("Launching", ("nproc", "gpus_per_node", "slurm"), ("launch",)),
    ("Launching", ("dry_run",), ("launch", "name")),
    ("Uploading", ("push", "public", "private"), ()),
    ("Uploading", ("license", "revision"), ("push", "private")),
    ("Uploading", ("dry_run",), ("private",)),
    ("Printing", ("json", "as_json", "json_output", "quiet", "verbose", "debug"), ()),
)
"""Panels of the help of all commands: the title, the options in it, and other options of which the command must have
one, because some names mean different things in different commands. All other options are in `Options`."""
_OF_RECIPES = re.compile(r"((?:BERT|CLIP|T5|4M)(?:, (?:CLIP|4M))?): ")
"""Start of the help of an option that only some recipes read."""


def app_of(verb: str) -> typer.Typer:
    """Return the Typer app of a verb. If its file defines none, create one with the function of the same name."""
    name = "import_" if verb == "import" else verb
    members = vars(importlib.import_module(f"pretrainkit.cli.{name}"))
    app: typer.Typer = members["app"] if verb in _WITH_APPS else typer.Typer(add_completion=False)
    if verb not in _WITH_APPS:
        app.command()(members[name])
    app.info.help = VERBS[verb]
    return app


class LazyGroup(TyperGroup):
    """List all verbs without importing any. Types are `Any`, because new versions of Typer hide their copy of click."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in VERBS:
            close = difflib.get_close_matches(cmd_name, VERBS, n=1)
            hint = f" Did you mean {close[0]!r}?" if close else f" There are: {', '.join(VERBS)}."
            ctx.fail(f"No such command {cmd_name!r}.{hint}")
        command = get_command(app_of(cmd_name))
        command.name = cmd_name
        subcommands = list(getattr(command, "commands", {}).values())
        if subcommands:
            command.epilog = f"Example: {next(line for words, line in EXAMPLES.items() if words.startswith(cmd_name))}"
        for leaf in subcommands or [command]:
            words = " ".join(dict.fromkeys((cmd_name, leaf.name)))
            leaf.epilog = f"Example: {EXAMPLES[words]}"
            for param in leaf.params:
                if param.param_type_name == "argument" and not param.metavar:  # Typer would show it in lower case
                    param.metavar = "MODEL" if param.name == "path" else param.name.upper()
            leaf.params += _common_options()
            _group_options(leaf)
        for explained in (command, *subcommands):
            # A paragraph becomes a line, which the terminal wraps; Typer would keep the line ends of the docstring.
            explained.help = re.sub(r"(?<!\n)\n *(?!\n)", " ", inspect.cleandoc(explained.help or ""))
            _explain_errors(explained)
        return command

    def format_help(self, ctx: Any, formatter: Any) -> None:
        print("Usage: pretrainkit VERB ...\n")
        print("From raw data to an evaluated, exported model trained from scratch.\n")
        width = max(map(len, VERBS))
        print("\n".join(f"  {verb:<{width}}  {line}" for verb, line in VERBS.items()))
        print("\n  pretrainkit VERB --help shows the options of a verb.")
        print("Every verb takes -q (no progress), -v (details) and --debug (tracebacks of errors).")
        print("--version prints the version; --install-completion sets up the Tab key of your shell.")
        print("Start with: pretrainkit demo")


def _set_verbosity(param: typer.CallbackParam, is_given: bool) -> None:
    """Set how much this process and its child processes print."""
    if is_given and os.environ.setdefault(VERBOSITY, str(param.name)) != param.name:
        raise InputError("-q and -v exclude each other\n  give one of them")
    if is_given and param.name == "verbose":
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s", datefmt="%H:%M:%S")


def _set_debug(is_given: bool) -> None:
    if is_given:
        os.environ["PRETRAINKIT_DEBUG"] = "1"


Quiet = Annotated[
    bool,
    Option(
        "--quiet",
        "-q",
        callback=_set_verbosity,
        expose_value=False,
        help="Print only results, notes and errors, no progress.",
    ),
]
Verbose = Annotated[
    bool,
    Option(
        "--verbose",
        "-v",
        callback=_set_verbosity,
        expose_value=False,
        help="Print every logged step, and log messages.",
    ),
]
Debug = Annotated[bool, Option("--debug", callback=_set_debug, expose_value=False, help="Show tracebacks of errors.")]


def _common_options() -> list[Any]:
    """Return the options that every command has. They change only what the command prints."""
    holder = typer.Typer(add_completion=False)

    @holder.command()
    def common(quiet: Quiet = False, verbose: Verbose = False, debug: Debug = False) -> None:
        """Declare the options."""

    return list(get_command(holder).params)


def _group_options(command: Any) -> None:
    """Put options that belong together into one panel of the help. `4M: ...` becomes part of the panel 4M."""
    names = {param.name for param in command.params}
    by_name = {name: title for title, members, one_of in _PANELS if not one_of or names & {*one_of} for name in members}
    for param in command.params:
        panel = by_name.get(param.name)
        if recipes := _OF_RECIPES.match(getattr(param, "help", None) or ""):
            panel, text = recipes[1], param.help[recipes.end() :]
            param.help = text[:1].upper() + text[1:]
        if panel:
            param.rich_help_panel = panel


def _explain_errors(command: Any) -> None:
    """Make the parser errors of a command easy to understand. For an unknown option of a command with settings, the
    message suggests the setting with this name."""
    parse = command.parse_args
    takes_settings = any(param.name == "settings" for param in command.params)

    def parse_args(ctx: Any, args: list[str]) -> Any:
        given = list(args)
        try:
            return parse(ctx, args)
        except Exception as error:
            if isinstance(message := getattr(error, "message", None), str):
                # Pydantic: "Input should be a valid integer, unable to parse string as an integer"
                text = re.sub("^Input should be (.+?)(, unable to parse .*)?$", r"it must be \1", message)
                from pydantic import ValidationError

                if text != message and isinstance(error.__cause__, ValidationError):
                    text += f", not {error.__cause__.errors()[0]['input']!r}"
                error.message = text.removeprefix("Value error, ")  # type: ignore[attr-defined]
                _add_advice(error, command)
            if not takes_settings or type(error).__name__ != "NoSuchOption":  # the class has no public name
                raise
            option = error.option_name  # type: ignore[attr-defined]
            raise InputError(_unknown_option(option, given, command)) from None

    command.parse_args = parse_args


def _add_advice(error: Any, command: Any) -> None:
    """Add to the message of a parser error what is missing, or the nearest option or value."""
    param = getattr(error, "param", None)
    match type(error).__name__:  # the classes have no public names
        case "MissingParameter":
            error.message = "\n".join(filter(None, (getattr(param, "help", None), command.epilog)))
        case "NoSuchOption":
            near = _did_you_mean(error.option_name, _options(command))
            error.message += near or f"\nThe options are {', '.join(_options(command))}."
            error.possibilities = None
        case "BadOptionUsage":
            helps = [param.help for param in command.params if error.option_name in param.opts]
            error.message = "\n".join(filter(None, (error.message, *helps)))
        case "UsageError" if command.epilog:  # too many arguments
            error.message += f"\n{command.epilog}"
        case "BadParameter" if " is not one of " in error.message:
            value, *choices = re.findall(r"'(.*?)'", error.message)
            error.message = error.message.rstrip(".") + _did_you_mean(value, choices)


def _options(command: Any) -> list[str]:
    shown = [param for param in command.params if not getattr(param, "hidden", False)]
    return [flag for param in shown for flag in param.opts if flag.startswith("--")]


def _did_you_mean(given: str, known: Iterable[str]) -> str:
    """Return a question with the name most similar to `given`; "" if none is similar."""
    close = difflib.get_close_matches(given, list(known), n=1, cutoff=0.75)
    return f"; did you mean {close[0]}?" if close else ""


def _unknown_option(option: str, args: list[str], command: Any) -> str:
    from pretrainkit.config.explain import fields_under, in_our_words, nearest
    from pretrainkit.recipes.registry import entries, find_recipe
    from pretrainkit.training.run import RunConfig

    place = next((number for number, arg in enumerate(args) if arg.partition("=")[0] == option), len(args))
    _, equals, value = args[place].partition("=") if place < len(args) else (option, "", "")
    following = args[place + 1] if place + 1 < len(args) else "-"
    value = value if equals else "VALUE" if following.startswith("-") or "=" in following else following
    recipe = next((arg.partition("/")[0] for arg in args if arg.partition("/")[0] in entries()), None)
    fields = fields_under(RunConfig if recipe is None else find_recipe(recipe).config_class)
    name = option.lstrip("-").replace("_", "-").removeprefix("config.")  # the flag of ml_collections
    wanted = name.replace("-", "_")
    named = sorted((path for path in fields if wanted in (path, path.rpartition(".")[2])), key=_preference)
    problem = f"there is no option {option}"
    options = _options(command)
    if any(param.param_type_name == "argument" and param.name == wanted for param in command.params):
        others = [arg for number, arg in enumerate(args) if number not in (place, place + (not equals))]
        return f"{problem}\n  write the {name} without {option}: pretrainkit {' '.join((command.name, value, *others))}"
    if habit := in_our_words(name, value, {*fields, *options}):
        return f"{problem}\n  write: {habit}"
    if named:
        return f"{problem}; settings are written without dashes\n  write: {named[0]}={value}"
    if near := _did_you_mean(option, options):
        return f"{problem}{near}\n  all options: pretrainkit {command.name} --help"
    helps = {param.name: f"{param.opts[0]}: {param.help}" for param in command.params if {*param.opts} & {*options}}
    described = {path: f"{path}: {help}" for path, help in fields.items()} | helps
    closest = nearest(wanted, fields | helps)
    advice = f"\n  the closest to it is {described[closest]}" if closest else ""
    return f"{problem}{advice}\n  settings are written PATH=VALUE; options are {', '.join(options)}"


def _preference(path: str) -> tuple[int, int]:
    """Sort key of a setting: settings at the top level first, then by part, with the data before the model."""
    first = path.partition(".")[0]
    order = ("data", "optimizer", "schedule", "objective", "model")
    return path.count("."), order.index(first) if first in order else len(order)


app = typer.Typer(cls=LazyGroup, no_args_is_help=True, pretty_exceptions_enable=False)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"pretrainkit {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    debug: Debug = False,
    version: bool = Option(False, "--version", is_eager=True, callback=_print_version, help="Print the version."),
) -> None:
    """From raw data to an evaluated, exported model trained from scratch."""


def _is_new(text: str, seen: set[str]) -> bool:
    """Return True, and remember the text, if it is seen for the first time."""
    is_new = text not in seen
    seen.add(text)
    return is_new


def main() -> None:
    """Entry point. Exit codes: 0 done, 1 failed, 2 bad input or config, 130 interrupted (state saved)."""
    # OpenMP threads that busy-wait for long block the cores: on a busy machine, steps were 3 to 6 times slower. Threads
    # that never busy-wait must be woken for every operation: steps of small models were 30 % slower.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    # If a mapped file gets shorter, the system ends the process (SIGBUS); this shows where.
    with suppress(RuntimeError, AttributeError, ValueError, OSError):  # stderr may be closed, or no file
        faulthandler.enable(all_threads=False)
    # Characters that the encoding of standard output lacks are escaped, as on standard error.
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")
    if logging.lastResort is not None:  # prints warnings; a trial or a plan may find what the run finds again
        printed = set[str]()
        logging.lastResort.filters = [lambda record: _is_new(record.getMessage(), printed)]
    try:
        app(prog_name="pretrainkit")
    except PretrainKitError as error:
        if os.environ.get("PRETRAINKIT_DEBUG"):
            traceback.print_exc()
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except OSError as error:
        # A failing disk is not a bug of this package, so there is no traceback. Any other error shows its traceback.
        from pretrainkit.files.manifest import UNUSABLE, failed_disk

        if error.errno not in UNUSABLE or os.environ.get("PRETRAINKIT_DEBUG"):
            raise
        print(f"error: {failed_disk(error, 'cannot read or write a file')}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
