"""The library: rules as text, their proofs, float classes, and what loads them."""
