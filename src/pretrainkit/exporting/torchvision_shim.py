"""torchvision beside a CPU-only torch.

Some package indexes have torchvision only for CUDA builds of torch. Beside a CPU build its compiled library does not
load, and `import torchvision`, which timm, OpenCLIP and transformers need, fails with "operator torchvision::nms does
not exist". Declaring two operators is enough to fix this. Then everything works except boxes (`torchvision.ops`) and
image decoders, which raise an error when called. Public reports: pytorch/vision issues 9077, 9085, 8985.

`import_torchvision` declares them for this process. `python -m pretrainkit.exporting.torchvision_shim` declares them in
the installed package, for every program of this environment. Both do nothing if the compiled operators load.
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

# Added by pretrainkit.exporting.torchvision_shim, which explains why.
if not _has_ops():
    for _name in {_MISSING}:
        torch.library.define(f"torchvision::{{_name}}", "{_SCHEMA}")
"""


def import_torchvision() -> ModuleType:
    """Import torchvision, also beside a CPU-only torch. Call this before importing packages that import torchvision.
    Raises ImportError if torchvision is not installed."""
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
    """Import timm with a working torchvision. Raises MissingPackageError, with `purpose` in the message, if one of them
    is not installed."""
    try:
        import_torchvision()
        import timm
    except ImportError as error:
        raise MissingPackageError(error.name or "timm", "vision", purpose) from None
    return timm


def import_transformers() -> ModuleType:
    """Import transformers, whose models import torchvision if it is installed."""
    if find_spec("torchvision") is not None:
        import_torchvision()
    import transformers

    return transformers


def lacks_operators(error: str) -> bool:
    """True if this is the error of importing torchvision beside a torch that it was not built for."""
    return any(f"operator torchvision::{name} does not exist" in error for name in _MISSING)


def fix_installed() -> bool:
    """Declare the two operators in the installed torchvision if its import fails without them; return True if so."""
    spec = find_spec("torchvision")
    if spec is None or spec.origin is None:
        return False
    plain = [sys.executable, "-c", "import torchvision"]
    if not lacks_operators(subprocess.run(plain, capture_output=True, text=True, check=False).stderr):
        return False
    path = Path(spec.origin).with_name("extension.py")
    # Replace the file instead of changing it: some installers share files between environments.
    aside = path.with_name("extension.py.incomplete")
    aside.write_text(path.read_text(encoding="utf-8") + _ADDED, encoding="utf-8")
    os.replace(aside, path)
    subprocess.run(plain, check=True)
    return True


if __name__ == "__main__":
    if fix_installed():
        print("torchvision can be imported now; its compiled parts (torchvision.ops, image decoders) do not work")
