"""pretrainkit: from raw data to an evaluated, exported model trained from scratch.

The public functions are those of `pretrainkit.api`, loaded when first used, so that `import pretrainkit` is cheap.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pretrainkit.api import *

__version__ = "0.1.0"

__all__ = [
    "batches",
    "build_model",
    "check_data",
    "decode_tokens",
    "evaluate",
    "evaluate_checkpoints",
    "export",
    "generate",
    "import_model",
    "infer",
    "load_config",
    "load_model",
    "new_project",
    "open_image_tokenizer",
    "open_model",
    "open_renderer",
    "predict",
    "probe",
    "render",
    "resume",
    "tokenize_images",
    "train",
]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from pretrainkit import api

        return getattr(api, name)
    raise AttributeError(f"module 'pretrainkit' has no attribute {name!r}")
