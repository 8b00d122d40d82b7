"""Immutable, interned graphs of operators, their text, and their evaluation."""
