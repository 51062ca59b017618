"""Using trained models: filling in, and later decoding. Recipes implement it; this room holds what they share."""
