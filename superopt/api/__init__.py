"""The public functions, and the files that they read and write."""
