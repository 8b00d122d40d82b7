"""`compile`: from a model to an executable, on a CPU or a GPU."""
