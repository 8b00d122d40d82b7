"""Cost-guided backtracking search over graphs."""
