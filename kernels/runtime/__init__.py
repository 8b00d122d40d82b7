"""Machine code in this process: compilation, caches, threads, devices, program images."""
