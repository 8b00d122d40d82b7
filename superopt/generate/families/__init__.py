"""Families of operators from which rules are generated."""
