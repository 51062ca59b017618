"""CUDA without a GPU: `import support.pretended_cuda.device` before torch. See there."""
