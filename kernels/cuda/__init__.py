"""CUDA's driver, launches and program images as data; no torch, no Triton."""
