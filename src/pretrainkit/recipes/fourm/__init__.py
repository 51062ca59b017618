"""4M: masked modelling over many modalities (Mizrahi et al. 2023, https://arxiv.org/abs/2312.06647)."""
