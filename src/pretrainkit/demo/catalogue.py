"""List of the demos."""

from typing import NamedTuple


class Demo(NamedTuple):
    """Description of a demo for the command line. `run_demo` of `pretrainkit.demo.NAME` runs it."""

    about: str
    num_steps: int
    """Default number of optimizer updates."""
    takes: str | None = None
    """Name of the option that only this demo has."""


DEMOS = {
    "bert": Demo("From the documentation of Python.", 2000, "text"),
    "clip": Demo("From generated images and captions.", 420),
    "t5": Demo("From the documentation of Python, then fine-tuned to answer questions about it.", 220),
    "pixel": Demo("From sentences drawn as pictures, then fine-tuned to tag parts of speech.", 600, "font"),
    "fourm": Demo("From generated scenes, each as photograph, depth, classes, caption and boxes.", 800),
}
"""All demos by name. The first one is the default."""
DEFAULT = next(iter(DEMOS))
TAKERS = {demo.takes: name for name, demo in DEMOS.items()}
