"""Trials of rules on drawn inputs: refutation, float classes."""
