"""`python command.py WORDS...`: `pretrainkit WORDS...` with the shim, in a process that was forked without it."""

import runpy
import sys
from pathlib import Path

if __name__ == "__main__":
    runpy.run_path(str(Path(__file__).parent / "shim" / "sitecustomize.py"))

    from pretrainkit.cli.start import main

    sys.argv[0] = "pretrainkit"
    main()
