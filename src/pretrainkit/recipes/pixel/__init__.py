"""T5: text-to-text models."""
