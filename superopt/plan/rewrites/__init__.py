"""Rewrites of tensor expressions before kernels are scheduled."""
