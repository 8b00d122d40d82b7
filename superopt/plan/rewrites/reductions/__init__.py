"""Reductions: rows kept in one kernel, splits, group norms, strided softmax."""
