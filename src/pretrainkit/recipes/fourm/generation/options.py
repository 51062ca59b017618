"""What `pretrainkit generate` takes for this recipe. Torch-free."""

OPTIONS = (
    *("given", "to", "plan", "settings", "seed", "temperature", "top_k", "top_p", "num"),
    *("from_data", "out", "then", "image_decoders", "batch_size", "device"),
)
"""Of `generate`."""
