"""Enumeration of programs, and equations between them."""
