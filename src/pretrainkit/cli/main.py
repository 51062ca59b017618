"""The command line: `pretrainkit VERB ...`. Each verb lives in its own file and is imported when it is named."""

import difflib
import importlib
import os
import sys
import traceback
from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from pretrainkit import __version__
from pretrainkit.errors import PretrainKitError

VERBS = {
    "demo": "From English prose on this machine to a trained, evaluated, exported tiny BERT, in minutes.",
    "recipes": "List the recipes and their presets.",
    "config": "Show, check and document configs.",
    "corpus": "Turn raw files into clean, shuffled, checksummed shards; count words; statistics.",
    "tokenizer": "Train tokenizers and encode a corpus to token shards.",
    "render": "Turn text into pictures of it, in parquet files, for models that read pixels.",
    "data": "Check the data of a config or sets of image-text pairs, pack those into tars, take their captions out.",
    "tasks": "List tasks and mixtures, look at their examples, make caches.",
    "train": "Train a preset or a config file.",
    "finetune": "Train a text encoder further on a task of GLUE, or a table of your own.",
    "sweep": "Fine-tune on all tasks of GLUE with several learning rates and seeds; tables and a submission.",
    "predict": "Let a fine-tuned model answer a task or a table: JSON lines.",
    "resume": "Go on with a run exactly where it stopped.",
    "launch": "Look at runs started with --launch, end them, go on with them; machines of a cloud.",
    "evaluate": "Evaluate a run or checkpoint on held-out data.",
    "probe": "Measure the features of a frozen image encoder: linear probes and nearest neighbours.",
    "generate": "Let a trained model answer, fill in what is hidden, or find images by what they show.",
    "infer": "Ask a trained model about all examples of a task, or all rows of a file: JSON lines.",
    "export": "Write a run's weights in another format, such as Hugging Face's.",
    "import": "Read weights of another format into a run.",
    "plan": "Say what a run needs before it is paid for: memory per GPU, FLOPs, time and cost; checks its layout.",
    "doctor": "Say what this machine can do, and what to install for the rest.",
    "report": "Write a run's report: one self-contained HTML page.",
}
"""Verb to its line of help. The file is `cli/VERB.py` (`import_.py` for import) and holds `app`, a Typer app."""


class LazyGroup(TyperGroup):
    """Lists all verbs without importing any. Newer Typers bring their own click, whose types have no public name."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in VERBS:
            close = difflib.get_close_matches(cmd_name, VERBS, n=1)
            hint = f" Did you mean {close[0]!r}?" if close else f" There are: {', '.join(VERBS)}."
            ctx.fail(f"No such command {cmd_name!r}.{hint}")
        module = importlib.import_module(f"pretrainkit.cli.{'import_' if cmd_name == 'import' else cmd_name}")
        command = get_command(module.app)
        command.name = cmd_name
        return command

    def format_help(self, ctx: Any, formatter: Any) -> None:
        print("Usage: pretrainkit [--debug] VERB ...\n")
        print("From raw data to an evaluated, exported model trained from scratch.\n")
        width = max(map(len, VERBS))
        print("\n".join(f"  {verb:<{width}}  {line}" for verb, line in VERBS.items()))
        print("\n  pretrainkit VERB --help tells more; --version the version; --debug shows tracebacks of errors.")
        print("  Start with: pretrainkit demo")


app = typer.Typer(cls=LazyGroup, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"pretrainkit {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    debug: bool = typer.Option(False, "--debug", help="Show tracebacks of errors."),
    version: bool = typer.Option(False, "--version", is_eager=True, callback=_print_version, help="Print the version."),
) -> None:
    """From raw data to an evaluated, exported model trained from scratch."""
    if debug:
        os.environ["PRETRAINKIT_DEBUG"] = "1"


def main() -> None:
    """Entry point. Exit codes: 0 done, 1 failed, 2 bad input or config, 130 interrupted (state saved)."""
    # Threads that spin while they wait take the cores from everyone else: on a busy machine steps were 6 times slower.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        app(prog_name="pretrainkit")
    except PretrainKitError as error:
        if os.environ.get("PRETRAINKIT_DEBUG"):
            traceback.print_exc()
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
