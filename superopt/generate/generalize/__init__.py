"""Equations at fixed sizes generalized to rules for all sizes."""
