"""Compiled programs and constants on disk."""
