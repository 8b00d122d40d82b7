"""Reductions and contractions."""
