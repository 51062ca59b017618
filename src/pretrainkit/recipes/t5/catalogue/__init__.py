"""The named tasks and mixtures of T5: importing this makes them known. No data is read before they are used.

Their vocabulary is that of the run. Their data is in the folders of `data.task_folders`, or else on the hub: see
docs/tasks.md.
"""

from pretrainkit.recipes.t5.catalogue import glue, mixtures, super_glue, texts
from pretrainkit.recipes.t5.catalogue.sentinels import add_task_with_sentinels, with_sentinels
from pretrainkit.recipes.t5.denoising import DenoisingConfig
from pretrainkit.recipes.t5.task_denoising import denoising_steps
from pretrainkit.tasks.steps import Step
from pretrainkit.tasks.task import add_mixture, add_task

__all__ = ["add_task_with_sentinels", "default_steps", "with_sentinels"]


def default_steps() -> tuple[Step, ...]:
    """The steps that a run with default settings supplies in place of `RunSteps`: span corruption."""
    return denoising_steps(DenoisingConfig())


for _task in (*glue.TASKS, *super_glue.TASKS, *texts.TASKS):
    add_task(_task)
for _task in super_glue.TASKS:
    add_task(with_sentinels(_task))
for _mixture in mixtures.MIXTURES:
    add_mixture(_mixture)
