"""Loops and stores of kernels that depend on values in memory."""
