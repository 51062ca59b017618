"""Encoders of `transformers` without changes, for fine-tuning with a head of this project."""
