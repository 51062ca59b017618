"""Settings of the 4M recipe. Torch-free.

`FourMRun` is a `RunConfig` whose model, objective, masking and data are the classes below and in `model_config.py` and
`data_config.py`. Presets (complete configs) are in `presets.py`.
"""

from typing import Any, Literal, Self

from pydantic import Field

from pretrainkit.config.base import DEFAULT, Config, Conflict
from pretrainkit.config.fields import NonNegativeFloat
from pretrainkit.recipes.fourm.data_config import FourMDataConfig, MaskingConfig
from pretrainkit.recipes.fourm.lengths import LengthConfig
from pretrainkit.recipes.fourm.model_config import FourMModelConfig
from pretrainkit.training.run import RunConfig


class FourMObjectiveConfig(Config):
    """How the targets of the modalities count."""

    loss: Literal["modality", "token", "token_compat"] = "modality"
    """modality: the mean over a modality's targets, and of that the mean over all modalities; one that a batch has no
    target of counts as 0. token: the mean over all targets. token_compat: the original's, where targets count by the
    size of their vocabulary."""
    modality_weights: dict[str, NonNegativeFloat] = Field(default={})
    """Factors of losses by modality; 1 for others."""


class FourMRun(RunConfig):
    """One pretraining run of the 4M recipe."""

    recipe: Literal["fourm"] = "fourm"
    """Name of the recipe this config belongs to."""
    model: FourMModelConfig
    """The architecture."""
    objective: FourMObjectiveConfig = FourMObjectiveConfig()
    """How losses count."""
    masking: MaskingConfig = MaskingConfig()
    """What is given and what is asked for."""
    data: FourMDataConfig
    """What the model is fed."""
    length: LengthConfig = LengthConfig()
    """How long, in tokens instead of steps."""

    @property
    def example_tokens(self) -> int:
        """Slots of an example, filled or not."""
        return self.masking.num_input_tokens + self.masking.num_target_tokens

    @property
    def step_tokens(self) -> int:
        """Slots of a step, filled or not."""
        return self.example_tokens * self.data.batch_size

    def in_steps(self) -> Self:
        """The same with all lengths in steps."""
        length, update, schedule = self.length, dict[str, Any](), dict[str, int]()
        if length.num_tokens is not None:
            update["num_steps"] = length.num_steps(self.step_tokens, self.data.batch_size)
        if length.num_warmup_tokens is not None:
            schedule["num_warmup_steps"] = length.num_warmup_steps(self.step_tokens)
        if length.num_cooldown_tokens is not None:
            schedule["num_decay_steps"] = length.num_decay_steps(self.step_tokens)
        if schedule:
            update["schedule"] = self.schedule.model_copy(update=schedule)
        return self.model_copy(update=update)

    def problems(self, world_size: int = 1) -> list[str]:
        """What the base class finds, and settings of this recipe that cannot work together."""
        found = [self._in_tokens(problem) for problem in super(FourMRun, self.in_steps()).problems(world_size)]
        return found + self._length_problems() + self._model_problems()

    def _in_tokens(self, problem: str) -> str:
        """A conflict of the base class, where `length` says in tokens what would have to give way."""
        tokens = {
            "schedule.num_warmup_steps": ("num_warmup_tokens", self.length.num_warmup_tokens),
            "schedule.num_decay_steps": ("num_cooldown_tokens", self.length.num_cooldown_tokens),
        }
        if not isinstance(problem, Conflict):
            return problem
        remedies = []
        for path, value in problem.remedies:
            name, given = tokens.get(path, ("", None))
            if given is not None:
                num_tokens = value if value is DEFAULT else max(1, value * self.step_tokens)
                remedies.append((f"length.{name}", num_tokens))
            else:
                remedies.append((path, value))
        return Conflict(problem, remedies, "length.num_tokens", *problem.settings)

    def _length_problems(self) -> list[str]:
        """Lengths that are given twice and not alike."""
        found: list[str] = []
        wanted = self.in_steps()
        schedule, planned = self.schedule, wanted.schedule
        for name, in_tokens, given, needed, default in (
            ("num_steps", "num_tokens", self.num_steps, wanted.num_steps, None),
            ("schedule.num_warmup_steps", "num_warmup_tokens", schedule.num_warmup_steps, planned.num_warmup_steps, 0),
            ("schedule.num_decay_steps", "num_cooldown_tokens", schedule.num_decay_steps, planned.num_decay_steps, 0),
        ):
            if given not in (default, needed):
                found.append(
                    Conflict(
                        f"{name}={given}, but by length.{in_tokens} it is {needed}\n"
                        f"  leave one out: {name}={'null' if default is None else default} or length.{in_tokens}=null",
                        [(f"length.{in_tokens}", DEFAULT), (name, default)],
                    )
                )
        if self.length.num_epoch_examples is not None and self.length.num_tokens is None:
            found.append(
                Conflict(
                    f"length.num_epoch_examples={self.length.num_epoch_examples} is only read with length.num_tokens\n"
                    "  give both or none",
                    [("length.num_epoch_examples", DEFAULT)],
                    "length.num_tokens",
                )
            )
        if self.length.num_warmup_tokens is not None and self.schedule.warmup_share is not None:
            found.append(
                Conflict(
                    "length.num_warmup_tokens and schedule.warmup_share both set the warm-up\n  give one of them",
                    [("length.num_warmup_tokens", DEFAULT), ("schedule.warmup_share", DEFAULT)],
                )
            )
        return found

    def _model_problems(self) -> list[str]:
        found, model = [], self.model
        if model.hidden_size % model.num_heads:
            found.append(
                f"model.hidden_size {model.hidden_size} cannot be split over model.num_heads {model.num_heads}\n"
                f"  use a width that is a multiple of the number of heads, such as {64 * model.num_heads}"
            )
        targets = [modality.name for modality in model.modalities if modality.is_target]
        if not targets or not any(modality.is_input for modality in model.modalities):
            found.append("model.modalities has no input or no target\n  add one; pixels and vectors can be inputs only")
        found += [
            f"objective.modality_weights names {name!r}, which is no target of the model\n  it has {', '.join(targets)}"
            for name in self.objective.modality_weights
            if name not in targets
        ]
        if (
            targets
            and self.objective.modality_weights
            and not any(self.objective.modality_weights.get(name, 1.0) for name in targets)
        ):
            found.append("objective.modality_weights leaves nothing to learn: all are 0\n  give one more")
        if model.num_registers and self.masking.unused == "pack":
            found.append(
                Conflict(
                    f"model.num_registers={model.num_registers} registers are in front of rows, which hold one example "
                    "each only with masking.unused=pad\n  set masking.unused=pad, or model.num_registers=0",
                    [("masking.unused", "pad"), ("model.num_registers", 0)],
                )
            )
        return found
