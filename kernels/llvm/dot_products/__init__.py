"""Products of groups of terms, of bfloat16 or 8-bit integers: AMX tiles, and vectors."""
