"""Emulators of other systems, and models for them."""
