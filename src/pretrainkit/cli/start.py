"""The entry point of `pretrainkit`, which loads nothing before it can answer Ctrl-C."""

import os
import sys
from contextlib import suppress


def main() -> None:
    """Run the command line. Ctrl-C while it is loaded ends without a traceback, too."""
    with suppress(FileNotFoundError):  # the current folder was removed
        if {"", os.getcwd()}.isdisjoint(sys.path):
            # Other processes of this command must not import files of the current folder either, such as random.py.
            os.environ["PYTHONSAFEPATH"] = "1"
    try:
        from pretrainkit.cli.main import main as run
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    run()
