"""LLVM IR of kernels for CPUs."""
