"""Tensor expressions: the definition of each element of a tensor, and its evaluations."""
