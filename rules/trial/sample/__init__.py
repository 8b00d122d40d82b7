"""Instances of a rule drawn at random."""
