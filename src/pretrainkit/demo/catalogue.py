"""The demos that there are."""

from typing import NamedTuple


class Demo(NamedTuple):
    """A demo as the command line lists it; `run_demo` of `pretrainkit.demo.NAME` runs it."""

    about: str
    num_steps: int
    """Optimizer updates unless the user says otherwise."""
    takes: str | None = None
    """The option that is for this demo alone."""


DEMOS = {
    "bert": Demo("From English prose.", 900, "text"),
    "clip": Demo("From generated images and captions.", 420),
    "t5": Demo("From English prose, then fine-tuned to answer questions about it.", 220),
    "pixel": Demo("From sentences that are drawn, then fine-tuned to name parts of speech.", 900, "font"),
    "fourm": Demo("From generated scenes, each as photograph, depth, classes, caption and boxes.", 640),
}
"""The first one is the default."""
DEFAULT = next(iter(DEMOS))
TAKERS = {demo.takes: name for name, demo in DEMOS.items()}
