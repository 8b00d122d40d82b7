"""Partially equivalent programs: where they are equal, and how to correct them."""
