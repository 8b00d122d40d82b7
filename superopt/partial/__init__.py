"""Partially equivalent programs: where they are equal, and what corrects them."""
