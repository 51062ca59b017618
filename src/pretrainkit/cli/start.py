"""The entry point of `pretrainkit`, which loads nothing before it can answer Ctrl-C."""

import sys


def main() -> None:
    """Run the command line. Ctrl-C while it is loaded ends without a traceback, too."""
    try:
        from pretrainkit.cli.main import main as run
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    run()
