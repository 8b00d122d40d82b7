"""Tests of rewrites of quantized graphs."""
