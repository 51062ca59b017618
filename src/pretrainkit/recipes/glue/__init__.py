"""Fine-tuning of text encoders: GLUE, and any table of texts with labels. See README.md."""
