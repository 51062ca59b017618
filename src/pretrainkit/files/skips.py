"""Inputs that a stage left out, counted by reason. Nothing is dropped without being counted.

Two kinds: *legal* skips (a JSON value without a text, an article without lines) are counted and warned about once per
file; *bad* input (a broken line, invalid UTF-8) also counts against a budget, by default none, beyond which the work
stops.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from pretrainkit.errors import DataError

_NUM_EXAMPLES = 5


class Skips:
    """Counts by reason, with the first few places of each."""

    def __init__(self, max_bad: int = 0) -> None:
        """`max_bad`: pieces of bad input that may be skipped before a DataError."""
        self.max_bad = max_bad
        self.counts: Counter[str] = Counter()
        self.examples: dict[str, list[str]] = {}
        self.num_bad = 0
        self.warnings: list[str] = []
        self._warned: set[tuple[str, str]] = set()

    @classmethod
    def of(cls, records: Iterable[dict[str, Any]], max_bad: int) -> "Skips":
        """Add up the records "skips" of finished tasks. Raises DataError if the total budget is exceeded."""
        skips = cls(max_bad)
        for record in records:
            skips.merge(record["skips"])
        return skips

    def leave_out(self, reason: str, source: str, place: str) -> None:
        """Counts what was never meant to be taken, at `place` (such as "line 3") of `source`."""
        self.counts[reason] += 1
        examples = self.examples.setdefault(reason, [])
        if len(examples) < _NUM_EXAMPLES:
            examples.append(f"{source}, {place}")

    def skip(self, reason: str, source: str, place: str, detail: str = "") -> None:
        """Counts one legal skip, and warns of it once per file."""
        self.leave_out(reason, source, place)
        if (reason, source) not in self._warned:
            self._warned.add((reason, source))
            self.warnings.append(
                f"{source}, {place}: skipped, {reason.replace('_', ' ')}{': ' + detail if detail else ''}"
            )

    def bad(self, reason: str, source: str, place: str, detail: str) -> None:
        """Counts one piece of bad input; a DataError when the budget is used up."""
        self.num_bad += 1
        if self.num_bad > self.max_bad:
            spent = f"; {self.max_bad} were allowed" if self.max_bad else ""
            raise DataError(
                f"{source}, {place}: {reason.replace('_', ' ')}{spent}\n"
                f"  {detail}\n"
                "  fix the file, or skip and count such input with --max-bad N"
            )
        self.skip(reason, source, place, detail)

    def merge(self, content: dict[str, Any]) -> None:
        """Adds the counts of another part of the same work, given as its `as_dict`; checks the budget over all."""
        self.counts.update(content["counts"])
        for reason, places in content["examples"].items():
            mine = self.examples.setdefault(reason, [])
            mine += places[: _NUM_EXAMPLES - len(mine)]
        self.num_bad += content["num_bad"]
        self.warnings += content["warnings"]
        if self.num_bad > self.max_bad:
            places = "; ".join(place for reason in sorted(self.examples) for place in self.examples[reason])
            raise DataError(
                f"{self.num_bad} pieces of bad input; {self.max_bad} were allowed\n"
                f"  such as: {places}\n"
                "  fix the files, or allow more with --max-bad N"
            )

    def as_dict(self) -> dict[str, Any]:
        """A JSON form that `merge` takes."""
        return {name: getattr(self, name) for name in ("counts", "examples", "num_bad", "warnings")}

    def for_manifest(self) -> dict[str, Any]:
        """Reason to its count and first places."""
        counts = sorted(self.counts.items())
        return {reason: {"count": count, "examples": self.examples[reason]} for reason, count in counts}
