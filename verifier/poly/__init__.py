"""Polynomials over sizes and indices; bounds, guards, the solver."""
