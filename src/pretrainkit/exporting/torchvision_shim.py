"""torchvision beside a CPU-only torch.

The package index has torchvision for CUDA builds of torch alone. Beside a CPU build its compiled library does not load,
and `import torchvision`, which timm needs, ends with "operator torchvision::nms does not exist": two of the operators
that the library would have declared are given shape functions at import. Declaring those two is all that is missing.
Then transforms, datasets, models and all of timm work; boxes (`torchvision.ops`) and its image decoders do not, and say
so when they are called. Public reports: pytorch/vision issues 9077, 9085, 8985.

Where the compiled operators load, nothing is declared.
"""

from importlib.util import find_spec
from types import ModuleType

from pretrainkit.errors import MissingPackageError

_MISSING = ("nms", "qnms")
_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


def import_torchvision() -> ModuleType:
    """torchvision, also beside a CPU-only torch. Call it before anything that imports torchvision itself.

    Raises:
        ImportError: It is not installed.
    """
    try:
        import torchvision
    except RuntimeError as error:
        if not any(f"operator torchvision::{name} does not exist" in str(error) for name in _MISSING):
            raise
        _declare()
        import torchvision
    return torchvision


def import_timm(purpose: str) -> ModuleType:
    """timm, with torchvision in working order.

    Raises:
        MissingPackageError: One of them is not installed, which `purpose` needs.
    """
    try:
        import_torchvision()
        import timm
    except ImportError as error:
        raise MissingPackageError(error.name or "timm", "vision", purpose) from None
    return timm


def import_transformers() -> ModuleType:
    """transformers, whose models import torchvision wherever it is installed."""
    if find_spec("torchvision") is not None:
        import_torchvision()
    import transformers

    return transformers


def _declare() -> None:
    import torch

    for name in _MISSING:
        if name not in dir(torch.ops.torchvision):
            torch.library.define(f"torchvision::{name}", _SCHEMA)
