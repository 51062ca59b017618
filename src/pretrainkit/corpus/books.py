"""Text of whole-file books and of Wikipedia articles that WikiExtractor wrote.

Source: the rules of Sabertooth's corpus builder. Its defects are mended unless asked for: `<doc` counts as a mark only
at the start of a line, and an article without any line is skipped and counted, where the original aborts.
"""

from collections.abc import Iterable, Iterator

from pretrainkit.files.skips import Skips

WHITE_SPACE = (
    "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)
"""Unicode's White_Space property. Python's `str.strip()` takes U+001C to U+001F too, which are text here."""


def book_text(raw: str) -> str:
    r"""Lines cut at \n or \r\n, trimmed of Unicode white space, empty ones dropped, joined by \n.

    A byte order mark and a lone \r inside a line survive. An empty book gives "".
    """
    trimmed = (line.strip(WHITE_SPACE) for line in raw.split("\n"))
    return "\n".join(line for line in trimmed if line)


def wiki_articles(
    lines: Iterable[tuple[int, str]], address: str, skips: Skips, match_anywhere: bool = False
) -> Iterator[str]:
    """Texts of the articles between `<doc ...>` and `</doc>` lines, without their first line, the title.

    Empty lines go, all others stay as they are; lines outside an article are not text. A title alone gives "".

    Args:
        lines: Numbered from 1, without line feed.
        address: Where they come from, for messages.
        skips: Counts articles without a line, and articles that are not closed (bad input).
        match_anywhere: Take the marks anywhere in a line, as Sabertooth does, and lose the rest of such lines.
    """
    article: list[str] | None = None
    opened = 0
    for number, line in lines:
        line = line.removesuffix("\r")
        opens = "<doc" in line if match_anywhere else line.startswith(("<doc ", "<doc>"))
        closes = "</doc>" in line if match_anywhere else line.startswith("</doc>")
        if opens and (article is None or not match_anywhere):
            if article is not None:
                _not_closed(skips, address, opened)
            article, opened = [], number
        elif closes:
            if article:
                yield "\n".join(article[1:])
            elif article is not None:
                skips.skip("article_without_lines", address, f"line {opened}")
            article = None
        elif article is not None and line and not opens:
            article.append(line)
    if article is not None:
        _not_closed(skips, address, opened)


def _not_closed(skips: Skips, address: str, line: int) -> None:
    skips.bad("article_not_closed", address, f"line {line}", "no </doc> follows; the file may be cut off")
