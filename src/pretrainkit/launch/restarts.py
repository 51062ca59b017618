"""Whether what failed is started again: as long as it gets further. Torch-free."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Restarts:
    """Counts failures of one launch. What fails twice at the same checkpoint would fail again: a mistake in the code or
    the data, not a machine."""

    left: int
    """Failures that may still happen."""
    checkpoint: str | None
    """The newest when the attempt began."""

    def after_failure(self, code: int, checkpoint: str | None) -> "Restarts | None":
        """For the next attempt; None: there is none.

        Args:
            code: Exit code of the run: 1 failed; 2 (bad input) and 130 (asked to stop) are no failures to mend.
            checkpoint: The newest now.
        """
        if code != 1 or self.left < 1 or checkpoint is None or checkpoint == self.checkpoint:
            return None
        return Restarts(self.left - 1, checkpoint)
