"""Graphs of quantized models."""
