"""Generation of any modality from any others: a chain of targets, each of which is an input of the later ones."""
