"""Matching of rules in graphs, and the rewrites that matches make."""
