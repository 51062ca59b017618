"""`python one_rank.py WORDS...`: `pretrainkit WORDS...`, of which a launcher has started several."""

import sys

from pretrainkit.cli.main import main

if __name__ == "__main__":
    sys.argv[0] = "pretrainkit"
    main()
