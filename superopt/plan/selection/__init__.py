"""The kernels of a plan: the problems of its definitions, and how each is solved."""
