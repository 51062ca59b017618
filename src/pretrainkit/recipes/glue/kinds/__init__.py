"""Kinds of tasks: their examples, and metrics of the predictions. Imports no torch."""
