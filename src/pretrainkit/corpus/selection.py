"""Which documents of the input a corpus takes: those of good quality that are on no list of duplicates."""

from pathlib import Path

from pretrainkit.corpus.duplicates import DropList, DuplicateRule
from pretrainkit.corpus.quality import Quality
from pretrainkit.corpus.readers import Document
from pretrainkit.files.skips import Skips


class Selection:
    """Decides document by document, and counts what it leaves out."""

    def __init__(self, quality: Quality | None, rule: DuplicateRule | None, dropped: Path | None) -> None:
        """`dropped`: the list of documents that break `rule`."""
        self._quality = quality
        self._reason = rule.reason if rule else ""
        self._dropped = DropList(dropped) if dropped else None

    def takes(self, document: Document, number: int, skips: Skips) -> bool:
        """False where the document with this `identity` is left out."""
        if self._dropped is not None and number in self._dropped:
            skips.leave_out(self._reason, document.source, f"document {document.position}")
            return False
        problem = self._quality.problem(document.text) if self._quality else None
        if problem:
            skips.leave_out(problem, document.source, f"document {document.position}")
        return problem is None
