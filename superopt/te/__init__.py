"""Tensor expressions: what each element of a tensor is, and the readings of that one definition."""
