"""Text of the articles in a Wikipedia dump."""

import re
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from pretrainkit.corpus.wikipedia.clean import Cleaner
from pretrainkit.corpus.wikipedia.compat import wikiextractor_text
from pretrainkit.corpus.wikipedia.dump import read_pages, read_site
from pretrainkit.corpus.wikipedia.options import Extraction
from pretrainkit.corpus.wikipedia.redirects import redirect_writer
from pretrainkit.files.skips import Skips
from pretrainkit.files.sources import OnBytes, SourceFile

_DISAMBIGUATION = re.compile(r"^\{\{(?:disambig|hndis|geodis|dab\b|surname\b|пояснение)|^__DISAMBIG__", re.I | re.M)


def dump_documents(source: SourceFile, skips: Skips, on_bytes: OnBytes = None) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield text and `meta` (dataset, id, title) of the articles that begin in `source`, in the order of the dump.

    Skips and counts redirects, pages of other namespaces and pages without text. Raises DataError if the file cannot
    be read or has more bad input than allowed.
    """
    options = source.options if isinstance(source.options, Extraction) else Extraction()
    redirects = redirect_writer(Path(options.redirects), source) if options.redirects else nullcontext(None)
    cleaner = Cleaner(read_site(source), options)
    last_id = None
    with redirects as keep_redirect:
        for page in read_pages(source, skips, on_bytes):
            text = problem = ""
            if page.namespace != 0:
                problem = "page_of_another_namespace"
            elif page.redirect is not None:
                problem = "redirect"
                if keep_redirect:
                    keep_redirect(page.title, page.redirect)
            elif page.id == last_id:
                problem = "page_again"
            elif not options.disambiguations and _DISAMBIGUATION.search(page.text):
                problem, last_id = "disambiguation", page.id
            else:
                last_id = page.id
                if options.compat == "wikiextractor":
                    text = wikiextractor_text(
                        page.text, page.title, options, quotes_are_escaped=page.quotes_are_escaped
                    )
                elif not (text := cleaner.clean(page.text, page.title)):
                    problem = "page_without_text"
            if problem:
                skips.leave_out(problem, source.address, f"page {page.title!r}")
                continue
            yield text, {"dataset": source.dataset or "Wikipedia", "id": page.id, "title": page.title}
