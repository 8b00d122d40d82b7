"""The compiler and the executable of an NVIDIA GPU."""
