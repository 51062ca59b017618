"""Options of the conversion of Wikipedia dumps."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

Compat = Literal["none", "wikiextractor"]


@dataclass(frozen=True, kw_only=True)
class Extraction:
    """Options of `corpus wikipedia`. They are part of a source's identity, because they change the documents."""

    sections: bool = False
    """Keep section titles, each on a separate line."""
    lists: bool = False
    """Keep list items, as lines that begin with "- "."""
    tables: bool = False
    """Keep tables: one line per row, cells separated by " | "."""
    disambiguations: bool = True
    """Keep disambiguation pages, which list articles with similar titles."""
    compat: Compat = "none"
    """"wikiextractor" reproduces the output of WikiExtractor 2.75, including its losses. `sections`, `lists` and
    `tables` correspond to its options --sections, --lists and --keep_tables."""
    redirects: str | None = None
    """Folder for the redirects, one file per span of the dump; None does not store redirects."""

    def content(self) -> dict[str, Any]:
        """Return the options that decide the content, for fingerprints and manifests."""
        return {key: value for key, value in asdict(self).items() if key != "redirects"} | (
            {"redirects": True} if self.redirects else {}
        )
