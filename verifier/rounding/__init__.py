"""Bounds of float32 rounding errors, and results that are equal within quantization steps."""
