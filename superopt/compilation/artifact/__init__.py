"""Saved models that travel: recipes of their constants, and machine code for named processors."""
