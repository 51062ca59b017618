"""Files that are complete or absent, manifests, fingerprints, and where input comes from."""
