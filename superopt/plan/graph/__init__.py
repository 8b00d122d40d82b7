"""Rewrites of the graph before lowering: simplification, loops, recurrent layers, partition."""
