"""Encoders of `transformers` as they are, to be trained further under a head of ours."""
