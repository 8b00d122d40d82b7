"""Tensor expressions: nodes, axes, tensors, element types, scalar functions."""
