"""What of a dump becomes text."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

Compat = Literal["none", "wikiextractor"]


@dataclass(frozen=True, kw_only=True)
class Extraction:
    """Choices of `corpus wikipedia`. Part of a source's identity: other choices are other documents."""

    sections: bool = False
    """Keep section titles, as lines of their own."""
    lists: bool = False
    """Keep list items, as lines that begin with "- "."""
    tables: bool = False
    """Keep tables, a line per row, cells joined by " | "."""
    disambiguations: bool = True
    """Keep pages that only tell apart what has the same name."""
    compat: Compat = "none"
    """wikiextractor: the text that WikiExtractor 2.75 gives, losses included; without options, or with its options
    --sections, --lists and --keep_tables for the first three here."""
    redirects: str | None = None
    """Folder in which every stretch of a dump that was read leaves a file of its redirects; None: they are not kept."""

    def content(self) -> dict[str, Any]:
        """For fingerprints and manifests."""
        return {key: value for key, value in asdict(self).items() if key != "redirects"} | (
            {"redirects": True} if self.redirects else {}
        )
