"""Drawings of rules and graphs."""
