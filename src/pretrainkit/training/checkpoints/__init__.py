"""Checkpoints of a run: writing, reading, retention."""
