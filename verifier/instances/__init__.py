"""Instances of a rule with symbolic sizes."""
