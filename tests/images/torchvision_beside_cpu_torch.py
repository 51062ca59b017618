"""Importing this imports torchvision, also beside a torch without CUDA; ModuleNotFoundError where it is missing."""

from pretrainkit.recipes.clip.torchvision_shim import import_torchvision

torchvision = import_torchvision()
