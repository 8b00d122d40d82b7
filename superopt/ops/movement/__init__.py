"""Operators that move elements: layout, slices, gathers, padding, generators."""
