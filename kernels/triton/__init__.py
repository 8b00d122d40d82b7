"""Triton text of kernels, its compiler, and functions that run."""
