"""Text-to-text tasks and mixtures of them: rows, steps, vocabularies, caches."""
