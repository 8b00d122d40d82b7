"""Numerical checks of an optimized graph against the original."""
