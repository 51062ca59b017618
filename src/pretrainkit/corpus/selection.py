"""Which documents of the input a corpus takes: those of good quality that are on no list of duplicates."""

from pathlib import Path

import numpy as np

from pretrainkit.corpus.duplicates import DROP_LIST
from pretrainkit.corpus.quality import Quality
from pretrainkit.corpus.readers import Document
from pretrainkit.corpus.skips import Skips
from pretrainkit.errors import DataError


class Selection:
    """Decides document by document, and counts what it leaves out."""

    def __init__(self, quality: Quality | None, drop_reason: str | None, out: Path) -> None:
        """`drop_reason`: under which name the documents of `OUT/.dropped.npy` are counted; None: there is no list."""
        self._quality = quality
        self._drop_reason = drop_reason
        self._dropped = np.empty(0, np.uint64)
        if drop_reason:
            try:
                self._dropped = np.load(out / DROP_LIST, mmap_mode="r")
            except (OSError, ValueError) as error:
                raise DataError(
                    f"{out / DROP_LIST} cannot be read: {error}\n  run the same command again from its beginning"
                ) from error

    def takes(self, document: Document, number: int, skips: Skips) -> bool:
        """False where the document with this `identity` is left out."""
        if self._drop_reason:
            place = int(np.searchsorted(self._dropped, np.uint64(number)))
            if place < len(self._dropped) and int(self._dropped[place]) == number:
                skips.leave_out(self._drop_reason, document.source, f"document {document.position}")
                return False
        problem = self._quality.problem(document.text) if self._quality else None
        if problem:
            skips.leave_out(problem, document.source, f"document {document.position}")
        return problem is None
