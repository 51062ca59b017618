"""PIXEL: language modelling with rendered text (Rust et al. 2022, https://arxiv.org/abs/2207.06991)."""
