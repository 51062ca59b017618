"""Image tokenizers: turn images and maps into discrete tokens, and tokens back into images."""
