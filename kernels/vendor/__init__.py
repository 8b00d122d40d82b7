"""Calls of cuBLAS, cuDNN and fused attention."""
