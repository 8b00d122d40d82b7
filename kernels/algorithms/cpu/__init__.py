"""The algorithms of a CPU: LLVM kernels, scheduled by vectors and register tiles."""
