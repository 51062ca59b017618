"""`python one_command.py WORDS...`: `pretrainkit WORDS...`, maybe as one of several ranks."""

import sys

from pretrainkit.cli.main import main

if __name__ == "__main__":
    sys.argv[0] = "pretrainkit"
    main()
