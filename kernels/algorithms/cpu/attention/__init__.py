"""Attention on a CPU: with complete rows of scores, and streaming over blocks of keys."""
