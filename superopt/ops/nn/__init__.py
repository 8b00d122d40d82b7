"""Operators of neural networks: convolution, pooling, normalization, attention."""
