"""Equality of two elements: matching of sums, unification."""
