"""Rule generation: enumerate operator graphs, compare them over a prime field, derive rules."""
