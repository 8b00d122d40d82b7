"""Which tensors are computed inside the kernels of others."""
