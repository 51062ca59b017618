"""Any modality from any others: a chain of targets, each an input of those behind it."""
