"""Importing this imports torchvision, also beside a torch without CUDA; ModuleNotFoundError where it is missing."""

from pretrainkit.exporting.torchvision_shim import import_torchvision

torchvision = import_torchvision()
