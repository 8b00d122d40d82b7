"""A graph as kernels: what is computed together, where it lies, and in which order it runs."""
