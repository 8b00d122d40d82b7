"""A program: kernels, buffers, constants, streams; and its execution."""
