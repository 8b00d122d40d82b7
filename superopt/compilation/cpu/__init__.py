"""The compiler and the executable of a CPU."""
