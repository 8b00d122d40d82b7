"""Latency of programs on a CPU and a GPU."""
