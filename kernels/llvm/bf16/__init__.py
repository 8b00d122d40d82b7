"""Products of bfloat16 with float32 sums: AMX tiles, and AVX512-BF16 vectors."""
