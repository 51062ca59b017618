"""Count skipped input by reason. Nothing is dropped without being counted.

There are two kinds. *Legal* skips (a JSON value without a text, an article without lines) are counted, with one warning
per file. *Bad* input (a broken line, invalid UTF-8) also counts against a limit, by default 0. If it is exceeded, the
command stops.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from pretrainkit.errors import DataError

_NUM_EXAMPLES = 5


class Skips:
    """Counts of skipped input by reason, with the first places of each."""

    def __init__(self, max_bad: int = 0) -> None:
        """`max_bad`: number of bad records that may be skipped before a DataError is raised."""
        self.max_bad = max_bad
        self.counts: Counter[str] = Counter()
        self.examples: dict[str, list[str]] = {}
        self.num_bad = 0
        self.warnings: list[str] = []
        self._warned: set[tuple[str, str]] = set()

    @classmethod
    def of(cls, records: Iterable[dict[str, Any]], max_bad: int) -> "Skips":
        """Add up the entries "skips" of finished tasks. Raises DataError if the total exceeds the limit."""
        skips = cls(max_bad)
        for record in records:
            skips.merge(record["skips"])
        return skips

    def leave_out(self, reason: str, source: str, place: str) -> None:
        """Count a record that is dropped on purpose, at `place` (such as "line 3") of `source`."""
        self.counts[reason] += 1
        examples = self.examples.setdefault(reason, [])
        if len(examples) < _NUM_EXAMPLES:
            examples.append(f"{source}, {place}")

    def skip(self, reason: str, source: str, place: str, detail: str = "") -> None:
        """Count one skipped record, which is not an error, with one warning per reason and file."""
        self.leave_out(reason, source, place)
        if (reason, source) not in self._warned:
            self._warned.add((reason, source))
            self.warnings.append(
                f"{source}, {place}: skipped, {reason.replace('_', ' ')}{': ' + detail if detail else ''}"
            )

    def bad(self, reason: str, source: str, place: str, detail: str) -> None:
        """Count one bad record. Raises DataError if the limit is exceeded."""
        self.num_bad += 1
        if self.num_bad > self.max_bad:
            allowed = f"; {self.max_bad} bad records were allowed" if self.max_bad else ""
            raise DataError(
                f"{source}, {place}: {reason.replace('_', ' ')}{allowed}\n"
                f"  {detail}\n"
                "  fix the file, or skip and count such input with --max-bad N"
            )
        self.skip(reason, source, place, detail)

    def merge(self, content: dict[str, Any]) -> None:
        """Add the counts of another part of the same work, given as its `as_dict`. Raises DataError if the total
        exceeds the limit."""
        self.counts.update(content["counts"])
        for reason, places in content["examples"].items():
            mine = self.examples.setdefault(reason, [])
            mine += places[: _NUM_EXAMPLES - len(mine)]
        self.num_bad += content["num_bad"]
        self.warnings += content["warnings"]
        if self.num_bad > self.max_bad:
            places = "; ".join(place for reason in sorted(self.examples) for place in self.examples[reason])
            raise DataError(
                f"the input has {self.num_bad} bad records; {self.max_bad} were allowed\n"
                f"  examples: {places}\n"
                "  fix the files, or allow more with --max-bad N"
            )

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON form, which `merge` accepts."""
        return {name: getattr(self, name) for name in ("counts", "examples", "num_bad", "warnings")}

    def for_manifest(self) -> dict[str, Any]:
        """Return the count and the first places of each reason."""
        counts = sorted(self.counts.items())
        return {reason: {"count": count, "examples": self.examples[reason]} for reason, count in counts}
