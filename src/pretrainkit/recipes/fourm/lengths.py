"""How long a run is, in tokens. Torch-free.

Source: the original's training script. A token is a slot of the budgets, filled or not: 128 inputs and 128 targets are
256 tokens an example.
"""

import math

from pydantic import PositiveInt

from pretrainkit.config.base import Config


class LengthConfig(Config):
    """Lengths in tokens. One is a slot of the largest budgets (masking.num_input_tokens + masking.num_target_tokens of
    each example), filled or not."""

    num_tokens: PositiveInt | None = None
    """Of the run, rounded up to whole steps; null: num_steps says it."""
    num_epoch_examples: PositiveInt | None = None
    """Round up to whole epochs of so many examples instead, of which each has only whole steps, as in the original;
    null: to steps."""
    num_warmup_tokens: PositiveInt | None = None
    """Until peak_lr is reached, rounded up to whole steps, of which the last one has it, as in the original; null:
    schedule.num_warmup_steps says it."""
    num_cooldown_tokens: PositiveInt | None = None
    """Of the decay at the end (schedule.name wsd), rounded up; null: schedule.num_decay_steps says it."""

    def num_steps(self, step_tokens: int, batch_size: int) -> int:
        """Updates of the run.

        Args:
            step_tokens: Slots of an example x `batch_size`.
            batch_size: Examples of a step.
        """
        assert self.num_tokens is not None
        if self.num_epoch_examples is None:
            return math.ceil(self.num_tokens / step_tokens)
        num_epochs = math.ceil(self.num_tokens * batch_size / (step_tokens * self.num_epoch_examples))
        return num_epochs * max(1, self.num_epoch_examples // batch_size)

    def num_warmup_steps(self, step_tokens: int) -> int:
        """Updates before the one that has the peak."""
        assert self.num_warmup_tokens is not None
        return max(1, math.ceil(self.num_warmup_tokens / step_tokens)) - 1

    def num_decay_steps(self, step_tokens: int) -> int:
        """Updates of the decay at the end."""
        assert self.num_cooldown_tokens is not None
        return math.ceil(self.num_cooldown_tokens / step_tokens)
