"""Compile a graph to kernels: fusion, memory layouts, buffer assignment, execution order."""
