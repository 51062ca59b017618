"""Documents of a dump: pages that are articles, as text."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pretrainkit.corpus.wikipedia.clean import Cleaner
from pretrainkit.corpus.wikipedia.compat import Kept, wikiextractor_text
from pretrainkit.corpus.wikipedia.dump import read_pages, read_site
from pretrainkit.corpus.wikipedia.options import Extraction
from pretrainkit.corpus.wikipedia.redirects import kept_redirects
from pretrainkit.files.skips import Skips
from pretrainkit.files.sources import OnBytes, SourceFile

_DISAMBIGUATION = re.compile(r"^\{\{(?:disambig|hndis|geodis|dab\b|surname\b|пояснение)|^__DISAMBIG__", re.I | re.M)


def dump_documents(source: SourceFile, skips: Skips, on_bytes: OnBytes = None) -> Iterator[tuple[str, dict[str, Any]]]:
    """Text and `meta` (dataset, id, title) of the articles that begin in `source`, in the order of the dump.

    Redirects, pages of other namespaces and pages without text are counted and left out.

    Raises:
        DataError: The file cannot be read, or has bad input beyond the budget.
    """
    options = source.options if isinstance(source.options, Extraction) else Extraction()
    if options.redirects is None:
        yield from _articles(source, options, skips, on_bytes, lambda title, target: None)
        return
    with kept_redirects(Path(options.redirects), source) as keep:
        yield from _articles(source, options, skips, on_bytes, keep)


def _articles(
    source: SourceFile, options: Extraction, skips: Skips, on_bytes: OnBytes, on_redirect: Callable[[str, str], None]
) -> Iterator[tuple[str, dict[str, Any]]]:
    cleaner = Cleaner(read_site(source), options)
    kept = Kept(options.sections, options.lists, options.tables)
    last_id = None
    for page in read_pages(source, skips, on_bytes):
        if page.namespace != 0:
            skips.leave_out("page_of_another_namespace", source.address, f"page {page.title!r}")
            continue
        if page.redirect is not None:
            on_redirect(page.title, page.redirect)
            skips.leave_out("redirect", source.address, f"page {page.title!r}")
            continue
        if page.id == last_id:
            skips.leave_out("page_again", source.address, f"page {page.title!r}")
            continue
        last_id = page.id
        if not options.disambiguations and _DISAMBIGUATION.search(page.text):
            skips.leave_out("disambiguation", source.address, f"page {page.title!r}")
            continue
        if options.compat == "wikiextractor":
            text = wikiextractor_text(page.text, page.title, kept, quotes_are_escaped=page.quotes_are_escaped)
        else:
            text = cleaner.clean(page.text, page.title)
        if not text and options.compat == "none":
            skips.leave_out("page_without_text", source.address, f"page {page.title!r}")
            continue
        yield text, {"dataset": source.dataset or "Wikipedia", "id": page.id, "title": page.title}
