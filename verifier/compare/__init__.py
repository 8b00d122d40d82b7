"""Equality of two graphs with constants."""
