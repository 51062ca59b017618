"""Importing this imports torchvision, also beside a torch without CUDA; ImportError where it is not installed.

Its compiled operators are built for CUDA only; elsewhere the two whose shapes it registers on import must be declared.
"""

try:
    import torchvision
except RuntimeError:
    import torch

    for name in ("nms", "qnms"):
        if name not in dir(torch.ops.torchvision):
            torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    import torchvision

__all__ = ["torchvision"]
