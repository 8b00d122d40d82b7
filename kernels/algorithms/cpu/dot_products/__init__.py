"""Products of bfloat16 with float32 sums, and of 8-bit integers with int32 sums, on the CPU."""
