"""Axioms of operators, and what loads them."""
