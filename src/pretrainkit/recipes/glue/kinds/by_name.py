"""All kinds of tasks."""

from collections.abc import Mapping

from pretrainkit.recipes.glue.kinds.labelled import TaskKind
from pretrainkit.recipes.glue.kinds.spans import SpanKind
from pretrainkit.recipes.glue.kinds.tags import TagKind
from pretrainkit.recipes.glue.kinds.texts import TextKind
from pretrainkit.recipes.glue.kinds.trees import TreeKind
from pretrainkit.recipes.glue.tasks import Kind

KINDS: Mapping[Kind, TaskKind] = {
    "classes": TextKind(has_classes=True),
    "numbers": TextKind(has_classes=False),
    "tags": TagKind(),
    "spans": SpanKind(),
    "tree": TreeKind(),
}
