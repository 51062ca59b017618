"""Which demos there are."""

from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple


class Demo(NamedTuple):
    """What the command line says of a demo; `NAME.run_demo` runs it."""

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


def taker(option: str) -> str:
    """The demo that an option is for."""
    return next(name for name, demo in DEMOS.items() if demo.takes == option)


def open_demo(name: str) -> Callable[..., dict[str, Any]]:
    """Its `run_demo(folder, num_steps, ...)`, which returns the headline numbers."""
    found: Callable[..., dict[str, Any]] = import_module(f"pretrainkit.demo.{name}").run_demo
    return found
