"""Rules found by enumeration: what operator graphs compute, compared over a prime field."""
