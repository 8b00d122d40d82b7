"""Graph nodes to tensor expressions, and where each comes from."""
