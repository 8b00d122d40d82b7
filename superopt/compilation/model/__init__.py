"""Compiled models on any device: the compiler, the executable, its steps, and the device protocol."""
