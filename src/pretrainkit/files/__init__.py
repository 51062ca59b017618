"""Files that are complete or absent, manifests, fingerprints, and sources of input."""
