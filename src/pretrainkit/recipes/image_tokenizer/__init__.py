"""Image tokenizers: images and maps to discrete tokens and back."""
