"""Phrases, tables and wrapping that reports share."""
