"""Where the redirects of a wiki lead: a table of title TAB target, sorted, in which no target is a redirect itself.

Every stretch of a dump leaves a file of its own, whoever reads it; they are joined on disk, in bounded memory.
"""

import shutil
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from pretrainkit.files.manifest import atomic_file, fingerprint
from pretrainkit.files.sources import SourceFile

FOLDER = ".redirects"
"""In the output folder: what was found so far."""
TABLE = "_redirects.tsv"
"""In the output folder; commands that read the folder pass over names that begin so."""
_MAX_STEPS = 8
"""Redirects that lead to redirects are followed so far."""


@contextmanager
def kept_redirects(folder: Path, stretch: SourceFile) -> Iterator[Callable[[str, str], None]]:
    """Takes title and target of each redirect into a file in `folder`, which is there once the block has ended well."""
    with atomic_file(folder / name_of(stretch)) as file:

        def keep(title: str, target: str) -> None:
            file.write(f"{_clean(title)}\t{_clean(target)}\n".encode())

        yield keep


def name_of(stretch: SourceFile) -> str:
    """Of the file that a stretch leaves."""
    return f"{fingerprint(stretch.identity)}.tsv"


def _clean(title: str) -> str:
    return " ".join(title.partition("#")[0].replace("_", " ").split())


def join_redirects(out: Path, stretches: Iterable[SourceFile]) -> int | None:
    """Makes `OUT/_redirects.tsv` of what these stretches of dumps left in `OUT/.redirects`, and removes that.
    Returns the number of redirects; None where nothing was left. Those that lead nowhere but in a circle are left
    out. Raises DataError where the table cannot be written."""
    folder = out / FOLDER
    if not folder.is_dir():
        return None
    database = folder / "joined.sqlite"
    database.unlink(missing_ok=True)
    with closing(sqlite3.connect(database)) as known:
        known.execute("PRAGMA journal_mode = OFF")
        known.execute("PRAGMA synchronous = OFF")
        known.execute("CREATE TABLE redirects (title TEXT PRIMARY KEY, target TEXT) WITHOUT ROWID")
        for stretch in stretches:
            with open(folder / name_of(stretch), encoding="utf-8", newline="\n") as lines:
                rows = (line.rstrip("\n").split("\t") for line in lines)
                known.executemany("INSERT OR IGNORE INTO redirects VALUES (?, ?)", rows)
        for _ in range(_MAX_STEPS):
            known.execute("DELETE FROM redirects WHERE title = target")
            followed = known.execute(
                "UPDATE redirects AS one SET target = next.target FROM redirects AS next WHERE one.target = next.title"
            )
            if not followed.rowcount:
                break
        known.execute("DELETE FROM redirects WHERE target IN (SELECT title FROM redirects)")
        ((number,),) = known.execute("SELECT count(*) FROM redirects")
        with atomic_file(out / TABLE) as table:
            joined = known.execute("SELECT title, target FROM redirects ORDER BY title")
            table.writelines(f"{title}\t{target}\n".encode() for title, target in joined)
    shutil.rmtree(folder)
    return int(number)
