"""Update the golden files to the results of the code: `python tests/golden/refresh.py [NAME...]`, with names of
`WRITERS`.

Do it only where the change is meant, read the difference before you commit it, and say in the commit why it is right.
Without names, all files are written.
"""

import sys
from collections.abc import Callable
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # for the package support

import bert_runs
import configs
import draws
import order
import small_runs

WRITERS: dict[str, Callable[[], None]] = {
    "configs": configs.write,
    "order": order.write,
    "batches": bert_runs.write_batches,
    "draws": draws.write,
    "losses": bert_runs.write_losses,
    "small": small_runs.write,
}

if __name__ == "__main__":
    names = sys.argv[1:] or list(WRITERS)
    if unknown := [name for name in names if name not in WRITERS]:
        sys.exit(f"there is no golden file {unknown[0]!r}; there are: {', '.join(WRITERS)}")
    for name in names:
        WRITERS[name]()
        print(f"{name}: written")
