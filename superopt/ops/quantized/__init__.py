"""Quantized operators."""
