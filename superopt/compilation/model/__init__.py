"""Compiled models on any device: compiler, executable, steps, and the device protocol."""
