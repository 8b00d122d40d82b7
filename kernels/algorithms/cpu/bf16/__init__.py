"""Products of bfloat16 with float32 sums on the CPU."""
