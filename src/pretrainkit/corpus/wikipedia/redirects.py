"""Table of a wiki's redirects: sorted lines of title TAB target, in which no target is a redirect itself.

The reader of each span of a dump writes one file. These files are joined on disk, in bounded memory.
"""

import shutil
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from pretrainkit.files.manifest import atomic_file, fingerprint
from pretrainkit.files.sources import SourceFile

FOLDER = ".redirects"
"""Subfolder of the output folder with the redirects of each span."""
TABLE = "_redirects.tsv"
"""File in the output folder with the titles and targets of redirects. Commands that read the folder ignore names
that begin with an underscore."""
_MAX_STEPS = 8
"""Redirects to redirects are followed for at most this many steps."""


@contextmanager
def redirect_writer(folder: Path, span: SourceFile) -> Iterator[Callable[[str, str], None]]:
    """Yield a function that stores title and target of a redirect in a file in `folder`.

    The file appears when the `with` block ends without an exception."""
    with atomic_file(folder / file_name(span)) as file:

        def keep(title: str, target: str) -> None:
            file.write(f"{_clean(title)}\t{_clean(target)}\n".encode())

        yield keep


def file_name(span: SourceFile) -> str:
    """Return the name of the file with the redirects of `span`."""
    return f"{fingerprint(span.identity)}.tsv"


def _clean(title: str) -> str:
    return " ".join(title.partition("#")[0].replace("_", " ").split())


def join_redirects(out: Path, spans: Iterable[SourceFile]) -> int | None:
    """Join the files in `OUT/.redirects` to `OUT/_redirects.tsv`, and remove the former. Drops circular redirects.

    Returns the number of redirects, or None if `OUT/.redirects` does not exist. Raises DataError if the table cannot be
    written."""
    folder = out / FOLDER
    if not folder.is_dir():
        return None
    database = folder / "joined.sqlite"
    database.unlink(missing_ok=True)
    with closing(sqlite3.connect(database)) as known:
        known.execute("PRAGMA journal_mode = OFF")
        known.execute("PRAGMA synchronous = OFF")
        known.execute("CREATE TABLE redirects (title TEXT PRIMARY KEY, target TEXT) WITHOUT ROWID")
        for span in spans:
            with open(folder / file_name(span), encoding="utf-8", newline="\n") as lines:
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
