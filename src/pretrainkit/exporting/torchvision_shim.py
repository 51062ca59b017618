"""torchvision beside a CPU-only torch.

Some package indexes have torchvision for CUDA builds of torch alone. Beside a CPU build its compiled library does not
load, and `import torchvision`, which timm, OpenCLIP and transformers need, ends with "operator torchvision::nms does
not exist". Declaring two operators is all that is missing. Then all but boxes (`torchvision.ops`) and image decoders
works; those say so when they are called. Public reports: pytorch/vision issues 9077, 9085, 8985.

`import_torchvision` declares them for this process, `python -m pretrainkit.exporting.torchvision_shim` in the installed
package, for every program of this environment. Where the compiled operators load, neither does anything.
"""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from pretrainkit.errors import MissingPackageError

_MISSING = ("nms", "qnms")
_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_ADDED = f"""

# Added by pretrainkit.exporting.torchvision_shim, which says why.
if not _has_ops():
    for _name in {_MISSING}:
        torch.library.define(f"torchvision::{{_name}}", "{_SCHEMA}")
"""


def import_torchvision() -> ModuleType:
    """torchvision, also beside a CPU-only torch. Call it before anything that imports torchvision itself. Raises
    ImportError where it is not installed."""
    try:
        import torchvision
    except RuntimeError as error:
        if not lacks_operators(str(error)):
            raise
        import torch

        for name in _MISSING:
            if name not in dir(torch.ops.torchvision):
                torch.library.define(f"torchvision::{name}", _SCHEMA)
        import torchvision
    return torchvision


def import_timm(purpose: str) -> ModuleType:
    """timm, with torchvision in working order. Raises MissingPackageError where one of them is not installed, which
    `purpose` needs."""
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


def lacks_operators(error: str) -> bool:
    """Whether this is what an import of torchvision says beside a torch that it was not built for."""
    return any(f"operator torchvision::{name} does not exist" in error for name in _MISSING)


def mend_installed() -> bool:
    """Declare the two operators in the installed torchvision, if its import fails for want of them; returns whether
    that was so."""
    spec = find_spec("torchvision")
    if spec is None or spec.origin is None:
        return False
    plain = [sys.executable, "-c", "import torchvision"]
    if not lacks_operators(subprocess.run(plain, capture_output=True, text=True, check=False).stderr):
        return False
    path = Path(spec.origin).with_name("extension.py")
    # Written anew: some installers share a file between environments.
    aside = path.with_name("extension.py.incomplete")
    aside.write_text(path.read_text(encoding="utf-8") + _ADDED, encoding="utf-8")
    os.replace(aside, path)
    subprocess.run(plain, check=True)
    return True


if __name__ == "__main__":
    if mend_installed():
        print("torchvision can be imported now; what it compiled (torchvision.ops, its image decoders) does not work")
