"""Operators of images and signals."""
